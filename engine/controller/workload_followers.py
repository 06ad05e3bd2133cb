"""Watches of the kinds of workloads that the cluster serves: they come and go with definitions and rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from belay.engine import log
from belay.engine.kube import Object, Reflector, WatchChange, cancel_all
from belay.engine.observe.resources import Watched
from belay.engine.observe.workload_watches import DECIDING, served_kinds

_log = log.get("controller")


class WorkloadFollowers:
    """Follows the kinds of the table that are served, until ``run`` is cancelled.

    Args:
        follow: makes the reflector of a kind.
        forget: is called with the reflector of a kind that is served no more.
    """

    def __init__(self, follow: Callable[[Watched], Reflector], forget: Callable[[Reflector], None]) -> None:
        self._follow = follow
        self._forget = forget
        self._deciding: dict[tuple[str, str], Object] = {}
        self._reflectors: dict[Watched, Reflector] = {}
        self._tasks: dict[Watched, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def reflectors(self) -> Sequence[Reflector]:
        """Those of the kinds that are served now."""
        return tuple(self._reflectors.values())

    def receive(self, change: WatchChange, kind: str) -> None:
        """Take a change that may decide which kinds are served. A new kind's reflector is there at once, so that no
        snapshot counts as complete without its objects."""
        if kind not in DECIDING:
            return
        key = (kind, change.key[1])
        if change.obj is None:
            self._deciding.pop(key, None)
        else:
            self._deciding[key] = change.obj

        wanted = served_kinds(self._deciding.values())
        for gone in self._reflectors.keys() - set(wanted):
            self._forget(self._reflectors.pop(gone))
            self._changed.set()
        for new in wanted:
            if new not in self._reflectors:
                self._reflectors[new] = self._follow(new)
                self._changed.set()

    async def run(self) -> None:
        """Keep one task running for each kind."""
        try:
            while True:
                await self._in_step()
                await self._changed.wait()
                self._changed.clear()
        finally:
            await cancel_all(*self._tasks.values())
            self._tasks.clear()

    async def _in_step(self) -> None:
        for gone in self._tasks.keys() - self._reflectors.keys():
            await cancel_all(self._tasks.pop(gone))
        for one, reflector in list(self._reflectors.items()):
            if one not in self._tasks:
                _log.info("kind of workload is followed", kind=one.resource.kind, version=one.resource.api_version)
                self._tasks[one] = asyncio.create_task(reflector.run())
