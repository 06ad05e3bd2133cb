"""The end of a program: signals that ask for it, and work that runs until it is asked for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set. Call it in the main thread, inside the loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def run_until(stop: asyncio.Event | None, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it ends or ``stop`` is set; without ``stop``, until it ends. Raises what ``work`` raises."""
    running = asyncio.create_task(work)
    if stop is None:
        await running
        return

    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
