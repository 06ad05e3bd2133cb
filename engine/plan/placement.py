"""Place waiting gangs on nodes and chips, all or nothing, in the order of the queue.

``place.families`` scores a node and chooses chips for one topology family each; ``place.gangs`` chooses the nodes of a
whole gang under super-pod, rack, tree and switch rules; ``place.state`` holds what the pass has assigned. A pod gets
the node with the highest raw score after penalties and the bonus for its previous node; ties go by preferred node
affinity, then by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from belay.engine.documents import InitParams
from belay.engine.gangs.forming import task_of
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import JobMemory
from belay.engine.model.jobs import Gang
from belay.engine.model.pending_reasons import (
    ENQUEUE_FAILED,
    GANG_INCOMPLETE,
    QUEUE_EXHAUSTED,
    RejectedAt,
)
from belay.engine.model.remedies import Remedy, Step
from belay.engine.plan import rollout, views
from belay.engine.plan.place import job as jobs
from belay.engine.plan.place import switch_config
from belay.engine.plan.place.bindings import Bindings
from belay.engine.plan.place.gangs import allocated_claims, blocks, returning, search, slots, switch_affinity
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.nodes import claim_choices, volume_choices
from belay.engine.plan.place.part_requests import SoftShare
from belay.engine.plan.place.parts import soft_table
from belay.engine.plan.place.pending import PendingExplanation, refused
from belay.engine.plan.place.state import MAX_SCORES, Assignment, FormerPlacement, PlacementState
from belay.engine.plan.place.ways_out import of_refused_gang
from belay.engine.plan.preempt import rollback
from belay.engine.plan.preempt.consolidation import Consolidation
from belay.engine.plan.preempt.incomplete_gangs import IncompleteGangs
from belay.engine.plan.preempt.preemption import Preemption
from belay.engine.plan.preempt.repartition import Repartition
from belay.engine.plan.preempt.what_if import WhatIf
from belay.engine.plan.queue import enqueue
from belay.engine.plan.scope import Scope
from belay.engine.wire.names import SCHEDULER_CONFIGMAP, SCHEDULER_KEY, SCHEDULER_NAMESPACE

_CONFIGURED: Final = f"ConfigMap/{SCHEDULER_NAMESPACE}/{SCHEDULER_CONFIGMAP}"
_TASKS_SHORT: Final = "the pods of job is not enough for its tasks' minimum"


@dataclass(slots=True)
class PlacementFailure:
    """The pods without a node, and why: the refusal of the gang, or the explanation of the ``first`` of them."""

    pods: list[Pod]
    gang_refusal: Refusal | None = None
    first: Pod | None = None
    explanation: PendingExplanation | None = None


def place_gangs(scope: Scope) -> dict[str, dict[str, float]]:
    """Append BindPod actions and ``pending`` for the gangs of ``scope.queue``.

    Returns:
        The scores of nodes, by placed pod.
    """
    scope.draft.diagnostics.extend(switch_config.findings(scope.facts.observed, scope.facts.cache))
    for key, text in InitParams.unread(scope.facts.observed.init_params).items():
        where = f"data.{SCHEDULER_KEY}: init-params.{key}"
        scope.draft.diagnostics.append(
            Diagnostic("warning", _CONFIGURED, "", 0, 0, where, text, PassCode.SETTING_IGNORED)
        )
    if not scope.queue:
        return scope.scores

    state = PlacementState(scope, views.init_params(scope.facts.desired, scope.facts.observed))
    queues, waiting_pods = (
        enqueue.Queues(scope.facts, scope.nodes, scope.gangs),
        enqueue.WaitingPods(scope.facts, scope.draft, scope.gangs),
    )
    what_if = WhatIf(scope.gangs, state, queues, lambda gang: _GangPlacement(scope, state, queues, waiting_pods, gang))
    preemption = Preemption(scope, queues, what_if, waiting_pods)
    repartition, consolidation = (
        Repartition(scope.facts, scope.draft, scope.nodes, scope.gangs, scope.rules, state, what_if),
        Consolidation(scope, state, what_if),
    )
    incomplete = IncompleteGangs(scope.facts, scope.draft, scope.gangs, what_if, waiting_pods)
    consolidation.withdraw()

    def read(part: Gang) -> SchedulerJob | Refusal:
        return _GangPlacement(scope, state, queues, waiting_pods, part).found

    def place(gang: Gang) -> list[_GangPlacement]:
        before = len(scope.draft.pending)
        parts = rollout.parts(gang, waiting_pods, read)
        placements = [_GangPlacement(scope, state, queues, waiting_pods, part) for part in parts]
        for placement in placements:
            placement.run()
        scope.draft.pending[before:] = rollout.one_entry(scope.draft.pending[before:])
        return placements

    served = preemption.serve_nominated(place)
    for key in enqueue.turns(scope.facts, scope.gangs, queues, [key for key in scope.queue if key not in served]):
        for outcome in place(scope.gangs[key]):
            for step in (repartition, consolidation, preemption, incomplete):
                step.record(outcome)
    for step in (preemption, repartition, consolidation, incomplete):
        step.run()
    if state.unrecorded:
        text = f"scores of {state.unrecorded} placed pods are not kept, a plan holds at most {MAX_SCORES} of them"
        scope.draft.diagnostics.append(Diagnostic("info", "", "", 0, 0, "scores", text, PassCode.SCORES_LEFT_OUT))
    return scope.scores


class _GangPlacement:
    """The placement of one gang."""

    def __init__(
        self, scope: Scope, state: PlacementState, queues: enqueue.Queues, waiting_pods: enqueue.WaitingPods, gang: Gang
    ) -> None:
        self.scope, self.state, self.queues, self.gang = scope, state, queues, gang
        self.waiting = waiting_pods.waiting(gang)
        self.started = waiting_pods.beside(gang, self.waiting)
        self.claimed: dict[str, Assignment] = {}
        self.mixed = False
        self.unplaced: Sequence[Pod] = ()
        self.reason = ""
        self._found: SchedulerJob | Refusal | None = None

    @property
    def found(self) -> SchedulerJob | Refusal:
        """The job behind the gang, or why it can never be placed."""
        if self._found is None:
            self._found = self.state.equivalent_jobs.job(self.gang, self.scope.facts.observed, self._read)
        return self._found

    def _read(self) -> SchedulerJob | Refusal:
        return jobs.of(
            self.gang, self.scope.facts.desired, self.scope.facts.observed, self.state.params, self.scope.facts.cache
        )

    @property
    def job(self) -> SchedulerJob | None:
        """The job behind the gang, None when it can never be placed."""
        return None if isinstance(self.found, Refusal) else self.found

    def attempt(self, pods: Sequence[Pod]) -> list[Assignment]:
        """Assignments of all these pods, left in the state for a what-if; empty when they do not fit together."""
        job = self.job
        if job is None or self.queues.shortage(self.gang.queue, pods) is not None or self._enqueue_refusal(job):
            return []
        everyone, self.waiting = self.waiting, list(pods)
        placed, _ = self._place(job, returning.ranks(job, everyone), self._memory())
        self.waiting = everyone
        if len(placed) == len(pods):
            return placed
        self.state.unassign(placed)
        return []

    def run(self) -> None:
        found = self.found
        if isinstance(found, Refusal):
            self._add_pending(PlacementFailure(self.waiting, gang_refusal=found))
            return
        if self._queue_exhausted(self.waiting, self.waiting[: self._needed()] or self.waiting[:1]):
            return
        refused = self._enqueue_refusal(found)
        if refused is not None:
            self._add_pending(PlacementFailure(self.waiting, gang_refusal=refused))
            return
        over_quota = self.waiting[self.queues.room(self.gang.queue, self.waiting) :]
        if over_quota:
            self.waiting = self.waiting[: -len(over_quota)]
        ranks = returning.ranks(found, self.waiting)
        memory = self._memory()
        self.claimed = self.state.release_claims(self.waiting)
        placed, failure = self._place(found, ranks, memory)
        placed_keys = {item.pod.key for item in placed}
        self.state.restore_claims({key: item for key, item in self.claimed.items() if key not in placed_keys})
        if placed:
            volumes_wait = self._waits_for_volumes(placed)
            claims_wait = not volumes_wait and self._waits_for_claims(placed)
            bindings = Bindings(self.scope, self.state, self.gang, found, ranks, memory)
            if not volumes_wait and not claims_wait:
                bindings.append_actions(placed)
            # the pass that binds pods of a gang rule to their claims' nodes must find the same blocks
            if not volumes_wait and (not claims_wait or found.topology):
                bindings.record(placed, bound=not claims_wait)
            self.queues.add(self.gang.queue, [item.pod for item in placed])
        if not placed and self._needed():
            self.scope.draft.actions.extend(self.state.claims.release(self.waiting, self.scope.facts.desired.revision))
        if not placed and self.claimed and self._needed():
            rollback.take_back(
                self.scope.facts, self.scope.draft, self.scope.gangs, self.gang, self.started, self.waiting
            )
        if failure is not None:
            self._add_pending(failure, found, over_quota)
        elif over_quota:
            self._queue_exhausted(over_quota, over_quota[:1])

    def _waits_for_volumes(self, placed: Sequence[Assignment]) -> bool:
        """Whether claims of the placed pods must be bound first; asks for that while the gang keeps its place."""
        pods = [item.pod for item in placed]
        names = self.state.volumes.unbound(pods)
        if not names:
            return False
        for item in placed:
            asked = self.state.volumes.actions(item.pod, item.node, self.scope.facts.desired.revision)
            self.scope.draft.actions.extend(asked)
        self._wait(pods, volume_choices.WAITING, volume_choices.waiting_text(names), volume_choices.way_out(names))
        return True

    def _waits_for_claims(self, placed: Sequence[Assignment]) -> bool:
        """Whether resource claims of the placed pods must be allocated first; asks for that meanwhile."""
        pods = [item.pod for item in placed]
        names = self.state.claims.unready(pods)
        if not names:
            return False
        where = [(item.pod, item.node) for item in placed]
        self.scope.draft.actions.extend(self.state.claims.actions(where, self.scope.facts.desired.revision))
        self._wait(pods, claim_choices.WAITING, claim_choices.waiting_text(names), claim_choices.way_out(names))
        return True

    def _wait(self, pods: Sequence[Pod], reason: str, text: str, unblock: str) -> None:
        """The pods have their places and wait for what others do."""
        wait = Remedy(Step.WAIT)
        entry = enqueue.pending_entry(self.gang, pods, reason, text, nodes={}, unblock=unblock, remedy=wait)
        self.scope.draft.pending.append(entry)

    def _queue_exhausted(self, pods: Sequence[Pod], first: Sequence[Pod]) -> bool:
        """Whether the queue has too little left for the ``first`` pods; then all of ``pods`` become pending."""
        short = self.queues.shortage(self.gang.queue, first)
        if short is not None:
            self.unplaced, self.reason = pods, QUEUE_EXHAUSTED
            entry = enqueue.refused_by_queue(self.gang, pods, short)
            self.scope.draft.pending.append(entry)
        return short is not None

    @cached_property
    def _least(self) -> int:
        """The chips that must be free before the gang is let in."""
        job = self.job
        return 0 if job is None or self.started else jobs.least_chips(job, self.scope.facts.observed)

    def _enqueue_refusal(self, job: SchedulerJob) -> Refusal | None:
        """Why a gang whose minimum may fit is not let in: its PodGroup states more than the cluster has free."""
        free = self._free(job) if self._least else None
        if free is None or self._least <= free or _least_chips(self.waiting, self._needed()) > free:
            return None
        return Refusal(ENQUEUE_FAILED, _required_text(self._least, free))

    def _free(self, job: SchedulerJob) -> int | None:
        """What the cluster has free of the job's resource; None for vNPUs, which are not counted so."""
        if isinstance(job.shared, SoftShare):
            return soft_table.offered(self.state.parts, self.state.views, job.resource)
        return self.state.free_chips(job.resource) if job.family is not None else None

    def _needed(self) -> int:
        return max(0, self.gang.min_available - len(self.started))

    def _place(
        self, job: SchedulerJob, ranks: Mapping[str, int], memory: JobMemory | None
    ) -> tuple[list[Assignment], PlacementFailure | None]:
        if job.topology:
            return self._place_together(job, ranks, memory)
        former = self._former_placement(job, ranks, memory)
        first: PlacementFailure | None = None
        for order in self._orders(job, former):
            placed, without = self.state.place(job, order, former)
            failure = self._failure(job, without) if without else None
            if self._enough(placed):
                return placed, failure
            self.state.unassign(placed)
            self.state.forget([item.pod for item in placed])
            if failure is not None:
                failure.pods = self.waiting
            first = first or failure
        if self.mixed and self._needed() == len(self.waiting) and not self.claimed:
            found = search.place_all(self.state, job, self.waiting)
            if found:
                return found, None
        return [], first or PlacementFailure(self.waiting)

    def _place_together(
        self, job: SchedulerJob, ranks: Mapping[str, int], memory: JobMemory | None
    ) -> tuple[list[Assignment], PlacementFailure | None]:
        """Place under a gang rule: the pods with chips together, then the others.

        Two pods cannot have one rank, so a backup whose source also waits is placed in a later pass.
        """
        npu_pods = [pod for pod in self.waiting if pod.count]
        asking = {pod.key for pod in npu_pods}
        waiting_backups = [pod for pod in npu_pods if returning.backup_source(pod) in asking]
        npu_pods = [pod for pod in npu_pods if pod not in waiting_backups]
        chipless = [pod for pod in self.waiting if not pod.count]
        placed: list[Assignment] = []
        if npu_pods and not self.state.table(job, npu_pods[0]).scores:
            return [], PlacementFailure(self.waiting, None, npu_pods[0], self.state.explain(job, npu_pods[0]))
        if npu_pods:
            rule = switch_affinity.place if job.topology == switch_config.RULE else blocks.place
            found = allocated_claims.place(self.state, job, npu_pods, ranks, memory) or rule(
                self.state, job, npu_pods, ranks, memory
            )
            if isinstance(found, Refusal):
                stuck = slots.unplaceable(self.state, job, npu_pods)
                if stuck is not None:
                    return [], PlacementFailure(self.waiting, None, stuck, self.state.explain(job, stuck))
                explanation = self.state.explain(job, npu_pods[0], found)
                return [], PlacementFailure(self.waiting, found, npu_pods[0], explanation)
            placed = found
        more, without = self.state.place(job, chipless, FormerPlacement())
        placed += more
        failure = self._failure(job, without) if without else None
        if failure is None and waiting_backups:
            backup = waiting_backups[0]
            text = f"pod {backup.name} stands by for {returning.backup_source(backup)}, which has no node itself"
            failure = PlacementFailure(waiting_backups, Refusal(GANG_INCOMPLETE, text))
        if self._enough(placed):
            return placed, failure
        self.state.unassign(placed)
        self.state.forget([item.pod for item in placed])
        if failure is None:
            return [], PlacementFailure(self.waiting)
        failure.pods = self.waiting
        return [], failure

    def _enough(self, placed: Sequence[Assignment]) -> bool:
        """Whether the gang may start: its minimum is placed, and the minimum of every task."""
        if not placed or len(placed) < self._needed():
            return False
        if not self.gang.task_min:
            return True
        counts = Counter(task_of(pod) for pod in [*self.started, *(item.pod for item in placed)])
        return all(counts[task] >= least for task, least in self.gang.task_min.items())

    def _orders(self, job: SchedulerJob, former: FormerPlacement) -> list[list[Pod]]:
        """Orders to try: remembered pods first, then what every task needs at least, then the hardest to place."""
        if len(self.waiting) == 1:
            self.mixed = False
            return [self.waiting]
        if job.gang.options.batch_scoring:
            natural = list(self.waiting)
        else:
            natural = sorted(self.waiting, key=lambda pod: pod.key not in former.node_of)
        tables = {pod.key: self.state.table(job, pod) for pod in self.waiting}
        self.mixed = len({id(table) for table in tables.values()}) > 1
        further = [self._needed_first(natural)] if self.gang.task_min else []
        if self.mixed:
            further.append(sorted(natural, key=lambda pod: -pod.count))
            further.append(sorted(natural, key=lambda pod: (len(tables[pod.key].scores), -pod.count)))
        orders = [natural]
        for order in further:
            if all(order != known for known in orders):
                orders.append(order)
        return orders

    def _needed_first(self, pods: Sequence[Pod]) -> list[Pod]:
        """The pods that the minimums of their tasks need before the others, else in the order given."""
        missing = dict(self.gang.task_min)
        for pod in self.started:
            missing[task_of(pod)] = missing.get(task_of(pod), 0) - 1
        needed: list[Pod] = []
        spare: list[Pod] = []
        for pod in pods:
            task = task_of(pod)
            (needed if missing.get(task, 0) > 0 else spare).append(pod)
            missing[task] = missing.get(task, 0) - 1
        return needed + spare

    def _failure(self, job: SchedulerJob, without: list[Pod]) -> PlacementFailure:
        """The failure of these pods, explained while the gang's other pods still hold their tentative assignments."""
        missing = max(1, self._short_of_tasks(without), self._needed() - (len(self.waiting) - len(without)))
        alike = sum(1 for pod in without[:missing] if pod.count == without[0].count)
        return PlacementFailure(without, None, without[0], self.state.explain(job, without[0], lacking=alike))

    def _short_of_tasks(self, without: Sequence[Pod]) -> int:
        """How many pods the minimums of the tasks lack when these have no node."""
        if not self.gang.task_min:
            return 0
        nowhere = {pod.key for pod in without}
        counts = Counter(task_of(pod) for pod in [*self.started, *self.waiting] if pod.key not in nowhere)
        return sum(max(0, least - counts[task]) for task, least in self.gang.task_min.items())

    def _memory(self) -> JobMemory | None:
        memory = self.scope.draft.memory.jobs.get(self.gang.key)
        if memory is None or memory.uid not in ("", self.gang.uid):
            return None
        return returning.unexpired(memory, self.scope.facts.now_ms)

    def _former_placement(
        self, job: SchedulerJob, ranks: Mapping[str, int], memory: JobMemory | None
    ) -> FormerPlacement:
        """Former nodes, where the configuration prefers them and no switch affinity rules them out."""
        switches = job.gang.options.switch_affinity != "null"
        if not self.state.params.prefer_previous_node or switches or not job.resource:
            return FormerPlacement(claimed=self.claimed)
        nodes = {str(ranks[pod.key]): pod.node for pod in self.started if pod.node and pod.key in ranks}
        nodes |= memory.nodes if memory is not None else {}
        if not nodes:
            return FormerPlacement(claimed=self.claimed)
        former = {
            pod.key: nodes[str(ranks[pod.key])]
            for pod in self.waiting
            if pod.key in ranks and str(ranks[pod.key]) in nodes
        }
        failed = frozenset(memory.fault_nodes if memory is not None else ())
        return FormerPlacement(former, self.claimed, failed, frozenset(nodes.values()))

    def _shortage_text(self, job: SchedulerJob, pods: Sequence[Pod]) -> str:
        """The sentence of pods that want more chips than the cluster has free, else empty.

        Pods left over by a gang that starts without them come one by one.
        """
        least = self._needed() if len(pods) == len(self.waiting) else 1
        wanted = _least_chips(pods, least)
        free = self._free(job)
        return f"{_required_text(wanted, free)}; " if free is not None and wanted > free else ""

    def _add_pending(
        self, failure: PlacementFailure, job: SchedulerJob | None = None, over_quota: Sequence[Pod] = ()
    ) -> None:
        """Add the gang's pending entry; the pods ``over_quota`` of its queue wait with the others."""
        found = failure.explanation
        if found is None and failure.gang_refusal is not None:
            found = refused(
                failure.gang_refusal, of_refused_gang(failure.gang_refusal.reason, self._free(job) if job else None)
            )
        found = found or PendingExplanation({}, GANG_INCOMPLETE, "", _TASKS_SHORT, None)
        line, rejected = found.text, found.rejected
        if failure.first is not None and job is not None and (short := self._shortage_text(job, failure.pods)):
            line, rejected = f"{short}{line}", RejectedAt.ENQUEUE
        if failure.first is not None and len(failure.pods) > 1:
            line = f"{line} [pod {failure.first.name} of {len(failure.pods)}]"

        self.unplaced, self.reason = failure.pods, found.reason
        entry = enqueue.pending_entry(
            self.gang,
            [*failure.pods, *over_quota],
            found.reason,
            line,
            nodes=found.nodes,
            unblock=found.unblock,
            near=found.near,
            remedy=found.remedy,
            state=found.state,
            rejected=rejected,
        )
        self.scope.draft.pending.append(entry)
        if not self.started:
            returning.record_absence(self.scope.facts, self.scope.draft, self.gang.key)


def _least_chips(pods: Sequence[Pod], least: int) -> int:
    """The chips that the ``least`` smallest of the pods want."""
    return sum(sorted(pod.count for pod in pods if pod.count)[: max(1, least)])


def _required_text(wanted: int, free: int) -> str:
    return f"require npu num is {wanted}, but cluster npu num is {free}"


__all__ = ["place_gangs"]
