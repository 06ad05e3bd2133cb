"""What the driver's library prints, in the agent's log: a few lines a minute, the rest is counted and dropped.

A library may print as much as it likes, also endlessly. Reading is slowed down beyond the bounds, so that neither the
log nor the agent's CPU time follows; the library waits a little longer in its own print.
"""

from __future__ import annotations

import asyncio
from typing import Final

from belay.agents.common.log import Log

_log = Log("driver")
LINES: Final = 20
"""Lines logged in one window."""
LONGEST: Final = 200
"""Bytes of a line that are logged."""
WINDOW_SECONDS: Final = 60.0
CHUNK: Final = 65_536
PAUSE_SECONDS: Final = 0.01
"""Between two chunks of dropped output: about 6 MB are read in a second."""


async def log(stream: asyncio.StreamReader) -> None:
    """Log a process' output until it ends."""
    clock = asyncio.get_running_loop().time
    until, lines, dropped = clock() + WINDOW_SECONDS, 0, 0
    while part := await stream.read(CHUNK):
        if clock() >= until:
            _report(dropped)
            until, lines, dropped = clock() + WINDOW_SECONDS, 0, 0
        size = len(part)
        for line in part.splitlines() if lines < LINES else ():
            if text := line.strip():
                shown = text[:LONGEST]
                size -= len(shown)
                _log.info("the driver printed", text=shown.decode("utf-8", "replace"))
                lines += 1
                if lines == LINES:
                    break
        if lines == LINES:
            dropped += size
            await asyncio.sleep(PAUSE_SECONDS)
    _report(dropped)


def _report(dropped: int) -> None:
    if dropped:
        _log.warning("output of the driver dropped", bytes=dropped, lines_logged=LINES)
