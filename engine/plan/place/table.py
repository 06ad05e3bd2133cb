"""Candidates of one kind of pod: every node judged once, then only the nodes that a placement touched.

Pods that ask alike (chips, handler, selectors, resources) share a table, within a gang and across gangs; a heap gives
the best node, so that a gang of thousands does not look at every node for every pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from engine.model.cluster import Pod
from engine.plan.place import fit
from engine.plan.place.base import NODE_INVALID, Base
from engine.plan.place.job import Job
from engine.plan.place.multilevel import Level, missing_label
from engine.plan.place.shelves import Shelves
from engine.plan.place.verdict import (
    NODE_UNSTABLE,
    SHORTAGE,
    SHORTAGE_PREFIX,
    Ask,
    Family,
    Refusal,
    Seat,
    Verdict,
    listed,
)
from engine.plan.scope import NodeView

MISSING: Final = "NPUResourceMissing"
SHARES_ONLY: Final = "SoftShareOnly"
#: Says that chips of the node are shared softly; each is then offered as a hundred devices.
SHARE_LABEL: Final = "huawei.com/scheduler.chip1softsharedev.enable"
CARD_LABEL: Final = "infer-card-type"

_Seat = tuple[int, int, int, str, int]
"""The fields of a Seat; thousands are compared for one that is judged."""


class Table:
    """``scores`` are the raw scores of the nodes that fit now, ``refusals`` say why the others do not.

    ``revision`` grows whenever a node's answer changes.
    """

    def __init__(
        self,
        job: Job,
        sample: Pod,
        views: Mapping[str, NodeView],
        trees: Mapping[str, tuple[Level, ...]],
        penalty: Mapping[str, int],
        refused: Mapping[str, str],
        grounds: fit.Grounds,
    ) -> None:
        """``penalty`` lowers the rank of nodes for this gang; ``refused`` keeps nodes from it, with the reason."""
        self.scores: dict[str, int] = {}
        self.refusals: dict[str, Refusal] = {}
        self.revision = 0
        self._job, self._sample, self._views, self._trees = job, sample, views, trees
        self._penalty, self._refused = penalty, refused
        self._ask = Ask(sample.count, job.distributed, job.shape.labels.get("distributed") == "true")
        self._strict = job.strict
        self._seen = 0
        self._memo: dict[_Seat, Verdict] = {}
        self._picks: dict[_Seat, int] = {}
        self._shelves: dict[bool, Shelves] = {}
        self._needs = tuple((name, most) for name, most in sample.requests.items() if most and name != sample.resource)
        self._liked = grounds.liked
        self._fixed = self._settle(grounds.refusals)
        for name, view in views.items():
            refusal = self._fixed.get(name)
            found: Verdict = self._changing(view) if refusal is None else refusal
            if isinstance(found, Refusal):
                self.refusals[name] = found
            else:
                self.scores[name] = found
        self._heap = [self._entry(name, score) for name, score in self.scores.items()]
        heapify(self._heap)

    def refresh(self, log: list[str]) -> None:
        """Judges again the nodes that were touched since the last look; ``log`` only grows within a pass."""
        if self._seen == len(log):
            return
        for name in dict.fromkeys(log[self._seen :]):
            if name not in self._fixed:
                self._judge(name)
                self.offer(name)
                for shelves in self._shelves.values():
                    shelves.renew(name, name in self.scores)
        self._seen = len(log)

    def offer(self, name: str) -> None:
        """Puts a node back among the candidates, if it fits."""
        if name in self.scores:
            heappush(self._heap, self._entry(name, self.scores[name]))

    def shelves(self, *, by_idle: bool) -> Shelves:
        """The fitting nodes by super pod, for gangs whose nodes are chosen together; ``by_idle``: see there."""
        found = self._shelves.get(by_idle)
        if found is None:
            found = self._shelves[by_idle] = Shelves(self._views, self._penalty, self.scores, by_idle=by_idle)
        return found

    def best_first(self) -> Iterator[str]:
        """Fitting nodes, best rank first: score less penalty, then liking, then fewer chips that fail again and again,
        then name. Each is taken off; see ``offer``.
        """
        while (name := self.best()) is not None:
            rank = heappop(self._heap)[0]
            while self._heap and self._heap[0][3] == name and self._heap[0][0] == rank:
                heappop(self._heap)  # the same entry, offered twice
            yield name

    def best(self) -> str | None:
        """The first of ``best_first``, left where it is; None when nothing fits."""
        heap = self._heap
        while heap:
            _, _, weak, name, score = heap[0]
            if self.scores.get(name) != score:
                heappop(heap)
            elif self._views[name].lemons and weak != self._weak(name):
                heapreplace(heap, self._entry(name, score))  # others took its better chips, or gave them back
            else:
                return name
        return None

    def rank(self, name: str, base: int) -> int:
        """``base`` less the node's penalty for this gang, never below 0."""
        return max(0, base - abs(self._penalty.get(name, 0))) if name in self._penalty else base

    def level(self, name: str) -> int:
        """The rank of a fitting node."""
        return self.rank(name, self.scores[name])

    def liking(self, name: str) -> int:
        """How much the pod's preferred node affinity and soft taints speak for a node."""
        return self._liked.get(name, 0)

    def chips(self, name: str) -> int:
        """The chips that a pod would take on a fitting node; 0 for pods whose chips are only counted."""
        family = self._job.family
        if not family or not self._sample.count:
            return 0
        view = self._views[name]
        seat = self._seat(view, view.free, view.node.allocatable.get(self._sample.resource, 0))
        if view.lemons & seat[0]:
            return family.choose(self._sparing(family, Seat(*seat), view.lemons), self._ask)
        found = self._picks.get(seat)
        if found is None:
            found = self._picks[seat] = family.choose(Seat(*seat), self._ask)
        return found

    def _sparing(self, family: Family, seat: Seat, lemons: int) -> Seat:
        """The seat without chips that fail again and again, where that costs nothing: any chips are alike to the
        handler, or it finds the rest as good.
        """
        spared = seat._replace(free=seat.free & ~lemons)
        found = family.judge(spared, self._ask)
        as_good = not isinstance(found, Refusal) and (type(family) is Base or found == family.judge(seat, self._ask))
        return spared if as_good else seat

    def of_chips(self, name: str) -> Verdict:
        """What the handler says to a node, whatever else the pod lacks there."""
        return self._npu(self._views[name])

    def part(self, name: str) -> str:
        """The template that a pod would get on a fitting node; empty for whole chips, shares and pods without any."""
        return ""

    def _entry(self, name: str, score: int) -> tuple[int, int, int, str, int]:
        weak = self._weak(name) if self._views[name].lemons else 0
        return (-self.rank(name, score), -self._liked.get(name, 0), weak, name, score)

    def _weak(self, name: str) -> int:
        """How many repeat offenders would be among the chips that the pod takes there."""
        return (self.chips(name) & self._views[name].lemons).bit_count() if self._sample.count else 0

    def _judge(self, name: str) -> None:
        found = self._changing(self._views[name])
        self.revision += found != self.scores.get(name, self.refusals.get(name))
        if isinstance(found, Refusal):
            self.refusals[name] = found
            self.scores.pop(name, None)
        else:
            self.scores[name] = found
            self.refusals.pop(name, None)

    def _settle(self, refusals: Mapping[str, Refusal]) -> dict[str, Refusal]:
        """The refusals that stand for the whole pass: the pod's own rules first, then what the node is."""
        fixed: dict[str, Refusal] = {}
        for name, view in self._views.items():
            refusal = refusals.get(name) or self._unchanging(view)
            if refusal is not None:
                fixed[name] = refusal
        return fixed

    def _unchanging(self, view: NodeView) -> Refusal | None:
        why = self._refused.get(view.node.name) if self._refused else None
        if why is not None:
            head = why.partition(": ")[0]
            return Refusal(head if head.isidentifier() else "NodeRefused", why)
        if view.suspended:
            return Refusal("PoolSuspended", f"pool {view.pool} is suspended")
        if not self._sample.count:
            return None
        if view.closed is not None:
            return Refusal(*view.closed)
        resource = self._sample.resource
        if not view.node.allocatable.get(resource) or not view.node.capacity.get(resource):
            return Refusal(MISSING, f"not have {resource}")
        if self._job.family is not None and view.resource != resource:
            return Refusal(MISSING, f"not has(or not same) {resource}")
        if self._job.family is not None and _sold_in_shares(view):
            return Refusal(SHARES_ONLY, "node offers shares of its chips, nobody gets them whole")
        return self._of_topology(view) if self._job.topology else None

    def _of_topology(self, view: NodeView) -> Refusal | None:
        if self._job.topology == "rack" and (view.report is None or view.report.rack_id < 0):
            found = view.report.rack_id if view.report else -1
            return Refusal("RackUnknown", f"node rack-id is invalid for node={view.node.name}, id={found}")
        in_super_pod = self._job.topology in ("superpod", "rack")
        if in_super_pod and (view.report is None or view.report.super_pod_id < 0):
            found = view.report.super_pod_id if view.report else -1
            text = f"the super-pod-id of node is invalid for node={view.node.name}, id={found}"
            return Refusal("SuperPodUnknown", text)
        if self._job.topology == "multilevel":
            return missing_label(view.node, self._trees)
        return None

    def _changing(self, view: NodeView) -> Verdict:
        refusal = fit.room(self._sample, self._needs, view)
        if refusal is not None:
            return refusal
        return self._npu(view) if self._sample.count else _least_requested(view)

    def _npu(self, view: NodeView) -> Verdict:
        """What the node is worth to a pod that asks for NPUs, once everything else that it asks for is there."""
        family, resource, node = self._job.family, self._sample.resource, view.node
        if family is None:
            return room(self._sample, view) or 0
        free, counted = view.free, node.allocatable.get(resource, 0)
        told, idle = free.bit_count(), counted - view.requested.get(resource, 0)
        if told > idle or not counted <= node.capacity.get(resource, 0) >= told:
            stable = _stability(resource, view, free)
            if stable is not None:
                return stable
        if self._strict and view.network is None:
            return Refusal("NetworkStateUnknown", f"getUsableTopFromNode don't have {resource}-NetworkUnhealthy")
        entries = view.report.network_unhealthy or 0 if self._strict and view.report else 0
        if entries.bit_count() > family.max:
            return Refusal(NODE_INVALID, f"node npu networkUnhealthy top<{listed(entries)}> is invalid")
        seat = self._seat(view, free, counted)
        verdict = self._memo.get(seat)
        if verdict is None:
            verdict = self._memo[seat] = family.judge(Seat(*seat), self._ask)
        # the handler judges first: a ring with too few chips is told as a topology that is not met
        if idle >= self._sample.count or isinstance(verdict, Refusal):
            return verdict
        return room(self._sample, view) or verdict

    def _seat(self, view: NodeView, free: int, counted: int) -> _Seat:
        network = view.network or 0
        # what the report lists: a chip that only we keep out is no worse for its neighbours
        sick = (view.report.unhealthy & view.base).bit_count() if view.report else 0
        card = view.node.labels.get(CARD_LABEL, "")
        return (free & ~network if self._strict else free, sick, counted, card, network)


def _sold_in_shares(view: NodeView) -> bool:
    more = view.node.allocatable.get(view.resource, 0) > view.base.bit_count()
    return more and view.node.labels.get(SHARE_LABEL) == "true"


def room(pod: Pod, view: NodeView) -> Refusal | None:
    """Kubernetes' own count of the NPU resource; kubelet refuses a pod beyond it whatever chips were chosen."""
    idle = view.node.allocatable.get(pod.resource, 0) - view.requested.get(pod.resource, 0)
    if idle >= pod.count:
        return None
    text = f"{SHORTAGE_PREFIX}{pod.resource}, task requires {pod.count} NPU cards but node idle is {max(0, idle)}"
    return Refusal(SHORTAGE, text)


def _stability(resource: str, view: NodeView, free: int) -> Refusal | None:
    """Report and Kubernetes must agree on what is free: more free chips than devices means that one of them lags."""
    node = view.node
    listed, capacity = free.bit_count(), node.capacity.get(resource, 0)
    allocatable = node.allocatable.get(resource, 0)
    idle = allocatable - view.requested.get(resource, 0)
    if listed > idle or listed > capacity:
        counted = min(idle, capacity)
        return Refusal(NODE_UNSTABLE, f"{resource} not stable:device-info is {listed} but k8s is {counted}")
    if allocatable > capacity:
        text = f"{node.name} is not stable because of capacity={capacity} < allocatable={allocatable}"
        return Refusal(NODE_UNSTABLE, text)
    return None


def _least_requested(view: NodeView) -> int:
    """0 to 200: how much of cpu and memory is not requested yet; places pods without NPU."""
    total = 0
    for name in ("cpu", "memory"):
        whole = view.node.allocatable.get(name, 0)
        total += max(0, whole - view.requested.get(name, 0)) * 100 // whole if whole else 0
    return total
