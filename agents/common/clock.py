"""Time as the agent uses it, so that tests can control it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from belay.agents.common import ticks

_T = TypeVar("_T")


class Clock:
    """The system's clocks. A test's clock overrides `now`, `monotonic` and `sleep`; the other methods use these."""

    def now(self) -> float:
        """Return Unix seconds; they may jump."""
        return time.time()

    def monotonic(self) -> float:
        """Monotonic seconds, for measuring durations."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        await asyncio.sleep(seconds)

    def due(self, seconds: float, stretch: float = 1.0) -> float:
        """When work that is done every so many seconds is done next, as `monotonic` says it. ``stretch`` keeps agents
        apart that share a process."""
        return self.monotonic() + seconds * stretch

    async def pause(self, seconds: float, stretch: float = 1.0) -> None:
        """Wait until `due`."""
        await self.sleep(self.due(seconds, stretch) - self.monotonic())

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(self.now() * 1000)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for `event` at most `seconds`, clear it; return whether it was set."""
        if not event.is_set():
            waiting = asyncio.ensure_future(event.wait())
            await self._first(waiting, seconds)
            waiting.cancel()
        happened = event.is_set()
        event.clear()
        return happened

    async def limit(self, call: Awaitable[_T], seconds: float) -> _T:
        """Await `call`, and cancel it with TimeoutError after `seconds`."""
        running = asyncio.ensure_future(call)
        try:
            await self._first(running, seconds)
            if not running.done():
                raise TimeoutError
            return running.result()
        finally:
            running.cancel()

    async def _first(self, task: asyncio.Future[Any], seconds: float) -> None:
        sleeping: asyncio.Future[Any] = asyncio.ensure_future(self.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait([task, sleeping], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            sleeping.cancel()


class NodeClock(Clock):
    """The clock of an agent that has its process for itself: its periodic work is done at common moments (`ticks`)."""

    def due(self, seconds: float, stretch: float = 1.0) -> float:
        """The common moment; no other agent has to be kept apart."""
        return ticks.due(self.monotonic(), seconds)
