"""A stand-in for the calls of pull and merge requests of five forges. It answers as their API pages document, and
refuses what they refuse: other headers, paths or fields, branches that are not there, and a second open request.

GitHub: docs.github.com/rest/pulls/pulls; GitLab: docs.gitlab.com/api/merge_requests; Gitea: its swagger; Gitee: its
swagger and its own client (oschina/mcp-gitee); GitCode: docs.gitcode.com, Pull Request API. Statuses of a request that
is there already are those that people met: 422, 409, 409, 400; of GitCode none is published, so 400 is assumed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from aiohttp import web

from belay.engine.cli.forge_calls import GITCODE, GITEA, GITEE, GITHUB, GITLAB

TOKEN: Final = "token-of-ada-0123456789"
PROJECT: Final = "ops/state"
FORGES: Final = (GITHUB, GITLAB, GITEA, GITEE, GITCODE)
PREFIX: Final = {GITHUB: "", GITLAB: "/api/v4", GITEA: "/api/v1", GITEE: "/api/v5", GITCODE: "/api/v5"}
THERE_ALREADY: Final = {GITHUB: 422, GITLAB: 409, GITEA: 409, GITEE: 400, GITCODE: 400}
_GITEA_ROWS: Final = 50


class RequestServer:
    """One forge with the bare repository that is pushed to. ``requests`` is its state.

    ``faults`` are answered first, one a call: a status and headers, or ``made elsewhere`` (another run opens the
    request an instant before), or ``made and cut`` (the connection ends before the answer).
    """

    def __init__(self, forge: str, repository: Path) -> None:
        self.forge, self.repository = forge, repository
        self.requests: list[dict[str, Any]] = []
        self.faults: list[tuple[int, dict[str, str]] | str] = []
        self.seen: list[str] = []
        self.address = ""

    @property
    def api(self) -> str:
        """Where the API is."""
        return f"{self.address}{PREFIX[self.forge]}"

    def add(self, branch: str, base: str, title: str, body: str, *, owner: str = "ops") -> dict[str, Any]:
        """An open request."""
        number = len(self.requests) + 1
        if self.forge == GITLAB:
            made: dict[str, Any] = {
                "id": 900 + number, "iid": number, "project_id": 17, "title": title, "description": body,
                "state": "opened", "source_branch": branch, "target_branch": base, "target_project_id": 17,
                "source_project_id": 17 if owner == "ops" else 18, "author": {"id": 1, "username": "ada"},
                "web_url": f"https://forge.example.org/{PROJECT}/-/merge_requests/{number}",
            }  # fmt: skip
        else:
            head = {"label": f"{owner}:{branch}", "ref": branch, "repo": {"id": 3, "full_name": f"{owner}/state"}}
            target = {"label": f"ops:{base}", "ref": base, "repo": {"id": 3, "full_name": PROJECT}}
            made = {
                "id": 900 + number, "number": number, "title": title, "body": body, "state": "open", "head": head,
                "base": target, "user": {"id": 1, "login": "ada"},
                "html_url": f"https://forge.example.org/{PROJECT}/pull/{number}",
            }  # fmt: skip
        self.requests.append(made)
        return made

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        # a proxy is asked for the whole address
        raw = re.sub(r"^http://[^/]+", "", request.raw_path).partition("?")[0]
        path = unquote(raw).removeprefix(PREFIX[self.forge])
        self.seen.append(f"{request.method} {path}")
        assert TOKEN not in request.raw_path
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, tuple):
            return web.json_response({"message": f"refused, {TOKEN}"}, status=fault[0], headers=fault[1])
        if fault == "made elsewhere":
            given = await request.json()
            self.add(given.get("head") or given["source_branch"], given.get("base") or given["target_branch"], "x", "y")
        answer = await self._carried_out(request, path)
        if fault == "made and cut":
            assert request.transport is not None
            request.transport.close()
        return answer

    async def _carried_out(self, request: web.Request, path: str) -> web.Response:
        if not self._may_enter(request):
            return web.json_response({"message": "401 Unauthorized"}, status=401)
        listed = f"/projects/{PROJECT}/merge_requests" if self.forge == GITLAB else f"/repos/{PROJECT}/pulls"
        if self.forge == GITLAB:
            assert f"/projects/{quote(PROJECT, safe='')}/" in request.raw_path, "a path is one part of the address"
        if path == listed and request.method == "GET":
            return web.json_response(self._page(request))
        if path == listed and request.method == "POST":
            return self._make(await request.json())
        change = "PUT" if self.forge == GITLAB else "PATCH"
        for one in self.requests:
            if path == f"{listed}/{one.get('iid') or one['number']}" and request.method == change:
                given = await request.json()
                assert given.keys() == {"title", "description" if self.forge == GITLAB else "body"}
                one.update(given)
                return web.json_response(one, status=201 if self.forge == GITEA else 200)
        return web.json_response({"message": "404 Not Found"}, status=404)

    def _may_enter(self, request: web.Request) -> bool:
        headers = request.headers
        if self.forge == GITLAB:
            return headers.get("PRIVATE-TOKEN") == TOKEN and "Authorization" not in headers
        if self.forge == GITEA:
            return headers.get("Authorization") == f"token {TOKEN}"
        return headers.get("Authorization") == f"Bearer {TOKEN}"

    def _page(self, request: web.Request) -> list[dict[str, Any]]:
        query, page = request.query, int(request.query["page"])
        assert query["state"] == ("opened" if self.forge == GITLAB else "open")
        size = min(int(query["limit"]), _GITEA_ROWS) if self.forge == GITEA else int(query["per_page"])
        rows = [one for one in self.requests if one["state"] in ("open", "opened")]
        match self.forge:
            case "GitHub":  # USER:BRANCH, and nothing that another user's fork has
                rows = [one for one in rows if one["head"]["label"] == query["head"]]
            case "GitLab":
                rows = [one for one in rows if one["source_branch"] == query["source_branch"]]
            case "Gitee":
                rows = [one for one in rows if one["head"]["ref"] == query["head"]]
        return rows[(page - 1) * size : page * size]

    def _is_own(self, one: dict[str, Any]) -> bool:
        """Whether the branch is one of the repository, not of a fork."""
        return bool(
            one["source_project_id"] == 17 if self.forge == GITLAB else one["head"]["repo"]["full_name"] == PROJECT
        )

    def _make(self, given: dict[str, Any]) -> web.Response:
        names = ("source_branch", "target_branch", "title", "description")
        names = names if self.forge == GITLAB else ("head", "base", "title", "body")
        assert given.keys() == set(names), given
        branch, base, title, body = (given[name] for name in names)
        for name in (branch, base):
            done = subprocess.run(["git", "rev-parse", "--verify", "-q", f"refs/heads/{name}"], cwd=self.repository,
                                  capture_output=True, check=False)  # fmt: skip
            if done.returncode:
                return web.json_response({"message": "Validation Failed", "errors": [{"field": "head"}]}, status=422)
        same = (branch, base)
        for one in self.requests:
            there = (one.get("source_branch") or one["head"]["ref"], one.get("target_branch") or one["base"]["ref"])
            own = (
                one.get("source_project_id") == 17
                if self.forge == GITLAB
                else one["head"]["repo"]["full_name"] == PROJECT
            )
            if there == same and own:
                return web.json_response({"message": "it exists already"}, status=THERE_ALREADY[self.forge])
        return web.json_response(self.add(branch, base, title, body), status=201)
