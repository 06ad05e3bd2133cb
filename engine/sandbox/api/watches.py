"""Watches: past events from the history, then live ones, filtered and framed; bookmarks, 410 and the end of a watch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import orjson

from belay.engine.sandbox.api import versions
from belay.engine.sandbox.api.errors import ApiError, expired
from belay.engine.sandbox.api.faults import FaultInjector
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.selectors import Selection
from belay.engine.sandbox.api.store import ClusterStore, Collection, ObjectChanged, ObjectVersion, Watcher

INITIAL_END = "k8s.io/initial-events-end"
BATCH_BYTES = 1024 * 1024
"""Approximate size of the pieces in which events are sent, bytes."""


@dataclass(slots=True)
class WatchRequest:
    """One watch.

    `since` is None to begin with the current objects; `view` converts an entry to the bytes to send.
    """

    resource: ServedResource
    namespace: str | None
    selected: Selection
    since: int | None
    bookmarks: bool
    initial_end: bool
    timeout: float
    variant: str
    view: Callable[[ObjectVersion], bytes]


class WatchStream:
    """Yields batches of framed events until the timeout, the server's stop or an error event."""

    def __init__(
        self, store: ClusterStore, request: WatchRequest, faults: FaultInjector, bookmark_seconds: float
    ) -> None:
        self._store = store
        self._request = request
        self._faults = faults
        self._bookmark_seconds = bookmark_seconds
        self._collection: Collection = store.collection(request.resource.storage)
        selected = request.selected
        namespace = request.namespace if request.namespace is not None else selected.namespace
        if not request.resource.namespaced:
            namespace = "" if selected.name is not None else None
        self._watcher = Watcher(namespace, selected.name if namespace is not None else None)
        self._initial = self._begin()

    def _begin(self) -> list[bytes]:
        """Collect past events and subscribe, without a gap.

        Raises ApiError 410 when `since` is compacted.
        """
        request, collection = self._request, self._collection
        frames: list[bytes] = []
        if request.since is None:
            for entry in collection.entries(self._watcher.namespace):
                if request.selected.everything or request.selected.matches(entry.obj):
                    frames.append(self._frame("ADDED", entry))
            if request.initial_end:
                frames.append(self._bookmark(initial_end=True))
        else:
            if request.since < collection.compacted:
                raise expired(f"too old resource version: {request.since} ({collection.compacted})")
            if request.since > self._store.rv:
                # the client's version is newer than ours: the data folder was lost meanwhile
                raise expired(f"too old resource version: {request.since} ({self._store.rv})")
            for event in collection.since(request.since):
                if (frame := self._shown(event)) is not None:
                    frames.append(frame)
        collection.subscribe(self._watcher)
        return frames

    def close(self) -> None:
        """End the subscription."""
        self._collection.unsubscribe(self._watcher)

    async def batches(self) -> AsyncGenerator[bytes, None]:
        """Yield pieces of the response body."""
        for start in range(0, len(self._initial), 500):
            yield b"".join(self._initial[start : start + 500])
        self._initial = []
        deadline = time.monotonic() + self._request.timeout
        sent = self._store.rv
        next_bookmark = time.monotonic() + self._bookmark_seconds
        while not self._watcher.closed:
            now = time.monotonic()
            if now >= deadline:
                if self._request.bookmarks:
                    yield self._bookmark()
                return
            if self._watcher.overflowed:
                yield _error_frame(expired("the watch fell too far behind; list again"))
                return
            if self._request.bookmarks and now >= next_bookmark:
                next_bookmark = now + self._bookmark_seconds
                if self._store.rv != sent and not self._watcher.queue:
                    sent = self._store.rv
                    yield self._bookmark()
            await self._watcher.wait(min(deadline, next_bookmark if self._request.bookmarks else deadline) - now)
            async for piece in self._drain():
                yield piece

    async def _drain(self) -> AsyncGenerator[bytes, None]:
        queue = self._watcher.queue
        pieces: list[bytes] = []
        size = 0
        while queue:
            event = queue.popleft()
            frame = self._shown(event)
            if frame is None:
                continue
            lag = self._faults.lag(self._request.resource.plural, *event.entry.key)
            if lag:
                if pieces:
                    yield b"".join(pieces)
                    pieces, size = [], 0
                await asyncio.sleep(lag)
            pieces.append(frame)
            size += len(frame)
            if size >= BATCH_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
        if pieces:
            yield b"".join(pieces)

    def _shown(self, event: ObjectChanged) -> bytes | None:
        """Return the frame of an event as this watch sees it.

        An object that leaves the selection is deleted, one that enters added.
        """
        watcher, selected = self._watcher, self._request.selected
        key = event.entry.key
        if watcher.namespace is not None and key[0] != watcher.namespace:
            return None
        if watcher.name is not None and key[1] != watcher.name:
            return None
        if selected.everything:
            return self._event_frame(event, event.type)
        before = event.old is not None and selected.matches(event.old.obj)
        after = event.type != "DELETED" and selected.matches(event.entry.obj)
        if after:
            return self._event_frame(event, "MODIFIED" if before else "ADDED")
        return self._event_frame(event, "DELETED") if before else None

    def _event_frame(self, event: ObjectChanged, kind: str) -> bytes:
        variant = f"{kind} {self._request.resource.api_version} {self._request.variant}"
        if event.frames is None:
            event.frames = {}
        found = event.frames.get(variant)
        if found is None:
            found = event.frames[variant] = self._frame(kind, event.entry)
        return found

    def _frame(self, kind: str, entry: ObjectVersion) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), self._request.view(entry))

    def _bookmark(self, *, initial_end: bool = False) -> bytes:
        metadata: JSON = {"resourceVersion": str(self._store.rv), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {INITIAL_END: "true"}
        resource = self._request.resource
        obj: JSON = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._request.variant == "partial":
            obj |= {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        if self._request.variant.startswith("table"):
            obj = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "columnDefinitions": None,
                "rows": [],
            }
        return b'{"type":"BOOKMARK","object":%b}\n' % orjson.dumps(obj)


def _error_frame(error: ApiError) -> bytes:
    return b'{"type":"ERROR","object":%b}\n' % orjson.dumps(error.status())


def error_frame(error: ApiError) -> bytes:
    """Return the ERROR event that ends a watch, with its cause."""
    return _error_frame(error)


def plain_view(resource: ServedResource) -> Callable[[ObjectVersion], bytes]:
    """Return the view of clients that request complete objects."""
    return lambda entry: versions.bytes_for(resource, entry)
