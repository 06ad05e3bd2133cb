"""The paths of the console. Everything is read; nothing here writes to the cluster or to the repository."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from belay.engine import versions
from belay.engine.log import get
from belay.engine.model.times import rfc3339
from belay.engine.serve.console import failures, files
from belay.engine.serve.console.changes import ChangeStream, TooManyViewers
from belay.engine.serve.console.questions import ANSWER_SECONDS, WHAT_IF_SECONDS, Questions
from belay.engine.serve.console.replies import USER, PackedBodies, answer, failure
from belay.engine.serve.console.viewers import NotAdmitted, Viewers
from belay.engine.serve.login.rules import Role

if TYPE_CHECKING:  # only where people sign in, since it takes 7 MiB
    from belay.engine.serve.login.routes import Login
    from belay.engine.serve.login.sessions import WebSession

_log = get("console")
PREFIXES: Final = ("/api/v1/", "/plain")
"""Paths that only those may read who may look. The page's own files are not among them: it asks for a token."""
WRITE_SECONDS: Final = 20.0
"""Longest time for which a viewer may not take what is sent to it."""
RECHECK_SECONDS: Final = 40.0
"""Seconds after which it is asked again whether a viewer of changes may look."""
FRESH_SECONDS: Final = 20.0
"""Age of a verdict that then still counts: so a viewer who may no longer look sees nothing after a minute."""
RETRY_SECONDS: Final = 5.0
UNCHECKED_SECONDS: Final = 120.0
"""Seconds for which a stream goes on while the API server cannot say whether its viewer may look."""
HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": files.POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Console:
    """The handlers. ``source`` is what is shown: ``cluster``, ``recording`` or ``cluster file``; ``records``: whether
    this server answers from a history that stays; ``login``: how people sign in.

    ``streaming`` holds the connections that stay open for changes, or whose answer is being sought: these must not be
    ended for being slow. ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        changes: ChangeStream,
        viewers: Viewers,
        *,
        source: str = "cluster",
        live: bool = True,
        questions: Questions | None = None,
        records: bool = False,
        login: Login | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.changes, self.viewers, self.source, self.live = changes, viewers, source, live
        self.questions, self._records, self._login, self._clock = questions, records, login, clock
        self.streaming: set[Any] = set()
        self._files = files.read_files()
        self._packed = PackedBodies()
        if questions is not None:
            questions.sought, questions.packed = self.streaming, self._packed

    def add_to(self, app: web.Application) -> None:
        """Add the routes of page, state, changes and questions to the application."""
        router = app.router
        router.add_get("/console", _to_console)
        router.add_get("/console/", self.index)
        router.add_get("/console/{path:.+}", self.file)
        router.add_get("/api/v1/viewer", self.viewer)
        router.add_get("/api/v1/state", self.state)
        router.add_get("/api/v1/changes", self.stream)
        if self.questions is not None:
            self.questions.add_to(app)
        if self._login is not None:
            self._login.add_to(app)

    async def admitted(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer a caller who may look; others get 401 or 403 and nothing else."""
        try:
            request[USER] = await self.viewers.admit(
                request.headers, request.headers.get("Host", ""), request.remote or ""
            )
        except NotAdmitted as refused:
            response = failure(refused.status, refused.text, refused.hint, login=self._login is not None)
            if refused.status == 401:
                response.headers["WWW-Authenticate"] = 'Bearer realm="belay"'
            return response
        return self._not_allowed(request) or await handler(request)

    def _session(self, request: web.Request) -> WebSession | None:
        """The session by which a caller looks; a token that is shown comes first."""
        if self._login is None or "Authorization" in request.headers:
            return None
        return self._login.session(request.headers)

    def _not_allowed(self, request: web.Request) -> web.Response | None:
        """What is answered to a request that asks for more than looking, and may not.

        Browsers add a session's cookie whatever page sends a request, so it counts from the server's own pages only.
        """
        session = self._session(request)
        if session is None or self._login is None or request.method in ("GET", "HEAD"):
            return None
        if not self._login.is_own(request.headers):
            return failure(403, "the request comes from another page")
        if session.role is not Role.CHANGES:
            return failure(403, "your role is viewer", "Ask for a group of BELAY_OIDC_CHANGERS (docs/console.md).")
        return None

    async def index(self, request: web.Request) -> web.Response:
        """Answer with the console's page."""
        return self._file(request, files.INDEX)

    async def file(self, request: web.Request) -> web.Response:
        """One file of the front end."""
        return self._file(request, request.match_info["path"])

    def _file(self, request: web.Request, path: str) -> web.Response:
        found = self._files.get(path)
        if found is None:
            hint = "This installation has no front end: `make console` builds it. /plain shows the tables."
            return failure(404, f"there is no {path[:80]}", "" if self._files else hint)
        return files.answer(request, found)

    async def viewer(self, request: web.Request) -> web.Response:
        """Who is looking, and what can be asked."""
        session = self._session(request)
        may_try = session is None or session.role is Role.CHANGES
        abilities = self.abilities()
        body = {
            "version": versions.version(),
            "user": request[USER],
            "role": session.role if session is not None else None,
            "source": self.source,
            "readOnly": True,
            "can": abilities | {"whatIf": abilities["whatIf"] and may_try},
            "limits": self.limits(),
            "time": self.server_time(),
        }
        return await answer(request, msgspec.json.encode(body), self._packed)

    def abilities(self) -> dict[str, bool]:
        """Return which questions this server can answer, by name."""
        none = dict.fromkeys(("history", "explain", "whatIf", "branches"), False)
        return {
            "changes": self.live,
            "records": self._records,
            **(self.questions.abilities() if self.questions is not None else none),
        }

    def limits(self) -> dict[str, float]:
        """The limits of what can be asked: the page waits a little longer than the server seeks."""
        return {"answerSeconds": ANSWER_SECONDS, "whatIfSeconds": WHAT_IF_SECONDS}

    def server_time(self) -> str | None:
        """The server's clock, by which the page counts ages: a reader's may be wrong."""
        return rfc3339(time.time())

    async def state(self, request: web.Request) -> web.Response:
        """Answer with the document of the present state."""
        document = self.changes.document
        if document is None:
            return failure(503, "nothing has been read yet", "Try again in a moment.", {"Retry-After": "1"})
        tag = f'"{document.id}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        # viewers who ask together get one answer, compressed once
        return await answer(request, document.encoded(), self._packed, headers, digest=document.id.encode())

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Changes as server-sent events, from the event that the caller names on."""
        last = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        response = web.StreamResponse(
            headers={
                **HEADERS,
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        self.streaming.add(request.protocol)
        events = self.changes.watch(last[:64], name=request.get(USER) or "")
        checking: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as admitted:
                first = await anext(events)
                checking = asyncio.create_task(self._check_again(request, admitted))
                await response.prepare(request)
                await response.write(first)
                async for event in events:
                    async with asyncio.timeout(WRITE_SECONDS):
                        await response.write(event)
        except TooManyViewers:
            return failure(503, "too many viewers", "Close other tabs of the console.", {"Retry-After": "30"})
        except (ConnectionError, TimeoutError):
            _log.debug("viewer left", caller=request.remote or "")
        finally:
            if checking is not None:
                checking.cancel()
            self.streaming.discard(request.protocol)
            await events.aclose()
        return response

    async def _check_again(self, request: web.Request, admitted: asyncio.Timeout) -> None:
        """End a stream whose viewer may no longer look; where nothing can be checked, after a while."""
        good, wait = self._clock(), RECHECK_SECONDS
        while True:
            await self._pause(wait)
            try:
                await self.viewers.admit(
                    request.headers, request.headers.get("Host", ""), request.remote or "", fresh=FRESH_SECONDS
                )
                good, wait = self._clock(), RECHECK_SECONDS
            except NotAdmitted as refused:
                wait = RETRY_SECONDS
                if refused.status in (401, 403, 421) or self._clock() - good > UNCHECKED_SECONDS:
                    _log.info("viewer may no longer look", caller=request.remote or "", status=refused.status)
                    if not admitted.expired():
                        admitted.reschedule(asyncio.get_running_loop().time())
                    return

    _pause = staticmethod(asyncio.sleep)


async def _to_console(request: web.Request) -> web.Response:
    return web.Response(status=308, headers={"Location": "/console/"})


@web.middleware
async def guarded(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Log a bug in a handler and answer a plain 500; set the security headers on every answer."""
    try:
        response = await handler(request)
    except web.HTTPException as raised:
        response = failure(raised.status, raised.reason)
        if "Allow" in raised.headers:
            response.headers["Allow"] = raised.headers["Allow"]
    except Exception:  # whatever a handler raises: the console must answer the next request
        failures.count("request")
        _log.exception("request failed", path=request.path)
        response = failure(500, "internal error")
    if not response.prepared:
        response.headers.update(HEADERS)
    return response
