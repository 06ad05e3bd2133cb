"""What the driver says of a node's chips: its events as they come, and everything else when it is time to look."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import Driver, DriverError
from belay.agents.node.facts import FactUnavailable
from belay.agents.node.policy import FaultLevels
from belay.agents.node.settings import MAX_TEXT, Settings
from belay.agents.node.state import NodeState

_START_CEILING: Final = 30.0
_log = Log("agent")


class DriverWatch:
    """Keeps a node's state as the driver has it. ``due``: when to read it again, by the monotonic clock."""

    def __init__(
        self, driver: Driver, clock: Clock, settings: Settings, chance: random.Random, wake: Callable[[], None]
    ) -> None:
        self._driver, self._clock, self._settings, self._chance, self._wake = driver, clock, settings, chance, wake
        self.due = 0.0

    async def first_state(self, node: str, levels: FaultLevels, claimed: Mapping[int, str]) -> NodeState:
        """The state with the chips of the node, as soon as the driver answers."""
        tries, limit = 0, self._settings.driver_timeout
        while True:
            try:
                machine = await self._clock.limit(self._driver.machine(), limit)
                chips = await self._clock.limit(self._driver.chips(), limit)
                return NodeState(node, machine, chips, levels, claimed=claimed)
            except (DriverError, TimeoutError) as error:
                tries += 1
                _log.warning("driver does not answer", node=node, attempt=tries, error=error)
                await self._clock.sleep(self._chance.uniform(0, min(_START_CEILING, 0.5 * 2.0 ** min(tries, 10))))

    async def follow(self, state: NodeState) -> None:
        """Take events into the state until cancelled; a recovery is read again before it is believed."""
        failures = 0
        while True:
            try:
                events = await self._driver.events()
                failures = 0
            except DriverError as error:
                failures += 1
                state.problems["events"] = f"driver events: {error}"[:MAX_TEXT]
                await self._clock.sleep(self._chance.uniform(0.5, min(60.0, 2.0 ** min(failures, 10))))
                continue

            state.problems.pop("events", None)
            now_ms = self._clock.now_ms()
            for event in events:
                if event.chip in state.ids and state.book.event(event, now_ms):
                    self.due = min(self.due, self._clock.monotonic() + self._settings.recover_delay)
            self._wake()

    def plan_next(self) -> None:
        """Read the driver again after the usual time."""
        self.due = self._clock.due(self._settings.poll, self._chance.uniform(0.9, 1.1))

    async def read(self, state: NodeState) -> None:
        """Read faults, vNPUs and processes into the state. Raises FactUnavailable."""
        limit = self._settings.driver_timeout
        try:
            codes = await self._clock.limit(self._driver.faults(), limit)
            # first: a failure of another reading must not hide a fault
            state.take_codes(codes, self._clock.now_ms())
            state.vnpus = await self._clock.limit(self._driver.vnpus(), limit)
            state.polled = True
            state.processes = dict(await self._clock.limit(self._driver.processes(), limit))
        except DriverError as error:
            raise FactUnavailable(f"the driver failed: {error}") from error
        except TimeoutError as error:
            raise FactUnavailable("the driver did not answer in time") from error
        state.problems.pop("driver", None)
