"""The paths that ask: history, moments of the past, explanations, what-if, branches and their plans.

Answers that the planner must derive come from :class:`Answers`; those about a moment of the past never change, so a few
are kept. One viewer asks one what-if at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from belay.engine.model.times import parse_rfc3339
from belay.engine.serve.console import comparison, history
from belay.engine.serve.console.answers import Answers, Unanswered
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.history import RECORDING, STATUS, PastMoments
from belay.engine.serve.console.read_ahead import ReadAhead
from belay.engine.serve.console.replies import USER, PackedBodies, answer, failure

ANSWER_SECONDS: Final = 120.0
"""Longest time for any answer, waiting included; the page waits a little longer, and a proxy in between must too."""
DOCUMENT_SECONDS: Final = 90.0
EXPLAIN_SECONDS: Final = 90.0
PLAN_SECONDS: Final = 110.0
WHAT_IF_SECONDS: Final = 110.0
FREED_SECONDS: Final = 3.0
"""Seconds for which a viewer's next what-if waits for the last one to end, which may have been stopped just now."""
KEPT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of compressed documents that are kept: 500 moments of 10,000 nodes."""
MOST_MOMENTS: Final = 2_000
USUAL_MOMENTS: Final = 500
BODY_BYTES: Final = 512 * 1024
BODY_SECONDS: Final = 10.0
HEAT_SECONDS: Final = 7 * 86_400.0
_IMMUTABLE: Final = {"Cache-Control": "private, max-age=86400, immutable"}
_ABILITIES: Final = ("history", "explain", "whatIf", "branches")


class AskedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about now: ``source`` as the answering process takes it (None: no question can be asked), and the
    repository.
    """

    source: dict[str, Any] | None = None
    repository: str = ""
    branch: str = "main"
    path: str = ""
    data: str = ""


class Questions:
    """The handlers. Without ``answers`` only what this server itself saw can be looked at. ``sought`` holds the
    connections whose answer is being sought; ``ahead`` derives recorded moments near the one that is looked at, once it
    runs.
    """

    def __init__(
        self, changes: ChangeStream, past: PastMoments, asked: AskedCluster, answers: Answers | None = None
    ) -> None:
        self._changes, self._past, self._asked, self._answers = changes, past, asked, answers
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._deriving: dict[str, asyncio.Task[bytes]] = {}
        self._asking: dict[str, asyncio.Event] = {}
        self.sought: set[Any] = set()
        self.packed = PackedBodies()
        self.ahead = ReadAhead(self._recorded, self._derive, self._kept.__contains__, self._has_room)

    def add_to(self, app: web.Application) -> None:
        """Add the routes of history, explanations, what-if and branches to the application."""
        router = app.router
        for path, handler in {
            "history": self.moments, "at/{id}": self.at, "between/{a}/{b}": self.between, "next/{id}": self.next,
            "heat": self.heat, "explain/{kind}/{name:.+}": self.explain, "branches": self.branches,
            "plan/{branch:.+}": self.plan,
        }.items():  # fmt: skip
            router.add_get(f"/api/v1/{path}", self._in_time(handler))
        router.add_post("/api/v1/what-if", self._in_time(self.what_if))

    def _in_time(
        self, handler: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """The handler, which ends within ANSWER_SECONDS whatever happens; its connection counts as not slow."""

        async def answering(request: web.Request) -> web.Response:
            self.sought.add(request.protocol)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await handler(request)
            except TimeoutError:
                return failure(504, f"no answer within {ANSWER_SECONDS:.0f} s", "Ask about less, or try again.")
            finally:
                self.sought.discard(request.protocol)

        return answering

    @property
    def spare(self) -> bool:
        """Whether one process may derive what comes next while another answers viewers."""
        return self._answers is not None and self._answers.children > 1

    def abilities(self) -> dict[str, bool]:
        """Return which questions this server can answer, by name."""
        able = self._answers is not None
        asked = able and self._asked.source is not None
        return dict(zip(_ABILITIES, (True, asked, asked, able and bool(self._asked.repository)), strict=True))

    # what was

    async def moments(self, request: web.Request) -> web.Response:
        """The moments of a time, the newest ``limit`` of them, oldest first."""
        try:
            begin, end = _time(request, "from", 0.0), _time(request, "to", float("inf"))
            limit = min(MOST_MOMENTS, max(1, int(request.query.get("limit", USUAL_MOMENTS))))
        except ValueError as error:
            return failure(400, str(error)[:200], "Times are RFC 3339, limit is a number.")
        found = history.within(await asyncio.to_thread(self._past.moments), begin, end)
        rows = [moment.row() for moment in found[-limit:]]
        body = msgspec.json.encode({"moments": rows, "leftOut": len(found) - len(rows)})
        return await answer(request, body, self.packed)

    async def at(self, request: web.Request) -> web.Response:
        """The document of a moment."""
        try:
            asked = request.match_info["id"]
            identity = await asyncio.to_thread(self._past.named, asked)
            self.ahead.look(identity)
            body = await self._document(identity)
            # what a time leads to may change: a recording of another process comes later
            headers = _IMMUTABLE if identity == asked else {}
            return await answer(request, body, self.packed, headers, digest=identity.encode())
        except Unanswered as error:
            return failure(error.status, error.text, error.hint)

    async def between(self, request: web.Request) -> web.Response:
        """What changed between two moments."""
        try:
            a, b = [await self._document(request.match_info[name]) for name in ("a", "b")]
        except Unanswered as error:
            return failure(error.status, error.text, error.hint)
        found = await asyncio.to_thread(_compared, a, b)
        return await answer(request, found, self.packed, _IMMUTABLE)

    async def next(self, request: web.Request) -> web.Response:
        """The next moment at which something of a kind happened."""
        of, direction = request.query.get("of", "fault"), request.query.get("direction", "1")
        if of not in ("fault", "eviction", "revision") or direction not in ("1", "-1"):
            return failure(400, "ask of=fault, eviction or revision, direction=1 or -1")
        moments = await asyncio.to_thread(self._past.moments)
        found = history.following(moments, request.match_info["id"], of, int(direction))
        body = msgspec.json.encode({"id": found.id if found is not None else None})
        return await answer(request, body, self.packed)

    async def heat(self, request: web.Request) -> web.Response:
        """Answer with the heat map of faults over time."""
        by, now = request.query.get("by", "code"), time.time()
        if by not in comparison.HEAT:
            return failure(400, f"by is one of {', '.join(comparison.HEAT)}")
        moments = await asyncio.to_thread(self._past.moments)
        live = (self._asked.source or {}).get("kind") == "live"
        newest = now if live or not moments else moments[-1].at  # nothing is recorded while nothing changes
        try:
            end = _time(request, "to", newest)
            begin = _time(request, "from", max(moments[0].at if moments else end - 3600, end - HEAT_SECONDS))
        except ValueError as error:
            return failure(400, str(error)[:200], "Times are RFC 3339.")
        if not 0 <= end - begin <= 10 * 366 * 86_400:
            return failure(400, "the time is not a time", "from comes before to, at most ten years.")
        seen = await asyncio.to_thread(self._past.digests, begin, end)
        body = await asyncio.to_thread(comparison.heat, by, seen, begin, end)
        document = self._changes.document
        body["offenders"] = document.sections["offenders"] if document is not None else []
        return await answer(request, msgspec.json.encode(body), self.packed)

    # questions to the planner

    async def explain(self, request: web.Request) -> web.Response:
        """Why a chip, node, job or pod is as it is."""
        kind, name = request.match_info["kind"], request.match_info["name"]
        return await self._put(
            request, {"ask": "explain", "kind": kind, "name": name[:600]}, EXPLAIN_SECONDS, request.query.get("at")
        )

    async def branches(self, request: web.Request) -> web.Response:
        """The branches of the repository."""
        return await self._put(request, {"ask": "branches", "base": self._asked.branch}, PLAN_SECONDS)

    async def plan(self, request: web.Request) -> web.Response:
        """The plan of a branch beside what runs."""
        question = {"ask": "plan", "branch": request.match_info["branch"][:250]}
        return await self._put(request, question, PLAN_SECONDS, request.query.get("at"))

    async def what_if(self, request: web.Request) -> web.Response:
        """Changes on a copy of the cluster, played forward."""
        if request.content_type != "application/json":
            return failure(415, "send application/json")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                data = await request.content.read(BODY_BYTES + 1)
                while len(data) <= BODY_BYTES and not request.content.at_eof():
                    data += await request.content.read(BODY_BYTES + 1)
        except TimeoutError:
            return failure(408, "the body did not arrive in time")
        if len(data) > BODY_BYTES:
            return failure(413, f"the body is longer than {BODY_BYTES >> 10} KiB")
        try:
            body = msgspec.json.decode(data, type=WhatIfBody)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError) as error:
            return failure(400, f"not understood: {error}"[:300], "docs/console.md shows the form.")
        who = request[USER] or request.remote or ""
        if (running := self._asking.get(who)) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FREED_SECONDS):
                    await running.wait()
        if who in self._asking:
            return failure(429, "one of your questions is being answered", "Wait for it.", {"Retry-After": "5"})
        self._asking[who] = asyncio.Event()
        try:
            question = {"ask": "whatIf", "changes": body.changes, "horizon": body.horizon}
            return await self._put(request, question, WHAT_IF_SECONDS, body.at)
        finally:
            # a viewer who leaves or stops it comes here too: the handler is cancelled, and with it the child
            self._asking.pop(who).set()

    async def _put(
        self, request: web.Request, question: Mapping[str, Any], seconds: float, at: str | None = None
    ) -> web.Response:
        try:
            source = await self._source(at)
            asked = self._asked
            place = {"repository": asked.repository, "path": asked.path, "data": asked.data}
            return await answer(request, await self._ask({**question, **place, "source": source}, seconds), self.packed)
        except Unanswered as error:
            return failure(error.status, error.text, error.hint, {"Retry-After": "5"} if error.status == 429 else None)

    async def commits(self, revision: str) -> list[dict[str, Any]]:
        """The newest commits up to a revision; none where the repository cannot be read."""
        asked = self._asked
        if self._answers is None or not asked.repository:
            return []
        place = {"repository": asked.repository, "path": asked.path, "data": asked.data}
        question = {"ask": "log", "base": revision, **place}
        try:
            return msgspec.json.decode(await self._answers.ask(question, EXPLAIN_SECONDS), type=list[dict[str, Any]])
        except Unanswered:
            return []

    async def _ask(self, question: Mapping[str, Any], seconds: float) -> bytes:
        if self._answers is None:
            raise Unanswered(503, "this server answers no questions", "Run `belay console` or `belay server`.")
        source = question["source"]
        return await self._answers.ask(question, seconds, topic=f"{source.get('kind')} {source.get('identity', '')}")

    async def _source(self, at: str | None) -> dict[str, Any]:
        """Where the answering process finds a moment; raises Unanswered."""
        if at:
            file = await asyncio.to_thread(self._past.recording, at)
            if file is not None:
                return {"kind": "recording", "path": str(file), "identity": at}
            document = self._changes.document
            if document is None or document.id != at:
                if await asyncio.to_thread(self._past.seen, at) is not None:
                    hint = "Choose a moment whose source is 'recording'."
                    raise Unanswered(409, "of this moment only what was shown is kept", hint)
                raise Unanswered(404, "this moment is not known", "It may be older than what is kept.")
        if self._asked.source is None:
            raise Unanswered(503, "no cluster is configured", "Set KUBECONFIG, or ask about a recorded moment.")
        return self._asked.source

    async def _document(self, identity: str) -> bytes:
        document = self._changes.document
        if document is not None and document.id == identity:
            return document.encoded()
        if identity not in self._kept and (seen := await asyncio.to_thread(self._past.seen, identity)) is not None:
            return seen
        return await self._derive(identity)

    async def _derive(self, identity: str) -> bytes:
        """The document of a recorded moment, kept compressed; raises Unanswered. Several who ask at once wait for one
        derivation, which goes on without them.
        """
        if (kept := self._kept.get(identity)) is not None:  # another derivation ended since the caller looked
            self._kept.move_to_end(identity)
            return await asyncio.to_thread(zlib.decompress, kept)
        running = self._deriving.get(identity)
        if running is None:
            running = self._deriving[identity] = asyncio.create_task(self._derived(identity))
            running.add_done_callback(lambda done: self._finished(identity, done))
        return await asyncio.shield(running)

    async def _derived(self, identity: str) -> bytes:
        source = await self._source(identity)
        found = await self._ask({"ask": "document", "source": source}, DOCUMENT_SECONDS)
        kept = await asyncio.to_thread(zlib.compress, found, 1)
        self._kept[identity] = kept
        self._kept_bytes += len(kept)
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])
        await self.packed.pack(found, identity.encode())
        return found

    def _finished(self, identity: str, done: asyncio.Task[bytes]) -> None:
        self._deriving.pop(identity, None)
        if not done.cancelled():
            done.exception()  # a caller that waits gets it; without one it is dropped

    def _has_room(self) -> bool:
        return self._kept_bytes < KEPT_BYTES * 0.8

    def _recorded(self) -> list[str]:
        """The ids of recorded moments, in order of time."""
        return [moment.id for moment in self._past.moments() if moment.source == RECORDING]


class WhatIfBody(msgspec.Struct, frozen=True):
    """The body of a what-if."""

    changes: list[dict[str, Any]]
    at: str | None = None
    horizon: float = 600.0


def _compared(a: bytes, b: bytes) -> bytes:
    return msgspec.json.encode(comparison.between(msgspec.json.decode(a), msgspec.json.decode(b)))


def _time(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name, "")
    return parse_rfc3339(text.replace(" ", "+")) if text else default


__all__ = ["STATUS", "AskedCluster", "Questions", "WhatIfBody"]
