"""Room that comes by itself: terminating pods. It is counted before anybody is evicted for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from engine.model.cluster import Pod, mask_of
from engine.model.jobs import Gang
from engine.plan.scope import Scope
from engine.plan.victims import memory_of
from engine.plan.views import chip_ids

if TYPE_CHECKING:
    from engine.plan.place.trial import Trials

#: A terminating pod is counted on until so many seconds after its grace: kubelet cannot end it then.
OVERDUE: Final = 120.0
#: One whose grace ends later than in so many seconds is not waited for.
PATIENCE: Final = 600.0
#: Nodes on which leaving pods are counted for a job, besides four for each of its pods: those where most leaves.
NODES: Final = 24


class Leaving:
    """The terminating pods of one pass whose room is for nobody yet: neither kept for a job, nor of pods that went for
    another one.
    """

    def __init__(self, scope: Scope, trials: Trials) -> None:
        self._scope, self._trials = scope, trials
        self._found: list[Pod] | None = None
        self._helping: dict[tuple[object, ...], list[Pod]] = {}

    @property
    def pods(self) -> Sequence[Pod]:
        """All of them."""
        if self._found is None:
            gangs = (self._scope.gangs[key] for key in self._scope.queue)
            owed = {uid for gang in gangs for uid in memory_of(self._scope, gang).nominated}
            self._found = [pod for pod in self._scope.observed.pods.values() if pod.deleting and self._counts(pod)]
            self._found = [pod for pod in self._found if pod.uid not in owed]
        return self._found

    def add(self, pods: Iterable[Pod]) -> None:
        """Pods that went for a job which does not wait for their room any more."""
        self._found = [*self.pods, *(pod for pod in pods if self._counts(pod))]
        self._helping.clear()

    def helping(self, gang: Gang, resource: str, pods: Sequence[Pod], kind: tuple[object, ...]) -> list[Pod]:
        """Those whose end may help these, which are of this ``kind``: they hold what is short, where these could go, or
        use up the quota of the queue.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        if not self.pods:
            return []
        if kind not in self._helping:
            self._trials.look(len(self.pods))
            sample = max(pods, key=lambda pod: pod.count)
            helped = self._trials.helped(gang, sample, {pod.node for pod in self.pods})
            crowded = self._trials.crowded(gang, sample, helped)
            found = [
                pod
                for pod in self.pods
                if (pod.node in helped and (pod.resource == resource or pod.node in crowded))
                or self._queue(pod) == gang.queue
            ]
            self._helping[kind] = _where_most(found, len(pods))
        return self._helping[kind]

    def near(self, resource: str, count: int) -> list[Pod]:
        """Those with such chips, where most leaves, for ``count`` pods."""
        return _where_most([pod for pod in self.pods if pod.resource == resource], count)

    def keep(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod]) -> list[Pod] | None:
        """Keeps seats in place of ``gone``, and returns who of these are on the nodes of the seats; None when there
        are none. What the seats do not take of the chips of terminating pods is for others.
        """
        nodes = {seat.node for seat in self._trials.hold(gang, pods, gone)}
        if not nodes:
            return None
        known = {pod.uid for pod in gone}
        mine = [pod for pod in self.pods if pod.uid in known and self._spares(pod)]
        self._found = [*(pod for pod in self.pods if pod.uid not in known), *mine]
        self._helping.clear()
        return [pod for pod in gone if pod.node in nodes]

    def _counts(self, pod: Pod) -> bool:
        now = self._scope.now
        return pod.deleting is not None and pod.holds_chips and pod.deleting - PATIENCE <= now < pod.deleting + OVERDUE

    def _spares(self, pod: Pod) -> bool:
        """Whether it has more chips than are kept already; of its other resources that is not known."""
        return not pod.chips or bool(mask_of(list(chip_ids(pod))) & ~self._trials.kept(pod.node))

    def _queue(self, pod: Pod) -> str | None:
        gang = self._scope.gangs.get(self._scope.gang_of.get(pod.key, ""))
        return gang.queue if gang is not None else None


def _where_most(pods: Sequence[Pod], count: int) -> list[Pod]:
    """Those on the nodes where most chips leave."""
    sums: dict[str, int] = {}
    for pod in pods:
        sums[pod.node] = sums.get(pod.node, 0) + pod.count
    chosen = set(nsmallest(NODES + 4 * count, sums, key=lambda node: (-sums[node], node)))
    return [pod for pod in pods if pod.node in chosen]
