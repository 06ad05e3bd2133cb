"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

_AGAIN_SECONDS = 0.5


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they are done, whatever they end with.

    Once is not enough: a client library that is at that moment leaving a time limit of its own turns the cancellation
    into a timeout, and the task goes on.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
