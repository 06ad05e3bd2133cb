"""Deciding from CPU times whether a process runs in a hot loop. Times in s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

IDLE_WINDOW: Final = 60.0
"""Time without a task over which CPU time is measured."""
IDLE_SHARE: Final = 0.5
"""Share of a core above which an idle process counts as looping; an idle worker uses about a hundredth."""
BUSY_WINDOW: Final = 300.0
"""Time over which CPU time is measured where nothing says whether there is work."""
BUSY_SHARE: Final = 0.8
"""Share of a core above which such a process counts as looping."""


class HotLoopDetector:
    """Detects a process that uses a core although no task runs. CPU seconds are those of the process.

    Idle intervals are added up, so tasks in between, however frequent, hide no loop.
    """

    def __init__(self, window: float = IDLE_WINDOW, share: float = IDLE_SHARE) -> None:
        self._window, self._share = window, share
        self._last: tuple[float, float] | None = None
        self._time = self._cpu = 0.0

    def check(self, now: float, cpu: float, idle: bool) -> str:
        """A warning about the window that ends now; empty during the window, or without a hot loop.

        Args:
            now: monotonic time.
            cpu: CPU time of the process since its start.
            idle: whether no task ran since the last check; True where that is unknown.
        """
        before, self._last = self._last, (now, cpu)
        if before is None or not idle:
            return ""
        self._time += now - before[0]
        self._cpu += cpu - before[1]
        if self._time < self._window:
            return ""
        used, measured = self._cpu / self._time, self._time
        self._time = self._cpu = 0.0
        return (
            f"the process used {used:.0%} of a core for {measured:.0f} s without a task" if used >= self._share else ""
        )


def busiest(before: Mapping[int, float], after: Mapping[int, float]) -> int | None:
    """The thread that used the most CPU time between two readings by thread id; None when no thread is left."""
    return max(after, key=lambda thread: after[thread] - before.get(thread, 0.0), default=None)
