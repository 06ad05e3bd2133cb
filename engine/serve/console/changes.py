"""Server-sent events: each change is encoded once for all viewers.

A viewer that comes back names the last event that it has and gets what it missed, while the ring still holds it; else
it must read the document again. A viewer that reads too slowly is dropped: it comes back.

Format: WHATWG HTML, "Server-sent events" (fields id, event, data, retry; a line that begins with a colon is a comment).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from belay.engine.serve.console import patches
from belay.engine.serve.console.document import StateDocument

RING_EVENTS: Final = 256
RING_BYTES: Final = 16 * 1024 * 1024
QUEUED: Final = 64
"""Events that wait for one viewer before it is dropped."""
MOST_VIEWERS: Final = 500
MOST_OF_ONE: Final = 50
"""Streams of one viewer: tabs of a person, or a proxy that shows its own name for many. The others stay for others."""
MOST_UNNAMED: Final = 250
"""Streams of all who have no name, which are those that come by loopback: who has one can still watch beside them."""
HEARTBEAT_SECONDS: Final = 15.0
RETRY_MS: Final = 1000
_BEAT: Final = b": \n\n"


class TooManyViewers(Exception):
    """As many viewers as there may be are watching already."""


class ChangeStream:
    """The newest document, and what led to it. Used from one event loop."""

    def __init__(self, *, ring: int = RING_EVENTS, ring_bytes: int = RING_BYTES, queued: int = QUEUED) -> None:
        self._life = secrets.token_hex(4)
        self._number = 0
        self._ring: deque[tuple[int, bytes]] = deque()
        self._ring_limit, self._bytes_limit, self._queued = ring, ring_bytes, queued
        self._bytes = 0
        self._viewers: dict[asyncio.Queue[bytes | None], str] = {}
        self.document: StateDocument | None = None
        self.dropped = 0

    @property
    def viewers(self) -> int:
        """How many watch."""
        return len(self._viewers)

    def publish(self, document: StateDocument) -> None:
        """Take a newer document and send the difference to every viewer."""
        before, self.document = self.document, document
        if before is None or before.id == document.id:
            return
        self._number += 1
        if patches.same_places(before, document):
            event = self._event("patch", patches.event(before, document))
        else:
            event = self._event("reset", {"moment": document.moment})
        self._remember(event)
        for viewer in list(self._viewers):
            try:
                viewer.put_nowait(event)
            except asyncio.QueueFull:
                self._drop(viewer)

    def close(self) -> None:
        """End every viewer's stream."""
        for viewer in list(self._viewers):
            self._drop(viewer)

    async def watch(
        self, last: str, heartbeat: float = HEARTBEAT_SECONDS, name: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """The events after ``last`` (an event id, or empty); a comment after each ``heartbeat`` seconds of silence.
        ``name`` says who looks, where that is known.

        Ends when the viewer is too slow. Raises TooManyViewers.
        """
        own = sum(other == name for other in self._viewers.values())
        if len(self._viewers) >= MOST_VIEWERS or own >= (MOST_OF_ONE if name else MOST_UNNAMED):
            raise TooManyViewers
        viewer: asyncio.Queue[bytes | None] = asyncio.Queue(self._queued)
        self._viewers[viewer] = name
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            for event in self._missed(last):
                yield event
            while True:
                try:
                    async with asyncio.timeout(heartbeat):
                        waiting = await viewer.get()
                except TimeoutError:
                    yield _BEAT
                    continue
                if waiting is None:
                    return
                yield waiting
        finally:
            self._viewers.pop(viewer, None)

    def _missed(self, last: str) -> list[bytes]:
        moment = self.document.moment if self.document is not None else None
        if not last:
            return [self._event("hello", {"moment": moment})] if moment else []
        life, _, number = last.partition("-")
        seen = int(number) if number.isascii() and number.isdecimal() and len(number) < 19 else -1
        if life == self._life and 0 <= seen <= self._number:
            missed = [event for at, event in self._ring if at > seen]
            if len(missed) == self._number - seen:
                return missed
        return [self._event("reset", {"moment": moment})] if moment else []

    def _event(self, kind: str, data: Any) -> bytes:
        head = f"id: {self._life}-{self._number}\nevent: {kind}\ndata: ".encode()
        return head + msgspec.json.encode(data) + b"\n\n"

    def _remember(self, event: bytes) -> None:
        self._ring.append((self._number, event))
        self._bytes += len(event)
        while self._ring and (len(self._ring) > self._ring_limit or self._bytes > self._bytes_limit):
            self._bytes -= len(self._ring.popleft()[1])

    def _drop(self, viewer: asyncio.Queue[bytes | None]) -> None:
        self.dropped += 1
        self._viewers.pop(viewer, None)
        while not viewer.empty():
            viewer.get_nowait()
        viewer.put_nowait(None)
