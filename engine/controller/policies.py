"""Policies for node agents that cannot reach the engine: one per pool, named in the orders of every agent."""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.act import Edge, Refused
from engine.act.orders import set_policy
from engine.documents import Desired
from engine.kube import run_many
from engine.log import get
from engine.model.cluster import Observed
from engine.model.faults import CodeRules
from engine.model.plan import Plan
from engine.model.plan_cache import PlanCache
from engine.plan import pool_rules
from engine.wire.policy import NodePolicy, build_policy

_log = get("policy")
ASSIGNED_PER_PASS = 200
"""Most orders rewritten per pass for a new policy; the rest follows in the next passes."""


class Policies:
    """The policies of a shard's pools, built again when their rules change."""

    def __init__(self) -> None:
        self._rules: dict[str, CodeRules] = {}
        self._policies: dict[str, NodePolicy] = {}

    def compile(self, desired: Desired, plan: Plan, observed: Observed, cache: PlanCache) -> dict[str, NodePolicy]:
        """By pool, from the rules in force."""
        rules = pool_rules(desired, plan, observed, cache)
        if rules is not self._rules:
            self._rules, self._policies = rules, {pool: NodePolicy(pool, rules[pool]) for pool in rules}
        return self._policies


def policy_bodies(policies: dict[str, NodePolicy]) -> list[dict[str, Any]]:
    """The ConfigMaps ``belay-policy-<pool>``."""
    return [build_policy(policies[pool]) for pool in sorted(policies)]


async def assign_policies(edge: Edge, policies: dict[str, NodePolicy], plan: Plan, observed: Observed) -> bool:
    """Name the newest policy in the orders of every node with an agent; False when nodes are left for the next pass."""
    digests = {pool: policy.digest for pool, policy in policies.items()}
    behind = [
        (node.node, node.pool)
        for node in plan.nodes
        if node.node in observed.agents
        and (node.node not in observed.orders or observed.orders[node.node].policy_digest != digests[node.pool])
    ]
    calls = [partial(_assign, edge, node, pool, digests[pool]) for node, pool in behind[:ASSIGNED_PER_PASS]]
    complete = len(behind) <= ASSIGNED_PER_PASS
    async for outcome in run_many(calls):
        if outcome.error is not None:
            complete = False
            _log.warning("policy not assigned", reason=str(outcome.error))
    return complete


async def _assign(edge: Edge, node: str, pool: str, digest: str) -> None:
    try:
        await set_policy(edge, node, pool, digest)
    except Refused as error:
        _log.warning("policy not assigned", node=node, reason=str(error))
