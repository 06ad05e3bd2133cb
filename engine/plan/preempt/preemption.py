"""Evict pods for jobs that find no room, where a rule allows it; else state the cheapest eviction that would help.

Runs around placement. Jobs for which pods were evicted are placed first (``serve_nominated``). Once every gang has had
its turn, stuck jobs get room by preemption or reclaim (``run``). Freed chips stay with their job: its history names the
pods evicted for it. Chips that terminating pods will free are counted before any pod is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, NamedTuple

from belay.engine.model.cluster import Pod
from belay.engine.model.history_lines import PREEMPTED, RECLAIMED
from belay.engine.model.jobs import Gang
from belay.engine.plan.preempt import messages, moves, nomination
from belay.engine.plan.preempt.candidates import EvictionCandidates
from belay.engine.plan.preempt.evictions import evict
from belay.engine.plan.preempt.outcome import TOPOLOGY, GangOutcome, curable
from belay.engine.plan.preempt.reservation import Reservations
from belay.engine.plan.preempt.rules import PreemptionRules
from belay.engine.plan.preempt.search import Exhausted, cheapest
from belay.engine.plan.preempt.terminating import TerminatingPods
from belay.engine.plan.preempt.tight_meshes import tightest_first
from belay.engine.plan.preempt.victim_search import VictimSearch
from belay.engine.plan.preempt.victim_sets import VictimSet, unfinished_evictions
from belay.engine.plan.queue.queues import Amounts, Queues, add
from belay.engine.plan.queue.share import exceeds, within
from belay.engine.plan.queue.waiting_pods import WaitingPods
from belay.engine.plan.scope import Scope

if TYPE_CHECKING:
    from belay.engine.plan.place.job import SchedulerJob
    from belay.engine.plan.preempt.what_if import WhatIf

#: Most effort of one job's search for victims, and of one explanation.
SEARCH_EFFORT: Final = 6000
EXPLANATION_EFFORT: Final = 250
#: So many stuck jobs of a pass get an explanation, over the nodes where the least is missing.
MAX_EXPLANATIONS: Final = 3
MAX_NODES: Final = 64
NEAR_NODES: Final = 12


class _Victim(NamedTuple):
    """A victim set that may go: the rule that allows it, where it frees something, its NPU resources and pod keys."""

    victim_set: VictimSet
    rule: str
    nodes: tuple[str, ...]
    resources: frozenset[str]
    pods: frozenset[str]


class Preemption:
    """The evictions of one pass for jobs that find no room."""

    def __init__(self, scope: Scope, queues: Queues, what_if: WhatIf, waiting_pods: WaitingPods) -> None:
        self._scope, self._queues, self._what_if, self._waiting_pods = scope, queues, what_if, waiting_pods
        self._rules = PreemptionRules(scope.facts, scope.gangs, queues.by_name)
        self._reservations, self._terminating = Reservations(scope, what_if), TerminatingPods(scope, what_if)
        self._stuck: list[GangOutcome] = []
        self._candidates = EvictionCandidates(scope.facts, scope.draft)
        self._victims_of: dict[tuple[object, ...], list[_Victim]] = {}
        #: Request classes without a solution in this pass; they are not searched again.
        self._unsolvable: set[tuple[object, ...]] = set()
        #: Request classes for which terminating pods do not free enough.
        self._not_enough: set[tuple[object, ...]] = set()
        self._known_fits: dict[tuple[object, ...], bool] = {}
        self._emptiest: dict[str, list[str]] = {}
        self._explained = 0

    def serve_nominated(self, place: Callable[[Gang], Sequence[GangOutcome]]) -> set[str]:
        """Place the gangs for which pods were evicted first, or keep what those pods free; return the gangs' keys."""
        self._reservations.close_nodes()
        served: set[str] = set()
        for gang, victims in nomination.nominated_gangs(self._scope):
            served.add(gang.key)
            outcome = _waiting_one(place(gang))
            held = bool(outcome.unplaced and victims) and self._hold(outcome, victims)
            if not held:
                nomination.clear(self._scope.draft, gang)
                self._terminating.add(victims)
                self.record(outcome)
                continue
            messages.amend(
                self._scope.draft, gang, messages.waits_for_evictions(victims), near=messages.nodes_of(victims)
            )
            again = [pod for pod in victims if pod.deleting is None and pod.key not in self._scope.draft.evicting]
            for victim_set in unfinished_evictions(self._scope.facts, self._scope.draft, self._scope.gangs, again):
                evict(
                    self._scope.facts,
                    self._scope.draft,
                    gang,
                    victim_set,
                    self._earlier_reason(gang, victim_set),
                    "its eviction was decided before",
                    counted=False,
                )
        return served

    def _earlier_reason(self, gang: Gang, victim_set: VictimSet) -> str:
        """Why the victim set was evicted for the gang."""
        return moves.displaced_for(self._scope.draft, victim_set.gang, gang) or PREEMPTED

    def _hold(self, outcome: GangOutcome, victims: Sequence[Pod]) -> bool:
        """Whether the gang fits in place of these pods, if need be with what terminating pods free; its chips are then
        held.
        """
        gang, pod_sets = outcome.gang, self._pod_sets(outcome)
        if any(self._terminating.hold(gang, pods, victims) is not None for pods in pod_sets):
            return True
        job = self._what_if.job(gang)
        if job is None:
            return False
        for pods in pod_sets:
            try:
                coming = self._terminating.useful_for(gang, job.resource, pods, self._what_if.request_class(gang, pods))
            except Exhausted:
                return False
            if coming and self._terminating.hold(gang, pods, [*victims, *coming]) is not None:
                return True
        return False

    def record(self, outcome: GangOutcome) -> None:
        """Remember a gang that placement left waiting."""
        if outcome.unplaced:
            self._stuck.append(outcome)
        self._reservations.release_started(outcome.gang, self._missing_minimum(outcome) if outcome.unplaced else 0)

    def run(self) -> None:
        """Make room for stuck jobs where a rule allows it; extend the pending entries of the others."""
        without_room = [one for one in self._stuck if curable(one.reason) and not self._make_room(one)]
        for outcome in sorted(without_room, key=lambda outcome: not self._asked(outcome)):
            self._explain(outcome)
        self._reservations.run([outcome for outcome in self._stuck if self._missing_minimum(outcome)], self._pod_sets)

    def _asked(self, outcome: GangOutcome) -> bool:
        """Whether the pass was asked about this job, by its name or a pod's, with or without the namespace."""
        about, gang = self._scope.facts.about, outcome.gang
        names = {gang.name, f"{gang.namespace}/{gang.name}", gang.key}
        return bool(about) and (about in names or any(about in (pod.name, pod.key) for pod in outcome.unplaced))

    def _missing_minimum(self, outcome: GangOutcome) -> int:
        return max(0, outcome.gang.min_available - len(self._waiting_pods.started(outcome.gang)))

    def _pod_sets(self, outcome: GangOutcome) -> list[Sequence[Pod]]:
        """The pods to make room for: the gang's minimum together; extra pods together, else one of them."""
        needs = self._missing_minimum(outcome)
        if needs:
            return [outcome.unplaced[:needs]] if len(outcome.unplaced) >= needs else []
        return [outcome.unplaced, outcome.unplaced[:1]] if len(outcome.unplaced) > 1 else [outcome.unplaced]

    def _evicting_job(self, gang: Gang) -> SchedulerJob | None:
        """The job behind a gang for which pods may be evicted, else None."""
        from belay.engine.plan.preempt.what_if import preempts

        job = self._what_if.job(gang) if self._rules.any_allowed and not self._what_if.exhausted else None
        if job is None or not preempts(job):
            return None
        return job if any(self._victims(gang, reason) for reason in (PREEMPTED, RECLAIMED)) else None

    def _waits_for_terminating(
        self, gang: Gang, pods: Sequence[Pod], coming: Sequence[Pod], request_class: tuple[object, ...]
    ) -> bool:
        """Hold what terminating pods free for a gang, when that is enough.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        if not coming or request_class in self._not_enough:
            return False
        if not self._what_if.place(gang, pods, coming):
            self._not_enough.add(request_class)
            return False
        held = self._terminating.hold(gang, pods, coming) or coming
        messages.amend(self._scope.draft, gang, messages.waits_for_terminating(held), near=messages.nodes_of(held))
        return True

    def _make_room(self, outcome: GangOutcome) -> bool:
        gang = outcome.gang
        job = self._evicting_job(gang)
        if job is None:
            return False
        for pods in self._pod_sets(outcome):
            request_class = self._what_if.request_class(gang, pods)
            if request_class in self._unsolvable:
                continue
            try:
                coming = self._terminating.useful_for(gang, job.resource, pods, request_class)
                if self._waits_for_terminating(gang, pods, coming, request_class):
                    return True
                with self._what_if.without(gang, coming):
                    found = self._search(gang, pods, job)
            except Exhausted:
                self._unsolvable.add(request_class)
                return False
            if found is None:
                self._unsolvable.add(request_class)
                continue
            rows, reason = found
            gone = [pod for row in rows for pod in row.victim_set.pods]
            for row in rows:
                evict(self._scope.facts, self._scope.draft, gang, row.victim_set, reason, row.rule, counted=True)
            self._terminating.hold(gang, pods, [*coming, *gone])
            messages.amend(self._scope.draft, gang, messages.waits_for_evictions(gone), near=messages.nodes_of(gone))
            return True
        return False

    def _search(self, gang: Gang, pods: Sequence[Pod], job: SchedulerJob) -> tuple[list[_Victim], str] | None:
        """The cheapest victims that make room for these pods, and whether by preemption or reclaim.

        Raises:
            Exhausted: more what-ifs than this gang's share of the pass.
        """
        # the first jobs in the queue must leave effort for the others
        budget = min(SEARCH_EFFORT, max(EXPLANATION_EFFORT, self._what_if.effort // 2))
        search = VictimSearch(self._what_if, gang, pods, budget, self._known_fits, gated=True)
        for reason in (PREEMPTED, RECLAIMED):
            if reason == RECLAIMED and not self._deserves(gang, pods):
                continue
            victims = self._victims(gang, reason)
            self._what_if.charge_scan(len(victims))
            rows = self._helpful(victims, search, job.resource)
            allowed = self._over_share(pods) if reason == RECLAIMED else self._candidates.budgets_allow
            ranked = tightest_first(job, pods, [row.victim_set for row in rows], self._scope.nodes) if rows else []
            found = cheapest(search, ranked, allowed, pods=len(pods)) if ranked else None
            if found is not None:
                by_key = {victim_set.key: row for victim_set, row in zip(ranked, rows, strict=True)}
                return [by_key[victim_set.key] for victim_set in found], reason
        return None

    def _victims(self, gang: Gang, reason: str) -> list[_Victim]:
        """The victims for gangs of this queue and priority, found once a pass."""
        key = (reason, gang.queue, gang.priority, gang.priority_class)
        if key not in self._victims_of:
            among = self._lower_priority_gangs(gang) if reason == PREEMPTED else self._reclaimable_gangs(gang)
            rule = self._rules.preemption_rule if reason == PREEMPTED else self._rules.reclaim_rule
            rows = ((victim_set, rule(gang, victim_set)) for victim_set in self._candidates.victim_sets(among, ""))
            self._victims_of[key] = [
                _Victim(
                    victim_set,
                    allowed_by,
                    tuple(victim_set.nodes),
                    frozenset(pod.resource for pod in victim_set.pods),
                    frozenset(pod.key for pod in victim_set.pods),
                )
                for victim_set, allowed_by in sorted(rows, key=lambda row: row[0].key)
                if allowed_by and self._candidates.budgets_allow((victim_set,))
            ]
        return self._victims_of[key]

    def _helpful(self, victims: Sequence[_Victim], search: VictimSearch, resource: str) -> list[_Victim]:
        """The remaining victims whose eviction may help: on nodes where evictions help, with a resource that is short
        there.
        """
        helpful = search.helpful_nodes({node for row in victims for node in row.nodes})
        short_of_others = search.nodes_short_of_others(helpful) if resource else helpful
        evicting = self._scope.draft.evicting
        return [
            row
            for row in victims
            if not helpful.isdisjoint(row.nodes)
            and (resource in row.resources or not short_of_others.isdisjoint(row.nodes))
            and evicting.isdisjoint(row.pods)
        ]

    def _deserves(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Whether the gang's queue stays within its deserved share with these pods."""
        if len({*self._queues.by_name, gang.queue}) < 2:
            return False
        wanted: Amounts = {}
        for pod in pods:
            add(wanted, pod.requests)
        shares = self._queues.shares
        return within(shares.allocated.get(gang.queue, {}), wanted, shares.deserved.get(gang.queue, {}))

    def _over_share(self, pods: Sequence[Pod]) -> Callable[[Sequence[VictimSet]], bool]:
        """A check that every victim's queue is above its share until the last of its victim sets goes."""
        wanted = sorted({name for pod in pods for name, amount in pod.requests.items() if amount})
        shares = self._queues.shares

        def allowed(victim_sets: Sequence[VictimSet]) -> bool:
            if not self._candidates.budgets_allow(victim_sets):
                return False
            left: dict[str, Amounts] = {}
            for victim_set in sorted(victim_sets, key=lambda victim_set: victim_set.key):
                queue = victim_set.gang.queue
                row = left.setdefault(queue, dict(shares.allocated.get(queue, {})))
                if not exceeds(row, shares.deserved.get(queue, {}), wanted):
                    return False
                for pod in victim_set.pods:
                    add(row, pod.requests, -1)
            return True

        return allowed

    def _lower_priority_gangs(self, gang: Gang) -> list[Gang]:
        """The gangs of the same queue with lower priority."""
        gangs = self._scope.gangs.values()
        return [one for one in gangs if one.priority < gang.priority and one.queue == gang.queue]

    def _reclaimable_gangs(self, gang: Gang) -> list[Gang]:
        """The gangs of reclaimable queues other than this gang's."""
        queues = {name for name, queue in self._queues.by_name.items() if queue.reclaimable and name != gang.queue}
        return [one for one in self._scope.gangs.values() if one.queue in queues] if queues else []

    def _near_gangs(self, gang: Gang, resource: str, pods: int) -> list[Gang]:
        """The gangs on the nodes with most free chips, where the least is missing."""
        if resource not in self._emptiest:
            rows = (
                (-view.free.bit_count(), name)
                for name, view in self._scope.nodes.items()
                if view.resource == resource and view.used
            )
            self._emptiest[resource] = [name for _, name in nsmallest(MAX_NODES, rows)]
        keys: dict[str, None] = {}
        for name in self._emptiest[resource][: NEAR_NODES + 4 * pods]:
            keys.update(
                dict.fromkeys(self._scope.gangs.of_pod.get(pod.key, "") for pod in self._scope.nodes[name].pods)
            )
        return [self._scope.gangs[key] for key in keys if key in self._scope.gangs and key != gang.key]

    def _explain(self, outcome: GangOutcome) -> None:
        """Extend the pending entry with what would free enough, whether or not a rule allows it; for a few jobs a pass,
        as it costs a search.
        """
        asked = self._asked(outcome)
        if (self._explained >= MAX_EXPLANATIONS and not asked) or outcome.reason == "QueueExhausted":
            return
        job = self._what_if.job(outcome.gang)
        if job is None or not job.resource:
            return
        self._explained += 1
        gang = outcome.gang
        for pods in self._pod_sets(outcome)[-1:]:
            coming = self._terminating.near(job.resource, len(pods))
            try:
                nodes = {item.node for item in self._what_if.place(gang, pods, coming)} if coming else set()
                if nodes:
                    text = messages.terminating_would_help([pod for pod in coming if pod.node in nodes])
                    messages.extend(self._scope.draft, gang, text, near=sorted(nodes))
                    return
            except Exhausted:
                return
            near = self._near_gangs(gang, job.resource, len(pods))
            victim_sets = sorted(
                self._candidates.victim_sets(near, job.resource), key=lambda victim_set: victim_set.key
            )
            lower = [victim_set for victim_set in victim_sets if victim_set.gang.priority < gang.priority]
            for candidates in (lower, victim_sets):
                search = VictimSearch(
                    self._what_if,
                    gang,
                    pods,
                    SEARCH_EFFORT if asked else EXPLANATION_EFFORT,
                    self._known_fits,
                    gated=False,
                )
                try:
                    found = cheapest(search, candidates, _anything, pods=len(pods)) if candidates else None
                except Exhausted:
                    return
                if found:
                    text = messages.cheapest_eviction(gang, found, self._why_not(outcome, job, found))
                    victims = [pod for victim_set in found for pod in victim_set.pods]
                    messages.extend(self._scope.draft, gang, text, near=messages.nodes_of(victims))
                    return

    def _why_not(self, outcome: GangOutcome, job: SchedulerJob, victim_sets: Sequence[VictimSet]) -> str:
        """Why these are not evicted although that would free enough; empty if no short sentence states it."""
        from belay.engine.plan.preempt.what_if import preempts

        gang, rules = outcome.gang, self._rules
        if not all(
            rules.preemption_rule(gang, victim_set) or rules.reclaim_rule(gang, victim_set)
            for victim_set in victim_sets
        ):
            return "no queue or priority class allows it"
        if not preempts(job):
            return "jobs of this kind evict no others"
        if not self._candidates.budgets_allow(victim_sets):
            return "a PodDisruptionBudget does not allow it now"
        return "Belay evicts no pods only to bring free chips together" if outcome.reason == TOPOLOGY else ""


def _anything(_units: Sequence[VictimSet]) -> bool:
    return True


def _waiting_one(outcomes: Sequence[GangOutcome]) -> GangOutcome:
    """The part of a gang that waits for room; the last where none does."""
    return next((outcome for outcome in outcomes if outcome.unplaced), outcomes[-1])
