"""HTTP to the API server: time limits, bounded answers, retries with full jitter, credentials read again on 401."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import aiohttp
import orjson
from yarl import URL

from belay.engine.errors import InputError
from belay.engine.kube.backoff import Backoff
from belay.engine.kube.endpoint import Endpoint, Loader
from belay.engine.kube.errors import KubeError, TooMany, Unavailable, from_answer
from belay.engine.kube.lister import ANSWER_LIMIT

ATTEMPT_SECONDS = 15.0
"""Longest wait for one answer."""
DEADLINE_SECONDS = 30.0
"""Longest time for one call including its retries."""
EVENT_LIMIT = 8 * 1024 * 1024
LINE_LIMIT = 64 * 1024
"""Largest watch event in bytes."""
JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_CONNECTIONS = 256
TOKEN_SECONDS = 60.0
"""Seconds between two readings of a token in a file; kubelet renews a service account's well before it ends."""
_CLOSE_SECONDS = 2.0
_IDLE_SECONDS = 60.0
"""Seconds that an idle connection is kept: making 64 costs as much as a hundred bindings. Servers keep it 90 s."""

Retry = Literal["always", "unprocessed", "never"]
"""``always``: idempotent calls; ``unprocessed``: only if the server surely did nothing (429, no connection)."""


class Transport:
    """One HTTP session with the API server."""

    def __init__(
        self,
        load: Loader,
        *,
        deadline: float = DEADLINE_SECONDS,
        attempt: float = ATTEMPT_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._load = load
        self._deadline = deadline
        self._attempt = attempt
        self._sleep = sleep
        self._clock = clock
        self._uniform = uniform
        self._endpoint: Endpoint | None = None
        self._base: tuple[Endpoint, URL] | None = None
        self._whole = aiohttp.ClientTimeout(total=attempt, sock_connect=min(5.0, attempt))
        self._session: aiohttp.ClientSession | None = None
        self._loading = asyncio.Lock()
        self._token_read = 0.0

    async def open(self) -> None:
        """Read the credentials and open the session; raises InputError when there are none."""
        self._endpoint = await asyncio.to_thread(self._load)
        self._token_read = self._clock()
        connector = aiohttp.TCPConnector(
            limit=_CONNECTIONS, keepalive_timeout=_IDLE_SECONDS, socket_factory=_keepalive_socket
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # API servers set none
            auto_decompress=True,
            headers={"User-Agent": "belay", "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            with contextlib.suppress(TimeoutError):  # a TLS peer that never closes must not delay us
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await session.close()

    @property
    def host(self) -> str:
        return self._endpoint.host if self._endpoint else ""

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        data: bytes | None = None,
        content_type: str = JSON,
        retry: Retry = "always",
        withhold: bool = False,
    ) -> Any:
        """One call and its retries within the deadline; returns the decoded JSON answer. Raises KubeError.

        ``body`` is sent as JSON, ``data`` as it is.
        """
        data = data if body is None else orjson.dumps(body)
        ends = self._clock() + self._deadline
        backoff = Backoff(base=0.1, cap=5.0, uniform=self._uniform)
        while True:
            try:
                return await self._once(method, path, params, data, content_type, withhold, ends)
            except (TooMany, Unavailable) as error:
                if not _retryable(error, retry):
                    raise
                delay = backoff.next()
                if isinstance(error, TooMany):
                    delay += error.retry_after
                if self._clock() + delay >= ends:
                    raise
                await self._sleep(delay)

    async def events(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        quiet: float,
        on_open: Callable[[], None] | None = None,
        packed: bool = False,
    ) -> AsyncGenerator[tuple[bytes, bool]]:
        """The events of a watch until the server ends it; ``quiet`` is the longest silence in s. Raises KubeError.

        ``packed`` requests protobuf. Servers and kinds without it answer in JSON, so each event says so.
        """
        where = f"WATCH {path}"
        accept = f"{PROTOBUF}, {JSON}" if packed else JSON
        async with (
            await self._opened(path, params, quiet, accept, where) as answer,
            _silence_limit(answer, quiet) as heard,
        ):
            if answer.status != 200:
                raise await self._error(answer, where, withhold=False)
            if on_open is not None:
                on_open()
            packed = answer.content_type == PROTOBUF
            split = _frames if packed else _lines
            rest = bytearray()
            async for chunk in _chunks(answer, where):
                heard()
                rest += chunk
                for whole in split(rest):
                    yield whole, packed
                if len(rest) > EVENT_LIMIT:
                    raise Unavailable(f"{where}: an event is larger than {EVENT_LIMIT} bytes", reason="AnswerTooLarge")

    async def lines(self, path: str, params: Mapping[str, str], *, quiet: float) -> AsyncGenerator[bytes]:
        """The lines of a text until the server ends it, without their ends; ``quiet`` is the longest silence in s.

        A line of more than ``LINE_LIMIT`` bytes comes in pieces. Raises KubeError.
        """
        where = f"GET {path}"
        async with (
            await self._opened(path, params, quiet, "*/*", where) as answer,
            _silence_limit(answer, quiet) as heard,
        ):
            if answer.status != 200:
                raise await self._error(answer, where, withhold=False)
            rest = bytearray()
            async for chunk in _chunks(answer, where):
                heard()
                rest += chunk
                *whole, last = rest.split(b"\n")
                rest = bytearray(last)
                for line in whole:
                    yield bytes(line)
                while len(rest) > LINE_LIMIT:
                    yield bytes(rest[:LINE_LIMIT])
                    del rest[:LINE_LIMIT]
            if rest:
                yield bytes(rest)

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        withhold: bool,
        ends: float,
    ) -> Any:
        where = f"{method} {path}"
        left = max(0.05, ends - self._clock())
        timeout = (
            self._whole if left >= self._attempt else aiohttp.ClientTimeout(total=left, sock_connect=min(5.0, left))
        )
        answer = await self._answer(method, path, params, data, content_type, timeout)
        try:
            if answer.status >= 300:
                raise await self._error(answer, where, withhold=withhold)
            content = await _bounded_body(answer, where)
        finally:
            answer.release()
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise Unavailable(f"{where}: the answer is not JSON", reason="BadAnswer") from error

    async def _answer(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
        *,
        accept: str = JSON,
    ) -> aiohttp.ClientResponse:
        """An answer without its body, which the caller releases; after a 401 the credentials are read again, once."""
        if self._session is None or self._endpoint is None:
            raise RuntimeError("the Kubernetes client is not open: use it with 'async with'")
        await self._follow_token(self._endpoint)
        for renewed in (False, True):
            endpoint = self._endpoint
            headers = {**endpoint.headers, "Accept": accept}
            if data is not None:
                headers["Content-Type"] = content_type
            try:
                answer = await self._session.request(
                    method,
                    self._url(endpoint, path),
                    params=params,
                    data=data,
                    headers=headers,
                    ssl=endpoint.tls if endpoint.tls is not None else True,
                    server_hostname=endpoint.server_name,
                    proxy=endpoint.proxy,
                    timeout=timeout,
                    allow_redirects=False,
                )
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _no_answer(f"{method} {path}", error) from error
            if answer.status != 401 or renewed:
                return answer
            try:
                another = await self._renew(endpoint)
            except BaseException:
                answer.release()
                raise
            if not another:
                return answer
            answer.release()
        raise AssertionError("unreachable: the second answer is returned")

    def _url(self, endpoint: Endpoint, path: str) -> URL:
        """The URL of a path with quoted names. The server's address is parsed once, and may have a path of its own."""
        if self._base is None or self._base[0] is not endpoint:
            self._base = endpoint, URL(endpoint.host)
        base = self._base[1]
        return base.with_path(base.raw_path.rstrip("/") + path, encoded=True)

    async def _follow_token(self, used: Endpoint) -> None:
        """Read a token that others renew again once a minute; connections stay, and a bad file changes nothing."""
        if not used.rotates or self._clock() - self._token_read < TOKEN_SECONDS:
            return
        self._token_read = self._clock()
        try:
            found = await asyncio.to_thread(self._load)
        except InputError:
            return
        if self._endpoint is used and found.authorization != used.authorization:
            self._endpoint = replace(used, authorization=found.authorization)

    async def _renew(self, used: Endpoint) -> bool:
        """Read the credentials again unless another call just did; False when they are unreadable."""
        async with self._loading:
            if self._endpoint is not used:
                return True
            try:
                self._endpoint = await asyncio.to_thread(self._load)
            except InputError:
                return False
            return True

    async def _error(self, answer: aiohttp.ClientResponse, where: str, *, withhold: bool) -> KubeError:
        body = await _bounded_body(answer, where)
        return from_answer(answer.status, body, where, retry_after=answer.headers.get("Retry-After"), withhold=withhold)

    async def _opened(
        self, path: str, params: Mapping[str, str], quiet: float, accept: str, where: str
    ) -> aiohttp.ClientResponse:
        """An answer whose body has no limit of time yet."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        try:
            async with asyncio.timeout(quiet):
                return await self._answer("GET", path, params, None, "", timeout, accept=accept)
        except TimeoutError as error:
            raise _no_answer(where, error) from error


class NotConnected(Unavailable):
    """No connection was made, so the server surely received nothing of the call."""


def _no_answer(where: str, error: BaseException) -> Unavailable:
    kind = NotConnected if isinstance(error, aiohttp.ClientConnectorError) else Unavailable
    text = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return kind(f"{where}: {text}", reason="NoAnswer")


def _retryable(error: KubeError, retry: Retry) -> bool:
    if retry == "never":
        return False
    return retry == "always" or isinstance(error, TooMany | NotConnected)


async def _bounded_body(answer: aiohttp.ClientResponse, where: str) -> bytes:
    if 0 <= (answer.content_length or -1) <= ANSWER_LIMIT and "Content-Encoding" not in answer.headers:
        try:
            return await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(where, error) from error
    chunks: list[bytes] = []
    size = 0
    async for chunk in _chunks(answer, where):
        size += len(chunk)
        if size > ANSWER_LIMIT:
            raise Unavailable(f"{where}: the answer is larger than {ANSWER_LIMIT} bytes", reason="AnswerTooLarge")
        chunks.append(chunk)
    return b"".join(chunks)


def _lines(data: bytearray) -> list[bytes]:
    """Remove the complete lines from ``data`` and return them."""
    end = data.rfind(b"\n") + 1
    whole = bytes(data[:end]).split(b"\n")
    del data[:end]
    return [line for line in whole if line]


def _frames(data: bytearray) -> list[bytes]:
    """Remove the complete frames from ``data`` and return them; each follows its length, four bytes in big-endian."""
    whole, start = [], 0
    while len(data) - start >= 4:
        end = start + 4 + int.from_bytes(data[start : start + 4])
        if end > len(data):
            break
        whole.append(bytes(data[start + 4 : end]))
        start = end
    del data[:start]
    return whole


@contextlib.asynccontextmanager
async def _silence_limit(answer: aiohttp.ClientResponse, seconds: float) -> AsyncIterator[Callable[[], None]]:
    """Ends the reading of a body with TimeoutError once nothing has come for so long; what it yields is called with
    each piece. aiohttp's own limit sets a timer with each piece, which costs a quarter of reading it.
    """
    loop = asyncio.get_running_loop()
    last = loop.time()
    timer: asyncio.TimerHandle

    def heard() -> None:
        nonlocal last
        last = loop.time()

    def look() -> None:
        nonlocal timer
        if loop.time() < last + seconds:
            timer = loop.call_at(last + seconds, look)
        else:
            answer.content.set_exception(TimeoutError())

    timer = loop.call_later(seconds, look)
    try:
        yield heard
    finally:
        timer.cancel()


async def _chunks(answer: aiohttp.ClientResponse, where: str) -> AsyncIterator[bytes]:
    while True:
        try:
            chunk = await answer.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(where, error) from error
        if not chunk:
            return
        yield chunk


def _keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that detects a vanished peer within a minute, as watches may be silent."""
    family, kind, protocol = address[0], address[1], address[2]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
