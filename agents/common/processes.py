"""Ending programs that an agent started, without being held by what they wrote."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Final

DRAIN_SECONDS: Final = 5.0
"""How long the end of a killed program is waited for; a process in an uninterruptible call may outlive it."""


async def kill_session(process: asyncio.subprocess.Process) -> None:
    """Kill a program that was started with ``start_new_session``, and its children; nothing when all have ended.

    asyncio sees the end of a program only when what it wrote was read to the end, so the pipes are drained first.
    """
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    # a child may hold the pipes open after the program itself has ended
    if process.returncode is None or not all(stream.at_eof() for stream in streams):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(_drained(process, streams))


async def _drained(process: asyncio.subprocess.Process, streams: list[asyncio.StreamReader]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            for stream in streams:
                while await stream.read(65_536):
                    continue
            await process.wait()
