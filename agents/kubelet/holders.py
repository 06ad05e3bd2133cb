"""Derive which pod holds which chips, from grants, kubelet's records and the pods. Pure.

Kubelet is the authority on ids, the ledger on the content of answers, the pod list on liveness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from agents.kubelet import names
from agents.kubelet.device_holdings import Holding
from agents.kubelet.inventory import Offer
from agents.kubelet.ledger import Grant
from agents.kubelet.pods import PodFacts
from engine.model.labels import ASCEND_REAL, KUBELET_DEVICES


class GrantChanges(NamedTuple):
    """Grants to rewrite, numbers of grants to drop, and holdings that no grant explains."""

    put: list[Grant]
    drop: list[int]
    strangers: list[Holding]


def reconcile_grants(
    grants: Sequence[Grant],
    holdings: Sequence[Holding] | None,
    pods: Mapping[str, PodFacts] | None,
    expired: Callable[[Grant], bool],
) -> GrantChanges:
    """Compare grants with ``holdings`` (None: kubelet cannot be read) and ``pods`` by UID (None: not known yet).

    ``expired`` returns whether kubelet has had enough time to record a grant. A source that is None drops no grant.
    """
    fresh: dict[int, Grant | None] = {}
    by_id = {(h.resource, name): h for h in holdings or () for name in h.ids}
    claimed: set[tuple[str, str]] = set()
    explained: set[tuple[str, str, str]] = set()
    # kubelet uses the newest answer for an id
    for grant in sorted(grants, key=lambda g: -g.number):
        if grant.lost:
            continue
        keys = [(grant.resource, name) for name in grant.ids]
        holding = next((by_id[key] for key in keys if key in by_id and key not in claimed), None)
        found = grant
        if holding is not None and (not grant.confirmed or not holding.uid or holding.uid == grant.uid):
            claimed.update(keys)
            explained.add(_place(holding))
            if not grant.confirmed:
                found = _confirmed(grant, holding)
        elif holdings is not None and not grant.confirmed:
            if pods is not None and expired(grant):
                fresh[grant.number] = None
                continue
        elif holdings is not None and grant.ids:
            found = msgspec.structs.replace(grant, ids=())
        gone = found.confirmed and pods is not None and _gone(found, pods, listed=holding is not None)
        fresh[grant.number] = None if gone else found
    _remember(grants, fresh, pods)
    before = {grant.number: grant for grant in grants}
    return GrantChanges(
        put=[grant for number, grant in sorted(fresh.items()) if grant is not None and grant != before[number]],
        drop=sorted(number for number, grant in fresh.items() if grant is None),
        strangers=[
            h
            for h in holdings or ()
            if _place(h) not in explained and not any((h.resource, name) in claimed for name in h.ids)
        ],
    )


def _place(holding: Holding) -> tuple[str, str, str]:
    return f"{holding.namespace}/{holding.name}", holding.container, holding.resource


def _remember(grants: Sequence[Grant], fresh: dict[int, Grant | None], pods: Mapping[str, PodFacts] | None) -> None:
    """Keep the chips of a lost answer for the pod that still waits for them.

    The pod's ``predicate-time`` says that it was served; only the ledger knows that it was not.
    """
    given = {g.meant for g in fresh.values() if g is not None} | {g.uid for g in fresh.values() if g is not None}
    for grant in grants:
        if fresh.get(grant.number) is not None or pods is None:
            continue
        pod = pods.get(grant.meant) if grant.meant else None
        waits = pod is not None and pod.live and not pod.running and grant.meant not in given and grant.predicate
        if not waits:
            fresh[grant.number] = None
        elif not grant.lost:
            fresh[grant.number] = msgspec.structs.replace(
                grant, ids=(), real=(), visible=(), chips=(), vdev=0, uid="", confirmed=False, lost=True
            )
        if waits:
            given.add(grant.meant)


def _confirmed(grant: Grant, holding: Holding) -> Grant:
    return msgspec.structs.replace(
        grant,
        confirmed=True,
        uid=holding.uid or grant.uid,
        namespace=holding.namespace,
        name=holding.name,
        container=holding.container,
    )


def _gone(grant: Grant, pods: Mapping[str, PodFacts], *, listed: bool) -> bool:
    """Return whether a grant is unused: its pod has finished, or neither API server nor kubelet knows the pod."""
    pod = pods.get(grant.uid)
    return not pod.live if pod is not None else not listed


def adopt(
    holding: Holding,
    pod: PodFacts,
    offer: Offer,
    number: int,
    *,
    volcano: bool,
    chip_of: Callable[[str], int],
    vnpu_name: Callable[[int], str],
) -> Grant | None:
    """Derive the grant of a holding that is not in the ledger; None when its chips cannot be derived.

    The answer in kubelet's checkpoint comes first, then the annotations of a device plugin, then the ids themselves
    where they name real devices. ``vnpu_name`` names a vNPU of the node by its id, empty for none.
    """
    real: list[str] = []
    if offer.kind == "static":
        real = list(holding.ids)
    elif offer.kind == "whole" and (holding.visible or holding.nodes):
        numbers = [int(text) for text in holding.visible] or list(holding.nodes)
        prefix = next(iter(offer.own), "").rsplit("-", 1)[0]
        real = [f"{prefix}-{n}" for n in numbers]
    elif offer.kind == "core" and len(holding.visible) == 1 and vnpu_name(int(holding.visible[0])):
        real = [vnpu_name(int(holding.visible[0]))]
    elif pod.served and set(holding.ids) <= set(pod.annotations[KUBELET_DEVICES].split(",")):
        real = [part for part in pod.annotations[ASCEND_REAL].split(",") if part]
    elif offer.kind == "whole" and not volcano:
        real = list(holding.ids)
    if not real:
        return None
    try:
        chips = Counter(chip_of(name) for name in real)
    except ValueError:
        return None
    vdev = names.parse(real[0]).vdev or 0 if offer.kind in ("core", "static") else 0
    each = len(holding.ids) // max(1, len(chips)) if offer.kind in ("core", "soft", "share") else 0
    return Grant(
        number=number,
        resource=holding.resource,
        ids=holding.ids,
        real=tuple(sorted(real, key=names.order)),
        chips=tuple(sorted((chip, each or count) for chip, count in chips.items())),
        visible=holding.visible,
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        container=holding.container,
        vdev=vdev,
        confirmed=True,
    )


def held(grants: Iterable[Grant], offer: Offer) -> tuple[dict[str, int], dict[int, int]]:
    """Return for one resource: id → chip of its holder, and chip → parts of holders whose ids kubelet freed."""
    ids: dict[str, int] = {}
    taken: Counter[int] = Counter()
    for grant in grants:
        if grant.resource != offer.resource or grant.lost:
            continue
        left = Counter(dict(grant.chips))
        if not grant.ids:
            taken.update(left)
            continue
        waiting = []
        for name in grant.ids:
            chip = offer.own.get(name)
            if chip is not None and left[chip] > 0:
                left[chip] -= 1
                ids[name] = chip
            elif chip is not None:
                waiting.append(name)
        rest = iter(sorted(left.elements()))
        for name in waiting:
            ids[name] = next(rest, offer.own[name])
    return ids, dict(taken)


def users(
    grants: Iterable[Grant], pods: Iterable[PodFacts], chip_of: Callable[[str], int]
) -> dict[int, list[tuple[str, str, int]]]:
    """Return chip → (UID, name, parts of the chip) of each pod that holds it, by grants and, for live pods without
    one, by the annotations of device plugins."""
    out: dict[int, list[tuple[str, str, int]]] = {}
    known = set()
    for grant in grants:
        if grant.lost:
            continue
        known.add(grant.uid)
        for chip, parts in grant.chips:
            out.setdefault(chip, []).append((grant.uid, grant.key, parts))
    for pod in pods:
        if not pod.live or not pod.served or pod.uid in known:
            continue
        for name in pod.annotations[ASCEND_REAL].split(","):
            try:
                out.setdefault(chip_of(name.strip()), []).append((pod.uid, pod.key, 1))
            except ValueError:
                continue
    return out
