"""The paths of the history: ``/api/v1/records``, ``report``, ``usage``, ``verify``. They only read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from belay.engine.errors import InputError
from belay.engine.serve.console.replies import PackedBodies, answer, failure
from belay.engine.serve.records.questions import QUESTIONS
from belay.engine.serve.records.store import HistoryUnavailable, RecordStore
from belay.engine.serve.records.writer import HistoryWriter

ANSWER_SECONDS: Final = 60.0
MOST_ASKED: Final = 2
"""Questions that are answered at a time; others wait."""


class HistoryRoutes:
    """The handlers. ``url`` is the database, which is opened for reading when it is asked for."""

    def __init__(self, url: str, writer: HistoryWriter, wall: Callable[[], float] = time.time) -> None:
        self._url, self._writer, self._wall = url, writer, wall
        self._packed = PackedBodies()
        self._store: RecordStore | None = None
        self._asking = asyncio.Semaphore(MOST_ASKED)

    def add_to(self, app: web.Application) -> None:
        """Add the routes to the application."""
        for word in QUESTIONS:
            app.router.add_get(f"/api/v1/{word}", self._handler(word))

    def close(self) -> None:
        """Close the database."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _handler(self, word: str) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            try:
                async with asyncio.timeout(ANSWER_SECONDS), self._asking:
                    body = await asyncio.to_thread(self._answered, word, dict(request.query))
            except TimeoutError:
                return failure(504, f"no answer within {ANSWER_SECONDS:.0f} s", "Ask for a shorter time.")
            except InputError as error:
                return failure(400, error.problem, error.hint)
            except HistoryUnavailable as error:
                return failure(503, error.problem, error.hint or "The last hour is still in the cluster itself.")
            return await answer(request, body, self._packed)

        return handle

    def _answered(self, word: str, values: Mapping[str, str]) -> bytes:
        if self._store is None:
            self._store = RecordStore(self._url)
        found = QUESTIONS[word](self._store, values, round(self._wall() * 1000))
        return msgspec.json.encode(found | {"problem": self._writer.state.problem})
