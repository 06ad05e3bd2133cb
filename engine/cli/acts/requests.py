"""One pull or merge request of a branch: found by its branches, opened or updated, never doubled.

The calls are those that the forges document: GitHub, Gitea, Gitee and GitCode list, make and change pull requests
below ``/repos/OWNER/NAME/pulls``, GitLab merge requests below ``/projects/PATH/merge_requests``. GitCode's update, a
PATCH with ``title`` and ``body``, is docs.gitcode.com/docs/apis/patch-api-v-5-repos-owner-repo-pulls-number. Where a
forge refuses to make one (400 of Gitee, 409 of GitLab and Gitea, 422 of GitHub), the list is read again: another run
may have been faster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from belay.engine.cli.acts.remotes import TOKENS, Remote
from belay.engine.cli.forge_calls import (
    ATTEMPTS,
    GITEA,
    GITEE,
    GITHUB,
    GITLAB,
    ForgeAccess,
    ForgeCalls,
    ForgeError,
    UnknownEndError,
    decoded,
)

PAGES: Final = 50
PER_PAGE: Final = {GITEA: 50}
"""Rows of a page; of Gitea, which gives no more than 50 unless it is set up to, the pages end with an empty one."""
_ROWS: Final = 100
_NOT_MADE: Final = (400, 409, 422)


class Proposal(NamedTuple):
    """What is asked for: one branch to be merged into another, with words."""

    branch: str
    base: str
    title: str
    body: str


class Opened(NamedTuple):
    """A request: its address for people, and whether it was there before."""

    address: str
    updated: bool


class _Project(msgspec.Struct):
    full_name: str = ""


class _Branch(msgspec.Struct):
    ref: str = ""
    repo: _Project | None = None


class _Request(msgspec.Struct):
    """What the forges say of a request: GitLab in words of its own, the others in those of GitHub."""

    number: int = 0
    iid: int = 0
    title: str = ""
    body: str | None = None
    description: str | None = None
    html_url: str = ""
    web_url: str = ""
    head: _Branch | None = None
    base: _Branch | None = None
    source_branch: str = ""
    target_branch: str = ""
    source_project_id: int = 0
    target_project_id: int = 0

    def of(self, remote: Remote, proposal: Proposal) -> bool:
        """Whether it is of these two branches, both of the repository itself: forks may have branches of this name."""
        head, base = self.head or _Branch(), self.base or _Branch()
        branches = (self.source_branch or head.ref, self.target_branch or base.ref)
        own = head.repo is None or head.repo.full_name.lower() in ("", remote.project.lower())
        return branches == (proposal.branch, proposal.base) and own and self.source_project_id == self.target_project_id


async def open_request(
    remote: Remote,
    token: str,
    proposal: Proposal,
    *,
    certificates: str = "",
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Opened:
    """Open the request, or give the open one of the same branches these words.

    Raises:
        ForgeError: refused, or no answer after ``ATTEMPTS``.
    """
    access = ForgeAccess(remote.forge, remote.api, token, _hints(remote, proposal))
    problem = ""
    async with ForgeCalls(access, certificates=certificates, now=now, sleep=sleep) as calls:
        for attempt in range(ATTEMPTS):
            found = await _find(calls, remote, proposal)
            if found is not None:
                return await _updated(calls, remote, proposal, found)
            try:
                answer = await calls.ask("POST", _all(remote), _words(remote, proposal, new=True), once=True,
                                         refusals=_NOT_MADE)  # fmt: skip
            except UnknownEndError as error:
                problem = str(error)
                await calls.wait(attempt, None)
                continue
            if answer.status not in _NOT_MADE:
                return Opened(_address(remote, decoded(answer.body, _Request)), False)
            faster = await _find(calls, remote, proposal)
            if faster is None:
                raise calls.refused("POST", answer, _all(remote))
            return await _updated(calls, remote, proposal, faster)
    raise ForgeError(f"{problem}, {ATTEMPTS} times", where=remote.api)


async def _updated(calls: ForgeCalls, remote: Remote, proposal: Proposal, found: _Request) -> Opened:
    said = found.description if remote.forge == GITLAB else found.body
    if (found.title, (said or "").replace("\r\n", "\n").strip()) != (proposal.title, proposal.body.strip()):
        method = "PUT" if remote.forge == GITLAB else "PATCH"
        await calls.ask(method, _one(remote, found), _words(remote, proposal, new=False))
    return Opened(_address(remote, found), True)


async def _find(calls: ForgeCalls, remote: Remote, proposal: Proposal) -> _Request | None:
    for number in range(1, PAGES + 1):
        answer = await calls.ask("GET", f"{_all(remote)}?{_query(remote, proposal)}&page={number}")
        requests = requests_in(answer.body)
        for one in requests:
            if one.of(remote, proposal):
                return one
        if not requests or (remote.forge != GITEA and len(requests) < _ROWS):
            return None
    return None


def requests_in(body: bytes) -> list[_Request]:
    """The requests of one page.

    Raises:
        ForgeError: not what the API documents.
    """
    return decoded(body, list[_Request])


def _query(remote: Remote, proposal: Proposal) -> str:
    """The open requests, as few as the forge can be asked for; which one it is, is decided here."""
    branch, base = quote(proposal.branch, safe=""), quote(proposal.base, safe="")
    match remote.forge:
        case "GitLab":
            return f"state=opened&source_branch={branch}&target_branch={base}&per_page={_ROWS}"
        case "GitHub":
            return f"state=open&head={quote(remote.owner, safe='')}:{branch}&base={base}&per_page={_ROWS}"
        case "Gitee":
            return f"state=open&head={branch}&base={base}&per_page={_ROWS}"
        case "Gitea":
            return f"state=open&limit={PER_PAGE[GITEA]}"
    return f"state=open&base={base}&per_page={_ROWS}"


def _words(remote: Remote, proposal: Proposal, *, new: bool) -> Mapping[str, Any]:
    if remote.forge == GITLAB:
        said = {"title": proposal.title, "description": proposal.body}
        return {**said, "source_branch": proposal.branch, "target_branch": proposal.base} if new else said
    said = {"title": proposal.title, "body": proposal.body}
    return {**said, "head": proposal.branch, "base": proposal.base} if new else said


def _all(remote: Remote) -> str:
    """The requests of the repository."""
    if remote.forge == GITLAB:
        return f"{remote.api}/projects/{quote(remote.project, safe='')}/merge_requests"
    return f"{remote.api}/repos/{quote(remote.project)}/pulls"


def _one(remote: Remote, request: _Request) -> str:
    return f"{_all(remote)}/{request.iid if remote.forge == GITLAB else request.number}"


def _address(remote: Remote, request: _Request) -> str:
    """What people open, or the API's address where the forge names no other."""
    return request.html_url or request.web_url or _one(remote, request)


def _hints(remote: Remote, proposal: Proposal) -> dict[int, str]:
    """What to do about each refusal."""
    names = ", ".join(f"${name}" for name in TOKENS[remote.forge])
    rights = {
        GITHUB: "Pull requests: read and write (a classic one: repo)",
        GITLAB: "scope api and the role Developer",
        GITEA: "write:repository",
        GITEE: "pull_requests",
    }.get(remote.forge, "to write pull requests")
    not_taken = f"Look whether {proposal.branch} differs from {proposal.base} and whether both are on {remote.forge}"
    return {
        401: f"The token has expired or is of another forge; it is read from {names}",
        403: f"The token needs the right to open requests: {rights}",
        404: f"The token sees no {remote.project} on {remote.forge}: look at the remote's address and its rights",
        **dict.fromkeys(_NOT_MADE, not_taken),
    }
