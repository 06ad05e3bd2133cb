"""The console's own routes over documents that a test makes, in a thread of this process.

What a controller, a repository and recordings would say (history, heat, plans, forecasts) comes from `answers`; files,
headers, the present document, its changes and the question who may look are the console's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self
from unittest.mock import Mock

import msgspec
from aiohttp import web

from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.document import StateDocument
from belay.engine.serve.console.layout import Layout
from belay.engine.serve.console.replies import PackedBodies
from belay.engine.serve.console.routes import Console, answer, failure
from belay.engine.serve.console.viewers import AccessRules, Viewers
from belay.engine.serve.engine_client import EngineClient
from belay.engine.serve.http import HttpServer
from belay.engine.serve.login.routes import Login
from tests.console import sample

ABILITIES = {"changes": True, "history": True, "explain": True, "whatIf": True, "branches": True, "records": True}
Answer = Callable[[web.Request, Any], Any]
_HEAD = ("version", "moment", "states", "holds", "nodeStates")


class _Abilities(Console):
    """A console that says it can answer everything but what `can` takes away; `Site` gives the answers."""

    can: Mapping[str, bool] = {}
    wall: str | None = None

    def abilities(self) -> dict[str, bool]:
        return ABILITIES | self.can

    def server_time(self) -> str | None:
        return self.wall

    def limits(self) -> dict[str, float]:
        return {"answerSeconds": 20, "whatIfSeconds": 20}


class Site:
    """A server on a port of its own, which can go away and come back."""

    def __init__(self, document: sample.Row, *, free: bool = True) -> None:
        self._document, self._free = document, free
        self.login: Callable[[], Awaitable[Login]] | None = None
        """How people sign in, made in the server's loop before it listens."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._console: Console | None = None
        self._packed = PackedBodies()
        self.port = 0
        self.called: list[str] = []
        """Method and path of every request."""
        self.can: dict[str, bool] = {}
        """What the server can answer otherwise than everything."""
        self.wall: str | None = None
        """The server's time; None says none, so a page goes by its own clock."""
        self.answers: dict[str, Answer] = dict(sample_answers())

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def start(self) -> None:
        """Listen, on the port of the last time where there was one."""
        self.on_loop(self._start())

    def stop(self) -> None:
        """Close the port and every connection."""
        self.on_loop(self._stop())

    def publish(self, document: sample.Row) -> None:
        """Show a newer document; viewers get the difference."""
        self._document = document
        self.on_loop(self._publish())

    def on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run something in the server's loop, and wait for it."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start(self) -> None:
        changes = ChangeStream()
        login = await self.login() if self.login is not None else None
        viewers = Viewers(
            AccessRules(free=self._free), None, session=login.session if login is not None else _no_session
        )
        self._console = _Abilities(changes, viewers, login=login)
        self._console.can, self._console.wall = self.can, self.wall
        server = HttpServer(Mock(spec=EngineClient), shard="main", console=self._console)
        app = server.application()
        app.middlewares.append(self._answered)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        await self._publish()

    async def _stop(self) -> None:
        if self._runner is not None and self._console is not None:
            self._console.changes.close()
            await self._runner.cleanup()
            self._runner = None

    async def _publish(self) -> None:
        if self._console is not None:
            sections = {name: value for name, value in self._document.items() if name not in _HEAD}
            places = self._places()
            self._console.changes.publish(StateDocument(self._document["moment"], sections, places))

    def _places(self) -> Layout:
        places = Layout(())
        places.names = self._document["nodes"]["name"]
        return places

    @web.middleware
    async def _answered(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        self.called.append(f"{request.method} {request.path}")
        question, _, rest = request.path.removeprefix("/api/v1/").partition("/")
        if not request.path.startswith("/api/v1/") or question not in self.answers:
            found: web.StreamResponse = await handler(request)
            return found
        body = await request.json() if request.method == "POST" else rest
        found = self.answers[question](request, body)
        if isinstance(found, tuple):
            return failure(*found)
        return await answer(request, msgspec.json.encode(found), self._packed)


def _no_session(headers: Mapping[str, str]) -> None:
    return None


def sample_answers() -> Mapping[str, Answer]:
    """What the sample says to each question."""

    def moment(request: web.Request, name: str) -> Any:
        rows = {row["id"]: row for row in sample.history()}
        if name not in rows:
            return 404, "there is no such moment"
        return sample.document(moment=name) | {"moment": rows[name] | {"shard": "main"}}

    def moments(request: web.Request, rest: str) -> Any:
        rows = [row for row in sample.history() if row["time"] <= request.query.get("to", "9")]
        return {"moments": rows[-int(request.query.get("limit", 500)) :], "leftOut": 0}

    def explained(request: web.Request, name: str) -> Any:
        kind, _, about = name.partition("/")
        lines = [
            f"{kind} {about} is isolated, level SeparateNPU by 28000037",
            "",
            "faults",
            "  CODE       KIND            LEVEL         SINCE",
            f"  28000037   CardUnhealthy   SeparateNPU   {sample.at(-40_980)}",
            "",
            "history",
            f"  {sample.at(-40_979)} isolated: SeparateNPU by 28000037",
            "",
            "what comes next: nothing, the next pass leaves it as it is",
        ]
        return {"kind": kind, "name": about, "at": None, "text": lines, "facts": {}}

    def between(request: web.Request, name: str) -> Any:
        ends = sample.history()
        lists: dict[str, Any] = {key: [] for key in ("chips", "nodes", "jobs", "faults", "revisions")}
        text = ["node-017/Ascend910-3 went from healthy to isolated"]
        return {"from": ends[0], "to": ends[-1], **lists, "text": text, "leftOut": {}}

    return {
        "history": moments,
        "at": moment,
        "next": lambda request, rest: {"id": sample.history()[40]["id"]},
        "between": between,
        "explain": explained,
        "records": lambda request, rest: sample.records(request.query),
        "report": lambda request, rest: sample.report(),
        "heat": lambda request, rest: sample.heat(request.query.get("by", "code")),
        "branches": lambda request, rest: sample.branches(),
        "plan": lambda request, rest: sample.plan(rest),
        "what-if": lambda request, body: sample.forecast(sample.document()),
    }
