"""The door of the pure room: ``plan(desired, observed, now) -> Plan``, one file per pass.

Same inputs, same plan, byte for byte: no clock, random, environment, logging or client in here. The steps of a pass,
and what each hands to the next, are in ``belay.engine.plan.passes``.

Rooms above the planner import it from here only. What else they ask is in ``__all__``; each name is imported on first
use, so that this import stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from belay.engine.model.cluster import Observed
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache

if TYPE_CHECKING:
    from belay.engine.documents import Desired
    from belay.engine.plan.comparison import Comparison
    from belay.engine.plan.health.graded_reports import GradedReports, graded_reports
    from belay.engine.plan.health.outcome import HealthOutcome
    from belay.engine.plan.memberships import idle_declarations
    from belay.engine.plan.preempt.reservation import reservations_due
    from belay.engine.plan.queue.queues import QueueState, queues_of
    from belay.engine.plan.queue.share import QueueDemand, divide
    from belay.engine.plan.roles import resolve_roles
    from belay.engine.plan.rules.fault_rules import ChipRules
    from belay.engine.plan.rules.fault_tables import tables_in_force
    from belay.engine.plan.rules.pool_rules import RulesInForce, pool_rules
    from belay.engine.plan.shadow import DecisionKey, enforced
    from belay.engine.plan.sync.objects import declared_keys
    from belay.engine.plan.sync.pruning import emptied_layer

#: Where the other names of the door are defined.
_DEFINED: Final = {
    "ChipRules": "rules.fault_rules",
    "Comparison": "comparison",
    "DecisionKey": "shadow",
    "GradedReports": "health.graded_reports",
    "HealthOutcome": "health.outcome",
    "QueueDemand": "queue.share",
    "QueueState": "queue.queues",
    "RulesInForce": "rules.pool_rules",
    "declared_keys": "sync.objects",
    "emptied_layer": "sync.pruning",
    "idle_declarations": "memberships",
    "divide": "queue.share",
    "enforced": "shadow",
    "graded_reports": "health.graded_reports",
    "pool_rules": "rules.pool_rules",
    "queues_of": "queue.queues",
    "reservations_due": "preempt.reservation",
    "resolve_roles": "roles",
    "tables_in_force": "rules.fault_tables",
}


def __getattr__(name: str) -> Any:
    """Imports a name of the door on first use."""
    if name not in _DEFINED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_DEFINED[name]}"), name)


def plan(
    desired: Desired,
    observed: Observed,
    now: float,
    *,
    shard: str = "main",
    about: str = "",
    cache: PlanCache | None = None,
) -> Plan:
    """One pass: what should change, and why.

    Args:
        desired: what Git declares, compiled by ``belay.engine.load``.
        observed: one consistent snapshot, built by ``belay.engine.observe.observed``.
        now: Unix seconds; the only time the pass knows.
        shard: which shard's nodes and jobs this pass decides.
        about: a job or pod that a user asks about, ``name`` or ``namespace/name``; changes no decision, but the search
            for a way out of its pending entry takes more effort.
        cache: what the shard's earlier passes left to save work; the plan is the same bytes without one.
    """
    from belay.engine.plan import passes, shadow

    kept = PlanCache() if cache is None else cache

    def decide(desired: Desired, observed: Observed) -> Plan:
        return passes.decide(passes.facts_of(desired, observed, now, shard=shard, about=about, cache=kept))

    return shadow.compare(desired, observed, decide(desired, observed), decide)


def assess(
    desired: Desired, observed: Observed, now: float, *, shard: str = "main", cache: PlanCache | None = None
) -> HealthOutcome:
    """The passes up to ``health`` only: what becomes of each chip, for tests of fault policies."""
    from belay.engine.plan import passes

    return passes.assess(passes.facts_of(desired, observed, now, shard=shard, cache=cache or PlanCache()))


__all__ = [
    "ChipRules", "Comparison", "DecisionKey", "GradedReports", "HealthOutcome", "QueueDemand", "QueueState",
    "RulesInForce", "assess", "declared_keys", "divide", "emptied_layer", "enforced", "graded_reports",
    "idle_declarations", "plan", "pool_rules", "queues_of", "reservations_due", "resolve_roles",
    "tables_in_force",
]  # fmt: skip
