"""The rules of each pool by which its agents judge faults while Belay does not answer them."""

from __future__ import annotations

from typing import Final

from engine.documents import Desired
from engine.model.cluster import Observed
from engine.model.faults import CodeRules
from engine.model.plan import Plan
from engine.model.plan_cache import CacheKey, PlanCache, Slot
from engine.plan.rules import in_force
from engine.plan.rules.fault_rules import FaultRules
from engine.plan.rules.fault_tables import tables_in_force

_RULES: Final = CacheKey("rules of pools", Slot[tuple[Desired, tuple[object, ...], dict[str, CodeRules]]])


def pool_rules(desired: Desired, plan: Plan, observed: Observed, cache: PlanCache) -> dict[str, CodeRules]:
    """Rules by pool, from the tables and the fault policies in force, which a held-back revision's are not.

    The same object while nothing that they follow from has changed.
    """
    desired = tables_in_force(desired, observed, cache)
    pools = sorted({node.pool for node in plan.nodes})
    inputs, slot = (plan.history.policy_revision, pools), cache[_RULES]
    if slot.value is not None and slot.value[0] is desired and slot.value[1] == inputs:
        return slot.value[2]
    kept = in_force.previous_policies(plan.history.policy_revision)
    rules = FaultRules(desired, in_force.fault_policies(desired) if kept is None else kept)
    found = {pool: rules.for_pool(pool, _product(desired, pool)).rules for pool in pools}
    slot.value = (desired, inputs, found)
    return found


def _product(desired: Desired, pool: str) -> str:
    declared = desired.pool_index.get(pool)
    return (declared.document.spec.product or "") if declared is not None else ""
