"""Candidates of one kind of pod: every node is scored once, then only the nodes that an assignment changed.

Pods with the same request (chips, family, selectors, resources) share a table, within a gang and across gangs; a heap
gives the best node, so that placing a gang of thousands does not visit every node for every pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from belay.engine.model.cluster import Pod
from belay.engine.model.labels import INFER_CARD_TYPE
from belay.engine.model.node_options import shares_chips
from belay.engine.model.pending_reasons import NODE_UNSTABLE, SHORTAGE
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.families.base import NODE_INVALID, Base
from belay.engine.plan.place.families.multilevel import Level, missing_label
from belay.engine.plan.place.handler import (
    SHORTAGE_PREFIX,
    Family,
    NodeChips,
    PodRequest,
    Refusal,
    ScoreOrRefusal,
    listed,
)
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.nodes import fit
from belay.engine.plan.place.nodes.superpod_index import SuperPodIndex
from belay.engine.plan.recover.outcome import NodeRefusal

MISSING: Final = "NPUResourceMissing"
SHARES_ONLY: Final = "SoftShareOnly"

_ChipsKey = tuple[int, int, int, str, int]
"""The fields of a NodeChips, as a key: thousands are looked up for one that is scored."""


class NodeTable:
    """``scores``: raw scores of the nodes that fit now; ``refusals``: why the others do not.

    ``revision`` grows whenever the answer for a node changes.
    """

    def __init__(
        self,
        job: SchedulerJob,
        sample: Pod,
        views: Mapping[str, NodeView],
        trees: Mapping[str, tuple[Level, ...]],
        penalty: Mapping[str, int],
        refused: Mapping[str, NodeRefusal],
        static_fit: fit.StaticFit,
    ) -> None:
        """Score all nodes.

        Args:
            sample: any pod of the kind.
            penalty: lowers the rank of nodes for this gang.
            refused: nodes closed to this gang, and why.
            static_fit: refusals and preferences of the pod's own rules.
        """
        self.scores: dict[str, int] = {}
        self.refusals: dict[str, Refusal] = {}
        self.revision = 0
        self._job, self._sample, self._views, self._trees = job, sample, views, trees
        self._penalty, self._refused = penalty, refused
        self._request = PodRequest(sample.count, job.distributed, job.gang.options.distributed)
        self._strict = job.strict
        self._seen = 0
        self._known_scores: dict[_ChipsKey, ScoreOrRefusal] = {}
        self._picks: dict[_ChipsKey, int] = {}
        self._indexes: dict[bool, SuperPodIndex] = {}
        self._needs = tuple((name, most) for name, most in sample.requests.items() if most and name != sample.resource)
        self._preferences = static_fit.preferences
        self._fixed = self._static_refusals(static_fit.refusals)
        for name, view in views.items():
            refusal = self._fixed.get(name)
            found: ScoreOrRefusal = self._score(view) if refusal is None else refusal
            if isinstance(found, Refusal):
                self.refusals[name] = found
            else:
                self.scores[name] = found
        self._heap = [self._entry(name, score) for name, score in self.scores.items()]
        heapify(self._heap)

    def refresh(self, log: list[str]) -> None:
        """Score the nodes that changed since the last call again; ``log`` only grows within a pass."""
        if self._seen == len(log):
            return
        for name in dict.fromkeys(log[self._seen :]):
            if name not in self._fixed:
                self._update(name)
                self.put_back(name)
                for index in self._indexes.values():
                    index.update(name, name in self.scores)
        self._seen = len(log)

    def put_back(self, name: str) -> None:
        """Put a node back among the candidates, if it fits."""
        if name in self.scores:
            heappush(self._heap, self._entry(name, self.scores[name]))

    def super_pods(self, *, by_idle: bool) -> SuperPodIndex:
        """The fitting nodes by super pod, for gangs whose nodes are chosen together; ``by_idle``: see
        ``SuperPodIndex``.
        """
        found = self._indexes.get(by_idle)
        if found is None:
            found = self._indexes[by_idle] = SuperPodIndex(self._views, self._penalty, self.scores, by_idle=by_idle)
        return found

    def best_first(self) -> Iterator[str]:
        """Fitting nodes, best first: score less penalty, then preference, then fewer chips that fail repeatedly, then
        name. Each is taken off the candidates; see ``put_back``.
        """
        while (name := self.best()) is not None:
            rank = heappop(self._heap)[0]
            while self._heap and self._heap[0][3] == name and self._heap[0][0] == rank:
                heappop(self._heap)  # the same entry, offered twice
            yield name

    def best(self) -> str | None:
        """The first node of ``best_first``, without taking it off; None when no node fits."""
        heap = self._heap
        while heap:
            _, _, failing, name, score = heap[0]
            if self.scores.get(name) != score:
                heappop(heap)
            elif self._views[name].repeat_offenders and failing != self._failing_chips(name):
                heapreplace(heap, self._entry(name, score))  # other pods took its better chips, or gave them back
            else:
                return name
        return None

    def less_penalty(self, name: str, base: int) -> int:
        """``base`` less the node's penalty for this gang, at least 0."""
        return max(0, base - abs(self._penalty.get(name, 0))) if name in self._penalty else base

    def rank_score(self, name: str) -> int:
        """The score of a fitting node less its penalty."""
        return self.less_penalty(name, self.scores[name])

    def preference(self, name: str) -> int:
        """The weight of the pod's preferred node affinity and PreferNoSchedule taints for a node."""
        return self._preferences.get(name, 0)

    def chips(self, name: str) -> int:
        """The chips that a pod would take on a fitting node; 0 for pods whose chips are only counted."""
        family = self._job.family
        if not family or not self._sample.count:
            return 0
        view = self._views[name]
        key = self._node_chips(view, view.free, view.node.allocatable.get(self._sample.resource, 0))
        if view.repeat_offenders & key[0]:
            return family.choose(self._sparing(family, NodeChips(*key), view.repeat_offenders), self._request)
        found = self._picks.get(key)
        if found is None:
            found = self._picks[key] = family.choose(NodeChips(*key), self._request)
        return found

    def _sparing(self, family: Family, chips: NodeChips, repeat_offenders: int) -> NodeChips:
        """The node's chips without those that fail repeatedly, where that costs nothing: the family takes any chips, or
        it scores the rest as high.
        """
        spared = chips._replace(free=chips.free & ~repeat_offenders)
        found = family.score(spared, self._request)
        as_good = not isinstance(found, Refusal) and (
            type(family) is Base or found == family.score(chips, self._request)
        )
        return spared if as_good else chips

    def of_chips(self, name: str) -> ScoreOrRefusal:
        """The answer for the node's chips alone, whatever else the pod lacks there."""
        return self._score_npus(self._views[name])

    def part(self, name: str) -> str:
        """The template that a pod would get on a fitting node; empty for whole chips, shares and pods without chips."""
        return ""

    def _entry(self, name: str, score: int) -> tuple[int, int, int, str, int]:
        failing = self._failing_chips(name) if self._views[name].repeat_offenders else 0
        return (-self.less_penalty(name, score), -self._preferences.get(name, 0), failing, name, score)

    def _failing_chips(self, name: str) -> int:
        """How many repeat offenders are among the chips that the pod would take there."""
        return (self.chips(name) & self._views[name].repeat_offenders).bit_count() if self._sample.count else 0

    def _update(self, name: str) -> None:
        found = self._score(self._views[name])
        self.revision += found != self.scores.get(name, self.refusals.get(name))
        if isinstance(found, Refusal):
            self.refusals[name] = found
            self.scores.pop(name, None)
        else:
            self.scores[name] = found
            self.refusals.pop(name, None)

    def _static_refusals(self, refusals: Mapping[str, Refusal]) -> dict[str, Refusal]:
        """The refusals that hold for the whole pass: the pod's own rules first, then those of the node."""
        fixed: dict[str, Refusal] = {}
        for name, view in self._views.items():
            refusal = refusals.get(name) or self._static_refusal(view)
            if refusal is not None:
                fixed[name] = refusal
        return fixed

    def _static_refusal(self, view: NodeView) -> Refusal | None:
        why = self._refused.get(view.node.name) if self._refused else None
        if why is not None:
            return Refusal(why.reason, why.message)
        if view.suspended:
            return Refusal("PoolSuspended", f"pool {view.pool} is suspended")
        if not self._sample.count:
            return None
        if view.closed is not None:
            return Refusal(*view.closed)
        refusal = self._offer_refusal(view)
        if refusal is not None:
            return refusal
        return self._topology_refusal(view) if self._job.topology else None

    def _offer_refusal(self, view: NodeView) -> Refusal | None:
        """Why the node's devices are none that the pod could have, however many are free."""
        resource = self._sample.resource
        if not view.node.allocatable.get(resource) or not view.node.capacity.get(resource):
            return Refusal(MISSING, f"not have {resource}", resource=resource)
        if self._job.family is not None and view.resource != resource:
            return Refusal(MISSING, f"not has(or not same) {resource}", resource=resource)
        if self._job.family is not None and _offers_shares(view):
            return Refusal(SHARES_ONLY, "the node offers its chips in shares only, never whole")
        return None

    def _topology_refusal(self, view: NodeView) -> Refusal | None:
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

    def _score(self, view: NodeView) -> ScoreOrRefusal:
        refusal = fit.room(self._sample, self._needs, view)
        if refusal is not None:
            return refusal
        return self._score_npus(view) if self._sample.count else _least_requested(view)

    def _score_npus(self, view: NodeView) -> ScoreOrRefusal:
        """The score for a pod that asks for NPUs, once the node has everything else that it asks for."""
        family, resource, node = self._job.family, self._sample.resource, view.node
        if family is None:
            return room(self._sample, view) or 0
        free, counted = view.free, node.allocatable.get(resource, 0)
        listed_free, idle = free.bit_count(), counted - view.requested.get(resource, 0)
        if listed_free > idle or not counted <= node.capacity.get(resource, 0) >= listed_free:
            unstable = _stability(resource, view, free)
            if unstable is not None:
                return unstable
        if self._strict and view.network is None:
            return Refusal("NetworkStateUnknown", f"getUsableTopFromNode don't have {resource}-NetworkUnhealthy")
        entries = view.report.network_unhealthy or 0 if self._strict and view.report else 0
        if entries.bit_count() > family.max:
            return Refusal(NODE_INVALID, f"node npu networkUnhealthy top<{listed(entries)}> is invalid")
        key = self._node_chips(view, free, counted)
        score = self._known_scores.get(key)
        if score is None:
            score = self._known_scores[key] = family.score(NodeChips(*key), self._request)
        # the family answers first: a ring with too few chips is reported as a topology that is not met
        if idle >= self._sample.count or isinstance(score, Refusal):
            return score
        return room(self._sample, view) or score

    def _node_chips(self, view: NodeView, free: int, counted: int) -> _ChipsKey:
        network = view.network or 0
        # as the report lists: a chip that only Belay keeps out does not lower the score of the node
        unhealthy = (view.report.unhealthy & view.base).bit_count() if view.report else 0
        card = view.node.labels.get(INFER_CARD_TYPE, "")
        return (free & ~network if self._strict else free, unhealthy, counted, card, network)


def _offers_shares(view: NodeView) -> bool:
    more = view.node.allocatable.get(view.resource, 0) > view.base.bit_count()
    return more and shares_chips(view.node)


def room(pod: Pod, view: NodeView) -> Refusal | None:
    """Why Kubernetes' own count of the NPU resource is too small: kubelet refuses a pod beyond it whatever chips were
    chosen.
    """
    idle = view.node.allocatable.get(pod.resource, 0) - view.requested.get(pod.resource, 0)
    if idle >= pod.count:
        return None
    text = f"{SHORTAGE_PREFIX}{pod.resource}, task requires {pod.count} NPU cards but node idle is {max(0, idle)}"
    return Refusal(SHORTAGE, text, resource=pod.resource, evictable=True)


def _stability(resource: str, view: NodeView, free: int) -> Refusal | None:
    """Why the node is unstable: the report lists more free chips than Kubernetes has devices, so one of the two
    lags.
    """
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
    """0 to 200: how much of CPU and memory is not requested yet; scores nodes for pods without NPU."""
    total = 0
    for name in ("cpu", "memory"):
        whole = view.node.allocatable.get(name, 0)
        total += max(0, whole - view.requested.get(name, 0)) * 100 // whole if whole else 0
    return total
