"""Which devices claims hold, and pods with claims as the other passes see them: as pods that ask for chips.

A pod whose claims ask for whole chips gets their number and resource, so that queues, gangs, topology families,
faults and recovery treat it as any pod with chips. A claim that is allocated holds its chips whether a pod uses
it or not. Those of an allocated claim that waits for its pod stand in the ledger's place, so that the pod is
bound to exactly these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice, product
from typing import Any, Final

import msgspec

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.quantities import whole_number
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.plan.claims.alternatives import NodeOffer, first_available
from belay.engine.plan.claims.cel import Expression
from belay.engine.plan.claims.devices import Amounts, ClaimDevice, Counter, devices, newest
from belay.engine.plan.claims.extended import WantedClaim, awaiting, wanted_claims
from belay.engine.plan.claims.matching import Ask, Given, match
from belay.engine.plan.claims.requests import ALL, ClaimRequests, Request, RequestError, namespace_of, read
from belay.engine.wire.dra import DRIVER

#: Names of the devices that suit a request, by request and node, while the node's devices stay what they are.
_SUITING: Final = CacheKey("devices that suit requests", Memo[frozenset[str]], limit=65536)
#: Most users of one claim (resource.k8s.io/v1, ResourceClaimReservedForMaxSize).
MAX_USERS: Final = 256
#: Most combinations of alternatives (``firstAvailable``) that are tried; a request may have eight.
MAX_COMBINATIONS: Final = 64


class OpenClaim(msgspec.Struct, frozen=True):
    """A claim that waits for devices: its key, its object and what it asks for."""

    key: ObjectKey
    raw: Mapping[str, Any]
    asks: ClaimRequests


class AllocatedClaim(msgspec.Struct, frozen=True):
    """A claim with devices of the driver: its key and object, its node, names and chips, the UIDs of its users.

    ``sole``: all of its devices are the driver's, so that it may be taken back as a whole.
    """

    key: ObjectKey
    raw: Mapping[str, Any]
    node: str
    names: frozenset[str]
    chips: frozenset[int]
    whole: frozenset[int]
    users: frozenset[str]
    sole: bool


@dataclass(slots=True)
class DeviceClaims:
    """The claims of one snapshot.

    ``by_node`` are devices; ``held`` names of devices that claims have, by node; ``chips`` masks of the chips behind
    them. ``counters`` are amounts that devices of a node share, ``consumed`` what the devices of claims take of them,
    ``cut`` masks of the chips of which claims hold such parts. ``problems`` says why a claim that waits cannot be
    served. ``owned`` are the open claims that a pod gets devices for (the first of those that share one), ``asks``
    their requests with the chosen alternatives, numbered as these. ``wanted`` are claims that are to be made for
    extended resources of waiting pods.
    """

    by_node: Mapping[str, tuple[ClaimDevice, ...]] = field(default_factory=dict)
    memo: Memo[frozenset[str]] = field(default_factory=lambda: Memo(0))
    open: dict[ObjectKey, OpenClaim] = field(default_factory=dict)
    allocated: dict[ObjectKey, AllocatedClaim] = field(default_factory=dict)
    problems: dict[ObjectKey, str] = field(default_factory=dict)
    held: dict[str, set[str]] = field(default_factory=dict)
    chips: dict[str, int] = field(default_factory=dict)
    counters: Mapping[str, Amounts] = field(default_factory=dict)
    consumed: dict[str, dict[Counter, Fraction]] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    asks: dict[str, tuple[Ask, ...]] = field(default_factory=dict)
    owned: dict[str, tuple[OpenClaim, ...]] = field(default_factory=dict)
    wanted: Mapping[str, WantedClaim] = field(default_factory=dict)
    _names: dict[tuple[str, str], ObjectKey] = field(default_factory=dict)
    _suiting: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    _sizes: dict[tuple[tuple[str, int], ...], tuple[str, int]] = field(default_factory=dict)
    _alternatives: dict[bytes, int] = field(default_factory=dict)
    _used: dict[str, set[str]] | None = None

    def of(self, pod: Pod) -> tuple[ObjectKey, ...]:
        """The keys of the pod's claims that are there, in the pod's order."""
        found = (self._names.get((pod.namespace, claim)) for _, claim in pod.resource_claims)
        return tuple(dict.fromkeys(key for key in found if key is not None))

    def open_of(self, pod: Pod) -> tuple[OpenClaim, ...]:
        """The pod's claims that wait for devices of the driver."""
        return tuple(self.open[key] for key in self.of(pod) if key in self.open) if pod.resource_claims else ()

    def unreserved_of(self, pod: Pod) -> tuple[AllocatedClaim, ...]:
        """The pod's claims that have devices of the driver, and do not name the pod as a user yet."""
        found = (self.allocated[key] for key in self.of(pod) if key in self.allocated)
        return tuple(claim for claim in found if pod.uid not in claim.users) if pod.resource_claims else ()

    def taken(self, node: str) -> Collection[str]:
        """Names of devices of a node that are not free for claims that wait."""
        return self.held.get(node, ())

    def signature(self, pod: Pod) -> object:
        """What the pod's claims ask of a node, as a key: equal for claims of one template."""
        if not pod.resource_claims:
            return None
        specs = tuple(nested_map(claim.raw, "spec", "devices") for claim in self.open_of(pod))
        fixed = sorted((c.node, sorted(c.whole)) for key in self.of(pod) if (c := self.allocated.get(key)) is not None)
        alternatives = [ask.request.name for ask in self.asks.get(pod.key, ())]
        return specs, fixed, alternatives

    def claims_chips(self, pod: Pod) -> bool:
        """Whether the pod's chips come from claims."""
        return bool(pod.resource_claims) and (
            pod.key in self.asks or any(key in self.allocated for key in self.of(pod))
        )

    def node_of(self, pod: Pod) -> str:
        """The node of the devices of the pod's claims; empty while a claim of it waits, or without devices."""
        keys = self.of(pod)
        nodes = {self.allocated[key].node for key in keys if key in self.allocated}
        return nodes.pop() if len(nodes) == 1 and not any(key in self.open for key in keys) else ""

    def held_by(self, pod: Pod) -> frozenset[int]:
        """The whole chips of the pod's allocated claims."""
        found = (self.allocated.get(key) for key in self.of(pod))
        return frozenset(chip for claim in found if claim is not None for chip in claim.whole)

    def suiting(self, request: Request, node: str) -> frozenset[str]:
        """Names of the devices of a node that suit a request."""
        found = self._suiting.get((request.key, node))
        if found is None:
            offered = self.by_node.get(node, ())
            key = request.key, node
            found = self._suiting[key] = self.memo.of(
                key, offered, lambda: frozenset(one.name for one in offered if request.takes(one))
            )
        return found

    def given(
        self,
        pod: Pod,
        node: str,
        taken: Collection[str],
        within: Collection[int] | None,
        spent: Amounts | None = None,
    ) -> list[Given] | None:
        """Devices of a node for the pod's open claims; None when they do not fit.

        ``spent``: what devices chosen in this pass take of shared counters.
        """
        asks, offered = self.asks.get(pod.key, ()), self.by_node.get(node, ())
        left = self._left(node, spent or {})
        return match(asks, offered, lambda request: self.suiting(request, node), taken, within, left)

    def closed_parts(self, node: str, free: int, used_by: Collection[int], cut: int = 0) -> set[str]:
        """Names of parts that share a chip by counters and cannot be given, since their chip is neither free nor cut
        for claims already.

        ``free`` and ``cut`` are masks of chips, ``used_by`` the chips that pods use as a whole.
        """
        if node not in self.counters:
            return set()
        cut |= self.cut.get(node, 0)
        return {
            one.name
            for one in self.by_node.get(node, ())
            if one.part
            and one.consumes
            and one.chip is not None
            and not free >> one.chip & 1
            and (not cut >> one.chip & 1 or one.chip in used_by)
        }

    def _left(self, node: str, spent: Amounts) -> Amounts:
        total, consumed = self.counters.get(node), self.consumed.get(node, {})
        if not total:
            return {}
        return {counter: amount - consumed.get(counter, 0) - spent.get(counter, 0) for counter, amount in total.items()}


def resolve(observed: Observed, cache: PlanCache) -> tuple[Observed, DeviceClaims]:
    """The snapshot with the pods as their claims make them, and its claims."""
    wanted = wanted_claims(observed)
    if wanted:
        waiting = {key: awaiting(observed.pods[key], claim) for key, claim in wanted.items()}
        merged = {key: waiting.get(key, pod) for key, pod in observed.pods.items()}
        observed = msgspec.structs.replace(observed, pods=merged)
    if not any(key.kind == "ResourceClaim" for key in observed.objects):
        return observed, DeviceClaims(wanted=wanted)
    offer = devices(observed.objects, cache)
    found = DeviceClaims(offer.devices, cache[_SUITING], counters=offer.counters, wanted=wanted)
    parsed: dict[str, Expression] = {}
    classes = {key.name: raw for key, raw in newest(observed.objects, "DeviceClass").items()}
    for key, raw in newest(observed.objects, "ResourceClaim").items():
        found._names[key.namespace, key.name] = key
        allocation = nested_map(raw, "status", "allocation")
        if allocation:
            _add_allocated(found, key, raw, allocation)
            continue
        try:
            if nested_map(raw, "metadata").get("deletionTimestamp"):
                raise RequestError("it is being deleted")
            asks = read(raw, classes, namespace_of(observed.objects, key.namespace), parsed)
            _check(asks, found)
            found.open[key] = OpenClaim(key, raw, asks)
        except RequestError as error:
            found.problems[key] = str(error)
    return _with_chips(found, observed), found


def _add_allocated(found: DeviceClaims, key: ObjectKey, raw: Mapping[str, Any], allocation: Mapping[str, Any]) -> None:
    results = nested_list(allocation, "devices", "results")
    own = [row for row in results if row.get("driver") == DRIVER]
    users = frozenset(str(row.get("uid")) for row in nested_list(raw, "status", "reservedFor"))
    if not own:
        return
    # the driver's pools are named after their nodes
    node = str(own[0].get("pool"))
    known = {device.name: device for device in found.by_node.get(node, ())}
    used = [str(row.get("device")) for row in own if row.get("adminAccess") is not True]
    there = [known[name] for name in used if name in known]
    lost = [chip for name in used if name not in known and (chip := _chip_in(name)) is not None]
    chips = frozenset([*(device.chip for device in there if device.chip is not None), *lost])
    whole = frozenset([*(d.chip for d in there if d.chip is not None and not d.part), *lost])
    found.allocated[key] = AllocatedClaim(
        key, raw, node, frozenset(used), chips, whole, users, len(own) == len(results)
    )  # fmt: skip
    held = found.held.setdefault(node, set())
    held.update(used)
    # a chip that is given as a whole has no parts to give, and the other way round
    held.update(one.name for one in known.values() if one.chip in whole or (one.chip in chips and not one.part))
    for chip in chips:
        found.chips[node] = found.chips.get(node, 0) | 1 << chip
    consumed = found.consumed.setdefault(node, {})
    for device in there:
        for counter, amount in device.consumes:
            consumed[counter] = consumed.get(counter, Fraction(0)) + amount
        if device.part and device.consumes and device.chip is not None:
            found.cut[node] = found.cut.get(node, 0) | 1 << device.chip


def _chip_in(name: str) -> int | None:
    """The chip of a device that its node no longer publishes, by the driver's names: ``ascend910-3``, ``npu-3``."""
    return whole_number(name.rpartition("-")[2], digits=3) if "-vnpu-" not in name else None


def _check(asks: ClaimRequests, found: DeviceClaims) -> None:
    """Raise RequestError for a request that no device of any node suits."""
    for forms in asks.requests:
        if not any(found.suiting(form, node) for form in forms for node in found.by_node):
            raise RequestError(f"no device of driver {DRIVER} suits request {forms[0].name}")


def _with_chips(found: DeviceClaims, observed: Observed) -> Observed:
    """The snapshot with pods whose claims stand for chips; its ledger holds those of pods that wait to be bound."""
    pods: dict[str, Pod] = {}
    ledger = dict(observed.ledger)
    owners: dict[ObjectKey, str] = {}
    named = [key for key in sorted(observed.pods) if observed.pods[key].resource_claims]
    # a running pod owns the chips of a claim that it shares, before one that waits
    for name in sorted(named, key=lambda key: (not observed.pods[key].node, key)):
        pod = observed.pods[name]
        if pod.finished or pod.count:
            continue
        keys = [key for key in found.of(pod) if owners.setdefault(key, name) == name]
        fixed = [found.allocated[key] for key in keys if key in found.allocated]
        node = next((claim.node for claim in fixed), "")
        chips = sorted(chip for claim in fixed if claim.node == node for chip in claim.whole)
        waiting = tuple(found.open[key] for key in keys if key in found.open)
        asks, resource, more = _choose(found, observed, pod, waiting, node) if waiting and not pod.node else ((), "", 0)
        if asks:
            found.asks[name], found.owned[name] = asks, waiting
        report = observed.reports.get(node)
        if chips and report is not None:
            resource = report.resource
        if not resource or not (chips or more):
            continue
        prefix = report.prefix if report is not None else "Ascend910-"
        names = tuple(f"{prefix}{chip}" for chip in chips)
        pods[name] = msgspec.structs.replace(
            pod, resource=resource, count=len(chips) + more, chips=names if pod.node else pod.chips
        )
        if not pod.node:
            ledger.update({f"{node}/{device}": pod.uid for device in names})
    if not pods:
        return observed
    # the order of pods is that of the snapshot
    merged = {key: pods.get(key, pod) for key, pod in observed.pods.items()}
    return msgspec.structs.replace(observed, pods=merged, ledger=ledger)


def _choose(
    found: DeviceClaims, observed: Observed, pod: Pod, waiting: Sequence[OpenClaim], node: str
) -> tuple[tuple[Ask, ...], str, int]:
    """The alternatives to ask for, the resource of their chips and how many whole chips they are.

    Of ``firstAvailable`` the first alternatives, in the order of the claims, for which some node that the pod may use
    has free devices for all requests together; where none has, the first ones.
    """
    nodes = [node] if node else sorted(found.by_node)
    asks = next(_combinations(waiting))
    if any(len(forms) > 1 for claim in waiting for forms in claim.asks.requests):
        shape = tuple((claim.asks.requests, claim.asks.constraints) for claim in waiting)
        key = msgspec.json.encode(
            ([[[[f.key, f.count, f.admin] for f in forms] for forms in requests] for requests, _ in shape],
             [[[c.attribute, sorted(c.requests), c.distinct] for c in constraints] for _, constraints in shape],
             sorted(pod.node_selector.items()), node)
        )  # fmt: skip
        number = found._alternatives.get(key)
        if number is None:
            number = found._alternatives[key] = _first_available(found, observed, pod, waiting, nodes)
        asks = next(islice(_combinations(waiting), number, None))
    chosen = tuple(ask.request for ask in asks if not ask.request.admin)
    sizes = (*((request.key, request.count) for request in chosen), (node, 0))
    known = found._sizes.get(sizes)
    if known is None:
        known = found._sizes[sizes] = _size(found, observed, chosen, nodes)
    return asks, *known


def _combinations(waiting: Sequence[OpenClaim]) -> Iterator[tuple[Ask, ...]]:
    """Every choice of alternatives, preferred ones first: as Kubernetes' allocator goes through them."""
    rows = [(number, forms, claim) for number, claim in enumerate(waiting) for forms in claim.asks.requests]
    for choice in product(*(forms for _, forms, _ in rows)):
        yield tuple(
            Ask(number, form, claim.asks.constraints) for form, (number, _, claim) in zip(choice, rows, strict=True)
        )


def _first_available(
    found: DeviceClaims, observed: Observed, pod: Pod, waiting: Sequence[OpenClaim], nodes: Sequence[str]
) -> int:
    """The number of the first combination that a node has free devices for; 0 where none has."""
    if found._used is None:
        found._used = _used(observed)
    usable = []
    for name in nodes:
        node = observed.nodes.get(name)
        if node is None or not node.ready or node.unschedulable:
            continue
        if all(node.labels.get(key) == value for key, value in pod.node_selector.items()):
            taken = frozenset((*found.taken(name), *found._used.get(name, ())))
            usable.append(NodeOffer(name, found.by_node.get(name, ()), taken, found._left(name, {})))
    combinations = list(islice(_combinations(waiting), MAX_COMBINATIONS))
    return first_available(combinations, usable, found.suiting)


def _size(found: DeviceClaims, observed: Observed, chosen: Sequence[Request], nodes: Sequence[str]) -> tuple[str, int]:
    """The resource of most nodes that have the devices at all, and how many whole chips these are."""
    counts: dict[str, int] = {}
    most = 0
    for name in nodes:
        report = observed.reports.get(name)
        sizes = [_whole(found, request, name) for request in chosen]
        if report is None or any(size is None for size in sizes):
            continue
        counts[report.resource] = counts.get(report.resource, 0) + 1
        most = max(most, sum(size or 0 for size in sizes))
    resource = min(counts, key=lambda name: (-counts[name], name), default="")
    return resource if most else "", most


def _used(observed: Observed) -> dict[str, set[str]]:
    """The device names that running pods hold, by node, in lower case."""
    out: dict[str, set[str]] = {}
    for pod in observed.pods.values():
        if pod.holds_chips and pod.chips:
            out.setdefault(pod.node, set()).update(name.lower() for name in pod.chips)
    return out


def _whole(found: DeviceClaims, request: Request, node: str) -> int | None:
    """How many whole chips a request takes of a node; None when the node has no device that suits."""
    names = found.suiting(request, node)
    count = len(names) if request.count == ALL else request.count
    if not names or len(names) < count:
        return None
    return 0 if all(one.part for one in found.by_node[node] if one.name in names) else count


__all__ = ["MAX_USERS", "AllocatedClaim", "DeviceClaims", "OpenClaim", "resolve"]
