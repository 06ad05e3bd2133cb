"""A queue of keys to reconcile: each at most once, later when asked, with back-off after failures."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from belay.engine.kube import Backoff

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Level-triggered: a key only says that its object may differ. ``clock`` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._count = 0
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        """Reconcile ``key`` as soon as possible; a key is queued at most once."""
        self._ready[key] = None
        self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Reconcile ``key`` in ``seconds``, or earlier if it is added again."""
        due = self._clock() + max(0.0, seconds)
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._count += 1
        heapq.heappush(self._later, (due, self._count, key))
        self._wake.set()

    def failed(self, key: K) -> float:
        """Try ``key`` again after a growing, jittered pause; returns it in seconds."""
        delay = self._backoffs.setdefault(key, Backoff(base=0.1, cap=20.0)).next()
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: K) -> None:
        """Reset the back-off of ``key``."""
        self._backoffs.pop(key, None)

    async def get(self) -> K:
        """The next key; waits for one."""
        while True:
            self._promote()
            if self._ready:
                return self._ready.popitem(last=False)[0]
            self._wake.clear()
            pause = self._later[0][0] - self._clock() if self._later else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def _promote(self) -> None:
        while self._later and self._later[0][0] <= self._clock():
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self._ready[key] = None
