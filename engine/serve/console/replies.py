"""Answers and errors of the console as JSON, and who asked."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from engine.serve.console import files

USER: Final = web.RequestKey("belay.user", str)
"""The caller's name, empty on loopback."""
COMPRESSED_FROM: Final = 1_024
_JSON: Final = "application/json"


def answer(
    request: web.Request, body: bytes, headers: Mapping[str, str] | None = None, packed: bytes | None = None
) -> web.Response:
    """JSON, compressed where the caller takes it and it pays."""
    more = {"Vary": "Accept-Encoding", "Cache-Control": "no-store", **(headers or {})}
    if len(body) >= COMPRESSED_FROM and files.accepts_gzip(request):
        body, more["Content-Encoding"] = packed or gzip.compress(body, 1, mtime=0), "gzip"
    return web.Response(body=body, headers=more, content_type=_JSON, charset="utf-8")


def failure(status: int, text: str, hint: str = "", headers: Mapping[str, str] | None = None) -> web.Response:
    """An error as JSON."""
    body = msgspec.json.encode({"error": text, "hint": hint})
    more = {"Cache-Control": "no-store", **(headers or {})}
    return web.Response(status=status, body=body, headers=more, content_type=_JSON, charset="utf-8")
