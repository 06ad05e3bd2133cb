"""Many calls at a time, a bounded number in flight, each outcome as soon as it is there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from engine.kube.ending import end
from engine.kube.errors import KubeError

T = TypeVar("T")


class Outcome(Generic[T]):
    """What became of call number ``index``: a ``value``, or the ``error`` it raised."""

    __slots__ = ("error", "index", "value")

    def __init__(self, index: int, value: T | None, error: KubeError | None) -> None:
        self.index = index
        self.value = value
        self.error = error


async def many(calls: Iterable[Callable[[], Awaitable[T]]], in_flight: int = 64) -> AsyncIterator[Outcome[T]]:
    """Run the calls, at most ``in_flight`` together, and yield outcomes in the order in which they finish.

    A KubeError is an outcome; any other exception is a bug and is raised. Leaving the loop early cancels what still
    runs.
    """
    source = enumerate(calls)
    running: set[asyncio.Task[Outcome[T]]] = set()
    ended: deque[asyncio.Task[Outcome[T]]] = deque()
    woken = asyncio.Event()

    def note(task: asyncio.Task[Outcome[T]]) -> None:
        running.discard(task)
        ended.append(task)
        woken.set()

    try:
        while True:
            while len(running) < in_flight and (following := next(source, None)) is not None:
                task = asyncio.create_task(_run(*following))
                running.add(task)
                # asyncio.wait would look at every running task for each that ends
                task.add_done_callback(note)
            if not running and not ended:
                return
            await woken.wait()
            woken.clear()
            while ended:
                yield ended.popleft().result()
    finally:
        await end(*running, *ended)


async def _run(index: int, call: Callable[[], Awaitable[T]]) -> Outcome[T]:
    try:
        return Outcome(index, await call(), None)
    except KubeError as error:
        return Outcome(index, None, error)
