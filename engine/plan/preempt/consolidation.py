"""Move small pods off one node for a job whose chips are free in number, but not together.

A request for a whole ring or server waits while enough chips are free in pieces. Where a queue is declared ``movable``,
pods of its Deployments are evicted from one node, so that the request fits there, if a what-if places each of them
again beside it. They hold at most half of what they make room for, are not moved again soon, and count against the
safety budgets like every eviction. MindCluster's scheduler has no such step: it waits for jobs to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final

from belay.engine.model.actions import Evidence
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import VOLCANO_PREEMPTABLE
from belay.engine.model.pending_reasons import FRAGMENTED, SHORTAGE, TOPOLOGY
from belay.engine.plan import causes
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.job import WHOLE_CHIP, SchedulerJob
from belay.engine.plan.place.state import PlacementState
from belay.engine.plan.preempt import messages, moves, nomination
from belay.engine.plan.preempt.disruption_budgets import DisruptionBudgets
from belay.engine.plan.preempt.outcome import GangOutcome
from belay.engine.plan.preempt.reservation import RESERVED
from belay.engine.plan.preempt.rules import critical
from belay.engine.plan.preempt.search import Exhausted
from belay.engine.plan.preempt.what_if import preempts
from belay.engine.plan.restart_scope import memory_of
from belay.engine.plan.scope import Scope

if TYPE_CHECKING:
    from belay.engine.plan.preempt.what_if import WhatIf

#: Most jobs helped in one pass, pods moved for one job, and sets of pods tried for one job.
MAX_JOBS: Final = 8
MAX_MOVED: Final = 3
MAX_TRIED: Final = 24
_REASONS: Final = (SHORTAGE, TOPOLOGY, FRAGMENTED)


class Consolidation:
    """The moves of one pass for jobs whose whole chips are not free together."""

    def __init__(self, scope: Scope, state: PlacementState, what_if: WhatIf) -> None:
        self._scope, self._state, self._what_if = scope, state, what_if
        self._movable_queues = {queue.name for queue in scope.facts.desired.settings.queues if queue.movable}
        self._budgets = DisruptionBudgets(scope.facts.observed, scope.draft.evicting)
        self._stuck: list[GangOutcome] = []
        self._unsolvable: set[tuple[object, ...]] = set()

    def withdraw(self) -> None:
        """Drop moves that have not begun where the queue no longer allows them."""
        for gang, pods in nomination.nominated_gangs(self._scope):
            if any(self._withdrawn(gang, pod) for pod in pods if pod.deleting is None):
                nomination.clear(self._scope.draft, gang)

    def _withdrawn(self, gang: Gang, pod: Pod) -> bool:
        owner = self._scope.gangs.get(self._scope.gangs.of_pod.get(pod.key, ""))
        if owner is None or owner.queue in self._movable_queues or pod.resource not in WHOLE_CHIP:
            return False
        return moves.displaced_for(self._scope.draft, owner, gang) == moves.MOVED

    def record(self, outcome: GangOutcome) -> None:
        """Remember a gang that placement left waiting for want of chips."""
        if self._movable_queues and outcome.unplaced and outcome.reason in _REASONS and outcome.job is not None:
            self._stuck.append(outcome)

    def run(self) -> None:
        """Order the moves for stuck jobs, the first in the queue first."""
        helped = 0
        for outcome in self._stuck:
            job = outcome.job
            if job is None or job.shared is not None or not job.resource or not preempts(job):
                continue
            if helped >= MAX_JOBS:
                return
            try:
                helped += self._help(outcome, job)
            except Exhausted:
                return

    def _help(self, outcome: GangOutcome, job: SchedulerJob) -> bool:
        """Move pods for a gang if that helps; return whether anything was tried."""
        gang, pod = outcome.gang, outcome.unplaced[0]
        if memory_of(self._scope.draft, gang).nominated or self._state.free_chips(job.resource) < pod.count:
            return False  # pods were evicted for it already, or too few chips are free in all
        pods = moves.together(self._scope.facts, outcome)
        request_class = (self._what_if.request_class(gang, pods), len(pods))
        if request_class in self._unsolvable:
            return False
        move_sets = sorted(
            self._move_sets(job, gang, pod),
            key=lambda movers: (_chips(movers), len(movers), movers[0].node, movers[0].key),
        )
        for movers in move_sets[:MAX_TRIED]:
            if self._budgets.allow(movers) and self._what_if.fits_with_moves(gang, pods, movers, movers):
                for one in movers:
                    self._evict(gang, one)
                self._what_if.hold(gang, pods, movers)
                names = ", ".join(one.key for one in movers)
                text = f"room is being made: moving {names} away from {movers[0].node}"
                messages.amend(self._scope.draft, gang, text, near=messages.nodes_of(movers))
                return True
        self._unsolvable.add(request_class)
        return bool(move_sets)

    def _move_sets(self, job: SchedulerJob, gang: Gang, pod: Pod) -> Iterator[tuple[Pod, ...]]:
        """Sets of pods of one node without which its chips would suffice in number."""
        refusals = self._state.table(job, pod).refusals
        if any(refusal.reason == RESERVED for refusal in refusals.values()):
            return  # chips kept for another job are free again once it runs, without a move
        for name, refusal in refusals.items():
            view = self._state.views[name]
            counted = view.node.allocatable.get(pod.resource, 0)
            missing = pod.count - (counted - view.requested.get(pod.resource, 0))
            if refusal.reason not in _REASONS or counted < pod.count or missing * 2 > pod.count:
                continue
            most = pod.count // 2
            small = [one for one in view.pods if 0 < one.count <= most and one.resource == pod.resource]
            movable = sorted((one for one in small if self._movable(gang, one, view)), key=lambda one: one.key)
            for size in range(1, MAX_MOVED + 1):
                for movers in combinations(movable, size):
                    if missing <= _chips(movers) <= most:
                        yield movers

    def _movable(self, gang: Gang, pod: Pod, view: NodeView) -> bool:
        """Whether a pod may move for the gang: it runs, its queue is movable, and no annotation forbids it."""
        running = pod.node == view.node.name and bool(pod.chips) and pod.deleting is None and not pod.finished
        if not running or pod.key in self._scope.draft.evicting or critical(pod):
            return False
        owner = moves.owner_of(self._scope.facts, self._scope.draft, self._scope.gangs, pod, gang)
        if owner is None or owner.queue not in self._movable_queues:
            return False
        return pod.annotations.get(VOLCANO_PREEMPTABLE, owner.options.preemptable) != "false"

    def _evict(self, gang: Gang, pod: Pod) -> None:
        owner = self._scope.gangs[self._scope.gangs.of_pod[pod.key]]
        rule = f"queue {owner.queue} movable"
        cause = causes.of_claim(gang, rule)
        evidence = Evidence(rule=rule, revision=self._scope.facts.desired.revision, cause=cause)
        moves.order(self._scope.draft, self._scope.gangs, gang, pod, evidence)


def _chips(pods: Sequence[Pod]) -> int:
    return sum(pod.count for pod in pods)


__all__ = ["Consolidation"]
