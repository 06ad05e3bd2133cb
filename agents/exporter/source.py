"""Where readings come from: many of one chip per turn, with errors as values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from agents.drivers.base import DriverError
from agents.drivers.dcmi.errors import TIMED_OUT, DcmiError
from agents.drivers.dcmi.supervisor import Supervisor

SECONDS: Final = 5.0
"""Seconds that a turn may take in addition to the time its readings sleep."""

REST_SECONDS: Final = (30.0, 60.0, 120.0, 300.0)
"""Seconds for which a chip is skipped after a turn timed out: a hung call costs the driver process a thread."""

AT_ONCE: Final = 8
"""Turns at the same time; the driver process has twice as many threads, and the agent needs some of them."""

Place = tuple[int, int, int, int]
"""Physical id, logic id, card, device."""


class Reading(NamedTuple):
    """One reading: its value, or the error."""

    value: Any
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return not self.error


class Source(Protocol):
    """Readings by the names of agents.drivers.dcmi.calls."""

    async def places(self) -> Sequence[Place]:
        """Return the location of every chip. Raises DriverError."""
        ...

    async def read(self, phy: int, requests: Sequence[Sequence[Any]], *, extra: float = 0.0) -> list[Reading]:
        """Ask ``(name, argument…)`` each; ``extra`` seconds are what the readings sleep. Never raises DriverError."""
        ...


class DcmiSource:
    """Readings through the driver process; ``now`` is a monotonic clock in seconds."""

    def __init__(self, supervisor: Supervisor, now: Callable[[], float]) -> None:
        self._supervisor, self._now = supervisor, now
        self._rest: dict[int, tuple[float, int]] = {}
        self._free = asyncio.Semaphore(AT_ONCE)

    async def places(self) -> Sequence[Place]:
        """Every chip of the driver."""
        if not self._supervisor.places:
            await self._supervisor.ask("version", timeout=SECONDS)
        return self._supervisor.places

    async def read(self, phy: int, requests: Sequence[Sequence[Any]], *, extra: float = 0.0) -> list[Reading]:
        """One turn; a chip that hangs is skipped for a while."""
        until, times = self._rest.get(phy, (0.0, 0))
        if self._now() < until:
            return [Reading(None, "the chip did not answer before")] * len(requests)
        try:
            turn = [list(request) for request in requests]
            async with self._free:
                found = await self._supervisor.ask("several", turn, timeout=SECONDS + extra)
        except DriverError as error:
            if isinstance(error, DcmiError) and error.code == TIMED_OUT:
                self._rest[phy] = (self._now() + REST_SECONDS[min(times, len(REST_SECONDS) - 1)], times + 1)
            return [Reading(None, str(error))] * len(requests)
        self._rest.pop(phy, None)
        return [Reading(answer.get("value"), answer.get("error", "")) for answer in found]


__all__ = ["Reading", "DcmiSource", "Place", "SECONDS", "Source"]
