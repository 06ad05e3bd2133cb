"""Concurrent calls, a bounded number in flight, each outcome as soon as it is known."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from belay.engine.kube.cancellation import cancel_all
from belay.engine.kube.errors import KubeError

T = TypeVar("T")


class CallOutcome(Generic[T]):
    """The outcome of call number ``index``: a ``value``, or the ``error`` it raised."""

    __slots__ = ("error", "index", "value")

    def __init__(self, index: int, value: T | None, error: KubeError | None) -> None:
        self.index = index
        self.value = value
        self.error = error


async def run_many(calls: Iterable[Callable[[], Awaitable[T]]], in_flight: int = 64) -> AsyncIterator[CallOutcome[T]]:
    """Run the calls, at most ``in_flight`` together, and yield outcomes in the order in which they finish.

    A KubeError is an outcome; any other exception is a bug and is raised. Leaving the loop early cancels what still
    runs.
    """
    source = enumerate(calls)
    running: set[asyncio.Task[CallOutcome[T]]] = set()
    ended: deque[asyncio.Task[CallOutcome[T]]] = deque()
    woken = asyncio.Event()

    def record(task: asyncio.Task[CallOutcome[T]]) -> None:
        running.discard(task)
        ended.append(task)
        woken.set()

    try:
        while True:
            while len(running) < in_flight and (following := next(source, None)) is not None:
                task = asyncio.create_task(_run(*following))
                running.add(task)
                # asyncio.wait would scan every running task for each that ends
                task.add_done_callback(record)
            if not running and not ended:
                return
            await woken.wait()
            woken.clear()
            while ended:
                yield ended.popleft().result()
    finally:
        await cancel_all(*running, *ended)


async def _run(index: int, call: Callable[[], Awaitable[T]]) -> CallOutcome[T]:
    try:
        return CallOutcome(index, await call(), None)
    except KubeError as error:
        return CallOutcome(index, None, error)
