"""Running tasks together, and ending them for certain.

``asyncio.TaskGroup`` cancels a child once. A child that loses that one cancellation is then awaited for ever: Python
3.11's ``asyncio.wait_for`` loses it when what it waits for is ready in the same turn of the loop, and so may any
library. Hence tasks that have to end are ended here, and ``asyncio.timeout`` is used for limits, which loses none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_AGAIN_SECONDS = 0.5


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they are done, whatever they end with.

    Once is not enough: a library that is at that moment leaving a time limit of its own turns the cancellation into a
    timeout, and the task goes on. Being cancelled meanwhile only delays that: it is raised when all are done, so that
    none is left behind.
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


async def together(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all at once until every one is done, one fails, or we are cancelled; whatever still runs then is ended.

    Raises what the first of them (in the order given) failed with.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await end(*tasks)
    for task in tasks:
        if task in done:
            task.result()
