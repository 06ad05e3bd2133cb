"""The rules of each pool by which its agents judge faults while Belay does not answer them."""

from __future__ import annotations

from typing import Final

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.faults import CodeRules
from belay.engine.model.last_changes import Place
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import CacheKey, PlanCache, Slot
from belay.engine.plan.rules import in_force
from belay.engine.plan.rules.fault_rules import ChipRules, FaultRules
from belay.engine.plan.rules.fault_tables import tables_in_force

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
    rules = _fault_rules(desired, plan)
    found = {pool: rules.for_pool(pool, _product_of(desired, pool)).rules for pool in pools}
    slot.value = (desired, inputs, found)
    return found


class RulesInForce:
    """The tables and the fault policies in force. ``desired``: the declarations with the cluster's tables laid in."""

    def __init__(self, desired: Desired, plan: Plan, observed: Observed) -> None:
        self.desired = tables_in_force(desired, observed, PlanCache())
        self._rules = _fault_rules(self.desired, plan)

    @property
    def network_codes(self) -> frozenset[str]:
        """Codes of the parameter and UB planes."""
        return self._rules.network_codes

    def of_pool(self, pool: str) -> ChipRules:
        """The rules for a whole pool; empty: for nodes of none."""
        return self._rules.for_pool(pool, _product_of(self.desired, pool))

    def place_of(self, rule: str) -> Place | None:
        """Where in Git the policy of a rule is written; None for rules of no policy."""
        origin = self._rules.origin(rule)
        return self.desired.place_of(origin) if origin is not None else None


def _product_of(desired: Desired, pool: str) -> str:
    declared = desired.pool_index.get(pool)
    return (declared.document.spec.product or "") if declared is not None else ""


def _fault_rules(desired: Desired, plan: Plan) -> FaultRules:
    kept = in_force.previous_policies(plan.history.policy_revision)
    return FaultRules(desired, in_force.fault_policies(desired) if kept is None else kept)
