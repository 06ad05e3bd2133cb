"""When groups are read: each has its own next time, all are due at the start (component/npu-exporter/collector)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from belay.agents.common import ticks
from belay.agents.common.log import Log
from belay.agents.exporter.groups import ONCE, Group

LEAST: Final = 0.05
EMPTY: Final = 1.0
ONLY_ONCE: Final = 60.0
_log = Log("exporter")

Work = Callable[[Group], Awaitable[None]]


class Lane:
    """One loop over some groups. ``now`` and ``sleep`` are the clock."""

    def __init__(
        self,
        groups: Sequence[Group],
        work: Work,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._work, self._now, self._sleep = work, now, sleep
        self._next: dict[Group, float] = dict.fromkeys(groups, now())
        self._had = bool(groups)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.turn()
            await self._sleep(self.wait())

    async def turn(self) -> None:
        """Read every group that is due; a failure costs the group its turn."""
        for group in [group for group, at in self._next.items() if at <= self._now()]:
            begin = self._now()
            try:
                await self._work(group)
            except Exception:
                # plugins are third-party code: a failing one must not stop the other groups
                _log.exception("a group could not be read", group=group.name)
            if group.seconds == ONCE:
                del self._next[group]
            else:
                self._next[group] = ticks.due(begin, group.seconds)

    def late(self) -> float:
        """Seconds by which the group that waits longest is overdue."""
        return max(0.0, self._now() - min(self._next.values(), default=self._now()))

    def wait(self) -> float:
        """Seconds until something is due."""
        if not self._next:
            return ONLY_ONCE if self._had else EMPTY
        return max(LEAST, min(self._next.values()) - self._now())
