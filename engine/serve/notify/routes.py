"""The path of `belay notify test`: ``POST /api/v1/notifications/test``. It sends test messages and writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from belay.engine.serve.console.replies import PackedBodies, answer, failure
from belay.engine.serve.notify.service import NotificationService

PATH: Final = "/api/v1/notifications/test"
HEADER: Final = "X-Belay-Request"
"""Pages of other sites cannot send it, so they cannot have messages sent by a browser that may."""
EVERY_SECONDS: Final = 10.0


class NotificationRoutes:
    """The handler. One test at a time, and one every ten seconds: receivers bound how many messages they take."""

    def __init__(self, service: NotificationService, clock: Callable[[], float] = time.monotonic) -> None:
        self._service, self._clock = service, clock
        self._free = float("-inf")
        self._packed = PackedBodies()

    def add_to(self, app: web.Application) -> None:
        """Add the route to the application."""
        app.router.add_post(PATH, self.test)

    async def test(self, request: web.Request) -> web.Response:
        """Send test messages to the receivers that ``receiver`` names, all without it."""
        if request.headers.get(HEADER) != "test":
            return failure(403, f"the header {HEADER} is missing", "Use belay notify test.")
        if self._clock() < self._free:
            wait = str(int(self._free - self._clock()) + 1)
            return failure(429, "a test was sent just now", f"Try again in {wait} s.", {"Retry-After": wait})
        before, self._free = self._free, self._clock() + EVERY_SECONDS

        found = await self._service.test(request.query.get("receiver", "")[:600])
        if not found:
            self._free = before
            return failure(
                404,
                "no NotificationPolicy in force has such a receiver",
                "kubectl get notificationpolicies lists them.",
            )
        return await answer(request, msgspec.json.encode({"receivers": found}), self._packed)
