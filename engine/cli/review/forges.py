"""One comment on a pull or merge request: found by its first line and its author, made or updated.

The calls are those that the forges document: GitHub's and Gitea's issue comments (a pull request is an issue there),
GitLab's notes of merge requests. Reads and updates may be repeated; before a comment is made again after an unknown
end, the list is read again, so that one request never has two.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from belay.engine.cli.forge_calls import (
    ATTEMPTS,
    GITEA,
    GITHUB,
    GITLAB,
    ForgeAccess,
    ForgeAnswer,
    ForgeCalls,
    ForgeError,
    UnknownEndError,
    decoded,
)
from belay.engine.cli.review.ci import ReviewRequest

PAGES: Final = 50
PER_PAGE: Final = 100
_OWN: Final = {GITHUB: "github-actions[bot]", GITEA: "gitea-actions", GITLAB: ""}
"""The name by which a job's own token comments; such a token may not ask who it is."""
_MAY_NOT: Final = (
    "The token may not comment here. Requests from forks have tokens that only read: docs/review.md says what to do."
)
_HINTS: Final = dict.fromkeys((401, 403, 404), _MAY_NOT)


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
    access = ForgeAccess(request.forge, request.api, token, _HINTS)
    async with ForgeCalls(access, now=now, sleep=sleep) as calls:
        own = await _whoami(calls, request)
        problem = ""
        for attempt in range(ATTEMPTS):
            found = await _find(calls, request, text.split("\n", 1)[0], own)
            if found is not None and found.body == text:
                return Posted(_address(request, found), True)
            try:
                kept = await _write(calls, request, found, text)
            except UnknownEndError as error:
                problem = str(error)
                await calls.wait(attempt, None)
                continue
            return Posted(_address(request, decoded(kept.body, _Comment)), found is not None)
        raise ForgeError(f"{problem}, {ATTEMPTS} times", where=request.api)


async def _write(calls: ForgeCalls, request: ReviewRequest, found: _Comment | None, text: str) -> ForgeAnswer:
    if found is None:
        return await calls.ask("POST", _all(request), {"body": text}, once=True)
    return await calls.ask("PUT" if request.forge == GITLAB else "PATCH", _one(request, found.id), {"body": text})


async def _whoami(calls: ForgeCalls, request: ReviewRequest) -> str:
    """The name that the token comments by."""
    answer = await calls.ask("GET", f"{request.api}/user", refusals=(401, 403, 404))
    if answer.status == 401:
        raise calls.refused("GET", answer)
    if answer.status != 200:
        return _OWN[request.forge]
    user = decoded(answer.body, _User)
    return user.login or user.username


async def _find(calls: ForgeCalls, request: ReviewRequest, first: str, own: str) -> _Comment | None:
    """The own comment that begins with this line; the oldest, where there are several."""
    for page in range(1, PAGES + 1):
        address = f"{_all(request)}?per_page={PER_PAGE}&page={page}"
        if request.forge == GITLAB:
            address += "&sort=asc&order_by=created_at"
        answer = await calls.ask("GET", address)
        comments = comments_in(answer.body)
        for one in comments:
            if (one.body or "").split("\n", 1)[0].rstrip("\r") == first and not one.system and one.by == own:
                return one
        # Gitea answers with all comments at once, whatever page is asked for
        if request.forge == GITEA or len(comments) < PER_PAGE:
            return None
    return None


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
    return decoded(body, list[_Comment])
