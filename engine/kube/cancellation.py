"""Cancel tasks until they are done, and run several tasks together.

``asyncio.TaskGroup`` cancels a child once, and waits without end for a child that loses this cancellation. Python
3.11's ``asyncio.wait_for`` loses it when its result is ready in the same turn of the loop, and so may any library.
Hence tasks are cancelled here, and limits use ``asyncio.timeout``, which loses none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_AGAIN_SECONDS = 0.5


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all are done; their results and errors are dropped.

    Once is not enough: a library that is leaving its own time limit at that moment turns the cancellation into a
    timeout, and the task continues. If the caller is cancelled meanwhile, that is raised when all tasks are done.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
    await asyncio.gather(*tasks, return_exceptions=True)
    if cancelled is not None:
        raise cancelled


async def run_all(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all at once until all are done, one fails, or the caller is cancelled; the rest is cancelled then.

    Raises the error of the first failed one, in the order given.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await cancel_all(*tasks)
    for task in tasks:
        if task in done:
            task.result()
