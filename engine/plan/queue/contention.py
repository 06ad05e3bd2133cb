"""When there is no room: who goes for whom, what is kept for whom, and what to tell those who wait.

Runs around placement: jobs for which others were told to go are served first (``serve``), then, once everybody has had
a turn, the jobs that are stuck get room by preemption or reclaim where somebody allows it, and else the cheapest way
out as a sentence (``settle``). What is freed for a job stays its own: the history names the pods that went for it.
Nobody goes for room that comes by itself: what terminating pods leave is counted first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.model.actions import EvictPod, Evidence, Owner
from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan.queue import nominate, words
from engine.plan.queue.candidates import Candidates
from engine.plan.queue.case import Case
from engine.plan.queue.consent import Consent
from engine.plan.queue.leaving import Leaving
from engine.plan.queue.lines import Amounts, Quota, add
from engine.plan.queue.reserve import Guard, Placing
from engine.plan.queue.roster import Roster
from engine.plan.queue.search import Exhausted, least
from engine.plan.queue.share import over, within
from engine.plan.queue.units import Unit, told_again
from engine.plan.scope import Displacement, NodeView, Scope
from engine.plan.victims import memory_of

if TYPE_CHECKING:
    from engine.plan.place.job import Job
    from engine.plan.place.trial import Trials

PREEMPTED: Final = "Preempted"
RECLAIMED: Final = "Reclaimed"
TOPOLOGY: Final = "TopologyNotMet"
#: Reasons that evictions can cure.
CURABLE: Final = frozenset(
    {"NPUResourceShortage", "JobEnqueueFailed", TOPOLOGY, "QueueExhausted", "NodeUnstable", "TooManyPods"}
)
#: Begins the reasons of Kubernetes' other resources, which evictions can cure too.
INSUFFICIENT: Final = "Insufficient"
#: What one job's search for victims may cost, and what one sentence may.
SEARCH: Final = 6000
SENTENCE: Final = 250
#: So many stuck jobs of a pass are told what would make room, looking at the nodes where least is missing.
MAX_SENTENCES: Final = 3
MAX_NODES: Final = 64
NEAR_NODES: Final = 12


class _Victim(NamedTuple):
    """A unit that may go, by which rule, where it frees something, and its pods: NPU resources and keys."""

    unit: Unit
    rule: str
    nodes: tuple[str, ...]
    resources: frozenset[str]
    pods: frozenset[str]


class Contention:
    """One pass's answers to jobs that find no room."""

    def __init__(self, scope: Scope, quota: Quota, trials: Trials, roster: Roster) -> None:
        self._scope, self._quota, self._trials, self._roster = scope, quota, trials, roster
        self._consent = Consent(scope, quota.lines)
        self._guard, self._leaving = Guard(scope, trials), Leaving(scope, trials)
        self._stuck: list[Placing] = []
        self._candidates = Candidates(scope)
        self._victims_of: dict[tuple[object, ...], list[_Victim]] = {}
        #: Wishes for which nothing was found in this pass; those of the same kind are not searched for again.
        self._hopeless: set[tuple[object, ...]] = set()
        #: Wishes for which what leaves by itself is not enough.
        self._vain: set[tuple[object, ...]] = set()
        self._opened: dict[tuple[object, ...], bool] = {}
        self._emptiest: dict[str, list[NodeView]] = {}
        self._told = 0

    def serve(self, place: Callable[[Gang], Placing]) -> set[str]:
        """Places those first for whom pods were told to go, or keeps what becomes free for them; returns their keys."""
        self._guard.keep()
        served: set[str] = set()
        for gang, victims in nominate.waiting(self._scope):
            served.add(gang.key)
            placing = place(gang)
            held = bool(placing.left and victims) and self._hold(placing, victims)
            if not held:
                nominate.clear(self._scope, gang)
                self._leaving.add(victims)
                self.note(placing)
                continue
            words.amend(self._scope, gang, words.waits_for(victims))
            again = [pod for pod in victims if pod.deleting is None and pod.key not in self._scope.evicting]
            for unit in told_again(self._scope, again):
                self._evict(
                    gang, unit, self._first_reason(gang, unit), "its eviction was decided before", counted=False
                )
        return served

    def _first_reason(self, gang: Gang, unit: Unit) -> str:
        """Why the unit was told to go for the gang, as its story tells it."""
        for _, text in reversed(memory_of(self._scope, unit.gang).timeline):
            reason, _, whom = text.partition(" for ")
            if whom == gang.key:
                return reason.capitalize()
        return PREEMPTED

    def _hold(self, placing: Placing, victims: Sequence[Pod]) -> bool:
        """Whether the gang fits in place of these, if need be with what terminating pods leave; it is kept for it."""
        gang, wishes = placing.gang, self._wishes(placing)
        if any(self._leaving.keep(gang, pods, victims) is not None for pods in wishes):
            return True
        job = self._trials.job(gang)
        if job is None:
            return False
        for pods in wishes:
            try:
                coming = self._leaving.helping(gang, job.resource, pods, self._trials.kind(gang, pods))
            except Exhausted:
                return False
            if coming and self._leaving.keep(gang, pods, [*victims, *coming]) is not None:
                return True
        return False

    def note(self, placing: Placing) -> None:
        """Takes down what became of a gang in its turn."""
        if placing.left:
            self._stuck.append(placing)
        self._guard.settled(placing.gang, self._needs(placing) if placing.left else 0)

    def settle(self) -> None:
        """Makes room for stuck jobs where that is allowed; tells the others the cheapest way out."""
        cramped = [one for one in self._stuck if _curable(one) and not self._make_room(one)]
        for placing in sorted(cramped, key=lambda placing: not self._asked(placing)):
            self._tell(placing)
        self._guard.run([placing for placing in self._stuck if self._needs(placing)], self._wishes)

    def _asked(self, placing: Placing) -> bool:
        """Whether somebody asks about this job, by its name or a pod's, with or without the namespace."""
        about, gang = self._scope.about, placing.gang
        names = {gang.name, f"{gang.namespace}/{gang.name}", gang.key}
        return bool(about) and (about in names or any(about in (pod.name, pod.key) for pod in placing.left))

    def _needs(self, placing: Placing) -> int:
        return max(0, placing.gang.min_available - len(self._roster.started(placing.gang)))

    def _wishes(self, placing: Placing) -> list[Sequence[Pod]]:
        """The pods to make room for: the gang's minimum together; extra pods together, else one of them."""
        needs = self._needs(placing)
        if needs:
            return [placing.left[:needs]] if len(placing.left) >= needs else []
        return [placing.left, placing.left[:1]] if len(placing.left) > 1 else [placing.left]

    def _evicting_job(self, gang: Gang) -> Job | None:
        """The job behind a gang for which others may be evicted, None for all the rest."""
        from engine.plan.place.trial import preempts

        job = self._trials.job(gang) if self._consent.anywhere and not self._trials.spent else None
        if job is None or not preempts(job):
            return None
        return job if any(self._victims(gang, reason) for reason in (PREEMPTED, RECLAIMED)) else None

    def _awaits(self, gang: Gang, pods: Sequence[Pod], coming: Sequence[Pod], kind: tuple[object, ...]) -> bool:
        """Keeps what terminating pods free for a gang, when that is enough.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        if not coming or kind in self._vain:
            return False
        if not self._trials.place(gang, pods, coming):
            self._vain.add(kind)
            return False
        words.amend(self._scope, gang, words.ends_by_itself(self._leaving.keep(gang, pods, coming) or coming))
        return True

    def _make_room(self, placing: Placing) -> bool:
        gang = placing.gang
        job = self._evicting_job(gang)
        if job is None:
            return False
        for pods in self._wishes(placing):
            kind = self._trials.kind(gang, pods)
            if kind in self._hopeless:
                continue
            try:
                coming = self._leaving.helping(gang, job.resource, pods, kind)
                if self._awaits(gang, pods, coming, kind):
                    return True
                with self._trials.without(gang, coming):
                    found = self._search(gang, pods, job)
            except Exhausted:
                self._hopeless.add(kind)
                return False
            if found is None:
                self._hopeless.add(kind)
                continue
            rows, reason = found
            gone = [pod for row in rows for pod in row.unit.pods]
            for row in rows:
                self._evict(gang, row.unit, reason, row.rule, counted=True)
            self._leaving.keep(gang, pods, [*coming, *gone])
            words.amend(self._scope, gang, words.waits_for(gone))
            return True
        return False

    def _search(self, gang: Gang, pods: Sequence[Pod], job: Job) -> tuple[list[_Victim], str] | None:
        """The least that must go for these pods, and by which of the two ways.

        Raises:
            Exhausted: more what-ifs than this gang's share of the pass.
        """
        # whoever is first in the queue must not use up what the others need
        purse = min(SEARCH, max(SENTENCE, self._trials.effort // 2))
        case = Case(self._trials, gang, pods, purse, self._opened, gated=True)
        for reason in (PREEMPTED, RECLAIMED):
            if reason == RECLAIMED and not self._deserves(gang, pods):
                continue
            victims = self._victims(gang, reason)
            self._trials.look(len(victims))
            rows = self._serving(victims, case, job.resource)
            allowed = self._over_share(pods) if reason == RECLAIMED else self._candidates.unshielded
            found = least(case, [row.unit for row in rows], allowed, pods=len(pods)) if rows else None
            if found is not None:
                by_key = {row.unit.key: row for row in rows}
                return [by_key[unit.key] for unit in found], reason
        return None

    def _victims(self, gang: Gang, reason: str) -> list[_Victim]:
        """Whoever may go for gangs of this queue and importance, found once a pass."""
        key = (reason, gang.queue, gang.priority, gang.priority_class)
        if key not in self._victims_of:
            among = self._below(gang) if reason == PREEMPTED else self._elsewhere(gang)
            rule = self._consent.preempted if reason == PREEMPTED else self._consent.reclaimed
            rows = ((unit, rule(gang, unit)) for unit in self._candidates.units(among, ""))
            self._victims_of[key] = [
                _Victim(
                    unit,
                    told,
                    tuple(unit.nodes),
                    frozenset(pod.resource for pod in unit.pods),
                    frozenset(pod.key for pod in unit.pods),
                )
                for unit, told in sorted(rows, key=lambda row: row[0].key)
                if told and self._candidates.unshielded((unit,))
            ]
        return self._victims_of[key]

    def _serving(self, victims: Sequence[_Victim], case: Case, resource: str) -> list[_Victim]:
        """Those who still stay and whose end may make room: on nodes where evictions help, with what is short there."""
        helped = case.helped({node for row in victims for node in row.nodes})
        crowded = case.crowded(helped) if resource else helped
        going = self._scope.evicting
        return [
            row
            for row in victims
            if not helped.isdisjoint(row.nodes)
            and (resource in row.resources or not crowded.isdisjoint(row.nodes))
            and going.isdisjoint(row.pods)
        ]

    def _deserves(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Whether the gang's queue stays within what it deserves with these pods."""
        if len({*self._quota.lines, gang.queue}) < 2:
            return False
        wanted: Amounts = {}
        for pod in pods:
            add(wanted, pod.requests)
        shares = self._quota.shares
        return within(shares.allocated.get(gang.queue, {}), wanted, shares.deserved.get(gang.queue, {}))

    def _over_share(self, pods: Sequence[Pod]) -> Callable[[Sequence[Unit]], bool]:
        """Whether every queue is above its share until the last of its units goes."""
        wanted = sorted({name for pod in pods for name, amount in pod.requests.items() if amount})
        shares = self._quota.shares

        def allowed(units: Sequence[Unit]) -> bool:
            if not self._candidates.unshielded(units):
                return False
            left: dict[str, Amounts] = {}
            for unit in sorted(units, key=lambda unit: unit.key):
                queue = unit.gang.queue
                row = left.setdefault(queue, dict(shares.allocated.get(queue, {})))
                if not over(row, shares.deserved.get(queue, {}), wanted):
                    return False
                for pod in unit.pods:
                    add(row, pod.requests, -1)
            return True

        return allowed

    def _below(self, gang: Gang) -> list[Gang]:
        """The gangs of its own queue that a gang may be preferred to."""
        gangs = self._scope.gangs.values()
        return [one for one in gangs if one.priority < gang.priority and one.queue == gang.queue]

    def _elsewhere(self, gang: Gang) -> list[Gang]:
        """The gangs of queues that give back what they have beyond their share."""
        lines = {name for name, line in self._quota.lines.items() if line.reclaimable and name != gang.queue}
        return [one for one in self._scope.gangs.values() if one.queue in lines] if lines else []

    def _near(self, gang: Gang, resource: str, pods: int) -> list[Gang]:
        """The gangs on the nodes that have most chips free: where the least is missing."""
        if resource not in self._emptiest:
            rows = (view for view in self._scope.nodes.values() if view.resource == resource and view.used)
            self._emptiest[resource] = nsmallest(
                MAX_NODES, rows, key=lambda view: (-view.free.bit_count(), view.node.name)
            )
        keys: dict[str, None] = {}
        for view in self._emptiest[resource][: NEAR_NODES + 4 * pods]:
            keys.update(dict.fromkeys(self._scope.gang_of.get(pod.key, "") for pod in view.pods))
        return [self._scope.gangs[key] for key in keys if key in self._scope.gangs and key != gang.key]

    def _evict(self, gang: Gang, unit: Unit, reason: str, rule: str, *, counted: bool) -> None:
        victim = unit.gang
        self._scope.displaced[unit.budget] = Displacement(
            gang.key, victim.key, tuple(pod.key for pod in unit.pods), reason, counted
        )
        for pod in unit.pods:
            self._scope.evicting.add(pod.key)
            self._scope.actions.append(
                EvictPod(
                    namespace=pod.namespace,
                    pod=pod.name,
                    grace_period_seconds=pod.grace_seconds,
                    force=False,
                    owner=Owner(victim.kind, victim.name),
                    budget_unit=unit.budget,
                    reason=reason,
                    message=words.makes_way(gang, unit, pod, reason),
                    evidence=Evidence(rule=rule, revision=self._scope.desired.revision),
                    preconditions={"uid": pod.uid, "node": pod.node},
                )
            )

    def _tell(self, placing: Placing) -> None:
        """What would make room, whoever may decide that; a few jobs a pass, for it costs what a search costs."""
        asked = self._asked(placing)
        if (self._told >= MAX_SENTENCES and not asked) or placing.why == "QueueExhausted":
            return
        job = self._trials.job(placing.gang)
        if job is None or not job.resource:
            return
        self._told += 1
        gang = placing.gang
        for pods in self._wishes(placing)[-1:]:
            coming = self._leaving.near(job.resource, len(pods))
            try:
                nodes = {seat.node for seat in self._trials.place(gang, pods, coming)} if coming else set()
                if nodes:
                    words.extend(self._scope, gang, words.end_would_do([pod for pod in coming if pod.node in nodes]))
                    return
            except Exhausted:
                return
            near = self._near(gang, job.resource, len(pods))
            units = sorted(self._candidates.units(near, job.resource), key=lambda unit: unit.key)
            lower = [unit for unit in units if unit.gang.priority < gang.priority]
            for candidates in (lower, units):
                case = Case(self._trials, gang, pods, SEARCH if asked else SENTENCE, self._opened, gated=False)
                try:
                    found = least(case, candidates, _anything, pods=len(pods)) if candidates else None
                except Exhausted:
                    return
                if found:
                    words.extend(self._scope, gang, words.would_do(gang, found, self._why_not(placing, job, found)))
                    return

    def _why_not(self, placing: Placing, job: Job, units: Sequence[Unit]) -> str:
        """Why these do not go although that would make room; empty where it cannot be told in a few words."""
        from engine.plan.place.trial import preempts

        gang, ask = placing.gang, self._consent
        if not all(ask.preempted(gang, unit) or ask.reclaimed(gang, unit) for unit in units):
            return "no queue or priority class allows that by itself"
        if not preempts(job):
            return "jobs of this kind evict nobody by themselves"
        if not self._candidates.unshielded(units):
            return "a PodDisruptionBudget does not allow that now"
        return "chips are not freed by themselves only to lie together" if placing.why == TOPOLOGY else ""


def _curable(placing: Placing) -> bool:
    return placing.why in CURABLE or placing.why.startswith(INSUFFICIENT)


def _anything(_units: Sequence[Unit]) -> bool:
    return True
