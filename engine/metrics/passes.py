"""A short summary per pass in Redis, which `belay server` renders for Prometheus (`collector.py`).

Workers come and go, so they expose nothing themselves. There is no gauge per chip: a collector renders the last
summary.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from belay.engine.model.actions import kind_of
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import BudgetUse, Plan


class PassSummary(msgspec.Struct, frozen=True):
    """Counts of a shard's last pass; ``seconds`` is its duration, ``time`` its time (Unix seconds)."""

    time: float
    seconds: float
    revision: str
    nodes: dict[str, int]
    chips: dict[str, int]
    pending: dict[str, int]
    deferred: dict[str, int]
    actions: dict[str, int]
    diagnostics: dict[str, int]
    pods: int
    shadow: dict[str, int] = {}
    lemons: dict[str, int] = {}
    budgets: tuple[BudgetUse, ...] = ()
    refused: dict[str, int] = {}

    @staticmethod
    def of(plan: Plan, observed: Observed, seconds: float, before: PassSummary | None = None) -> PassSummary:
        """Counts of a plan; ``before`` is the shard's last summary, whose allowances hold while none is counted."""
        return PassSummary(
            plan.now,
            seconds,
            plan.revision,
            dict(Counter(node.state for node in plan.nodes)),
            plan.chip_states(),
            dict(Counter(pending.reason for pending in plan.pending)),
            dict(Counter(deferred.budget for deferred in plan.deferred)),
            dict(Counter(kind_of(action) for action in plan.actions)),
            dict(Counter(diagnostic.severity for diagnostic in plan.diagnostics)),
            len(observed.pods),
            dict(Counter(f"{change.policy}/{change.change}/{kind_of(change.action)}" for change in plan.shadows)),
            dict(Counter("avoided" if lemon.avoided else "remembered" for lemon in plan.repeat_offenders)),
            _with_allowances(plan.budgets, before.budgets if before is not None else ()),
            dict(Counter(str(row.cause) for row in plan.refusals)),
        )


def _with_allowances(budgets: tuple[BudgetUse, ...], before: tuple[BudgetUse, ...]) -> tuple[BudgetUse, ...]:
    known = {(row.budget, row.scope): row.allowed for row in before}
    return tuple(
        row if row.allowed is not None else msgspec.structs.replace(row, allowed=known.get((row.budget, row.scope)))
        for row in budgets
    )
