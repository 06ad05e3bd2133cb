"""A small HTTP/1.1 server for one page: bounded in connections, headers, bodies and time.

Answers of component/npu-exporter/platforms/prom and common-utils/limiter: GET only, else 404; 503 beyond a limit; every
path but /metrics is a page with a link.
"""

from __future__ import annotations

import asyncio
import posixpath
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from belay.agents.common.log import Log
from belay.agents.serving.limits import RequestLimiter

MOST_HEADER: Final = 1024
MOST_BODY: Final = 10 << 20
SECONDS: Final = 10.0
"""For reading a request, and for writing an answer."""

IDLE_SECONDS: Final = 60.0
STALLED_SECONDS: Final = 1.0
"""Without progress for so long, a connection gives up its place when a limit would refuse another one."""
HANDSHAKE_SECONDS: Final = 5.0
SHUTDOWN_SECONDS: Final = 30.0
GO_SLACK: Final = 4096
"""What Go's server adds to its limit of header bytes; scrapers rely on it for long but valid headers."""

HTML: Final = "text/html; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
LANDING: Final = (
    b"<!DOCTYPE html>\n<html><head><title>NPU-Exporter</title></head>"
    b'<body><h1>NPU-Exporter</h1><p><a href="/metrics">metrics</a></p></body></html>\n'
)
_log = Log("exporter")


class HttpResponse:
    """Status, type and body of an answer."""

    __slots__ = ("body", "encoding", "kind", "location", "status")

    def __init__(self, status: int, body: bytes, kind: str = TEXT, *, encoding: str = "", location: str = "") -> None:
        self.status, self.body, self.kind, self.encoding, self.location = status, body, kind, encoding, location


Handler = Callable[[str, bool], HttpResponse]
"""Answers a GET: path, and whether the client takes gzip."""


class Server:
    """Listens until `close`. One loop; ``handler`` must not block."""

    def __init__(
        self,
        handler: Handler,
        gate: RequestLimiter,
        *,
        tls: ssl.SSLContext | None = None,
        busy: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE,
        other_methods: HTTPStatus = HTTPStatus.NOT_FOUND,
    ) -> None:
        self.handler, self.gate, self._tls = handler, gate, tls
        self.busy = HttpResponse(busy, f"{int(busy)} too busy\n".encode())
        self.other = HttpResponse(other_methods, f"{int(other_methods)} {other_methods.phrase.lower()}\n".encode())
        self._server: asyncio.Server | None = None
        self.open: set[Connection] = set()

    def connect(self, address: str) -> bool:
        """Count a connection. Beyond a limit the one without progress for longest is ended: one of the same address
        first, for a limit per address; false when there is none."""
        if self.gate.connect(address):
            return True
        stalled = sorted((one for one in self.open if one.counted and one.stalled()), key=lambda one: one.since)
        for candidates in ([one for one in stalled if one.address == address], stalled):
            if candidates and candidates[0].end() and self.gate.connect(address):
                return True
        return False

    def begin(self) -> bool:
        """Count an answer. Beyond the limit the one left unread for longest is ended; false when there is none."""
        if self.gate.begin():
            return True
        unread = [one for one in self.open if one.answering and one.stalled()]
        return bool(unread) and min(unread, key=lambda one: one.since).end() and self.gate.begin()

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port (chosen by the system when ``port`` is 0). Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), host, port, ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls else None, backlog=1024,
        )  # fmt: skip
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening; answers in progress have 30 s."""
        if self._server is not None:
            self._server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + SHUTDOWN_SECONDS
        for connection in list(self.open):
            connection.finish()
        while self.open and loop.time() < end:
            await asyncio.sleep(0.02)
        for connection in list(self.open):
            connection.abort()


class Connection(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, server: Server) -> None:
        self._server, self._gate = server, server.gate
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.address = ""
        self.counted = self._refusing = self._ending = False
        self.since = self._loop.time()
        """Time of the last progress."""
        self._unread = 0
        self._head, self._body_left = b"", 0
        self._writing = self.answering = False
        self._look: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.counted = self._server.connect(self.address)
        if not self.counted:
            self._refusing = self._gate.refuse()
            if not self._refusing:
                transport.abort()
                return
        self._server.open.add(self)
        transport.set_write_buffer_limits(high=0)
        self._wait(SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._quiet()
        self._stop_measuring()
        self._release()

    def _release(self) -> None:
        """Give back what the limits count."""
        self._server.open.discard(self)
        if self.answering:
            self.answering = False
            self._gate.end()
        if self.counted:
            self.counted = False
            self._gate.disconnect(self.address)
        if self._refusing:
            self._refusing = False
            self._gate.refused()

    def stalled(self) -> bool:
        """Whether nothing was received or read for a while."""
        return self._loop.time() - self.since >= STALLED_SECONDS

    def end(self) -> bool:
        """End the connection and free its place at once; always true."""
        self._release()
        self.abort()
        return True

    def data_received(self, data: bytes) -> None:
        if not self._writing:
            self.since = self._loop.time()
        if self._body_left:
            taken = min(self._body_left, len(data))
            self._body_left -= taken
            data = data[taken:]
        if not self._head and not self._writing:
            # the first byte of a request: its time begins
            self._wait(SECONDS)
        self._head += data
        if not self._writing:
            self._next()
        elif len(self._head) > MOST_HEADER + GO_SLACK:
            # pipelined requests wait in the socket, not here
            assert self._transport is not None
            self._transport.pause_reading()

    def _next(self) -> None:
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > MOST_HEADER + GO_SLACK:
                self._say(
                    HttpResponse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"431 header too large\n"), close=True
                )
            return
        if end > MOST_HEADER + GO_SLACK:
            self._say(HttpResponse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"431 header too large\n"), close=True)
            return
        head, self._head = self._head[:end], self._head[end + 4 :]
        self._request(head)

    def _request(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip() or not name:
                words = []
                break
            headers[name.lower()] = value.strip()
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith(("/", "http://")):
            self._say(HttpResponse(HTTPStatus.BAD_REQUEST, b"400 bad request\n"), close=True)
            return
        close = headers.get("connection", "").lower() == "close" or words[2] == "HTTP/1.0"
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal() or int(length) > MOST_BODY:
            self._say(HttpResponse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"413 body too large\n"), close=True)
            return
        # a body is discarded unread
        taken = min(int(length), len(self._head))
        self._head = self._head[taken:]
        self._body_left = int(length) - taken
        self._say(self._answer(words[0], words[1], headers), close=close)

    def _answer(self, method: str, target: str, headers: dict[str, str]) -> HttpResponse:
        if not self.counted or not self._gate.request(self.address, self._loop.time()):
            return self._server.busy
        if not self._server.begin():
            return self._server.busy
        self.answering = True
        if method != "GET":
            return self._server.other
        path = target.partition("?")[0].partition("#")[0]
        if path.startswith("http://"):
            path = "/" + path[7:].partition("/")[2]
        clean = posixpath.normpath(path).replace("//", "/") + ("/" if path.endswith("/") and path != "/" else "")
        clean = clean if clean != "//" else "/"
        if clean != path:
            return HttpResponse(HTTPStatus.TEMPORARY_REDIRECT, b"", HTML, location=clean)
        gzip = any(part.split(";")[0].strip() == "gzip" for part in headers.get("accept-encoding", "").split(","))
        try:
            return self._server.handler(path, gzip)
        except Exception:
            # the client gets an error, and its next scrape is answered
            _log.exception("a page could not be made")
            return HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"500 the page could not be made\n")

    def _say(self, answer: HttpResponse, *, close: bool) -> None:
        transport = self._transport
        assert transport is not None
        self._ending = self._ending or close or not self.counted
        head = [
            f"HTTP/1.1 {int(answer.status)} {HTTPStatus(answer.status).phrase}", f"Content-Type: {answer.kind}",
            f"Content-Length: {len(answer.body)}", "X-Content-Type-Options: nosniff",
        ]  # fmt: skip
        if answer.encoding:
            head.append(f"Content-Encoding: {answer.encoding}")
        if answer.location:
            head.append(f"Location: {answer.location}")
        if self._ending:
            head.append("Connection: close")
        self._writing = True
        self._wait(SECONDS)
        # with the high-water mark at 0, pause_writing shows whether anything is left to send
        self._full = False
        transport.write("\r\n".join((*head, "", "")).encode() + answer.body)
        if self._full:
            self._unread, self.since = transport.get_write_buffer_size(), self._loop.time()
            self._look = self._loop.call_later(STALLED_SECONDS / 2, self._measure)
        else:
            self._done()

    _full = False

    def _measure(self) -> None:
        """Note whether the client has read something."""
        assert self._transport is not None
        if (left := self._transport.get_write_buffer_size()) != self._unread:
            self._unread, self.since = left, self._loop.time()
        self._look = self._loop.call_later(STALLED_SECONDS / 2, self._measure)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._writing:
            self._done()

    def _done(self) -> None:
        self._writing = False
        self.since = self._loop.time()
        self._stop_measuring()
        if self.answering:
            self.answering = False
            self._gate.end()
        transport = self._transport
        assert transport is not None
        if self._ending:
            self._quiet()
            transport.close()
            return
        self._wait(IDLE_SECONDS)
        if not transport.is_closing():
            transport.resume_reading()
        if self._head:
            # not from inside the last answer: a pipeline must not grow the stack
            self._loop.call_soon(self._more)

    def _more(self) -> None:
        if not self._writing and self._transport is not None and not self._transport.is_closing():
            self._next()

    def finish(self) -> None:
        """Close when no answer is in progress."""
        self._ending = True
        if not self._writing and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _wait(self, seconds: float) -> None:
        self._quiet()
        self._timer = self._loop.call_later(seconds, self.abort)

    def _stop_measuring(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
