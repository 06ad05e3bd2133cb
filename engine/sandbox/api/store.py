"""The versioned object store: one counter of resourceVersions, one collection per kind, a bounded history for watches.

Everything is synchronous and runs on the event loop's thread, so a read-check-write is atomic without a lock. Objects
in the store are never changed: a write replaces the entry. Each version's bytes are made once and serve gets, lists and
watches.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import orjson

from belay.engine.sandbox.api.kinds import JSON

HISTORY = 2_000
"""Events kept per kind for watches that resume; older ones answer 410."""

HISTORY_BYTES = 16 * 1024 * 1024
"""Bytes of serialised objects kept per kind for watches that resume.

Large ConfigMaps that change often keep fewer events.
"""

FRAMED = 200
"""Newest events per kind whose framed bytes are kept; a slower watch has its frames made again."""

QUEUE = 10_000
"""Events one watch may lag behind before it is ended with 410."""

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


class OversizedError(ValueError):
    """An object is larger than the store takes."""


class ObjectVersion:
    """One version of one object: the parsed form for looking, the bytes for sending. Neither is ever changed."""

    __slots__ = ("_obj", "key", "raw", "rv", "storage", "variants")

    def __init__(self, storage: str, key: Key, obj: JSON, rv: int, raw: bytes | None = None) -> None:
        self.storage = storage
        self.key = key
        self.rv = rv
        self.raw = orjson.dumps(obj) if raw is None else raw
        self.variants: dict[str, bytes] | None = None
        self._obj: JSON | None = obj

    @property
    def obj(self) -> JSON:
        """The parsed form."""
        if self._obj is not None:
            return self._obj
        parsed: JSON = orjson.loads(self.raw)
        return parsed

    def supersede(self) -> None:
        """Keep the bytes only, for the history; the parsed form is some ten times as large."""
        self._obj = None
        self.variants = None

    def copy(self) -> JSON:
        """Return a fresh object that the caller may change."""
        copied: JSON = orjson.loads(self.raw)
        return copied


class ObjectChanged:
    """One change.

    `old` is the version before it, None for an addition; a deletion's entry is the last state with the new version.
    """

    __slots__ = ("entry", "frames", "old", "rv", "type")

    def __init__(self, type_: str, entry: ObjectVersion, old: ObjectVersion | None) -> None:
        self.rv = entry.rv
        self.type = type_
        self.entry = entry
        self.old = old
        self.frames: dict[str, bytes] | None = None


class Journal(Protocol):
    """Where changes are made durable."""

    def put(self, entry: ObjectVersion) -> None:
        """Record a new version."""

    def delete(self, storage: str, key: Key, rv: int) -> None:
        """Record a deletion."""


class Watcher:
    """One subscription to a collection, narrowed to a namespace or one object; events wait in a bounded queue."""

    __slots__ = ("_wake", "closed", "name", "namespace", "overflowed", "queue")

    def __init__(self, namespace: str | None, name: str | None) -> None:
        self.namespace = namespace
        self.name = name
        self.queue: deque[ObjectChanged] = deque()
        self.overflowed = False
        self.closed = False
        self._wake: asyncio.Future[None] | None = None

    def push(self, event: ObjectChanged) -> None:
        """Queue an event and wake the reader."""
        if len(self.queue) >= QUEUE:
            self.overflowed = True
        else:
            self.queue.append(event)
        self.wake()

    def wake(self) -> None:
        """Wake a waiting reader."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        """End the subscription from the server's side."""
        self.closed = True
        self.wake()

    async def wait(self, timeout: float) -> None:
        """Wait until something is queued, the watcher is closed, or `timeout` seconds passed."""
        if self.queue or self.closed or self.overflowed:
            return
        self._wake = asyncio.get_running_loop().create_future()
        handle = asyncio.get_running_loop().call_later(max(0.0, timeout), self.wake)
        try:
            await self._wake
        finally:
            handle.cancel()
            self._wake = None


class Collection:
    """All objects of one kind."""

    def __init__(self) -> None:
        self.by_namespace: dict[str, dict[str, ObjectVersion]] = {}
        self.history: list[ObjectChanged] = []
        self._history_bytes = 0
        self.compacted = 0
        self._sorted: dict[str, list[str]] = {}
        self._everywhere: set[Watcher] = set()
        self._by_namespace: dict[str, set[Watcher]] = {}
        self._by_key: dict[Key, set[Watcher]] = {}

    def get(self, key: Key) -> ObjectVersion | None:
        """Return the newest version of an object, or None."""
        within = self.by_namespace.get(key[0])
        return within.get(key[1]) if within else None

    def entries(self, namespace: str | None = None) -> Iterator[ObjectVersion]:
        """Yield entries by namespace and name; all namespaces for None."""
        for space in sorted(self.by_namespace) if namespace is None else (namespace,):
            within = self.by_namespace.get(space)
            if not within:
                continue
            names = self._sorted.get(space)
            if names is None:
                names = self._sorted[space] = sorted(within)
            for name in names:
                yield within[name]

    def replace(self, entry: ObjectVersion) -> None:
        """Make `entry` the newest version."""
        namespace, name = entry.key
        within = self.by_namespace.setdefault(namespace, {})
        if name not in within and (names := self._sorted.get(namespace)) is not None:
            bisect.insort(names, name)
        within[name] = entry

    def drop(self, key: Key) -> None:
        """Forget an object."""
        within = self.by_namespace[key[0]]
        del within[key[1]]
        if not within:
            del self.by_namespace[key[0]]
            self._sorted.pop(key[0], None)
        elif (names := self._sorted.get(key[0])) is not None:
            del names[bisect.bisect_left(names, key[1])]

    def publish(self, event: ObjectChanged) -> None:
        """Append to the history and hand the event to the watchers it concerns."""
        self.history.append(event)
        if len(self.history) > FRAMED:
            self.history[-FRAMED - 1].frames = None
        self._history_bytes += len(event.entry.raw)
        if len(self.history) > 2 * HISTORY or self._history_bytes > 2 * HISTORY_BYTES:
            self._trim()
        key = event.entry.key
        for watchers in (self._everywhere, self._by_namespace.get(key[0]), self._by_key.get(key)):
            for watcher in watchers or ():
                watcher.push(event)

    def _trim(self) -> None:
        """Cut the history to its limits; the newest event always stays."""
        kept = size = 0
        for event in reversed(self.history):
            size += len(event.entry.raw)
            if kept and (kept >= HISTORY or size > HISTORY_BYTES):
                size -= len(event.entry.raw)
                break
            kept += 1
        gone = len(self.history) - kept
        if gone:
            self.compacted = self.history[gone - 1].rv
            del self.history[:gone]
        self._history_bytes = size

    def compact(self, rv: int) -> None:
        """Forget the history: a watch from before `rv` gets 410."""
        self.history.clear()
        self._history_bytes = 0
        self.compacted = max(self.compacted, rv)

    def since(self, rv: int) -> Iterator[ObjectChanged]:
        """Yield the events after `rv`; the caller has checked that `rv` is not compacted."""
        start = bisect.bisect_right(self.history, rv, key=lambda event: event.rv)
        yield from self.history[start:]

    def _bucket(self, watcher: Watcher) -> set[Watcher]:
        if watcher.namespace is not None and watcher.name is not None:
            return self._by_key.setdefault((watcher.namespace, watcher.name), set())
        if watcher.namespace is not None:
            return self._by_namespace.setdefault(watcher.namespace, set())
        return self._everywhere

    def subscribe(self, watcher: Watcher) -> None:
        """Start handing events to `watcher`."""
        self._bucket(watcher).add(watcher)

    def unsubscribe(self, watcher: Watcher) -> None:
        """Stop handing events to `watcher`."""
        bucket = self._bucket(watcher)
        bucket.discard(watcher)
        if not bucket and watcher.namespace is not None:
            if watcher.name is not None:
                self._by_key.pop((watcher.namespace, watcher.name), None)
            else:
                self._by_namespace.pop(watcher.namespace, None)

    def watchers(self) -> list[Watcher]:
        """Return every open subscription."""
        groups: list[Iterable[Watcher]] = [self._everywhere, *self._by_namespace.values(), *self._by_key.values()]
        return [watcher for group in groups for watcher in group]


class ClusterStore:
    """All collections, the counter, and the `listeners` that are called after each change, besides watchers."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.rv = 1
        self.collections: dict[str, Collection] = {}
        self.journal = journal
        self.listeners: list[Callable[[ObjectChanged], None]] = []

    def collection(self, storage: str) -> Collection:
        """Return the collection of a kind, empty if new."""
        found = self.collections.get(storage)
        if found is None:
            found = self.collections[storage] = Collection()
            found.compacted = self.rv if self.rv > 1 else 0
        return found

    def get(self, storage: str, key: Key) -> ObjectVersion | None:
        """Return the newest version of an object, or None."""
        return self.collection(storage).get(key)

    def put(self, storage: str, key: Key, obj: JSON, *, limit: int = 0) -> ObjectVersion:
        """Store a new version of an object and stamp its resourceVersion into it. The store owns `obj` afterwards.

        Raises OversizedError when the serialised object has more than `limit` bytes (0: no limit).
        """
        collection = self.collection(storage)
        old = collection.get(key)
        obj["metadata"]["resourceVersion"] = str(self.rv + 1)
        entry = ObjectVersion(storage, key, obj, self.rv + 1)
        if limit and len(entry.raw) > limit:
            raise OversizedError(f"{storage} {key[0]}/{key[1]} has {len(entry.raw)} bytes, the limit is {limit}")
        # on disk first: a change that cannot be recorded must not become visible
        if self.journal is not None:
            self.journal.put(entry)
        self.rv += 1
        collection.replace(entry)
        self._announce(collection, ObjectChanged("ADDED" if old is None else "MODIFIED", entry, old))
        return entry

    def delete(self, storage: str, key: Key) -> ObjectVersion:
        """Remove an object.

        Returns its last stored state with the version of the deletion. Raises KeyError when absent.
        """
        collection = self.collection(storage)
        old = collection.get(key)
        if old is None:
            raise KeyError(key)
        last = old.copy()
        last["metadata"]["resourceVersion"] = str(self.rv + 1)
        entry = ObjectVersion(storage, key, last, self.rv + 1)
        if self.journal is not None:
            self.journal.delete(storage, key, self.rv + 1)
        collection.drop(key)
        self.rv += 1
        self._announce(collection, ObjectChanged("DELETED", entry, old))
        return entry

    def load(self, entries: Iterable[ObjectVersion], rv: int) -> None:
        """Fill an empty store from disk; watches from before the restart get 410."""
        for entry in entries:
            self.collection(entry.storage).replace(entry)
        self.rv = max(self.rv, rv)
        for collection in self.collections.values():
            collection.compacted = self.rv

    def compact(self) -> int:
        """Drop all history; returns the resourceVersion before which watches now get 410."""
        for collection in self.collections.values():
            collection.compact(self.rv)
        return self.rv

    def _announce(self, collection: Collection, event: ObjectChanged) -> None:
        collection.publish(event)
        for listener in self.listeners:
            listener(event)
        if event.old is not None:
            event.old.supersede()
        if event.type == "DELETED":
            event.entry.supersede()
