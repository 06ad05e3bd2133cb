"""Reading which ports of Ascend950 chips are down, with hccn_tool.

They are read when a code about ports comes or goes, at the start, after a reset and every five minutes. Where they
cannot be read, what was read last holds; before a first reading no fault follows.
Source: component/ascend-common/devmanager/hccn/hccn_tool.go (GetUBPortsDownSnapshot).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import Chip, DriverError
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.node.port_faults import PortsDown
from belay.agents.node.state import NodeState

#: Seconds between two readings of the ports of a chip without news, and between two looks for news.
EVERY: Final = 300.0
LOOK: Final = 5.0
_log = Log("agent")


class UbPorts:
    """Reads the ports of the node's chips, one after another; ``changed`` is called when their number changed."""

    def __init__(
        self, tool: HccnTool, state: Callable[[], NodeState | None], clock: Clock, changed: Callable[[], None]
    ) -> None:
        self._tool, self._state, self._clock, self._changed = tool, state, clock, changed
        self._read: dict[int, tuple[frozenset[str], float]] = {}
        self._wired: dict[int, dict[tuple[int, int], bool]] = {}
        self._failing: set[int] = set()

    async def run(self) -> None:
        """Read until cancelled; ends at once on other products."""
        while True:
            state = self._state()
            if state is not None and not state.machine.generation.unified_bus:
                return
            if state is not None and state.polled:
                for chip in state.chips:
                    await self._look(state, chip)
            await self._clock.pause(LOOK)

    async def _look(self, state: NodeState, chip: Chip) -> None:
        if chip.id in state.resetting:
            # what was read before says nothing about the time after
            self._read.pop(chip.id, None)
            self._wired.pop(chip.id, None)
            state.ports_down.pop(chip.id, None)
            return
        codes, now = state.port_codes.get(chip.id, frozenset()), self._clock.monotonic()
        if chip.id in self._read and self._read[chip.id][0] == codes and now - self._read[chip.id][1] < EVERY:
            return
        self._read[chip.id] = (codes, now)
        try:
            found = await self._down(chip)
        except DriverError as error:
            if chip.id not in self._failing:
                _log.warning("ports of a chip cannot be read", chip=state.name(chip.id), error=error)
            self._failing.add(chip.id)
            return
        self._failing.discard(chip.id)
        if chip.id not in state.resetting and state.ports_down.get(chip.id) != found:
            state.ports_down[chip.id] = found
            self._changed()

    async def _down(self, chip: Chip) -> PortsDown:
        down = await self._tool.ports_down(chip.logic_id)
        wired = [port for port in down if port.kind == "UB" and await self._is_wired(chip, port.die, port.port)]
        return PortsDown(sum(1 for port in down if port.kind == "ETH"), len(wired))

    async def _is_wired(self, chip: Chip, die: int, port: int) -> bool:
        """Whether a port is meant to be up: one without a cable is listed as down too."""
        known = self._wired.setdefault(chip.id, {})
        if (die, port) not in known:
            known[die, port] = await self._tool.port_enabled(chip.logic_id, die, port)
        return known[die, port]
