"""The pods that can be evicted at all, for whichever gang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.plan import roles
from belay.engine.plan.preempt.disruption_budgets import DisruptionBudgets
from belay.engine.plan.preempt.rules import critical
from belay.engine.plan.preempt.victim_sets import VictimSet, victim_sets_of
from belay.engine.plan.scope import Scope


class EvictionCandidates:
    """The victim sets of one pass, found once for each gang."""

    def __init__(self, scope: Scope) -> None:
        self._scope, self._names = scope, roles.names(scope)
        self._known: dict[str, list[VictimSet]] = {}

    def victim_sets(self, gangs: Iterable[Gang], resource: str) -> list[VictimSet]:
        """The victim sets of these gangs on chips of this resource (empty: on anything), all of whose pods Belay
        schedules and none of which is critical to the cluster.
        """
        found: list[VictimSet] = []
        for gang in gangs:
            if gang.key not in self._known:
                rows = victim_sets_of(self._scope, gang)
                self._known[gang.key] = [victims for victims in rows if all(self._may_go(pod) for pod in victims.pods)]
            found += self._known[gang.key]
        taken = self._scope.evicting
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
        return DisruptionBudgets(self._scope.observed, self._scope.evicting)

    def _may_go(self, pod: Pod) -> bool:
        return roles.is_ours(pod, self._names) and not critical(pod)
