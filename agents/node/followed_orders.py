"""The orders of the node and the policy of its pool, watched at the API server and kept on disk.

The last good ones stay in force while the API server, Git or the controller is unavailable, and across a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from belay.agents.common.client import ApiServer
from belay.agents.node.policy import DiskCache
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState
from belay.agents.node.trust import OrderTrust
from belay.engine.model.cluster import Orders
from belay.engine.model.labels import POOL_LABEL
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import ORDERS_PREFIX, POLICY_PREFIX, SYSTEM
from belay.engine.wire.orders import parse_orders
from belay.engine.wire.policy import NodePolicy, parse_policy


class FollowedOrders:
    """Orders and policy of one node, put into its state; ``wake`` is called whenever one of them may have changed.

    ``orders_known``: the API server has returned the orders, or that there are none. ``orders_there`` and
    ``policy_there``: whether it has them at all, readable or not; None until it has been asked. ``engine_policy`` is
    what an engine gave, now or before; None without any.
    """

    def __init__(
        self,
        state: NodeState,
        cluster: ApiServer,
        cache: DiskCache,
        pool: str,
        wake: Callable[[], None],
        trust: OrderTrust,
    ) -> None:
        self._trust = trust
        self._state, self._cluster, self._cache, self._wake = state, cluster, cache, wake
        self._first_pool = self._pool = pool
        self._group: asyncio.TaskGroup | None = None
        self._policy_task: asyncio.Task[None] | None = None
        self.orders_known = False
        self.orders_there: bool | None = None
        self.policy_there: bool | None = None
        self.engine_policy: NodePolicy | None = None

    @property
    def pool(self) -> str:
        """The pool whose policy is followed."""
        return self._pool

    def remember(self) -> None:
        """Apply the policy and orders kept on disk."""
        for name, take in (("policy", self._take_policy), ("orders", self._take_old_orders)):
            try:
                kept = self._cache.get(name)
                if kept is not None:
                    take(kept)
            except WireError as error:
                self._state.problems[name] = f"{name} kept on disk is ignored: {error}"[:MAX_TEXT]

    def follow(self, group: asyncio.TaskGroup) -> None:
        """Start to watch both in a task group; the orders name the policy."""
        self._group = group
        group.create_task(self._follow_orders())
        self._policy_task = group.create_task(self._follow_policy(self._pool))

    def _take_old_orders(self, kept: Mapping[str, Any]) -> None:
        """Orders from the disk keep chips isolated; they never cause destructive acts."""
        orders = parse_orders(kept)
        self._trust.orders_problem(orders)  # what is verified sets the age below which none is believed
        self._state.orders = Orders(
            node=orders.node,
            resource_version="",
            generation=0,
            revision=orders.revision,
            policy_digest=orders.policy_digest,
            issued_ms=orders.issued_ms,
            not_after_ms=orders.not_after_ms,
            isolate=orders.isolate,
            resets={},
            vnpu_epoch=0,
            vnpu_layout={},
        )

    async def _follow_orders(self) -> None:
        state = self._state
        async for body in self._cluster.config_map(SYSTEM, ORDERS_PREFIX + state.node):
            self.orders_there = body is not None
            try:
                orders = parse_orders(body) if body is not None else None
            except WireError as error:
                # the last good orders stay in force
                state.problems["orders"] = f"orders are ignored: {error}"[:MAX_TEXT]
                self._wake()
                continue
            if problem := self._trust.orders_problem(orders):
                # the last good orders stay in force; no epoch is taken as done, or forged ones would use them up
                state.problems["orders"] = f"orders are refused: the ConfigMap {problem}"[:MAX_TEXT]
                self.orders_known = True
                self._wake()
                continue
            state.orders, self.orders_known = orders, True
            state.problems.pop("orders", None)
            self._keep("orders", body)
            labels = ((body or {}).get("metadata") or {}).get("labels") or {}
            sealed = orders.pool if orders is not None and self._trust.required else ""
            self._choose_pool(sealed or str(labels.get(POOL_LABEL) or self._first_pool))
            self._wake()

    def _choose_pool(self, pool: str) -> None:
        if pool == self._pool or self._group is None:
            return
        self._pool, self.policy_there = pool, None
        if self._policy_task is not None:
            self._policy_task.cancel()
        self._policy_task = self._group.create_task(self._follow_policy(pool))

    async def _follow_policy(self, pool: str) -> None:
        async for body in self._cluster.config_map(SYSTEM, POLICY_PREFIX + pool):
            self.policy_there = body is not None
            if body is None:
                self._wake()
                continue  # the policy held last stays in force
            try:
                self._take_policy(body)
            except WireError as error:
                self._state.problems["policy"] = f"policy is ignored: {error}"[:MAX_TEXT]
                continue
            finally:
                self._wake()
            self._state.problems.pop("policy", None)
            self._keep("policy", body)

    def _take_policy(self, body: Mapping[str, Any]) -> None:
        policy = parse_policy(body)
        if problem := self._trust.policy_problem(body):
            raise WireError(f"ConfigMap/{POLICY_PREFIX}{policy.pool}", "data", problem)
        self.engine_policy = policy
        judge = self._state.judge
        if policy != judge.policy:
            judge.policy = policy

    def forget_policy(self) -> None:
        """Give up the policy of an engine that is gone, here and on the disk."""
        if self.engine_policy is not None:
            self.engine_policy = None
            self._keep("policy", None)

    def _keep(self, name: str, body: Mapping[str, Any] | None) -> None:
        problems = self._state.problems
        try:
            if body is None:
                self._cache.drop(name)
            else:
                self._cache.put(name, body)
            problems.pop(f"{name} copy", None)
        except OSError as error:
            problems[f"{name} copy"] = f"{name} cannot be kept on disk: {error.strerror}"
