"""Calls of a forge's API: what its headers are, how long is waited, what is tried again; every answer is bounded.

A token is sent in a header, never after a redirect, and stands in no message. Which calls there are is the caller's:
comments of a review, pull requests of an act.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from belay.engine.errors import BelayError, InputError
from belay.engine.proxies import proxy_for

GITHUB, GITLAB, GITEA, GITEE, GITCODE = "GitHub", "GitLab", "Gitea", "Gitee", "GitCode"
ATTEMPTS: Final = 5
LONGEST_WAIT: Final = 90.0
"""Seconds: a forge that asks for a longer wait is not waited for."""
WITHIN: Final = 30.0
"""Seconds of one call."""
MOST_ANSWER: Final = 16 * 1024 * 1024
_AGAIN: Final = (429, 500, 502, 503, 504)
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_T = TypeVar("_T")


class ForgeError(BelayError):
    """A forge refused a call, or does not answer. The text holds no token."""

    code = "ForgeRefused"


class UnknownEndError(Exception):
    """Whether the forge did what was asked is not known."""


class ForgeAnswer(NamedTuple):
    """What a forge answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ForgeAccess(NamedTuple):
    """A forge's API, and the token for it. ``hints`` say what to do about a status that refuses."""

    forge: str
    api: str
    token: str
    hints: Mapping[int, str]


class ForgeCalls:
    """Calls of one forge, with its waits; every call counts against the same number of attempts for itself."""

    def __init__(
        self,
        access: ForgeAccess,
        *,
        certificates: str = "",
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._access, self._now, self._sleep = access, now, sleep
        # OpenSSL's SSL_CERT_FILE and SSL_CERT_DIR are in force beside it
        trust = ssl.create_default_context()
        if certificates:
            try:
                trust.load_verify_locations(certificates)
            except (OSError, ssl.SSLError) as error:
                raise InputError("these certificates cannot be read", where=certificates,
                                 hint="Name a PEM file: git config http.sslCAInfo FILE") from error  # fmt: skip
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=WITHIN),
            trust_env=False,
            headers=_headers(access),
            connector=aiohttp.TCPConnector(ssl=trust),
        )

    async def __aenter__(self) -> ForgeCalls:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(
        self,
        method: str,
        address: str,
        body: Mapping[str, Any] | None = None,
        *,
        once: bool = False,
        refusals: tuple[int, ...] = (),
    ) -> ForgeAnswer:
        """One call, repeated while the forge asks to wait or fails; ``once``: not when it may have been carried out.

        Args:
            method: the verb of HTTP.
            address: the whole address, below the API's.
            body: sent as JSON.
            once: a call that may not be repeated where its end is not known.
            refusals: statuses that are an answer to the caller too.

        Raises:
            UnknownEndError: ``once``, and the call may have been carried out.
            ForgeError: refused.
        """
        for attempt in range(ATTEMPTS):
            try:
                answer = await self._once(method, address, body)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = f"{method} {_path(address)}: {self.clean(str(error) or type(error).__name__)}"
                if isinstance(error, aiohttp.ClientConnectorCertificateError):
                    raise ForgeError(problem, where=self._access.api, hint=_UNTRUSTED) from error
                if once and not isinstance(error, aiohttp.ClientConnectorError):
                    raise UnknownEndError(problem) from error
                await self.wait(attempt, None, problem)
                continue
            limited = _limited(answer)
            if limited or answer.status in _AGAIN:
                problem = f"{method} {_path(address)}: HTTP {answer.status}"
                if once and not limited and answer.status != 503:
                    raise UnknownEndError(problem)
                await self.wait(attempt, _asked_wait(answer, self._now()), problem)
                continue
            if answer.status in (200, 201) or answer.status in refusals:
                return answer
            raise self.refused(method, answer, address)
        raise AssertionError("wait() ends the last attempt")

    async def wait(self, attempt: int, asked: float | None, problem: str = "") -> None:
        """Wait before the next attempt.

        Raises:
            ForgeError: it was the last one, or the forge asks for too long a wait.
        """
        if attempt == ATTEMPTS - 1 and problem:
            raise ForgeError(f"{problem}, {ATTEMPTS} times", where=self._access.api)
        if asked is not None and asked > LONGEST_WAIT:
            raise ForgeError(
                f"{problem}: its limit of calls ends in {asked:.0f} s",
                where=self._access.api,
                hint="Try again then.",
            )
        await self._sleep(asked if asked is not None else float(2**attempt))

    async def _once(self, method: str, address: str, body: Mapping[str, Any] | None) -> ForgeAnswer:
        data = msgspec.json.encode(body) if body is not None else None
        call = self._session.request(method, address, data=data, proxy=proxy_for(address), allow_redirects=False)
        async with call as response:
            read = await response.content.read(MOST_ANSWER + 1)
            while len(read) <= MOST_ANSWER and (more := await response.content.read(MOST_ANSWER)):
                read += more
            if len(read) > MOST_ANSWER:
                raise ForgeError(f"{method} {_path(address)}: the answer is larger than {MOST_ANSWER >> 20} MiB")
            headers = {name.lower(): value for name, value in response.headers.items()}
            return ForgeAnswer(response.status, headers, read)

    def refused(self, method: str, answer: ForgeAnswer, address: str = "") -> ForgeError:
        """The refusal of a call, with the way out."""
        what = self.clean(" ".join(answer.body[:2000].decode(errors="replace").split()))[:200]
        hint = self._access.hints.get(answer.status, "")
        if 300 <= answer.status < 400:
            hint = f"It moved to {self.clean(answer.headers.get('location', '')[:200])}; a token is not sent after it."
        place = f" {_path(address)}" if address else ""
        return ForgeError(f"{method}{place}: HTTP {answer.status}: {what}", where=self._access.api, hint=hint)

    def clean(self, text: str) -> str:
        """Without the token, should anything echo it."""
        return text.replace(self._access.token, "***")


_UNTRUSTED: Final = (
    "If its authority is your own, name it: git config http.sslCAInfo FILE (acts), SSL_CERT_FILE=FILE (every verb)."
)


def checked_address(api: str, *, plain: bool, where: str = "--post", allow: str = "allow it with --plain-http") -> str:
    """The API's address, when a token may be sent there.

    Args:
        api: the address.
        plain: http is allowed to other machines too.
        where: the option or setting that it comes from.
        allow: how http is allowed, for the message.

    Raises:
        InputError: no address, or http to another machine.
    """
    parts = urlsplit(api)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InputError(f"{api[:200]!r} is not an address of an API", where=where)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK and not plain:
        raise InputError(
            f"{api[:200]} is not https: the token could be read on its way", where=where,
            hint=f"Give the forge a certificate, or {allow}.",
        )  # fmt: skip
    return api.rstrip("/")


def decoded(body: bytes, shape: type[_T]) -> _T:
    """An answer's body.

    Raises:
        ForgeError: not what the API documents.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ForgeError(f"the answer is not what the API documents: {str(error)[:200]}") from error


def _headers(access: ForgeAccess) -> dict[str, str]:
    common = {"Content-Type": "application/json", "User-Agent": "belay", "Accept": "application/json"}
    match access.forge:
        case "GitLab":
            return {**common, "PRIVATE-TOKEN": access.token}
        case "Gitea":
            return {**common, "Authorization": f"token {access.token}"}
        case "Gitee" | "GitCode":
            return {**common, "Authorization": f"Bearer {access.token}"}
    return {
        **common,
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "Authorization": f"Bearer {access.token}",
    }


def _limited(answer: ForgeAnswer) -> bool:
    """Whether the forge's limit of calls was reached: GitHub answers 403 or 429, with headers that say until when."""
    if answer.status == 429:
        return True
    spent = answer.headers.get("x-ratelimit-remaining") == "0"
    return answer.status == 403 and (spent or "retry-after" in answer.headers)


def _asked_wait(answer: ForgeAnswer, now: float) -> float | None:
    """Seconds that the forge asks to wait: ``Retry-After`` in seconds or as a date, or when its limit is reset."""
    after = answer.headers.get("retry-after", "").strip()
    if after.isdigit() and len(after) < 9:
        return float(after)
    if after:
        try:
            return max(0.0, parsedate_to_datetime(after).timestamp() - now)
        except (ValueError, OverflowError):
            return None
    reset = answer.headers.get("x-ratelimit-reset") or answer.headers.get("ratelimit-reset") or ""
    return max(0.0, float(reset) - now) + 1 if reset.isdigit() and len(reset) < 12 else None


def _path(address: str) -> str:
    return address.partition("://")[2].partition("/")[2].partition("?")[0]
