"""The leading controller watches that passes come; where none does, it says why, as far as it can see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from belay.engine.controller.pass_reporter import PassReporter
from belay.engine.kube import CONFIGMAP, LEASE, Kube, KubeError
from belay.engine.kube.lease import CEILING_SECONDS, NAMESPACE, shard_lease_name
from belay.engine.model.freshness import Hindrance
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.store import PassStore, StoreUnavailable
from belay.engine.wire import names, sync

LOOK_SECONDS: Final = 5.0
SAY_SECONDS: Final = 30.0
"""Seconds between two writes of the same hindrance."""
SILENT_SECONDS: Final = 20.0
"""Seconds without a heartbeat after which a worker counts as gone; it sends one with each pass."""
_MANY: Final = 50
"""Messages in queue ``plan`` beyond which no worker takes them: each shard has one or two."""
_WORKER: Final = "worker/"


class PassMonitor:
    """Watches one shard. ``queued`` counts the messages that wait for a worker; it raises StoreUnavailable."""

    def __init__(
        self,
        kube: Kube,
        shard: str,
        reporter: PassReporter,
        passes: PassStore,
        queued: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._shard, self._reporter = kube, shard, reporter
        self._passes, self._queued, self._clock = passes, queued, clock
        self._said: tuple[str, float] = ("", float("-inf"))

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Say why no pass comes, if none has come for too long."""
        if await self._reporter.missing_for() < self._reporter.patience:
            self._said = ("", float("-inf"))
            return
        found = await self._hindrance()
        if found is None:
            return  # a worker is there, and knows better
        reason, problem = found
        said, at = self._said
        if said == problem and self._clock() - at < SAY_SECONDS:
            return
        self._said = (problem, self._clock())
        await self._reporter.say(reason, problem)

    async def _hindrance(self) -> tuple[Hindrance, str] | None:
        """The first of what can hinder a pass, from the outside in."""
        try:
            alive, now = await asyncio.to_thread(self._passes.alive), await asyncio.to_thread(self._passes.now)
            waiting = await asyncio.to_thread(self._queued)
        except StoreUnavailable as error:
            return Hindrance.REDIS_AWAY, f"Redis does not answer the controller: {error}"

        workers = {name.removeprefix(_WORKER): now - at for name, at in alive.items() if name.startswith(_WORKER)}
        here = {name for name, age in workers.items() if age < SILENT_SECONDS}
        holder = await self._holder()
        if holder and holder not in here:
            name = f"{NAMESPACE}/{shard_lease_name(self._shard)}"
            return Hindrance.LEASE_HELD, (
                f"the Lease {name} is held by {holder}, which does no pass; a worker takes it {CEILING_SECONDS:.0f} s "
                f"after its last renewal. If nothing of that name shall run: kubectl -n {NAMESPACE} delete lease "
                f"{shard_lease_name(self._shard)}"
            )
        if not here:
            return Hindrance.NO_WORKER, "no worker takes passes; see whether belay worker runs and reaches Redis"
        if waiting > _MANY:
            return Hindrance.QUEUE_FULL, f"{waiting} messages wait in queue plan, and the workers do not keep up"
        return None

    async def _holder(self) -> str:
        """Who holds the shard's Lease; empty if none does or the API server does not answer."""
        try:
            lease = await self._kube.get(LEASE, shard_lease_name(self._shard), NAMESPACE)
        except KubeError:
            return ""
        return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


class OtherShardsMonitor:
    """What the main shard's controller does for the other shards, whose own controllers may be gone: it watches their
    passes too. ``monitor_of`` makes the monitor of a shard.
    """

    def __init__(self, kube: Kube, monitor_of: Callable[[str], PassMonitor]) -> None:
        self._kube, self._monitor_of = kube, monitor_of
        self._monitors: dict[str, PassMonitor] = {}

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Look at every shard that has published its part of ``belay-sync``."""
        try:
            listing = await self._kube.list(CONFIGMAP, names.SYSTEM, f"{ABOUT_LABEL}={sync.PART}")
        except KubeError:
            return
        shards = sorted({str((part.get("data") or {}).get(sync.SHARD) or "") for part in listing.items} - {""})
        known = self._monitors
        self._monitors = {shard: known.get(shard) or self._monitor_of(shard) for shard in shards}
        for monitor in self._monitors.values():
            await monitor.look()
