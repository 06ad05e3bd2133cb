"""Makes room for whole chips that would fit if what is free were together: moves few small pods off one node.

A request for a whole ring or server waits while enough chips are free here and there. Where a queue is declared
``movable``, pods of its Deployments go from one node, so that the request fits there, if all of them surely find
another place beside it. They hold at most half of what they make room for, are not moved again soon, and are counted by
the safety budgets like every eviction. Nobody else does this: the reference scheduler waits for jobs to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final

from engine.model.actions import Evidence
from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan.place import moves
from engine.plan.place.bench import Bench
from engine.plan.place.job import WHOLE_CHIP, Job
from engine.plan.place.moves import Placing
from engine.plan.place.trial import preempts
from engine.plan.place.verdict import FRAGMENTED, SHORTAGE, TOPOLOGY
from engine.plan.queue import nominate, words
from engine.plan.queue.consent import critical
from engine.plan.queue.lines import PREEMPTABLE_KEY
from engine.plan.queue.reserve import RESERVED
from engine.plan.queue.search import Exhausted
from engine.plan.queue.shields import Shields
from engine.plan.scope import NodeView, Scope
from engine.plan.victims import memory_of

if TYPE_CHECKING:
    from engine.plan.place.trial import Trials

#: Most jobs that are helped in one pass, pods that are moved for one, and sets of pods that are tried for one.
MAX_JOBS: Final = 8
MAX_MOVED: Final = 3
MAX_TRIED: Final = 24
_REASONS: Final = (SHORTAGE, TOPOLOGY, FRAGMENTED)


class Consolidation:
    """One pass's answers to jobs whose whole chips do not fit together."""

    def __init__(self, scope: Scope, bench: Bench, trials: Trials) -> None:
        self._scope, self._bench, self._trials = scope, bench, trials
        self._queues = {queue.name for queue in scope.desired.settings.queues if queue.movable}
        self._shields = Shields(scope.observed, scope.evicting)
        self._stuck: list[Placing] = []
        self._in_vain: set[tuple[object, ...]] = set()

    def withdraw(self) -> None:
        """Forgets moves that nobody has begun where the queue does not allow them any more."""
        for gang, pods in nominate.waiting(self._scope):
            if any(self._withdrawn(gang, pod) for pod in pods if pod.deleting is None):
                nominate.clear(self._scope, gang)

    def _withdrawn(self, gang: Gang, pod: Pod) -> bool:
        owner = self._scope.gangs.get(self._scope.gang_of.get(pod.key, ""))
        if owner is None or owner.queue in self._queues or pod.resource not in WHOLE_CHIP:
            return False
        told = (
            text for _, text in reversed(memory_of(self._scope, owner).timeline) if text.endswith(f" for {gang.key}")
        )
        return next(told, "").startswith(moves.MOVED.lower())

    def seen(self, placing: Placing) -> Placing:
        """Takes down what became of a gang in its turn; returns it."""
        if self._queues and placing.left and placing.why in _REASONS and placing.job is not None:
            self._stuck.append(placing)
        return placing

    def make(self) -> None:
        """Orders the moves for those who are stuck, the first in the queue first."""
        helped = 0
        for placing in self._stuck:
            job = placing.job
            if job is None or job.shared is not None or not job.resource or not preempts(job):
                continue
            if helped >= MAX_JOBS:
                return
            try:
                helped += self._help(placing, job)
            except Exhausted:
                return

    def _help(self, placing: Placing, job: Job) -> bool:
        """Moves pods for a gang; tells whether anything was tried."""
        gang, pod = placing.gang, placing.left[0]
        if memory_of(self._scope, gang).nominated or self._bench.free_chips(job.resource) < pod.count:
            return False  # pods were told to go for it already, or there is too little wherever it lies
        pods = moves.together(self._scope, placing)
        kind = (self._trials.kind(gang, pods), len(pods))
        if kind in self._in_vain:
            return False
        ways = sorted(self._ways(job, gang, pod), key=lambda way: (_chips(way), len(way), way[0].node, way[0].key))
        for way in ways[:MAX_TRIED]:
            if self._shields.let(way) and self._trials.moves(gang, pods, way, way):
                for one in way:
                    self._evict(gang, one)
                self._trials.hold(gang, pods, way)
                names = ", ".join(one.key for one in way)
                words.amend(self._scope, gang, f"room is being made: moving {names} away from {way[0].node}")
                return True
        self._in_vain.add(kind)
        return bool(ways)

    def _ways(self, job: Job, gang: Gang, pod: Pod) -> Iterator[tuple[Pod, ...]]:
        """Sets of pods of one node without which its chips would suffice by number."""
        refusals = self._bench.table(job, pod).refusals
        if any(refusal.reason == RESERVED for refusal in refusals.values()):
            return  # what is kept for somebody else is free again once he runs: nobody has to move for that
        for name, refusal in refusals.items():
            view = self._bench.views[name]
            counted = view.node.allocatable.get(pod.resource, 0)
            missing = pod.count - (counted - view.requested.get(pod.resource, 0))
            if refusal.reason not in _REASONS or counted < pod.count or missing * 2 > pod.count:
                continue
            most = pod.count // 2
            small = [one for one in view.pods if 0 < one.count <= most and one.resource == pod.resource]
            movable = sorted((one for one in small if self._movable(gang, one, view)), key=lambda one: one.key)
            for size in range(1, MAX_MOVED + 1):
                for way in combinations(movable, size):
                    if missing <= _chips(way) <= most:
                        yield way

    def _movable(self, gang: Gang, pod: Pod, view: NodeView) -> bool:
        """Whether a pod may go for the gang: its queue says so, nobody forbids it, and it runs."""
        running = pod.node == view.node.name and bool(pod.chips) and pod.deleting is None and not pod.finished
        if not running or pod.key in self._scope.evicting or critical(pod):
            return False
        owner = moves.owner_of(self._scope, pod, gang)
        if owner is None or owner.queue not in self._queues:
            return False
        return pod.annotations.get(PREEMPTABLE_KEY, owner.annotations.get(PREEMPTABLE_KEY)) != "false"

    def _evict(self, gang: Gang, pod: Pod) -> None:
        owner = self._scope.gangs[self._scope.gang_of[pod.key]]
        evidence = Evidence(rule=f"queue {owner.queue} movable", revision=self._scope.desired.revision)
        moves.order(self._scope, gang, pod, evidence)


def _chips(pods: Sequence[Pod]) -> int:
    return sum(pod.count for pod in pods)


__all__ = ["Consolidation"]
