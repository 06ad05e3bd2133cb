"""The front end's files, read once: the page, its script and its style, with their digests and compressed."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
_TYPES: Final = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png",
    ".ico": "image/x-icon", ".json": "application/json", ".txt": "text/plain", ".woff2": "font/woff2",
}  # fmt: skip
_MOST: Final = 64
_MOST_BYTES: Final = 4 * 1024 * 1024
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class StaticFile(msgspec.Struct, frozen=True):
    """One file; ``packed`` is empty where gzip saves nothing."""

    content_type: str
    body: bytes
    packed: bytes
    tag: str


def read_files(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """The files of the front end by their path below the folder; none where it was not built."""
    found: dict[str, StaticFile] = {}
    if not folder.is_dir():
        return found
    for path in sorted(folder.rglob("*"))[: 4 * _MOST]:
        kind = _TYPES.get(path.suffix)
        if kind is None or not path.is_file() or path.stat().st_size > _MOST_BYTES or len(found) >= _MOST:
            continue
        body = path.read_bytes()
        packed = gzip.compress(body, 9, mtime=0)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        found[path.relative_to(folder).as_posix()] = StaticFile(
            kind, body, packed if len(packed) < len(body) else b"", tag
        )
    return found


def answer(request: web.Request, file: StaticFile) -> web.Response:
    """The file, or 304 where the caller has it."""
    headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if file.tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    body = file.body
    if file.packed and accepts_gzip(request):
        body, headers["Content-Encoding"] = file.packed, "gzip"
    return web.Response(body=body, headers=headers, content_type=file.content_type, charset="utf-8")


def accepts_gzip(request: web.Request) -> bool:
    """Whether the caller takes gzip (RFC 9110, Accept-Encoding)."""
    for part in request.headers.get("Accept-Encoding", "").split(","):
        coding, _, weight = part.strip().partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
