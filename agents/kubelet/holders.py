"""Derive which pod holds which chips, from grants, kubelet's records and the pods. Pure.

Kubelet is the authority on ids, the ledger on the content of answers, the pod list on liveness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from belay.agents.kubelet import names
from belay.agents.kubelet.device_holdings import Holding
from belay.agents.kubelet.inventory import Offer
from belay.agents.kubelet.ledger import Grant
from belay.agents.kubelet.pods import PodFacts
from belay.engine.model.labels import ASCEND_REAL, KUBELET_DEVICES


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
    matches = _match(grants, holdings or ())
    renewed = {
        number: _renew(match, pods, kubelet_was_read=holdings is not None, expired=expired)
        for number, match in matches.by_number.items()
    }
    _keep_lost_answers(grants, renewed, pods)

    before = {grant.number: grant for grant in grants}
    kept = [grant for _, grant in sorted(renewed.items()) if grant is not None]
    return GrantChanges(
        put=[grant for grant in kept if grant != before[grant.number]],
        drop=sorted(number for number, grant in renewed.items() if grant is None),
        strangers=matches.strangers,
    )


class _Match(NamedTuple):
    """A grant, the holding that it explains, and whether kubelet lists any of its ids as held, if by another pod."""

    grant: Grant
    holding: Holding | None
    listed: bool


class _Matches(NamedTuple):
    by_number: dict[int, _Match]
    strangers: list[Holding]


def _match(grants: Sequence[Grant], holdings: Sequence[Holding]) -> _Matches:
    """Find the holding that each grant explains. A lost grant explains none."""
    holding_of = {(holding.resource, name): holding for holding in holdings for name in holding.ids}
    claimed: set[tuple[str, str]] = set()
    explained: set[tuple[str, str, str]] = set()
    by_number = {}

    # kubelet uses the newest answer for an id
    for grant in sorted(grants, key=lambda grant: -grant.number):
        if grant.lost:
            continue
        ids = [(grant.resource, name) for name in grant.ids]
        listed = next((holding_of[key] for key in ids if key in holding_of and key not in claimed), None)
        holding = listed if listed is not None and _may_explain(grant, listed) else None
        if holding is not None:
            claimed.update(ids)
            explained.add(_place(holding))
        by_number[grant.number] = _Match(grant, holding, listed=listed is not None)

    strangers = []
    for holding in holdings:
        has_claimed_ids = any((holding.resource, name) in claimed for name in holding.ids)
        if _place(holding) not in explained and not has_claimed_ids:
            strangers.append(holding)
    return _Matches(by_number, strangers)


def _may_explain(grant: Grant, holding: Holding) -> bool:
    """Whether a holding can come from a grant: one that kubelet has confirmed stays with its pod."""
    return not grant.confirmed or not holding.uid or holding.uid == grant.uid


def _renew(
    match: _Match, pods: Mapping[str, PodFacts] | None, *, kubelet_was_read: bool, expired: Callable[[Grant], bool]
) -> Grant | None:
    """The grant by what kubelet and the pods say now; None when it is to be dropped."""
    grant, holding, listed = match
    if not grant.confirmed and holding is None:
        # kubelet may still be about to record it
        never_used = kubelet_was_read and pods is not None and expired(grant)
        return None if never_used else grant

    if not grant.confirmed and holding is not None:
        grant = _confirmed(grant, holding)
    elif holding is None and kubelet_was_read:
        # kubelet has released the ids; the chips are the pod's until it is gone
        grant = msgspec.structs.replace(grant, ids=())

    unused = pods is not None and _gone(grant, pods, listed=listed)
    return None if unused else grant


def _place(holding: Holding) -> tuple[str, str, str]:
    return f"{holding.namespace}/{holding.name}", holding.container, holding.resource


def _keep_lost_answers(
    grants: Sequence[Grant], renewed: dict[int, Grant | None], pods: Mapping[str, PodFacts] | None
) -> None:
    """Keep the chips of a lost answer for the pod that still waits for them.

    The pod's ``predicate-time`` says that it was served; only the ledger knows that it was not.
    """
    if pods is None:
        return
    kept = [grant for grant in renewed.values() if grant is not None]
    served = {grant.meant for grant in kept} | {grant.uid for grant in kept}

    for grant in grants:
        if renewed.get(grant.number) is not None:
            continue
        if grant.meant in served or not _waits(grant, pods):
            renewed[grant.number] = None
            continue
        if not grant.lost:
            renewed[grant.number] = grant.as_lost()
        served.add(grant.meant)


def _waits(grant: Grant, pods: Mapping[str, PodFacts]) -> bool:
    """Whether the pod that the grant was meant for is there and has not started."""
    pod = pods.get(grant.meant) if grant.meant else None
    return pod is not None and pod.live and not pod.running and bool(grant.predicate)


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
    real = _real_devices(holding, pod, offer, volcano=volcano, vnpu_name=vnpu_name)
    if not real:
        return None
    try:
        chips = Counter(chip_of(name) for name in real)
    except ValueError:
        return None

    is_part = offer.kind in ("core", "static")
    counts_parts = offer.kind in ("core", "soft", "share")
    parts_of_each = len(holding.ids) // max(1, len(chips)) if counts_parts else 0
    return Grant(
        number=number,
        resource=holding.resource,
        ids=holding.ids,
        real=tuple(sorted(real, key=names.order)),
        chips=tuple(sorted((chip, parts_of_each or count) for chip, count in chips.items())),
        visible=holding.visible,
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        container=holding.container,
        vdev=(names.parse(real[0]).vdev or 0) if is_part else 0,
        confirmed=True,
    )


def _real_devices(
    holding: Holding, pod: PodFacts, offer: Offer, *, volcano: bool, vnpu_name: Callable[[int], str]
) -> list[str]:
    """The real devices behind a holding; empty when nothing names them."""
    if offer.kind == "static":
        return list(holding.ids)
    if offer.kind == "whole" and (holding.visible or holding.nodes):
        numbers = [int(text) for text in holding.visible] or list(holding.nodes)
        prefix = next(iter(offer.own), "").rsplit("-", 1)[0]
        return [f"{prefix}-{number}" for number in numbers]
    if offer.kind == "core" and len(holding.visible) == 1 and (name := vnpu_name(int(holding.visible[0]))):
        return [name]

    if pod.served and set(holding.ids) <= set(pod.annotations[KUBELET_DEVICES].split(",")):
        return [part for part in pod.annotations[ASCEND_REAL].split(",") if part]
    # without a scheduler that chooses chips, kubelet's ids are the devices
    return list(holding.ids) if offer.kind == "whole" and not volcano else []


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
