"""The facts that an act is checked against right before it is carried out, read from the API server and the driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from belay.agents.common.client import ApiError, ApiServer
from belay.agents.node.facts import FactUnavailable
from belay.agents.node.trust import OrderTrust
from belay.engine.model.cluster import Orders, Pod
from belay.engine.wire import objects
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import ORDERS_PREFIX, SYSTEM
from belay.engine.wire.orders import parse_orders


class LiveFacts:
    """What holds at this moment for one node; `facts.Facts` for the executor."""

    def __init__(
        self, node: str, cluster: ApiServer, trust: OrderTrust, read_driver: Callable[[], Awaitable[None]]
    ) -> None:
        self._node, self._cluster, self._trust, self._read_driver = node, cluster, trust, read_driver

    async def orders(self) -> Orders | None:
        """Return the orders as they stand at the API server."""
        try:
            body = await self._cluster.get_config_map(SYSTEM, ORDERS_PREFIX + self._node)
            orders = parse_orders(body) if body is not None else None
        except (ApiError, WireError) as error:
            raise FactUnavailable(f"the orders cannot be read: {error}") from error

        if problem := self._trust.orders_problem(orders):
            raise FactUnavailable(f"the orders are refused: the ConfigMap {problem}")
        return orders

    async def commit(self, name: str) -> Mapping[str, Any] | None:
        """Return the ConfigMap with the signed commit in force as it stands at the API server."""
        try:
            return await self._cluster.get_config_map(SYSTEM, name)
        except ApiError as error:
            raise FactUnavailable(f"the signed commit cannot be read: {error}") from error

    async def pods(self) -> Sequence[Pod]:
        """Return the pods of this node as they stand at the API server."""
        try:
            return [objects.pod(body) for body in await self._cluster.list_pods(self._node)]
        except (ApiError, WireError, TypeError, ValueError, AttributeError) as error:
            raise FactUnavailable(f"the pods of the node cannot be read: {error}") from error

    async def driver(self) -> None:
        """Read the driver into the state."""
        await self._read_driver()
