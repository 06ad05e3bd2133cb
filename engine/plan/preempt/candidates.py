"""The pods that can be evicted at all, for whichever gang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.plan import roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.preempt.disruption_budgets import DisruptionBudgets
from belay.engine.plan.preempt.rules import critical
from belay.engine.plan.preempt.victim_sets import VictimSet, victim_sets_of


class EvictionCandidates:
    """The victim sets of one pass, found once for each gang."""

    def __init__(self, facts: Facts, draft: Draft) -> None:
        self._facts, self._draft, self._names = facts, draft, roles.names(facts)
        self._known: dict[str, list[VictimSet]] = {}

    def victim_sets(self, gangs: Iterable[Gang], resource: str) -> list[VictimSet]:
        """The victim sets of these gangs on chips of this resource (empty: on anything), all of whose pods Belay
        schedules and none of which is critical to the cluster.
        """
        found: list[VictimSet] = []
        for gang in gangs:
            if gang.key not in self._known:
                rows = victim_sets_of(self._facts, self._draft, gang)
                self._known[gang.key] = [victims for victims in rows if all(self._may_go(pod) for pod in victims.pods)]
            found += self._known[gang.key]
        taken = self._draft.evicting
        return [
            victims
            for victims in found
            if (not resource or any(pod.resource == resource for pod in victims.pods))
            and not any(pod.key in taken for pod in victims.pods)
        ]

    def budgets_allow(self, victim_sets: Sequence[VictimSet]) -> bool:
        """Whether no PodDisruptionBudget forbids these evictions."""
        return self._budgets.allow(pod for victims in victim_sets for pod in victims.pods)

    @cached_property
    def _budgets(self) -> DisruptionBudgets:
        return DisruptionBudgets(self._facts.observed, self._draft.evicting)

    def _may_go(self, pod: Pod) -> bool:
        return roles.is_ours(pod, self._names) and not critical(pod)
