"""The path of `belay sync`: ``POST /api/v1/fetch``. It asks the controllers to fetch now, as the webhook does, and
admits those who may look; nothing is written to the cluster or to Git.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from belay.engine.log import get
from belay.engine.serve.console.replies import USER, PackedBodies, answer, failure
from belay.engine.serve.webhook import Limiter
from belay.engine.store import StoreUnavailable

PATH: Final = "/api/v1/fetch"
HEADER: Final = "X-Belay-Request"
"""Pages of other sites cannot send it, so they cannot have a browser ask that may."""
MARK: Final = "fetch"
_log = get("server")


class FetchRoute:
    """The handler. ``ask`` requests the fetches, blocking, and returns the shards; raises StoreUnavailable."""

    def __init__(self, ask: Callable[[], list[str]], limiter: Limiter) -> None:
        self._ask, self._limiter = ask, limiter
        self._packed = PackedBodies()

    def add_to(self, app: web.Application) -> None:
        """Add the route to the application."""
        app.router.add_post(PATH, self.fetch)

    async def fetch(self, request: web.Request) -> web.Response:
        """Ask the controllers to fetch; ``shards`` names those that were asked."""
        if request.headers.get(HEADER) != MARK:
            return failure(403, f"the header {HEADER} is missing", "Use belay sync.")
        wait = self._limiter.wait(request.remote or "")
        if wait > 0:
            seconds = str(math.ceil(wait))
            return failure(429, "too many calls", f"Try again in {seconds} s.", {"Retry-After": seconds})

        try:
            shards = await asyncio.to_thread(self._ask)
        except StoreUnavailable:
            return failure(503, "Redis does not answer", "The next poll fetches.", {"Retry-After": "5"})
        _log.info("asked to fetch", user=request.get(USER, ""), shards=shards)
        return await answer(request, msgspec.json.encode({"shards": shards}), self._packed)
