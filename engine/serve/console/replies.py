"""Answers and errors of the console as JSON, and who asked."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from belay.engine.serve.console import files

USER: Final = web.RequestKey("belay.user", str)
"""The caller's name, empty on loopback."""
COMPRESSED_FROM: Final = 1_024
THREAD_FROM: Final = 64 * 1_024
"""A body of this many bytes is compressed in a thread, so that other viewers need not wait for it."""
PACKED_BYTES: Final = 32 * 1024 * 1024
"""Bytes of compressed bodies that are kept."""
_JSON: Final = "application/json"


class PackedBodies:
    """Compressed bodies by the digest of what they hold: what many ask for is compressed once. Used from one event
    loop.
    """

    def __init__(self, most: int = PACKED_BYTES) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[bytes]] = {}

    async def pack(self, body: bytes, digest: bytes = b"") -> bytes:
        """The body, compressed with gzip. ``digest``: of what it holds, where the caller knows it."""
        if len(body) < THREAD_FROM:
            return gzip.compress(body, 1, mtime=0)
        key = digest or await asyncio.to_thread(_digest, body)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.ensure_future(asyncio.to_thread(gzip.compress, body, 1, mtime=0))
            running.add_done_callback(lambda done: self._finished(key, done))
        # one caller who leaves must not take the others' answer away
        return await asyncio.shield(running)

    def _finished(self, key: bytes, done: asyncio.Future[bytes]) -> None:
        self._running.pop(key, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[key] = done.result()
        self._bytes += len(done.result())
        while self._bytes > self._most:
            self._bytes -= len(self._kept.popitem(last=False)[1])


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


async def answer(
    request: web.Request, body: bytes, packed: PackedBodies, headers: Mapping[str, str] | None = None, *,
    digest: bytes = b"",
) -> web.Response:  # fmt: skip
    """JSON, compressed where the caller takes it and it pays. ``digest``: of the body, where it is known."""
    more = {"Vary": "Accept-Encoding", "Cache-Control": "no-store", **(headers or {})}
    if len(body) >= COMPRESSED_FROM and files.accepts_gzip(request):
        body, more["Content-Encoding"] = await packed.pack(body, digest), "gzip"
    return web.Response(body=body, headers=more, content_type=_JSON, charset="utf-8")


def failure(
    status: int, text: str, hint: str = "", headers: Mapping[str, str] | None = None, **said: object
) -> web.Response:
    """Return an error as a JSON response; ``said`` are further fields of it."""
    body = msgspec.json.encode({"error": text, "hint": hint, **said})
    more = {"Cache-Control": "no-store", **(headers or {})}
    return web.Response(status=status, body=body, headers=more, content_type=_JSON, charset="utf-8")
