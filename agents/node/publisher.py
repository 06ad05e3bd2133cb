"""Writing one ConfigMap: soon after a change, and at latest every period.

Two changes may follow each other at once, since a fault often comes just after another change; beyond that there is a
least distance between two writes, so that over time an object is never written more often.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log

_BACKOFF_CEILING: Final = 60.0
_AWAY_CEILING: Final = 0.5
"""Most seconds beyond the least distance between two tries while no API server answers: such a try costs it nothing,
and what happened meanwhile is written within two seconds of its return."""
_NEXT: Final = 0.1
"""Least seconds between any two writes: changes that come together are one write."""
_log = Log("agent")


class Publisher:
    """Call `update` with what matters whenever it may have changed; `run` does the rest.

    `build` makes the newest body at the moment of writing, `write` sends it, `period` gives the seconds until the next
    write without a change, `written` is called after each success.
    """

    def __init__(
        self,
        name: str,
        *,
        build: Callable[[], dict[str, Any]],
        write: Callable[[dict[str, Any]], Awaitable[None]],
        period: Callable[[], float],
        spacing: float,
        clock: Clock,
        chance: random.Random,
        written: Callable[[], None] | None = None,
    ) -> None:
        self._name, self._build, self._write, self._period = name, build, write, period
        self._spacing, self._clock, self._chance, self._written = spacing, clock, chance, written
        self._changed = asyncio.Event()
        self._newest: object = None
        self._sent: object = None
        self._failures = self._refusals = 0
        self._spent = float("-inf")

    @property
    def failing(self) -> bool:
        """Whether the last write failed."""
        return self._failures > 0

    def update(self, signature: object) -> None:
        """Set the content for the next write; a write follows when it differs from the last one sent."""
        self._newest = signature
        if signature != self._sent:
            self._changed.set()

    async def run(self) -> None:
        """Write until cancelled. Failures are retried with full jitter, always with the newest body: what the server
        refuses ever more seldom, what it does not answer every second."""
        await self._clock.wait(self._changed, self._period())
        while True:
            signature = self._newest
            try:
                await self._write(self._build())
                self._failures = self._refusals = 0
                self._sent = signature
                if self._written:
                    self._written()
            except ApiError as error:
                self._failures += 1
                self._refusals = self._refusals + 1 if error.status else 0
                if self._failures in (1, 10, 100):
                    _log.warning("object cannot be written", what=self._name, attempt=self._failures, error=error)
            distance = self._distance()
            await self._clock.sleep(distance)
            if self._failures:
                await self._clock.sleep(self._chance.uniform(0, self._most_patience()))
                continue
            if self._newest == self._sent:
                # the change was reverted or already sent
                self._changed.clear()
                await self._clock.wait(self._changed, max(0.0, self._period() - distance))

    def _most_patience(self) -> float:
        """Most seconds to wait after a failure, beyond the least distance."""
        if not self._refusals:
            return _AWAY_CEILING
        return min(_BACKOFF_CEILING, 0.5 * 2.0 ** min(self._refusals, 10))

    def _distance(self) -> float:
        """Seconds until the next write may be: of a failed one the whole distance, else so that no more than two follow
        each other at once (the generic cell rate algorithm, ITU-T I.371, with a tolerance of one distance).
        """
        now = self._clock.monotonic()
        self._spent = max(self._spent, now) + self._spacing
        return max(min(_NEXT, self._spacing), self._spacing if self._failures else self._spent - self._spacing - now)
