"""Whether an engine decides about this node: only while none does may the agent decide anything itself.

An engine shows itself by what it keeps in ``belay-system``: this node's orders, the policy of its pool and
``belay-sync``. One of them is enough, however old: an engine that is down comes back, and its orders count from the
moment they are there. Not being able to ask is no absence.
"""

from __future__ import annotations

from typing import Final

from belay.agents.common.client import ApiError, ApiServer
from belay.agents.common.log import Log
from belay.agents.node.facts import FactUnavailable
from belay.agents.node.followed_orders import FollowedOrders
from belay.agents.node.settings import Settings
from belay.agents.node.trust import OrderTrust
from belay.engine.wire.names import ORDERS_PREFIX, POLICY_PREFIX, SYNC, SYSTEM

#: Seconds without a sign of an engine after which the agent decides itself.
ABSENT_SECONDS: Final = 300.0
_log = Log("agent")


class EnginePresence:
    """The signs of an engine as they are watched. ``confirm_absence`` reads them again."""

    def __init__(
        self, node: str, cluster: ApiServer, followed: FollowedOrders, trust: OrderTrust, settings: Settings
    ) -> None:
        self._node, self._cluster, self._followed, self._trust = node, cluster, followed, trust
        self._quiet = settings.scaled(ABSENT_SECONDS)
        self._sync: bool | None = None
        self._since: float | None = None
        self._told = False

    async def follow(self) -> None:
        """Watch ``belay-sync``. Never returns."""
        async for body in self._cluster.config_map(SYSTEM, SYNC):
            self._sync = body is not None

    def settle(self, monotonic: float) -> None:
        """Note since when no sign has been there; call it whenever something may have changed."""
        if self._signs():
            if self._told:
                _log.info("an engine decides about this node", node=self._node)
            self._since, self._told = None, False
        elif self._since is None:
            self._since = monotonic
        if self.absent(monotonic) and not self._told:
            self._told = True
            _log.info("no engine decides about this node, the agent does", node=self._node)

    def absent(self, monotonic: float) -> bool:
        """Whether no engine has shown itself for `ABSENT_SECONDS`, as far as the watches say."""
        return not self._signs() and self._since is not None and monotonic - self._since >= self._quiet

    async def confirm_absence(self) -> None:
        """Read the signs at the API server now. Raises FactUnavailable for a sign, and when one cannot be read."""
        for name in (ORDERS_PREFIX + self._node, POLICY_PREFIX + self._followed.pool, SYNC):
            try:
                body = await self._cluster.get_config_map(SYSTEM, name)
            except ApiError as error:
                raise FactUnavailable(f"whether an engine decides cannot be read: {error}") from error
            if body is not None:
                self._since = None
                raise FactUnavailable(f"an engine decides: ConfigMap {SYSTEM}/{name} is there")

    def _signs(self) -> bool:
        followed = self._followed
        if self._trust.required:  # who pins keys expects orders, and a deletion must not switch that off
            return True
        return any(there is not False for there in (followed.orders_there, followed.policy_there, self._sync))
