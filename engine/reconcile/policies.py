"""What agents judge by when nobody answers them: one policy per pool, and its name in the orders of every agent."""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.act import Edge, Refused
from engine.act.orders import hand_policy
from engine.documents import Desired
from engine.kube import many
from engine.log import get
from engine.model.cluster import Observed
from engine.model.plan import Plan
from engine.plan import inforce, tables
from engine.plan.judge import Judge
from engine.wire.policy import NodePolicy, build_policy

_log = get("policy")
HANDED_PER_PASS = 200
"""Orders rewritten in one pass because a policy changed; the rest follows in the next passes."""


class Policies:
    """The policies of a shard's pools, compiled once per revision in force."""

    def __init__(self) -> None:
        self._known: tuple[object, ...] = ()
        self._policies: dict[str, NodePolicy] = {}

    def of(self, desired: Desired, plan: Plan, observed: Observed) -> dict[str, NodePolicy]:
        """By pool, from the fault policies that are in force, which a held-back revision's are not, and the tables."""
        desired = tables.in_force(desired, observed)
        pools = sorted({node.pool for node in plan.nodes})
        known = (desired.revision, id(desired), plan.history.policy_revision, tuple(pools))
        if known != self._known:
            kept = inforce.previous_policies(plan.history.policy_revision)
            judge = Judge(desired, inforce.fault_policies(desired) if kept is None else kept)
            self._policies = {
                pool: NodePolicy(pool, judge.for_pool(pool, _product(desired, pool)).rules) for pool in pools
            }
            self._known = known
        return self._policies


def policy_bodies(policies: dict[str, NodePolicy]) -> list[dict[str, Any]]:
    """The ConfigMaps ``belay-policy-<pool>``."""
    return [build_policy(policies[pool]) for pool in sorted(policies)]


async def hand_out(edge: Edge, policies: dict[str, NodePolicy], plan: Plan, observed: Observed) -> bool:
    """Name the newest policy in the orders of every node with an agent; False when some are left for the next pass."""
    digests = {pool: policy.digest for pool, policy in policies.items()}
    behind = [
        (node.node, node.pool)
        for node in plan.nodes
        if node.node in observed.agents
        and (node.node not in observed.orders or observed.orders[node.node].policy_digest != digests[node.pool])
    ]
    calls = [partial(_hand, edge, node, pool, digests[pool]) for node, pool in behind[:HANDED_PER_PASS]]
    complete = len(behind) <= HANDED_PER_PASS
    async for outcome in many(calls):
        if outcome.error is not None:
            complete = False
            _log.warning("policy not handed over", reason=str(outcome.error))
    return complete


async def _hand(edge: Edge, node: str, pool: str, digest: str) -> None:
    try:
        await hand_policy(edge, node, pool, digest)
    except Refused as error:
        _log.warning("policy not handed over", node=node, reason=str(error))


def _product(desired: Desired, pool: str) -> str:
    declared = desired.pool_index.get(pool)
    return (declared.document.spec.product or "") if declared is not None else ""
