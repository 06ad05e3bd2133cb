"""A stand-in for the comment calls of GitHub, GitLab and Gitea. It answers as their API pages document, and refuses
what they document as refused: other paths, headers or fields, long bodies, and updates of other people's comments.

GitHub: docs.github.com/rest/issues/comments; GitLab: docs.gitlab.com/api/notes; Gitea: its swagger, issue comments.
Names, statuses and headers of answers were held against published exchanges and schemas (docs/review.md, "What it was
tried with"): recorded ones of api.github.com, GitLab's own schema of notes, Gitea's swagger.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from aiohttp import web

from belay.engine.cli.forge_calls import GITEA, GITHUB, GITLAB

TOKEN = "token-of-the-job-0123456789"
PROJECT = {GITHUB: "ops/state", GITEA: "ops/state", GITLAB: "17"}
NUMBER = 42
GITHUB_MOST = 65_536
Fault = tuple[int, dict[str, str]]


class ForgeServer:
    """One forge with one request. ``comments`` is its state; ``faults`` are answered first, one a call."""

    def __init__(self, forge: str, own: str = "belay-bot") -> None:
        self.forge, self.own = forge, own
        self.comments: list[dict[str, Any]] = []
        self.faults: list[Fault | str] = []
        self.seen: list[str] = []
        self.knows_users = True
        self.may_write = True
        self.prefix = {GITHUB: "", GITEA: "/api/v1", GITLAB: "/api/v4"}[forge]
        self.address = ""

    def add(self, body: str, by: str, **more: Any) -> dict[str, Any]:
        """A comment that is there."""
        number = 1000 + len(self.comments)
        people, own = f"{self.address}/{by}", f"{self.address}{self.prefix}"
        made: dict[str, Any] = {
            "id": number, "body": body, "created_at": "2026-09-01T08:00:00Z", "updated_at": "2026-09-01T08:00:00Z",
        }  # fmt: skip
        if self.forge == GITLAB:
            author = {"id": 7, "username": by, "name": by.title(), "state": "active"}
            author |= {"avatar_url": f"{people}.png", "web_url": people}
            made |= {"type": None, "attachment": None, "author": author, "system": False, "noteable_id": 301}
            made |= {"noteable_type": "MergeRequest", "noteable_iid": NUMBER, "resolvable": False}
            made |= {"confidential": False, "internal": False, "commands_changes": {}}
        else:
            user = {"id": 7, "login": by, "avatar_url": f"{people}.png"}
            made |= {"user": user, "html_url": f"{self.address}/ops/state/pull/{NUMBER}#issuecomment-{number}"}
            made |= {"issue_url": f"{own}/repos/ops/state/issues/{NUMBER}"}
        if self.forge == GITHUB:
            made["url"] = f"{own}/repos/ops/state/issues/comments/{number}"
        if self.forge == GITEA:
            made |= {"assets": [], "original_author": "", "original_author_id": 0, "pull_request_url": made["html_url"]}
        made |= more
        self.comments.append(made)
        return made

    def environment(self) -> dict[str, str]:
        """What its CI sets for a job of the request."""
        if self.forge == GITLAB:
            return {
                "GITLAB_CI": "true",
                "CI_API_V4_URL": f"{self.address}/api/v4",
                "CI_PROJECT_ID": PROJECT[GITLAB],
                "CI_MERGE_REQUEST_IID": str(NUMBER),
                "GITLAB_TOKEN": TOKEN,
            }
        common = {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "ops/state", "GITHUB_REF": f"refs/pull/{NUMBER}/merge"}
        if self.forge == GITEA:
            return {**common, "GITEA_ACTIONS": "true", "GITHUB_SERVER_URL": self.address, "GITEA_TOKEN": TOKEN}
        return {**common, "GITHUB_API_URL": self.address, "GITHUB_TOKEN": TOKEN}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        call = f"{request.method} {request.path.removeprefix(self.prefix)}"
        self.seen.append(call)
        assert request.path.startswith(f"{self.prefix}/"), request.path
        if self.faults:
            fault = self.faults.pop(0)
            if fault == "made and cut":
                await self._carried_out(request)
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            if fault == "made and failed":
                await self._carried_out(request)
                return web.json_response({"message": "server error"}, status=502)
            assert isinstance(fault, tuple)
            return web.json_response({"message": f"refused, {TOKEN}"}, status=fault[0], headers=fault[1])
        return await self._carried_out(request)

    async def _carried_out(self, request: web.Request) -> web.StreamResponse:
        if not self._may_enter(request):
            return web.json_response({"message": "Bad credentials"}, status=401)
        path = request.path.removeprefix(self.prefix)
        if path == "/user":
            if not self.knows_users:
                return web.json_response({"message": "Resource not accessible by integration"}, status=403)
            return web.json_response({"id": 7, "username" if self.forge == GITLAB else "login": self.own})
        listed = {
            GITLAB: f"/projects/{PROJECT[GITLAB]}/merge_requests/{NUMBER}/notes",
        }.get(self.forge, f"/repos/{PROJECT[self.forge]}/issues/{NUMBER}/comments")
        single = listed if self.forge == GITLAB else f"/repos/{PROJECT[self.forge]}/issues/comments"
        if path == listed and request.method == "GET":
            return self._page(request)
        text = await self._text(request)
        if isinstance(text, web.Response):
            return text
        if not self.may_write:
            return web.json_response({"message": "Resource not accessible by integration"}, status=403)
        if path == listed and request.method == "POST":
            new = self.add(text, self.own)
            return web.json_response(new, status=201, headers={"Location": new["url"]} if "url" in new else {})
        if path.startswith(f"{single}/") and request.method == ("PUT" if self.forge == GITLAB else "PATCH"):
            for one in self.comments:
                if str(one["id"]) == path.removeprefix(f"{single}/"):
                    by = (one.get("user") or one["author"]).values()
                    assert self.own in by, "updates only its own comment"
                    one["body"] = text
                    return web.json_response(one)
        return web.json_response({"message": "Not Found"}, status=404)

    def _may_enter(self, request: web.Request) -> bool:
        headers = request.headers
        if not headers.get("User-Agent"):
            return False
        if self.forge == GITLAB:
            return headers.get("PRIVATE-TOKEN") == TOKEN and "Authorization" not in headers
        if self.forge == GITEA:
            return headers.get("Authorization") == f"token {TOKEN}"
        versioned = headers.get("X-GitHub-Api-Version") == "2022-11-28"
        accepts = headers.get("Accept") == "application/vnd.github+json"
        return versioned and accepts and headers.get("Authorization") == f"Bearer {TOKEN}"

    def _page(self, request: web.Request) -> web.Response:
        if self.forge == GITEA:  # its swagger has since and before, no pages
            return web.json_response(self.comments)
        size, page = int(request.query.get("per_page", "30")), int(request.query.get("page", "1"))
        assert 1 <= size <= 100
        if self.forge == GITLAB:
            assert request.query["sort"] == "asc" and request.query["order_by"] == "created_at"
        return web.json_response(self.comments[(page - 1) * size : page * size])

    async def _text(self, request: web.Request) -> str | web.Response:
        assert request.content_type == "application/json"
        body = await request.json()
        assert list(body) == ["body"]
        text = str(body["body"])
        if self.forge == GITHUB and len(text) > GITHUB_MOST:
            message = f"body is too long (maximum is {GITHUB_MOST} characters)"
            error = {"resource": "IssueComment", "code": "unprocessable", "field": "data", "message": message}
            return web.json_response({"message": "Validation Failed", "errors": [error]}, status=422)
        return text


class StandIn(Protocol):
    """What answers at an address."""

    address: str

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        ...


_Server = TypeVar("_Server", bound=StandIn)


@contextmanager
def serving(server: _Server, tls: ssl.SSLContext | None = None) -> Iterator[_Server]:
    """The server on a free port of this machine, in a thread."""
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def begin() -> web.AppRunner:
        app = web.Application(client_max_size=4 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.address = f"{'https' if tls else 'http'}://{host}:{port}"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(begin())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
