"""What the page and the metrics show: metrics and heartbeats from Redis, the status ConfigMaps from Kubernetes.

Either may be away; then the page says so and shows the rest. A reading is shared for two seconds, so that many viewers
cost the API server no more than one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from belay.engine.errors import BelayError, bounded
from belay.engine.kube import CONFIGMAP, Kube, KubeError
from belay.engine.log import get
from belay.engine.metrics import PassSummary
from belay.engine.model.freshness import LastPass, missing_pass
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.status.status_reader import SELECTOR, PublishedStatus, read_status
from belay.engine.store import CONTROLLER_BEAT, PassStore, StoreUnavailable
from belay.engine.store.redis_library import redis
from belay.engine.wire import names, passinfo

FRESH_SECONDS: Final = 20.0
"""Seconds without a heartbeat after which a controller counts as silent; it sends one every 5 s."""
SHARED_SECONDS: Final = 2.0
_KUBE_WITHIN: Final = 10.0
_PASSES_WITHIN: Final = 2.0
"""Probes ask for the last pass, and must be answered soon."""
_log = get("server")


class EngineHealth(msgspec.Struct, frozen=True):
    """The engine's health. ``controllers`` maps shards to seconds since their controller's heartbeat; ``redis`` is a
    problem or empty.
    """

    redis: str
    controllers: Mapping[str, float]

    def problems(self, shard: str) -> list[str]:
        """Why a push to a shard would have no effect; empty when it would have one, or nothing is known."""
        if self.redis:
            return [self.redis]
        age = self.controllers.get(shard)
        if age is not None and age > FRESH_SECONDS:
            return [f"the controller of shard {shard} has been silent for {age:.0f} s"]
        return []


class PageData(msgspec.Struct, frozen=True):
    """Everything on the page; ``cluster`` says why the status could not be read, or is empty."""

    health: EngineHealth
    summaries: Mapping[str, PassSummary]
    status: PublishedStatus | None
    cluster: str
    time: float


class EngineClient:
    """Reads for the page and the metrics. Without ``kube`` only what Redis holds is shown."""

    def __init__(
        self,
        client: redis.Redis,
        kube: Kube | None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._passes = PassStore(client)
        self._kube = kube
        self._clock = clock
        self._reading = asyncio.Lock()
        self._page: tuple[float, PageData] | None = None
        self._wall = wall
        self._asking = asyncio.Lock()
        self._last: tuple[float, list[LastPass]] | None = None

    def health(self) -> EngineHealth:
        """The heartbeats; blocking."""
        try:
            now, alive = self._passes.now(), self._passes.alive()
        except StoreUnavailable as error:
            return EngineHealth(str(error), {})
        beats = {name: at for name, at in alive.items() if name.startswith(CONTROLLER_BEAT)}
        return EngineHealth(
            "", {name.removeprefix(CONTROLLER_BEAT): max(0.0, now - at) for name, at in sorted(beats.items())}
        )

    def summaries(self) -> dict[str, PassSummary]:
        """The last pass of every shard; blocking. A summary in an older version's format is left out.

        Raises StoreUnavailable.
        """
        found = {}
        for shard, data in sorted(self._passes.summaries().items()):
            try:
                found[shard] = msgspec.json.decode(data, type=PassSummary)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                _log.warning("summary not readable", shard=shard, reason=str(error))
        return found

    def counters(self) -> dict[str, int]:
        """All counters; blocking. Raises StoreUnavailable."""
        return self._passes.counters()

    def ask_fetch(self, shard: str) -> list[str]:
        """Request a fetch from the controllers of this shard and of every other live one; blocking. Returns the shards.

        Raises StoreUnavailable.
        """
        shards = sorted({shard, *self.health().controllers})
        for each in shards:
            self._passes.ask_fetch(each)
        return shards

    async def passes(self) -> list[LastPass]:
        """The last pass of every shard, at most two seconds old; none where the API server does not answer."""
        if self._kube is None:
            return []
        async with self._asking:
            if self._last is None or self._clock() - self._last[0] > SHARED_SECONDS:
                self._last = (self._clock(), await self._passes_now(self._kube))
            return self._last[1]

    async def missing(self, shard: str, sentence: Callable[[LastPass, float], str] = missing_pass) -> list[str]:
        """What the shard's status is worth: why no pass comes, empty while they come."""
        found = [sentence(one, self._wall()) for one in await self.passes() if one.shard == shard]
        return [text for text in found if text]

    async def _passes_now(self, kube: Kube) -> list[LastPass]:
        try:
            async with asyncio.timeout(_PASSES_WITHIN):
                listing = await kube.list(CONFIGMAP, names.SYSTEM, f"{ABOUT_LABEL}={passinfo.ABOUT}")
        except (TimeoutError, BelayError):
            return []
        return [passinfo.parse(item) for item in listing.items]

    async def page(self) -> PageData:
        """What the page shows, at most two seconds old."""
        async with self._reading:
            if self._page is None or self._clock() - self._page[0] > SHARED_SECONDS:
                self._page = (self._clock(), await self._read())
            return self._page[1]

    async def _read(self) -> PageData:
        health = await asyncio.to_thread(self.health)
        summaries: dict[str, PassSummary] = {}
        if not health.redis:
            try:
                summaries = await asyncio.to_thread(self.summaries)
            except StoreUnavailable as error:
                health = EngineHealth(str(error), {})
        status, problem = await self._status()
        return PageData(health, summaries, status, problem, time.time())

    async def _status(self) -> tuple[PublishedStatus | None, str]:
        if self._kube is None:
            return None, "no cluster is configured"
        try:
            async with asyncio.timeout(_KUBE_WITHIN):
                listing = await self._kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)
        except TimeoutError:
            return None, f"the API server did not answer within {_KUBE_WITHIN:.0f} s"
        except (KubeError, BelayError) as error:
            return None, bounded(str(error), 256)
        return read_status(listing.items, self._wall()), ""
