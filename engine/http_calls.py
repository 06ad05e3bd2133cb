"""HTTP for a command that asks a few questions and ends: one connection, without an event loop.

A client on an event loop is for those that ask much and for long; to load one takes a quarter of a second of CPU, which
is more than all that a short command does.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

R = TypeVar("R")
_PIECE = 256 * 1024


class AnswerTooLarge(OSError):
    """The answer has more bytes than were allowed."""


class HttpAnswer(NamedTuple):
    """The status of an answer, its headers, and its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpConnection:
    """A connection to one server, opened with the first call and again when it broke.

    ``tls`` None: HTTPS with the authorities of the system, where the address says so. ``proxy`` is the address of an
    HTTP proxy, which may be reached by TLS itself. Redirects are answers like others.
    """

    def __init__(
        self, address: str, *, tls: ssl.SSLContext | None = None, server_name: str = "", proxy: str | None = None
    ) -> None:
        parts = urlsplit(address)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._base = parts.path.rstrip("/")
        self._netloc = parts.netloc.rpartition("@")[2]
        self._tls, self._name, self._proxy = tls, server_name or self._host, proxy
        self._line: _Line | None = None

    def call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        connect_within: float,
        within: float,
        most_bytes: int,
        body: bytes | None = None,
    ) -> HttpAnswer:
        """One call; ``path`` is below the address, quoted, with its query. Times in seconds.

        Raises OSError (also when time is up, or the answer is too large) or http.client.HTTPException.
        """
        ends = time.monotonic() + within
        try:
            line = self._line or self._opened(min(connect_within, within))
            self._line = line
            line.wait_at_most(ends)
            line.request(method, self._target(path), body=body, headers={**self._own_headers(), **headers})
            answer = line.getresponse()
            content = _whole(answer, line, ends, most_bytes)
            answer.close()  # one without a body counts as unread before
        except BaseException:
            self.close()
            raise
        if answer.will_close:
            self.close()
        return HttpAnswer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, content)

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        if self._line is not None:
            line, self._line = self._line, None
            line.close()

    def _opened(self, seconds: float) -> _Line:
        context = (self._tls or ssl.create_default_context()) if self._secure else None
        if self._proxy:
            proxy = urlsplit(self._proxy)
            veiled = proxy.scheme == "https"
            line = _Line(proxy.hostname or "", proxy.port or (443 if veiled else 80), seconds, context, self._name)
            line.proxy_tls = ssl.create_default_context() if veiled else None
            if self._secure:
                line.set_tunnel(self._host, self._port, headers=_proxy_proof(self._proxy))
        else:
            line = _Line(self._host, self._port, seconds, context, self._name)
        try:
            line.connect()
        except BaseException:
            line.close()
            raise
        return line

    def _target(self, path: str) -> str:
        """What the request line names: the whole address where a proxy reads it."""
        whole = f"{self._base}{path}"
        return f"http://{self._netloc}{whole}" if self._proxy and not self._secure else whole

    def _own_headers(self) -> dict[str, str]:
        proof = _proxy_proof(self._proxy or "") if not self._secure else {}
        return {"User-Agent": "belay", "Accept-Encoding": "identity", **proof}


class _Line(http.client.HTTPConnection):
    """A connection whose TLS names the server by a given name, and whose waits end at a fixed time."""

    def __init__(self, host: str, port: int, seconds: float, context: ssl.SSLContext | None, name: str) -> None:
        super().__init__(host, port, timeout=seconds)
        self.default_port = 443 if context is not None else 80
        self._context, self._name, self._seconds = context, name, seconds
        self.proxy_tls: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None

    def connect(self) -> None:
        ends = time.monotonic() + self._seconds
        self.sock = self._socket = _connected(self.host, self.port, ends)
        if self.proxy_tls is not None:
            self.sock = self._socket = self.proxy_tls.wrap_socket(self.sock, server_hostname=self.host)
        if self._tunnel_host:  # type: ignore[attr-defined]
            self._tunnel()  # type: ignore[attr-defined]
        if self._context is None:
            return

        self.wait_at_most(ends)
        if self.proxy_tls is None:
            self.sock = self._socket = self._context.wrap_socket(self.sock, server_hostname=self._name)
        else:
            self.sock = _InnerTls(self.sock, self._context, self._name)

    def wait_at_most(self, ends: float) -> None:
        """Let no wait for the server last beyond a time of the monotonic clock."""
        if self._socket is not None and self._socket.fileno() >= 0:
            self._socket.settimeout(_left(ends))


class _InnerTls:
    """TLS with a server through TLS with a proxy, which the ssl module cannot lay over each other."""

    def __init__(self, outer: socket.socket, context: ssl.SSLContext, name: str) -> None:
        self._outer, self._arrived, self._leaving = outer, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=name)
        self._until_done(self._tls.do_handshake)

    def sendall(self, data: bytes) -> None:
        self._until_done(self._tls.write, data)

    def read(self, most: int) -> bytes:
        """Up to so many bytes; none at the end."""
        try:
            return self._until_done(self._tls.read, most)
        except ssl.SSLZeroReturnError:
            return b""

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self))

    def close(self) -> None:
        self._outer.close()

    def _until_done(self, step: Callable[..., R], *given: Any) -> R:
        while True:
            try:
                done = step(*given)
            except ssl.SSLWantReadError:
                self._outer.sendall(self._leaving.read())
                if data := self._outer.recv(_PIECE):
                    self._arrived.write(data)
                else:
                    self._arrived.write_eof()
            else:
                self._outer.sendall(self._leaving.read())
                return done


class _Incoming(io.RawIOBase):
    """The bytes of one answer as they arrive; closing it leaves the connection open."""

    def __init__(self, source: _InnerTls) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, place: Any) -> int:
        data = self._source.read(len(place))
        place[: len(data)] = data
        return len(data)


def _connected(host: str, port: int, ends: float) -> socket.socket:
    """A socket to the first address that answers; each has its share of the time, as a first one may be dead."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    error: OSError = OSError(f"{host} has no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(_left(ends) / (len(addresses) - tried))
            made.connect(address)
        except OSError as failed:
            made.close()
            error = failed
        except BaseException:
            made.close()
            raise
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.settimeout(_left(ends))
            return made
    raise error


def _whole(answer: http.client.HTTPResponse, line: _Line, ends: float, most_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := answer.read(_PIECE):
        size += len(piece)
        if size > most_bytes:
            raise AnswerTooLarge(f"the answer is larger than {most_bytes} bytes")
        pieces.append(piece)
        line.wait_at_most(ends)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(pieces)


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left


def _proxy_proof(proxy: str) -> dict[str, str]:
    """The header for a proxy whose address names a user."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
