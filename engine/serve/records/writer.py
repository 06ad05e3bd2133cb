"""The writer of the history: follows the engine's status and Events, and stores what changed.

It only reads what the engine publishes anyway, so nothing waits for it. While the database cannot be used, it tries
again, and then stores what the status still says of the time between.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.kube import EVENT, Kube, Reflector, WatchChange
from belay.engine.log import get
from belay.engine.serve.records import store as database
from belay.engine.serve.records.changes import LookTimes, bindings, changes, evictions
from belay.engine.serve.records.events import FIELDS, SeenEvent, read_event
from belay.engine.serve.records.facts import HistoryChanges, Span, SpanKind
from belay.engine.serve.records.reading import Data, SeenCluster, StatusReading, moment
from belay.engine.serve.records.store import HistoryBounds, HistoryUnavailable, RecordStore
from belay.engine.wire import names
from belay.engine.wire.history import JOB_NAME_KEY

_log = get("history")
LOOK_SECONDS: Final = 2.0
RENEW_SECONDS: Final = 10.0
PRUNE_SECONDS: Final = 3600.0
SHARE: Final = 10.0
"""A large cluster is not looked at more often than every so many times the seconds that a look takes."""
MOST_EVENTS: Final = 20_000
"""Events of the last hour that are kept in memory: pods' bindings and evictions among them."""


class HistoryState(msgspec.Struct, frozen=True):
    """How the history stands: ``writes`` whether this server writes it, ``problem`` why it cannot be used, or empty;
    ``records`` how many this process stored.
    """

    writes: bool = False
    problem: str = ""
    records: int = 0


class HistoryWriter:
    """Stores what changed. :meth:`take` and :meth:`take_event` are called with every change, in the event loop."""

    def __init__(
        self,
        url: str,
        identity: str,
        bounds: HistoryBounds,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._identity, self._bounds = url, identity, bounds
        self._wall, self._clock = wall, clock
        self._reading = StatusReading()
        self._status: dict[str, Data] = {}
        self._changed_at: dict[str, int] = {}
        self._events: OrderedDict[str, SeenEvent] = OrderedDict()
        self._new_events: list[SeenEvent] = []
        self._dirty = False
        self._lasting: dict[tuple[SpanKind, str], Span] = {}
        self._last: SeenCluster | None = None
        self._epoch, self._before = 0, 0
        self._renewed, self._pruned = float("-inf"), clock()
        self.store: RecordStore | None = None
        self.state = HistoryState(problem="the history's database has not been opened yet")

    def take(self, name: str, data: Data | None, raw: Mapping[str, Any] | None = None) -> None:
        """A status ConfigMap as it is now; None if it is gone. ``raw`` is the object, for when it last changed."""
        if data is None:
            self._status.pop(name, None)
            self._changed_at.pop(name, None)
        else:
            self._status[name] = data
            self._changed_at[name] = changed_at(raw or {})
        self._dirty = True

    def take_event(self, raw: Mapping[str, Any]) -> None:
        """An Event of any component."""
        event = read_event(raw)
        if event is None or event.id in self._events:
            return
        self._events[event.id] = event
        self._new_events.append(event)
        while len(self._events) > MOST_EVENTS:
            self._events.popitem(last=False)
        del self._new_events[:-MOST_EVENTS]
        self._dirty = True

    async def run(self, ready: Callable[[], bool]) -> None:
        """Store until cancelled. ``ready``: whether status and Events were read whole at least once."""
        try:
            while True:
                began = self._clock()
                if ready():
                    await self._look_guarded()
                await asyncio.sleep(max(LOOK_SECONDS, SHARE * (self._clock() - began)))
        finally:
            if self.store is not None:
                self.leave()

    async def _look_guarded(self) -> None:
        try:
            await asyncio.to_thread(self.look)
        except Exception as error:  # whatever a status that nothing foresaw raises: the server serves on
            if not self.state.problem:
                _log.exception("history not written")
            self._fail(f"the status could not be read ({type(error).__name__}); the log has it")

    def look(self) -> None:
        """Compare what was taken with what is stored, and store the difference; blocking."""
        try:
            self._store_changes()
        except HistoryUnavailable as error:
            self._fail(str(error))

    def leave(self) -> None:
        """Let another server write at once, and close the database; blocking."""
        if self.store is None:
            return
        try:
            if self.state.writes:
                self.store.release(self._identity)
        except HistoryUnavailable as error:
            _log.info("the writer of the history was not given up", reason=str(error))
        self.store.close()
        self.store, self._epoch = None, 0

    def _store_changes(self) -> None:
        store = self.store or self._open()
        due = self._clock() - self._renewed >= RENEW_SECONDS
        if not self._dirty and not due:
            return
        now = round(self._wall() * 1000)
        if not self._is_writer(store, now):
            return

        if not self._dirty:
            self._keep(store, now)
            return
        # taken before reading, so that what comes meanwhile is looked at next time
        self._dirty, events, status = False, list(self._new_events), dict(self._status)
        try:
            seen = self._reading.read(status)
            found = changes(self._lasting, seen, events, self._times(now, status), self._last)
            written = store.write(found, by=self._identity, now=now)
        except BaseException:
            self._dirty = True
            raise
        if written is None:
            self._lose()
            return

        for span in found.spans:
            if span.ended:
                self._lasting.pop(span.key, None)
            else:
                self._lasting[span.key] = span
        del self._new_events[: len(events)]
        self._last, self._before, self._renewed = seen, now, self._clock()
        self._stand(written)
        self._prune(store, now)

    def _keep(self, store: RecordStore, now: int) -> None:
        """Nothing changed: note that the cluster was looked at, and stay the writer."""
        if store.write(HistoryChanges(), by=self._identity, now=now) is None:
            self._lose()
            return
        self._before, self._renewed = now, self._clock()
        self._stand(0)
        self._prune(store, now)

    def _open(self) -> RecordStore:
        if database.is_damaged(self._url):
            moved = database.set_aside(self._url)
            if moved is None:
                raise HistoryUnavailable(
                    "the history's file is damaged, and as many as are kept were damaged before",
                    hint="Look at the disk; then remove the files named .damaged-N.",
                )
            _log.error("the history's file is damaged; a new one was begun", damaged=str(moved))
        store = RecordStore(self._url)
        try:
            store.prepare()
        except HistoryUnavailable:
            store.close()
            raise
        self.store, self._epoch, self._dirty = store, 0, True
        return store

    def _is_writer(self, store: RecordStore, now: int) -> bool:
        """Whether this server writes; after another one did, what lasts is read again."""
        epoch = store.take(self._identity, now)
        if not epoch:
            self._lose()
            return False
        if epoch != self._epoch:
            self._lasting, self._before, self._last = store.lasting(), store.last_seen(), None
            self._new_events = list(self._events.values())
            self._epoch, self._dirty = epoch, True
        return True

    def _times(self, now: int, status: Mapping[str, Data]) -> LookTimes:
        events = list(self._events.values())
        by_job = {
            data.get(JOB_NAME_KEY, ""): self._changed_at.get(name, 0)
            for name, data in status.items()
            if name.startswith(names.JOB_PREFIX)
        }
        return LookTimes(now, self._before, bindings(events), evictions(events), by_job)

    def _prune(self, store: RecordStore, now: int) -> None:
        if self._clock() - self._pruned < PRUNE_SECONDS:
            return
        self._pruned = self._clock()
        removed = store.prune(self._bounds, by=self._identity, now=now)
        if removed:
            _log.info("history pruned", records=removed)

    def _lose(self) -> None:
        """Another server writes."""
        self._epoch, self._renewed = 0, self._clock()
        self.state = HistoryState(records=self.state.records)

    def _stand(self, written: int) -> None:
        if self.state.problem:
            _log.info("history written", place=self.store.place if self.store is not None else "")
        self.state = HistoryState(writes=True, records=self.state.records + written)

    def _fail(self, problem: str) -> None:
        if problem != self.state.problem:
            _log.warning("history not written", reason=problem)
        self.state = HistoryState(problem=problem, records=self.state.records)
        self._epoch = 0
        if self.store is not None:
            self.store.close()
            self.store = None


class EventFollower:
    """The engine's Events of a live cluster, followed by one watch."""

    def __init__(self, kube: Kube, take: Callable[[Mapping[str, Any]], None]) -> None:
        self._take = take
        self._reflector = Reflector(kube, EVENT, None, fields=FIELDS, on_change=self._changed)

    @property
    def synced(self) -> bool:
        """Whether all Events were read once."""
        return self._reflector.synced

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._reflector.run()

    def _changed(self, _: Reflector, change: WatchChange) -> None:
        if change.obj is not None:
            self._take(change.obj)


def changed_at(raw: Mapping[str, Any]) -> int:
    """When an object was last written, as the API server noted it; 0 where it notes nothing."""
    metadata = raw.get("metadata")
    fields = metadata.get("managedFields") if isinstance(metadata, Mapping) else None
    return max((moment(one.get("time")) for one in fields or () if isinstance(one, Mapping)), default=0)
