"""Policies for node agents that cannot reach the engine: one per pool, named in the orders of every agent."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from belay.engine.act import Edge, Refused
from belay.engine.act.orders import set_policy
from belay.engine.documents import Desired
from belay.engine.kube import Object, run_many
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.log import get
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.faults import CodeRules
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.seals import BUILT_IN_RULES, Entitlements, Seal
from belay.engine.plan import pool_rules
from belay.engine.wire import revisionlog
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM, revisions_config_map
from belay.engine.wire.policy import NodePolicy, build_policy, entitle, parse_entitlements, parse_policy
from belay.engine.wire.revisionlog import RevisionLog
from belay.engine.wire.seals import seal_of

_log = get("policy")
MAX_RULES = 2000
"""Most rules that a policy entitles by."""
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


def policy_bodies(
    policies: dict[str, NodePolicy], desired: Desired, observed: Observed, shard: str, keys: OrderKeys, now: float
) -> list[dict[str, Any]]:
    """The ConfigMaps ``belay-policy-<pool>``, sealed where there is a key.

    A live one that says the same under a good seal of the same key is kept as it is, whichever worker sealed it.
    """
    bodies = [build_policy(policies[pool]) for pool in sorted(policies)]
    if keys.signing is None:
        return bodies

    rules = _entitling_rules(desired)
    accepted: tuple[str, int] | None = None
    for pool, body in zip(sorted(policies), bodies, strict=True):
        live = observed.objects.get(ObjectKey("v1", "ConfigMap", SYSTEM, body["metadata"]["name"]))
        sealed = _read_live(live, policies[pool], rules, shard, keys)
        # the log is read once for all pools, and not at all while each live policy names its signer and entry
        if accepted is None and not sealed.is_complete:
            accepted = _accepted(desired.revision, observed, shard, keys, warn=not sealed.stands)
        signer, number = accepted or ("", 0)

        if live is not None and sealed.says_all(signer, number):
            body["data"] = dict(live["data"])
            continue
        entitle(
            body,
            Entitlements(
                pool=pool,
                policy_digest=policies[pool].digest,
                revision=desired.revision,
                signer=signer,
                rules=rules,
                shard=shard,
                log=number,
            ),
        )
        keys.seal(body, int(now * 1000), sealed.seal)
    return bodies


class _SealedPolicy(NamedTuple):
    """A live policy: its seal if that is good, what it entitles to if it is the policy in force, and whether it is so
    under the key that signs now.
    """

    seal: Seal | None = None
    held: Entitlements | None = None
    stands: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether it stands and names both who signed its revision and the entry in the log."""
        return self.stands and self.held is not None and bool(self.held.signer and self.held.log)

    def says_all(self, signer: str, number: int) -> bool:
        """Whether it stands and names what is known: an earlier one was derived before the log came, or was signed."""
        if not self.stands or self.held is None:
            return False
        return bool(self.held.signer or not signer) and bool(self.held.log or not number)


def _read_live(
    live: Object | None, policy: NodePolicy, rules: tuple[str, ...], shard: str, keys: OrderKeys
) -> _SealedPolicy:
    seal = seal_of(live) if live is not None and not keys.problem(live) else None
    if live is None or seal is None or keys.signing is None:
        return _SealedPolicy()
    held = _held(live, policy, rules, shard)
    return _SealedPolicy(seal, held, stands=held is not None and seal.key == keys.signing.key_id)


def _entitling_rules(desired: Desired) -> tuple[str, ...]:
    """The rules of the desired state that may order resets and partitions."""
    documents = {f"Product/{name}#reset" for name in desired.products}
    documents |= {f"VNPULayout/{item.document.name}" for item in desired.layouts}
    return tuple(sorted({*documents, *BUILT_IN_RULES})[:MAX_RULES])


def _held(live: Object, policy: NodePolicy, rules: tuple[str, ...], shard: str) -> Entitlements | None:
    """What a live policy entitles to, if it is this one."""
    try:
        found = parse_entitlements(live)
        if found is None or parse_policy(live).digest != policy.digest:
            return None
    except WireError:
        return None
    wanted = (policy.pool, policy.digest, rules, shard)
    return found if (found.pool, found.policy_digest, found.rules, found.shard) == wanted else None


def _accepted(revision: str, observed: Observed, shard: str, keys: OrderKeys, *, warn: bool) -> tuple[str, int]:
    """Who signed a revision, and the newest number of the log of accepted revisions; empty and 0 if the log does not
    say it, is not signed or cannot be believed."""
    found = observed.objects.get(ObjectKey("v1", "ConfigMap", SYSTEM, revisions_config_map(shard)))
    if found is None:
        return "", 0
    sealed = seal_of(found) is not None
    problem = keys.problem(found) if sealed else ""
    log = RevisionLog()
    try:
        log = log if problem else revisionlog.parse(found)
    except WireError as error:
        problem = str(error)
    if problem and warn:
        _log.warning("log of accepted revisions not believed, policies name no signer", reason=problem)
    signer = next((row.signer for row in reversed(log.entries) if row.revision == revision), "")
    return signer, log.head.number if log.head is not None and sealed else 0


async def assign_policies(edge: Edge, policies: dict[str, NodePolicy], plan: Plan, observed: Observed) -> bool:
    """Name the newest policy in the orders of every node with an agent; False when nodes are left for the next pass."""
    digests = {pool: policy.digest for pool, policy in policies.items()}
    behind = [
        (node.node, node.pool)
        for node in plan.nodes
        if node.node in observed.agents
        and (
            (orders := observed.orders.get(node.node)) is None
            or orders.policy_digest != digests[node.pool]
            or not edge.keys.sealed_now(orders)
        )
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
