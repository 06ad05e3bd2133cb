"""Rescans for chips that the agent could not reset and left to an external tool (``ResetInfo``).

On super-pod servers a chip whose reset failed in band and out of band is published in ``ThirdPartyResetDevs``; a while
later (``-thirdPartyScanDelay``) the agent makes the driver rescan for it, once for each reset that failed. Source:
component/ascend-device-plugin (pkg/server/hot_reset_manager.go, main.go).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import BOOTED, Driver, DriverError
from belay.agents.node.settings import Settings
from belay.agents.node.state import NodeState

_log = Log("agent")


class Rescans:
    """Schedules rescans of chips; the executor ensures that nothing else acts on them meanwhile."""

    def __init__(self, state: NodeState, driver: Driver, clock: Clock, settings: Settings) -> None:
        self._state, self._driver, self._clock, self._settings = state, driver, clock, settings
        self._due: dict[int, float] = {}

    def failed(self, chips: Collection[int]) -> None:
        """Schedule a rescan: a reset of these chips failed now, or before this agent started."""
        if self._state.third_party and self._settings.resets:
            at = self._clock.monotonic() + self._settings.scaled(self._settings.third_party_delay)
            self._due.update(dict.fromkeys(chips, at))

    def over(self, chips: Collection[int]) -> None:
        """Cancel the rescan of these chips: a newer reset begins, or the rescan was done."""
        self._due = {chip: at for chip, at in self._due.items() if chip not in chips}

    def next(self) -> tuple[float, list[int]]:
        """Seconds until the next rescan and its chips, ascending; infinity where there are none."""
        soonest = min(self._due.values(), default=float("inf"))
        chips = sorted(chip for chip, at in self._due.items() if at <= soonest)
        return max(0.0, soonest - self._clock.monotonic()), chips

    async def rescan(self, chips: Sequence[int], read: Callable[[], Awaitable[None]]) -> None:
        """Rescan for chips, then ``read`` the driver; a chip that booted and is healthy counts as reset.

        Chips that are in use are left alone. Raises what ``read`` raises.
        """
        state, limit = self._state, self._settings.driver_timeout
        self.over(chips)
        idle = [chip for chip in chips if not state.in_use(chip)]
        if not idle:
            return
        names = ",".join(state.name(chip) for chip in idle)
        try:
            await self._clock.limit(self._driver.rescan(idle), limit)
            booted = {c for c in idle if await self._clock.limit(self._driver.boot_status(c), limit) == BOOTED}
        except (DriverError, TimeoutError) as error:
            _log.warning("chips cannot be looked for again", chips=names, error=str(error) or "no answer in time")
            return
        await read()
        well = {chip for chip in booted if state.judge.healthy(state.book.chip(chip))}
        state.failed_resets -= well
        left = ",".join(state.name(chip) for chip in idle if chip not in well)
        _log.info("chips whose reset failed were looked for again", chips=names, not_well=left)
