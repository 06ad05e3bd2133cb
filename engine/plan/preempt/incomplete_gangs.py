"""Take back a gang that has lost pods and cannot be completed, where its chips let a job start.

A pod of a running gang that is deleted by hand, or whose node is removed, is made again and waits for a place like any
other. While there is none, the gang's other pods hold chips and get no further; two such gangs can wait for each other
for ever. MindCluster takes back the whole job when replacements of pods that it evicted find no place for twelve
sessions (component/ascend-for-volcano/internal/rescheduling); pods lost in other ways are treated alike here, more
patiently: after ``AFTER`` seconds, and only if a job starts by that, be it the gang itself in other nodes. Otherwise
no job would gain, and the gang keeps its place. Its owner makes new pods, which wait for the whole gang.

Jobs without rescheduling (``fault-scheduling`` off), and those whose pods are replaced one by one, keep theirs: their
pending entry names the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from belay.engine.model.cluster import Pod
from belay.engine.model.history import JobMemory
from belay.engine.model.jobs import INDEPENDENT_KINDS
from belay.engine.model.reasons import ActionReason
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.preempt import messages
from belay.engine.plan.preempt.evictions import evict
from belay.engine.plan.preempt.outcome import GangOutcome, curable
from belay.engine.plan.preempt.search import Exhausted
from belay.engine.plan.preempt.victim_sets import victim_set
from belay.engine.plan.queue.waiting_pods import WaitingPods
from belay.engine.plan.restart_scope import memory_of, narrow_only

if TYPE_CHECKING:
    from belay.engine.plan.preempt.what_if import WhatIf

REASON: Final = ActionReason.GANG_INCOMPLETE
RULE: Final = "place/incomplete-gang"
#: How long the missing pods wait for a place before the others are taken back, in seconds. MindCluster lets a job give
#: up its turn in the queue after as long (plugin/factory.go).
AFTER: Final = 300.0
#: So many waiting jobs are tried on what the gangs would free, and so many gangs taken back, in one pass.
MOST_TRIED: Final = 16
MOST_TAKEN: Final = 8


class IncompleteGangs:
    """The gangs of one pass that have lost pods and find no place for their replacements."""

    def __init__(
        self, facts: Facts, draft: Draft, gangs: PassGangs, what_if: WhatIf, waiting_pods: WaitingPods
    ) -> None:
        self._facts, self._draft, self._gangs, self._what_if, self._waiting_pods = (
            facts,
            draft,
            gangs,
            what_if,
            waiting_pods,
        )
        self._stuck: list[GangOutcome] = []

    def record(self, outcome: GangOutcome) -> None:
        """Remember a gang that placement left waiting for room."""
        if outcome.unplaced and curable(outcome.reason):
            self._stuck.append(outcome)

    def run(self) -> None:
        """Take back as few gangs as let one job start, those last in the queue first."""
        halves = [outcome for outcome in self._stuck if self._lost_pods(outcome)]
        taken: list[GangOutcome] = []
        try:
            for outcome in reversed([one for one in halves if self._may_be_taken(one)]):
                if len(taken) == MOST_TAKEN:
                    break
                taken.append(outcome)
                helped = self._who_starts(taken)
                if helped is not None:
                    self._take_back(taken, helped)
                    return
        except Exhausted:
            return
        for outcome in halves:
            self._explain(outcome)

    def _lost_pods(self, outcome: GangOutcome) -> bool:
        """Whether the gang ran whole before, and holds chips while it lacks its minimum."""
        gang = outcome.gang
        started = self._waiting_pods.started(gang)
        return (
            gang.kind not in INDEPENDENT_KINDS
            and len(started) < gang.min_available <= len(self._memory(outcome).nodes)
            and any(pod.count for pod in started)
        )

    def _may_be_taken(self, outcome: GangOutcome) -> bool:
        """Whether it waited long enough, may be rescheduled as a whole, and nothing else is under way for it."""
        memory, members = self._memory(outcome), self._gangs.members[outcome.gang.key]
        waits = self._facts.now - min(pod.created for pod in outcome.unplaced)
        under_way = (
            bool(memory.nominated or memory.evicted)
            or memory.healing is not None
            or any(pod.deleting is not None or pod.key in self._draft.evicting for pod in members)
        )
        return (
            waits >= AFTER
            and not under_way
            and self._rescheduled_whole(outcome)
            and all(pod.owner_kind and pod.phase != "Succeeded" for pod in members)
        )

    def _rescheduled_whole(self, outcome: GangOutcome) -> bool:
        gang = outcome.gang
        whole = gang.options.process_recovery == "off" and not narrow_only(gang)
        return whole and gang.fault_scheduling in ("grace", "force")

    def _who_starts(self, taken: Sequence[GangOutcome]) -> GangOutcome | None:
        """The first job of the queue that would start if these gangs were gone.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        gone = [pod for outcome in taken for pod in self._waiting_pods.started(outcome.gang)]
        for outcome in self._stuck[:MOST_TRIED]:
            pods = self._wanted(outcome, whole=outcome in taken)
            if pods and self._what_if.place(outcome.gang, pods, gone):
                return outcome
        return None

    def _wanted(self, outcome: GangOutcome, *, whole: bool) -> Sequence[Pod]:
        """The pods that must be placed together for the job to start; ``whole``: none of its pods runs any more."""
        started = self._waiting_pods.started(outcome.gang)
        if whole:
            return [*started, *outcome.unplaced][: outcome.gang.min_available]
        missing = outcome.gang.min_available - len(started)
        return outcome.unplaced[:missing] if 0 < missing <= len(outcome.unplaced) else ()

    def _take_back(self, taken: Sequence[GangOutcome], helped: GangOutcome) -> None:
        gone: list[Pod] = []
        for outcome in taken:
            pods = self._waiting_pods.started(outcome.gang)
            began = [pod.started if pod.started is not None else pod.created for pod in pods]
            lost = sum(int(self._facts.now - at) * pod.count for at, pod in zip(began, pods, strict=True))
            whole = victim_set(outcome.gang, pods, ends_job=True, lost=lost, seconds=int(self._facts.now - min(began)))
            evict(self._facts, self._draft, helped.gang, whole, REASON, RULE, counted=True)
            gone += pods
            if outcome is not helped:
                text = "all its pods start again once there is room for them"
                messages.amend(self._draft, outcome.gang, text, waits=False)
        messages.amend(self._draft, helped.gang, messages.waits_for_evictions(gone), near=messages.nodes_of(gone))

    def _explain(self, outcome: GangOutcome) -> None:
        """Say that the gang holds chips without running, and what ends that."""
        gang, started = outcome.gang, self._waiting_pods.started(outcome.gang)
        text = f"{len(started)} of {gang.min_available} pods hold chips and wait for the others"
        if not self._rescheduled_whole(outcome):
            text += (
                f"; they are not taken back (fault-scheduling={gang.fault_scheduling}): delete them to free the chips"
            )
        messages.extend(self._draft, gang, text)

    def _memory(self, outcome: GangOutcome) -> JobMemory:
        return memory_of(self._draft, outcome.gang)
