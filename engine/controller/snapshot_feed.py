"""Cluster to Redis: the watches of one shard, and the snapshot that they keep up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from belay.engine import freed_memory, log
from belay.engine.controller.revision_feed import RevisionFeed
from belay.engine.controller.workload_followers import WorkloadFollowers
from belay.engine.kube import Kube, Reflector, WatchChange
from belay.engine.observe.resources import Watched
from belay.engine.observe.watch_events import WatchEvents
from belay.engine.store import PassStore, SnapshotWriter, StoreUnavailable, fits

_log = log.get("controller")
RETRY_SECONDS = 1.0
"""Seconds until the next try after Redis did not answer."""
HEARTBEAT_SECONDS = 2.0
"""Seconds for which heartbeats of nodes are collected; all else is written at once. They are judged in minutes."""


class SnapshotFeed:
    """Watches what ``watched`` names and writes it to Redis.

    Args:
        debounce: seconds that changes are collected before they are written.
        mark: marks the shard for a pass; called once a complete snapshot holds a change that a pass may act on.
        leads: whether this controller still leads; asked before a snapshot is begun again, since another controller may
            have begun one.
    """

    def __init__(
        self,
        shard: str,
        kube: Kube,
        watched: Iterable[Watched],
        *,
        snapshots: SnapshotWriter,
        passes: PassStore,
        revision: RevisionFeed,
        debounce: float,
        mark: Callable[[], Awaitable[None]],
        leads: Callable[[], Awaitable[bool]],
    ) -> None:
        self.synced = False
        self._shard = shard
        self._snapshots = snapshots
        self._passes = passes
        self._revision = revision
        self._debounce = debounce
        self._mark = mark
        self._leads = leads
        self._events = WatchEvents()
        self._kube = kube
        self.workloads = WorkloadFollowers(self._reflector, self._events.forget)
        self._fixed = [self._reflector(one) for one in watched]
        self._generation = ""

    @property
    def reflectors(self) -> list[Reflector]:
        """Those that run from the start, and those of the kinds of workloads that are served."""
        return [*self._fixed, *self.workloads.reflectors]

    @property
    def fixed_reflectors(self) -> Sequence[Reflector]:
        """Those that run from the start; the others are run by ``workloads``."""
        return self._fixed

    def _reflector(self, one: Watched) -> Reflector:
        return Reflector(
            self._kube,
            one.resource,
            one.namespace,
            one.labels,
            one.fields,
            on_change=self._receive,
            on_progress=self._events.progress,
            may_be_closed=one.may_be_closed,
        )

    def _receive(self, reflector: Reflector, change: WatchChange) -> None:
        self._events.receive(reflector, change)
        self.workloads.receive(change, reflector.res.kind)

    async def run(self) -> None:
        """Carry changes from the watches to Redis; list everything again whenever Redis lost the snapshot.

        Returns when another controller leads.
        """
        while True:
            await self._events.wait(HEARTBEAT_SECONDS)
            await asyncio.sleep(self._debounce)
            try:
                if not self._generation:
                    if not await self._leads():
                        return
                    await self._begin()
                elif not await self._flush_and_tidy():
                    _log.warning("Redis lost the snapshot, listing everything again", shard=self._shard)
                    self.relist()
            except StoreUnavailable as error:
                await self.heal(error)
                self.relist()
                await asyncio.sleep(RETRY_SECONDS)

    async def begin(self, stop: asyncio.Event) -> None:
        """Begin a snapshot, trying until Redis takes it or ``stop`` is set."""
        self._generation, self.synced = "", False
        while not self._generation and not stop.is_set():
            try:
                await self._begin()
            except StoreUnavailable as error:
                await self.heal(error)
                await wait(stop, RETRY_SECONDS)

    def relist(self) -> None:
        """Begin the snapshot again with the next change: everything is listed."""
        self._generation = ""
        self._events.wake()

    def wake(self) -> None:
        """Write soon even without a change: a snapshot that Redis lost meanwhile is noticed now."""
        self._events.wake()

    async def heal(self, error: StoreUnavailable) -> None:
        """Repair what Redis may have lost or damaged."""
        _log.warning("Redis does not answer", reason=str(error))
        await asyncio.to_thread(self._passes.heal)

    async def _begin(self) -> None:
        self.synced = False
        self._generation = await self._snapshots.begin(self._shard)
        self._revision.repeat()
        self._events.clear()
        for reflector in self.reflectors:
            reflector.relist()
        await self._revision.put()

    async def _flush_and_tidy(self) -> bool:
        """What ``_flush`` does; the memory of a whole cluster that was written goes back, once nothing holds it."""
        whole = self.synced
        written = await self._flush()
        if self.synced and not whole:
            freed_memory.give_back()
        return written

    async def _flush(self) -> bool:
        """Write the collected changes; False when the snapshot is gone."""
        synced = all(reflector.synced for reflector in self.reflectors)
        changes, marks = self._events.drain()
        changed: dict[str, bytes | None] = {}
        wakes = synced and not self.synced
        for change in changes:
            wakes |= change.wakes
            if change.value is not None and not fits(change.value):
                _log.error("object too large for the snapshot, left out", field=change.field, bytes=len(change.value))
                continue
            changed[change.field] = change.value
            if change.kept is not None:
                self._revision.keep(change.kept, change.base, waits=change.waits)
        if not await self._snapshots.put(self._shard, self._generation, changed, marks, synced):
            return False
        if synced and not self.synced:
            _log.info("snapshot complete", shard=self._shard, generation=self._generation)
        self.synced = synced
        await self._revision.put()
        if wakes and synced:
            await self._mark()
        return True


async def wait(stop: asyncio.Event, seconds: float) -> None:
    """Wait until ``stop`` is set, at most ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass  # the time is over: no stop was requested
