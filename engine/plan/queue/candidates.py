"""Who can be evicted at all, whoever it is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan import roles
from engine.plan.queue.consent import critical
from engine.plan.queue.shields import Shields
from engine.plan.queue.units import Unit, units_of
from engine.plan.scope import Scope


class Candidates:
    """The units of one pass that may go, found once for each gang."""

    def __init__(self, scope: Scope) -> None:
        self._scope, self._names = scope, roles.names(scope)
        self._known: dict[str, list[Unit]] = {}

    def units(self, gangs: Iterable[Gang], resource: str) -> list[Unit]:
        """What of these gangs runs on chips of this resource (empty: on anything) and can be evicted, all of it ours
        and none of it critical to the cluster.
        """
        found: list[Unit] = []
        for gang in gangs:
            if gang.key not in self._known:
                rows = units_of(self._scope, gang)
                self._known[gang.key] = [unit for unit in rows if all(self._may_go(pod) for pod in unit.pods)]
            found += self._known[gang.key]
        taken = self._scope.evicting
        return [
            unit
            for unit in found
            if (not resource or any(pod.resource == resource for pod in unit.pods))
            and not any(pod.key in taken for pod in unit.pods)
        ]

    def unshielded(self, units: Sequence[Unit]) -> bool:
        """Whether no PodDisruptionBudget stands before these."""
        return self._shields.let(pod for unit in units for pod in unit.pods)

    @cached_property
    def _shields(self) -> Shields:
        return Shields(self._scope.observed, self._scope.evicting)

    def _may_go(self, pod: Pod) -> bool:
        return pod.scheduler in self._names and not critical(pod)
