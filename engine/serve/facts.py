"""What the pages show: numbers and signs of life from Redis, the status ConfigMaps from Kubernetes.

Both may be away; then the page says so and shows the rest. Readings are shared for a moment, so that many viewers cost
the API server no more than one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import redis

from engine.errors import BelayError, bounded
from engine.kube import CONFIGMAP, Kube, KubeError
from engine.log import get
from engine.metrics import Summary
from engine.status.told import SELECTOR, Told, told
from engine.store import CONTROLLER_BEAT, PassStore, StoreUnavailable
from engine.wire import names

FRESH_SECONDS: Final = 20.0
"""A controller that has not said for so long that it lives is taken for silent; it says so every 5 s."""
SHARED_SECONDS: Final = 2.0
_KUBE_WITHIN: Final = 10.0
_log = get("server")


class Life(msgspec.Struct, frozen=True):
    """Who lives. ``controllers`` maps shards to seconds since their controller said so; ``redis`` is a problem or
    empty.
    """

    redis: str
    controllers: Mapping[str, float]

    def problems(self, shard: str) -> list[str]:
        """Why the engine of a shard would not answer to a push; empty when it would, or nothing is known."""
        if self.redis:
            return [self.redis]
        age = self.controllers.get(shard)
        if age is not None and age > FRESH_SECONDS:
            return [f"the controller of shard {shard} has been silent for {age:.0f} s"]
        return []


class Page(msgspec.Struct, frozen=True):
    """Everything on the page; ``cluster`` is why the status could not be read, or empty."""

    life: Life
    summaries: Mapping[str, Summary]
    told: Told | None
    cluster: str
    time: float


class Facts:
    """Reads for the pages. ``kube`` may be None: then only Redis is shown."""

    def __init__(self, client: redis.Redis, kube: Kube | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._passes = PassStore(client)
        self._kube = kube
        self._clock = clock
        self._reading = asyncio.Lock()
        self._page: tuple[float, Page] | None = None

    def life(self) -> Life:
        """Signs of life; blocking."""
        try:
            now, alive = self._passes.now(), self._passes.alive()
        except StoreUnavailable as error:
            return Life(str(error), {})
        beats = {name: at for name, at in alive.items() if name.startswith(CONTROLLER_BEAT)}
        return Life("", {name.removeprefix(CONTROLLER_BEAT): max(0.0, now - at) for name, at in sorted(beats.items())})

    def summaries(self) -> dict[str, Summary]:
        """The last pass of every shard; blocking. One that an older version wrote is left out.

        Raises StoreUnavailable.
        """
        found = {}
        for shard, data in sorted(self._passes.summaries().items()):
            try:
                found[shard] = msgspec.json.decode(data, type=Summary)
            except msgspec.DecodeError as error:
                _log.warning("summary not readable", shard=shard, reason=str(error))
        return found

    def counters(self) -> dict[str, int]:
        """All counters; blocking. Raises StoreUnavailable."""
        return self._passes.counters()

    def ask_fetch(self, shard: str) -> list[str]:
        """Ask the controllers of this shard and of every other one that lives to fetch; blocking. Returns the shards.

        Raises StoreUnavailable.
        """
        shards = sorted({shard, *self.life().controllers})
        for each in shards:
            self._passes.ask_fetch(each)
        return shards

    async def page(self) -> Page:
        """What the page shows, at most a moment old."""
        async with self._reading:
            if self._page is None or self._clock() - self._page[0] > SHARED_SECONDS:
                self._page = (self._clock(), await self._read())
            return self._page[1]

    async def _read(self) -> Page:
        life = await asyncio.to_thread(self.life)
        summaries: dict[str, Summary] = {}
        if not life.redis:
            try:
                summaries = await asyncio.to_thread(self.summaries)
            except StoreUnavailable as error:
                life = Life(str(error), {})
        status, problem = await self._told()
        return Page(life, summaries, status, problem, time.time())

    async def _told(self) -> tuple[Told | None, str]:
        if self._kube is None:
            return None, "no cluster is configured"
        try:
            async with asyncio.timeout(_KUBE_WITHIN):
                listing = await self._kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)
        except TimeoutError:
            return None, f"the API server did not answer within {_KUBE_WITHIN:.0f} s"
        except (KubeError, BelayError) as error:
            return None, bounded(str(error), 256)
        return told(listing.items), ""
