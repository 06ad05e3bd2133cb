"""Chips that terminating pods will free; they are counted before any pod is evicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.plan.restart_scope import memory_of
from belay.engine.plan.scope import Scope
from belay.engine.plan.views import chip_ids

if TYPE_CHECKING:
    from belay.engine.plan.preempt.what_if import WhatIf

#: A terminating pod counts until so many seconds after its grace period; later, kubelet apparently cannot end it.
OVERDUE: Final = 120.0
#: A pod whose grace period ends later than in so many seconds does not count.
PATIENCE: Final = 600.0
#: Nodes whose terminating pods count for a job, besides four for each of its pods: those where most chips become free.
NODES: Final = 24


class TerminatingPods:
    """The terminating pods of one pass whose chips belong to no job yet: neither held for one nor freed by pods evicted
    for one.
    """

    def __init__(self, scope: Scope, what_if: WhatIf) -> None:
        self._scope, self._what_if = scope, what_if
        self._found: list[Pod] | None = None
        self._useful: dict[tuple[object, ...], list[Pod]] = {}

    @property
    def pods(self) -> Sequence[Pod]:
        """All of them."""
        if self._found is None:
            gangs = (self._scope.gangs[key] for key in self._scope.queue)
            owed = {uid for gang in gangs for uid in memory_of(self._scope.draft, gang).nominated}
            self._found = [
                pod for pod in self._scope.facts.observed.pods.values() if pod.deleting and self._counts(pod)
            ]
            self._found = [pod for pod in self._found if pod.uid not in owed]
        return self._found

    def add(self, pods: Iterable[Pod]) -> None:
        """Add pods that were evicted for a job which no longer waits for their chips."""
        self._found = [*self.pods, *(pod for pod in pods if self._counts(pod))]
        self._useful.clear()

    def useful_for(
        self, gang: Gang, resource: str, pods: Sequence[Pod], request_class: tuple[object, ...]
    ) -> list[Pod]:
        """The terminating pods whose end may help ``pods`` of this request class: they hold what is short on nodes that
        these pods may use, or quota of the queue.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        if not self.pods:
            return []
        if request_class not in self._useful:
            self._what_if.charge_scan(len(self.pods))
            sample = max(pods, key=lambda pod: pod.count)
            helpful = self._what_if.helpful_nodes(gang, sample, {pod.node for pod in self.pods})
            short = self._what_if.nodes_short_of_others(gang, sample, helpful)
            found = [
                pod
                for pod in self.pods
                if (pod.node in helpful and (pod.resource == resource or pod.node in short))
                or self._queue(pod) == gang.queue
            ]
            self._useful[request_class] = _where_most(found, len(pods))
        return self._useful[request_class]

    def near(self, resource: str, count: int) -> list[Pod]:
        """Terminating pods with chips of this resource, on the nodes where most chips become free, for ``count``
        pods.
        """
        return _where_most([pod for pod in self.pods if pod.resource == resource], count)

    def hold(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod]) -> list[Pod] | None:
        """Hold places for ``pods`` where ``gone`` leave, and return those of ``gone`` on the chosen nodes; None when
        the pods do not fit. Chips of terminating pods that are not needed stay available to others.
        """
        nodes = {item.node for item in self._what_if.hold(gang, pods, gone)}
        if not nodes:
            return None
        known = {pod.uid for pod in gone}
        mine = [pod for pod in self.pods if pod.uid in known and self._has_unkept_chips(pod)]
        self._found = [*(pod for pod in self.pods if pod.uid not in known), *mine]
        self._useful.clear()
        return [pod for pod in gone if pod.node in nodes]

    def _counts(self, pod: Pod) -> bool:
        now = self._scope.facts.now
        return pod.deleting is not None and pod.holds_chips and pod.deleting - PATIENCE <= now < pod.deleting + OVERDUE

    def _has_unkept_chips(self, pod: Pod) -> bool:
        """Whether it has chips that are not held yet; for its other resources this is not known."""
        return not pod.chips or bool(mask_of(list(chip_ids(pod))) & ~self._what_if.held_chips(pod.node))

    def _queue(self, pod: Pod) -> str | None:
        gang = self._scope.gangs.get(self._scope.gangs.of_pod.get(pod.key, ""))
        return gang.queue if gang is not None else None


def _where_most(pods: Sequence[Pod], count: int) -> list[Pod]:
    """The pods on the nodes where most chips become free."""
    sums: dict[str, int] = {}
    for pod in pods:
        sums[pod.node] = sums.get(pod.node, 0) + pod.count
    chosen = set(nsmallest(NODES + 4 * count, sums, key=lambda node: (-sums[node], node)))
    return [pod for pod in pods if pod.node in chosen]
