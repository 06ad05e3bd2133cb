"""One comment on a pull or merge request: found by its first line and its author, made or updated.

The calls are those that the forges document: GitHub's and Gitea's issue comments (a pull request is an issue there),
GitLab's notes of merge requests. Reads and updates may be repeated; before a comment is made again after an unknown
end, the list is read again, so that one request never has two.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple, TypeVar

import aiohttp
import msgspec

from engine.cli.review.ci import GITEA, GITHUB, GITLAB, ReviewRequest
from engine.errors import BelayError

ATTEMPTS: Final = 5
LONGEST_WAIT: Final = 90.0
"""Seconds: a forge that asks for a longer wait is not waited for."""
WITHIN: Final = 30.0
"""Seconds of one call."""
PAGES: Final = 50
PER_PAGE: Final = 100
MOST_ANSWER: Final = 16 * 1024 * 1024
_T = TypeVar("_T")
_AGAIN: Final = (429, 500, 502, 503, 504)
_OWN: Final = {GITHUB: "github-actions[bot]", GITEA: "gitea-actions", GITLAB: ""}
"""The name by which a job's own token comments; such a token may not ask who it is."""


class ForgeError(BelayError):
    """A forge refused a comment, or does not answer. The text holds no token."""


class Posted(NamedTuple):
    """A comment: its address for people, and whether it was there before."""

    address: str
    updated: bool


class _User(msgspec.Struct):
    login: str = ""
    username: str = ""


class _Comment(msgspec.Struct):
    """What the three forges have alike of a comment; GitLab calls the author ``author``."""

    id: int
    body: str | None = ""
    html_url: str = ""
    user: _User | None = None
    author: _User | None = None
    system: bool = False

    @property
    def by(self) -> str:
        """Who wrote it."""
        user = self.user or self.author or _User()
        return user.login or user.username


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


async def post(
    request: ReviewRequest,
    token: str,
    text: str,
    *,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Posted:
    """Make the comment, or update the one that begins with the same line and has the same author.

    Raises:
        ForgeError: refused, or no answer after ``ATTEMPTS``.
    """
    timeout = aiohttp.ClientTimeout(total=WITHIN)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True, headers=_headers(request, token)) as session:
        calls = _Calls(session, request, token, now, sleep)
        own = await calls.whoami()
        problem = ""
        for attempt in range(ATTEMPTS):
            found = await calls.find(text.split("\n", 1)[0], own)
            if found is not None and found.body == text:
                return Posted(_address(request, found), True)
            try:
                if found is not None:
                    kept = await calls.ask("PUT" if request.forge == GITLAB else "PATCH", _one(request, found.id), text)
                else:
                    kept = await calls.ask("POST", _all(request), text, once=True)
            except _Unknown as error:
                problem = str(error)
                await calls.wait(attempt, None)
                continue
            return Posted(_address(request, _decoded(kept.body, _Comment)), found is not None)
        raise ForgeError(f"{problem}, {ATTEMPTS} times", where=request.api)


class _Unknown(Exception):
    """Whether the forge did what was asked is not known."""


class _Calls:
    """Calls of one forge, with its waits; every call counts against the same number of attempts for itself."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        request: ReviewRequest,
        token: str,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._session, self._request, self._token, self._now, self._sleep = session, request, token, now, sleep

    async def whoami(self) -> str:
        """The name that the token comments by."""
        answer = await self.ask("GET", f"{self._request.api}/user", refusals=(401, 403, 404))
        if answer.status == 401:
            raise self._refused("GET", answer)
        if answer.status != 200:
            return _OWN[self._request.forge]
        user = _decoded(answer.body, _User)
        return user.login or user.username

    async def find(self, first: str, own: str) -> _Comment | None:
        """The own comment that begins with this line; the oldest, where there are several."""
        for page in range(1, PAGES + 1):
            address = f"{_all(self._request)}?per_page={PER_PAGE}&page={page}"
            if self._request.forge == GITLAB:
                address += "&sort=asc&order_by=created_at"
            answer = await self.ask("GET", address)
            comments = comments_in(answer.body)
            for one in comments:
                if (one.body or "").split("\n", 1)[0].rstrip("\r") == first and not one.system and one.by == own:
                    return one
            # Gitea answers with all comments at once, whatever page is asked for
            if self._request.forge == GITEA or len(comments) < PER_PAGE:
                return None
        return None

    async def ask(
        self, method: str, address: str, text: str = "", *, once: bool = False, refusals: tuple[int, ...] = ()
    ) -> _Answer:
        """One call, repeated while the forge asks to wait or fails; ``once``: not when it may have been carried out.

        Raises:
            _Unknown: ``once``, and the call may have been carried out.
            ForgeError: refused.
        """
        for attempt in range(ATTEMPTS):
            try:
                answer = await self._once(method, address, text)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = f"{method} {_path(address)}: {self._clean(str(error) or type(error).__name__)}"
                if once and not isinstance(error, aiohttp.ClientConnectorError):
                    raise _Unknown(problem) from error
                await self.wait(attempt, None, problem)
                continue
            limited = _limited(answer)
            if limited or answer.status in _AGAIN:
                problem = f"{method} {_path(address)}: HTTP {answer.status}"
                if once and not limited and answer.status != 503:
                    raise _Unknown(problem)
                await self.wait(attempt, _asked_wait(answer, self._now()), problem)
                continue
            if answer.status in (200, 201) or answer.status in refusals:
                return answer
            raise self._refused(method, answer, address)
        raise AssertionError("wait() ends the last attempt")

    async def wait(self, attempt: int, asked: float | None, problem: str = "") -> None:
        """Wait before the next attempt.

        Raises:
            ForgeError: it was the last one, or the forge asks for too long a wait.
        """
        if attempt == ATTEMPTS - 1 and problem:
            raise ForgeError(f"{problem}, {ATTEMPTS} times", where=self._request.api)
        if asked is not None and asked > LONGEST_WAIT:
            raise ForgeError(
                f"{problem}: its limit of calls ends in {asked:.0f} s",
                where=self._request.api,
                hint="Run the job again then.",
            )
        await self._sleep(asked if asked is not None else float(2**attempt))

    async def _once(self, method: str, address: str, text: str) -> _Answer:
        data = msgspec.json.encode({"body": text}) if text else None
        async with self._session.request(method, address, data=data, allow_redirects=False) as response:
            body = await response.content.read(MOST_ANSWER + 1)
            while len(body) <= MOST_ANSWER and (more := await response.content.read(MOST_ANSWER)):
                body += more
            if len(body) > MOST_ANSWER:
                raise ForgeError(f"{method} {_path(address)}: the answer is larger than {MOST_ANSWER >> 20} MiB")
            headers = {name.lower(): value for name, value in response.headers.items()}
            return _Answer(response.status, headers, body)

    def _refused(self, method: str, answer: _Answer, address: str = "") -> ForgeError:
        what = self._clean(" ".join(answer.body[:2000].decode(errors="replace").split()))[:200]
        hint = ""
        if 300 <= answer.status < 400:
            hint = f"It moved to {self._clean(answer.headers.get('location', '')[:200])}; a token is not sent after it."
        elif answer.status in (401, 403, 404):
            hint = (
                "The token may not comment here. Requests from forks have tokens that only read: "
                "docs/review.md says what to do."
            )
        place = f" {_path(address)}" if address else ""
        return ForgeError(f"{method}{place}: HTTP {answer.status}: {what}", where=self._request.api, hint=hint)

    def _clean(self, text: str) -> str:
        """Without the token, should anything echo it."""
        return text.replace(self._token, "***")


def _headers(request: ReviewRequest, token: str) -> dict[str, str]:
    common = {"Content-Type": "application/json", "User-Agent": "belay-review"}
    if request.forge == GITLAB:
        return {**common, "Accept": "application/json", "PRIVATE-TOKEN": token}
    if request.forge == GITEA:
        return {**common, "Accept": "application/json", "Authorization": f"token {token}"}
    return {
        **common,
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "Authorization": f"Bearer {token}",
    }


def _all(request: ReviewRequest) -> str:
    """The comments of the request."""
    if request.forge == GITLAB:
        return f"{request.api}/projects/{request.project}/merge_requests/{request.number}/notes"
    return f"{request.api}/repos/{request.project}/issues/{request.number}/comments"


def _one(request: ReviewRequest, number: int) -> str:
    """One comment, to update it."""
    if request.forge == GITLAB:
        return f"{_all(request)}/{number}"
    return f"{request.api}/repos/{request.project}/issues/comments/{number}"


def _address(request: ReviewRequest, comment: _Comment) -> str:
    """What people open, or the API's address where the forge names no other."""
    return comment.html_url or _one(request, comment.id)


def comments_in(body: bytes) -> list[_Comment]:
    """The comments of one page.

    Raises:
        ForgeError: not what the API documents.
    """
    return _decoded(body, list[_Comment])


def _decoded(body: bytes, shape: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ForgeError(f"the answer is not what the API documents: {str(error)[:200]}") from error


def _limited(answer: _Answer) -> bool:
    """Whether the forge's limit of calls was reached: GitHub answers 403 or 429, with headers that say until when."""
    if answer.status == 429:
        return True
    spent = answer.headers.get("x-ratelimit-remaining") == "0"
    return answer.status == 403 and (spent or "retry-after" in answer.headers)


def _asked_wait(answer: _Answer, now: float) -> float | None:
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
