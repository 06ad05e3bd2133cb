"""Where readings come from: many of one chip per turn, with errors as values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi.errors import TIMED_OUT, DcmiError
from belay.agents.drivers.dcmi.supervisor import Supervisor

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
    """Readings by the names of belay.agents.drivers.dcmi.calls."""

    async def places(self) -> Sequence[Place]:
        """Return the location of every chip. Raises DriverError."""
        ...

    async def read(self, phy: int, requests: Sequence[Sequence[Any]], *, extra: float = 0.0) -> list[Reading]:
        """Ask ``(name, argument…)`` each; ``extra`` seconds are what the readings sleep. Never raises DriverError."""
        ...


class _Turn(NamedTuple):
    """Readings of one chip that wait to be sent."""

    phy: int
    requests: list[list[Any]]
    answered: asyncio.Future[list[Reading]]


class DcmiSource:
    """Readings through the driver process; ``now`` is a monotonic clock in seconds.

    Quick readings of many chips that are asked for together go as one message: with a message each, eight chips whose
    utilization is read every second cost more than all else of an idle exporter. A chip that hangs would keep the
    others waiting, so after that happened each is asked alone, and one that hung is, until it answers again.
    """

    def __init__(self, supervisor: Supervisor, now: Callable[[], float]) -> None:
        self._supervisor, self._now = supervisor, now
        self._rest: dict[int, tuple[float, int]] = {}
        self._free = asyncio.Semaphore(AT_ONCE)
        self._together: list[_Turn] = []
        self._sending: set[asyncio.Task[None]] = set()

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
        turn = [list(request) for request in requests]
        if extra or times:
            return await self._alone(phy, turn, extra)

        loop = asyncio.get_running_loop()
        one = _Turn(phy, turn, loop.create_future())
        self._together.append(one)
        if len(self._together) == 1:
            loop.call_soon(self._send)  # after those who are asked for in the same moment
        return await one.answered

    def _send(self) -> None:
        turns, self._together = self._together, []
        task = asyncio.ensure_future(self._read_together(turns))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _read_together(self, turns: list[_Turn]) -> None:
        """Answer all of these turns, whatever happens."""
        try:
            for turn, answer in zip(turns, await self._answers(turns), strict=True):
                if not turn.answered.done():  # who asked may be gone
                    turn.answered.set_result(answer)
        except Exception as error:  # a bug: those who asked report it
            for turn in turns:
                if not turn.answered.done():
                    turn.answered.set_exception(error)
        finally:
            for turn in turns:
                turn.answered.cancel()  # without effect where it is answered

    async def _answers(self, turns: list[_Turn]) -> list[list[Reading]]:
        if len(turns) > 1:
            try:
                async with self._free:
                    found = await self._supervisor.ask("turns", [turn.requests for turn in turns], timeout=SECONDS)
            except DriverError as error:
                if not isinstance(error, DcmiError) or error.code != TIMED_OUT:
                    return [[Reading(None, str(error))] * len(turn.requests) for turn in turns]
            else:
                return [_readings(answer) for answer in found]
        return list(await asyncio.gather(*(self._alone(turn.phy, turn.requests, 0.0) for turn in turns)))

    async def _alone(self, phy: int, turn: list[list[Any]], extra: float) -> list[Reading]:
        times = self._rest.get(phy, (0.0, 0))[1]
        try:
            async with self._free:
                found = await self._supervisor.ask("several", turn, timeout=SECONDS + extra)
        except DriverError as error:
            if isinstance(error, DcmiError) and error.code == TIMED_OUT:
                self._rest[phy] = (self._now() + REST_SECONDS[min(times, len(REST_SECONDS) - 1)], times + 1)
            return [Reading(None, str(error))] * len(turn)
        self._rest.pop(phy, None)
        return _readings(found)


def _readings(found: list[dict[str, Any]]) -> list[Reading]:
    return [Reading(answer.get("value"), answer.get("error", "")) for answer in found]
