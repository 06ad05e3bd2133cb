"""Puts waiting gangs on nodes and chips, all or nothing, in the order of the queue.

One file per topology family (base, ring8, box16, a3, mesh4, card310, duo; superpod, rack950, multilevel and switches
place whole gangs); ``families`` chooses between them, ``table`` judges nodes, ``bench`` keeps the books. Chosen is the
node with the highest raw score after the bonus for previous nodes and penalties; preferred node affinity breaks ties,
then the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from engine.documents import InitParams
from engine.model.cluster import Pod
from engine.model.diagnostics import Diagnostic
from engine.model.history import JobMemory
from engine.model.jobs import Gang
from engine.plan import queue, views
from engine.plan.gangs import task_of
from engine.plan.place import groupwise, regroup, rollback, search, slots, softtable, switches, torconfig
from engine.plan.place import job as jobs
from engine.plan.place.bench import MAX_SCORES, Bench, Seated, Wishes
from engine.plan.place.bindings import Bindings
from engine.plan.place.consolidate import Consolidation
from engine.plan.place.job import Job
from engine.plan.place.pending import Story
from engine.plan.place.repartition import Room
from engine.plan.place.sharing import Soft
from engine.plan.place.trial import Trials
from engine.plan.place.verdict import (
    ENQUEUE_FAILED,
    GANG_INCOMPLETE,
    INVALID_REQUEST,
    NOT_SUPPORTED,
    QUEUE_EXHAUSTED,
    Refusal,
)
from engine.plan.queue.contention import Contention
from engine.plan.scope import Scope
from engine.wire.names import SCHEDULER_CONFIGMAP, SCHEDULER_KEY, SCHEDULER_NAMESPACE

_CONFIGURED: Final = f"ConfigMap/{SCHEDULER_NAMESPACE}/{SCHEDULER_CONFIGMAP}"
#: What a job can do that no handler places at all.
WAYS_OUT: Final = {
    INVALID_REQUEST: "correct the job's request",
    NOT_SUPPORTED: f"name a policy that this version places in annotation {jobs.POLICY_KEY}, or correct the labels",
    ENQUEUE_FAILED: "wait until so many chips are free, or state fewer in spec.minResources of its PodGroup",
    torconfig.UNKNOWN: f"import the switches as {torconfig.CONFIG}, or remove label {torconfig.LABEL}",
}


@dataclass(slots=True)
class Failure:
    """Which pods were left, and why: the gang's own refusal, or the story of the first pod without a node."""

    pods: list[Pod]
    whole: Refusal | None = None
    first: Pod | None = None
    story: Story | None = None


def run(scope: Scope) -> None:
    """Appends BindPod actions, ``pending`` and ``scores`` for the gangs of ``scope.queue``."""
    scope.diagnostics.extend(torconfig.findings(scope.observed))
    for key, text in InitParams.unread(scope.observed.init_params).items():
        where = f"data.{SCHEDULER_KEY}: init-params.{key}"
        scope.diagnostics.append(Diagnostic("warning", _CONFIGURED, "", 0, 0, where, text))
    if not scope.queue:
        return
    bench = Bench(scope, views.init_params(scope.desired, scope.observed))
    quota, roster = queue.Quota(scope), queue.Roster(scope)
    trials = Trials(scope, bench, quota, lambda gang: _Gang(scope, bench, quota, roster, gang))
    contention = Contention(scope, quota, trials, roster)
    room, together = Room(scope, bench, trials), Consolidation(scope, bench, trials)
    together.withdraw()
    served = contention.serve(lambda gang: _placed(_Gang(scope, bench, quota, roster, gang)))
    for key in queue.turns(scope, quota, [key for key in scope.queue if key not in served]):
        contention.note(together.seen(room.seen(_placed(_Gang(scope, bench, quota, roster, scope.gangs[key])))))
    contention.settle()
    room.make()
    together.make()
    if bench.unrecorded:
        text = f"scores of {bench.unrecorded} placed pods are not kept, a plan holds at most {MAX_SCORES} of them"
        scope.diagnostics.append(Diagnostic("info", "", "", 0, 0, "scores", text))


def _placed(gang: _Gang) -> _Gang:
    gang.run()
    return gang


class _Gang:
    """Placing one gang."""

    def __init__(self, scope: Scope, bench: Bench, quota: queue.Quota, roster: queue.Roster, gang: Gang) -> None:
        self.scope, self.bench, self.quota, self.gang = scope, bench, quota, gang
        self.waiting = roster.waiting(gang)
        self.started = roster.beside(gang, self.waiting)
        self.claimed: dict[str, Seated] = {}
        self.mixed = False
        self.left: Sequence[Pod] = ()
        self.why = ""
        self._found: Job | Refusal | None = None

    @property
    def found(self) -> Job | Refusal:
        """The job behind the gang, or why no handler places it."""
        if self._found is None:
            self._found = self.bench.likeness.job(self.gang, self.scope.observed.pods, self._read)
        return self._found

    def _read(self) -> Job | Refusal:
        return jobs.of(self.gang, self.scope.desired, self.scope.observed, self.bench.params)

    @property
    def job(self) -> Job | None:
        """The job behind the gang, None when no handler places it."""
        return None if isinstance(self.found, Refusal) else self.found

    def attempt(self, pods: Sequence[Pod]) -> list[Seated]:
        """Seats for all of these pods, left on the bench for a what-if; empty when they do not fit together."""
        job = self.job
        if job is None or self.quota.shortage(self.gang.queue, pods) is not None or self._shut_out(job):
            return []
        everyone, self.waiting = self.waiting, list(pods)
        placed, _ = self._try(job, regroup.ranks(job, everyone), self._memory())
        self.waiting = everyone
        if len(placed) == len(pods):
            return placed
        self.bench.take_back(placed)
        return []

    def run(self) -> None:
        found = self.found
        if isinstance(found, Refusal):
            self._pend(Failure(self.waiting, whole=found))
            return
        if self._exhausted(self.waiting, self.waiting[: self._needed()] or self.waiting[:1]):
            return
        shut = self._shut_out(found)
        if shut is not None:
            self._pend(Failure(self.waiting, whole=shut))
            return
        beyond = self.waiting[self.quota.room(self.gang.queue, self.waiting) :]
        if beyond:
            self.waiting = self.waiting[: -len(beyond)]
        ranks = regroup.ranks(found, self.waiting)
        memory = self._memory()
        self.claimed = self.bench.release_claims(self.waiting)
        placed, failure = self._try(found, ranks, memory)
        seated = {item.pod.key for item in placed}
        self.bench.restore_claims({key: item for key, item in self.claimed.items() if key not in seated})
        if placed:
            bindings = Bindings(self.scope, self.bench, self.gang, found, ranks, memory)
            bindings.order(placed)
            bindings.remember(placed)
            self.quota.take(self.gang.queue, [item.pod for item in placed])
        if not placed and self.claimed and self._needed():
            rollback.run(self.scope, self.gang, self.started, self.waiting)
        if failure is not None:
            self._pend(failure, found, beyond)
        elif beyond:
            self._exhausted(beyond, beyond[:1])

    def _exhausted(self, pods: Sequence[Pod], first: Sequence[Pod]) -> bool:
        """Whether the queue has too little left for the first of these pods; then all of them are pending."""
        short = self.quota.shortage(self.gang.queue, first)
        if short is not None:
            message, unblock = short
            self.left, self.why = pods, QUEUE_EXHAUSTED
            entry = queue.pending_entry(self.gang, pods, QUEUE_EXHAUSTED, message, nodes={}, unblock=unblock)
            self.scope.pending.append(entry)
        return short is not None

    @cached_property
    def _least(self) -> int:
        """The chips that must be free before the gang is let in."""
        job = self.job
        return 0 if job is None or self.started else jobs.least_chips(job, self.scope.observed)

    def _shut_out(self, job: Job) -> Refusal | None:
        """Why a gang whose minimum may fit is not let in: its PodGroup states more than the cluster has free."""
        free = self._free(job) if self._least else None
        if free is None or self._least <= free or _fewest(self.waiting, self._needed()) > free:
            return None
        return Refusal(ENQUEUE_FAILED, _require(self._least, free))

    def _free(self, job: Job) -> int | None:
        """What the cluster has free of what the job asks for; None for parts of chips, which are not counted so."""
        if isinstance(job.shared, Soft):
            return softtable.offered(self.bench.parts, self.bench.views, job.resource)
        return self.bench.free_chips(job.resource) if job.family is not None else None

    def _needed(self) -> int:
        return max(0, self.gang.min_available - len(self.started))

    def _try(self, job: Job, ranks: Mapping[str, int], memory: JobMemory | None) -> tuple[list[Seated], Failure | None]:
        if job.topology:
            return self._together(job, ranks, memory)
        wishes = self._wishes(job, ranks, memory)
        first: Failure | None = None
        for order in self._orders(job, wishes):
            placed, without = self.bench.seat(job, order, wishes)
            failure = self._failure(job, without) if without else None
            if self._enough(placed):
                return placed, failure
            self.bench.take_back(placed)
            self.bench.forget([item.pod for item in placed])
            if failure is not None:
                failure.pods = self.waiting
            first = first or failure
        if self.mixed and self._needed() == len(self.waiting) and not self.claimed:
            found = search.seat_all(self.bench, job, self.waiting)
            if found:
                return found, None
        return [], first or Failure(self.waiting)

    def _together(
        self, job: Job, ranks: Mapping[str, int], memory: JobMemory | None
    ) -> tuple[list[Seated], Failure | None]:
        """Super pods and trees: the pods with chips as one, then the others.

        Two pods cannot have one rank: a backup whose source waits as well comes in its turn.
        """
        seekers = [pod for pod in self.waiting if pod.count]
        asking = {pod.key for pod in seekers}
        doubles = [pod for pod in seekers if regroup.backup_source(pod) in asking]
        seekers = [pod for pod in seekers if pod not in doubles]
        others = [pod for pod in self.waiting if not pod.count]
        placed: list[Seated] = []
        if seekers and not self.bench.table(job, seekers[0]).scores:
            return [], Failure(self.waiting, None, seekers[0], self.bench.story(job, seekers[0]))
        if seekers:
            rule = switches.place if job.topology == torconfig.RULE else groupwise.seat
            found = rule(self.bench, job, seekers, ranks, memory)
            if isinstance(found, Refusal):
                stuck = slots.hopeless(self.bench, job, seekers)
                if stuck is not None:
                    return [], Failure(self.waiting, None, stuck, self.bench.story(job, stuck))
                told = self.bench.story(job, seekers[0], found)
                return [], Failure(self.waiting, found, seekers[0], told)
            placed = found
        more, without = self.bench.seat(job, others, Wishes())
        placed += more
        failure = self._failure(job, without) if without else None
        if failure is None and doubles:
            text = f"pod {doubles[0].name} stands by for {regroup.backup_source(doubles[0])}, which has no node itself"
            failure = Failure(doubles, Refusal(GANG_INCOMPLETE, text))
        if self._enough(placed):
            return placed, failure
        self.bench.take_back(placed)
        self.bench.forget([item.pod for item in placed])
        if failure is None:
            return [], Failure(self.waiting)
        failure.pods = self.waiting
        return [], failure

    def _enough(self, placed: Sequence[Seated]) -> bool:
        """Whether the gang may start: its minimum, and the minimum of every task."""
        if not placed or len(placed) < self._needed():
            return False
        if not self.gang.task_min:
            return True
        counts: dict[str, int] = {}
        for pod in [*self.started, *(item.pod for item in placed)]:
            counts[task_of(pod)] = counts.get(task_of(pod), 0) + 1
        return all(counts.get(task, 0) >= least for task, least in self.gang.task_min.items())

    def _orders(self, job: Job, wishes: Wishes) -> list[list[Pod]]:
        """Orders to try: ranks (remembered pods first), then what every task needs at least, then the pods that are
        hardest to place first.
        """
        if len(self.waiting) == 1:
            self.mixed = False
            return [self.waiting]
        if job.shape.labels.get("podgroup-sched-enable") == "true":
            natural = list(self.waiting)
        else:
            natural = sorted(self.waiting, key=lambda pod: pod.key not in wishes.former)
        tables = {pod.key: self.bench.table(job, pod) for pod in self.waiting}
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
        """The pods that their tasks' minimums need before the others, else in the order given."""
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

    def _failure(self, job: Job, without: list[Pod]) -> Failure:
        """Told while the gang's other pods still hold their tentative seats."""
        missing = max(1, self._needed() - (len(self.waiting) - len(without)))
        alike = sum(1 for pod in without[:missing] if pod.count == without[0].count)
        return Failure(without, None, without[0], self.bench.story(job, without[0], lacking=alike))

    def _memory(self) -> JobMemory | None:
        memory = self.scope.memory.jobs.get(self.gang.key)
        if memory is None or memory.uid not in ("", self.gang.uid):
            return None
        return regroup.recent(memory, self.scope.now_ms)

    def _wishes(self, job: Job, ranks: Mapping[str, int], memory: JobMemory | None) -> Wishes:
        """Former nodes, where the scheduler is told to prefer them and no switch affinity forbids it."""
        tor = job.shape.labels.get("tor-affinity", "null")
        if not self.bench.params.prefer_previous_node or tor != "null" or not job.resource:
            return Wishes(claimed=self.claimed)
        nodes = {str(ranks[pod.key]): pod.node for pod in self.started if pod.node and pod.key in ranks}
        nodes |= memory.nodes if memory is not None else {}
        if not nodes:
            return Wishes(claimed=self.claimed)
        former = {
            pod.key: nodes[str(ranks[pod.key])]
            for pod in self.waiting
            if pod.key in ranks and str(ranks[pod.key]) in nodes
        }
        failed = frozenset(memory.fault_nodes if memory is not None else ())
        return Wishes(former, self.claimed, failed, frozenset(nodes.values()))

    def _enqueue(self, job: Job, pods: Sequence[Pod]) -> str:
        """The words of pods that want more chips than the cluster has free; empty otherwise.

        Pods left over by a gang that starts without them come one by one.
        """
        least = self._needed() if len(pods) == len(self.waiting) else 1
        wanted = _fewest(pods, least)
        free = self._free(job)
        return f"{_require(wanted, free)}; " if free is not None and wanted > free else ""

    def _pend(self, failure: Failure, job: Job | None = None, beyond: Sequence[Pod] = ()) -> None:
        """Tells why the gang's pods wait; those ``beyond`` what its queue has left wait with them."""
        whole, told = failure.whole, failure.story
        if told is not None and failure.first is not None:
            message = told.text if job is None else self._enqueue(job, failure.pods) + told.text
            if len(failure.pods) > 1:
                message = f"{message} [pod {failure.first.name} of {len(failure.pods)}]"
            nodes, reason, unblock = told.nodes, told.reason, told.unblock
        elif whole is not None:
            nodes, reason, message = {}, whole.reason, whole.message
            unblock = WAYS_OUT.get(reason)
        else:
            nodes, reason, unblock = {}, GANG_INCOMPLETE, None
            message = "the pods of job is not enough for its tasks' minimum"
        self.left, self.why = failure.pods, reason
        everyone = [*failure.pods, *beyond]
        entry = queue.pending_entry(self.gang, everyone, reason, message, nodes=nodes, unblock=unblock)
        self.scope.pending.append(entry)
        if not self.started:
            regroup.note_away(self.scope, self.gang.key)


def _fewest(pods: Sequence[Pod], least: int) -> int:
    """The chips that so many of the pods want at least."""
    return sum(sorted(pod.count for pod in pods if pod.count)[: max(1, least)])


def _require(wanted: int, free: int) -> str:
    return f"require npu num is {wanted}, but cluster npu num is {free}"


__all__ = ["run"]
