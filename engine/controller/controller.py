"""The controller: follows Kubernetes and Git, keeps the shard's snapshot in Redis, sends passes to workers.

One is active per shard, by a Lease. It decides nothing: the next full state corrects anything that it loses, repeats or
reorders.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import time
from collections.abc import Callable, Coroutine, Iterable

from belay.engine import hot_loops, log, tracing
from belay.engine.controller.pass_monitor import OtherShardsMonitor, PassMonitor
from belay.engine.controller.pass_reporter import PassReporter
from belay.engine.controller.queues import RECONCILE, send, waiting
from belay.engine.controller.revision_feed import RevisionFeed
from belay.engine.controller.snapshot_feed import RETRY_SECONDS, SnapshotFeed, wait
from belay.engine.controller.triggers import Triggers
from belay.engine.kube import Kube, KubeError, cancel_all
from belay.engine.kube.lease import Lease
from belay.engine.observe.resources import WATCHED, Watched
from belay.engine.settings import Settings, from_environment, kube_variables, warn
from belay.engine.source import GitSource
from belay.engine.source import configuration as source_configuration
from belay.engine.source.git import stop_all
from belay.engine.store import (
    CONTROLLER_BEAT,
    Keyring,
    PassStore,
    ProcessLiveness,
    Requests,
    RevisionWriter,
    ShardNews,
    SnapshotWriter,
    StoreUnavailable,
    connect,
    connect_async,
)
from belay.engine.store.redis_library import redis
from belay.engine.wire import leases
from belay.engine.wire.names import MAIN_SHARD

_log = log.get("controller")
TICK_SECONDS = 0.25
"""Longest time between a waiting controller's looks at whether the holder of the Lease is dead."""
PAUSE_SECONDS = 3.0
"""Longest time between two looks at Redis, where others wake the controller for what they leave there: a word may be
lost. Shorter than the time after which a silent Redis counts as gone."""
LEAST_SECONDS = 0.02
"""Shortest time between two looks, however many words come."""
BEAT_SECONDS = 5.0
"""Seconds between the heartbeats of a leading controller with a complete snapshot."""
BEAT_KEPT_SECONDS = 3600.0
"""Seconds for which Redis keeps a heartbeat, to distinguish a silent controller from none."""
LOOK_SECONDS = 1.0
"""Longest time between a waiting controller's looks at the Lease."""
RELEASE_SECONDS = 3.0
"""Longest time for releasing the Lease."""
RENEW_SECONDS = 600.0
"""Seconds between renewals of the files in Redis."""
Send = Callable[[str], None]
"""Sends the message that makes a worker run a pass over the shard; blocking."""


class Controller:
    """What one process does for one shard while it leads."""

    def __init__(
        self,
        settings: Settings,
        kube: Kube,
        send: Send,
        *,
        source: GitSource | None = None,
        watched: Iterable[Watched] = WATCHED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._shard = settings.shard
        self._kube = kube
        self._send = send
        self._asynchronous: redis.asyncio.Redis = connect_async(settings.redis_url)
        client = connect(settings.redis_url)
        self._keys = Keyring(settings.batch_key_file)
        self._triggers = Triggers(client)
        self._passes = PassStore(client, keys=self._keys)
        revisions = RevisionWriter(self._asynchronous, keys=self._keys)
        self._revision = RevisionFeed(settings, kube, source, revisions=revisions, mark=self._mark, clock=clock)
        self._snapshot = SnapshotFeed(
            self._shard,
            kube,
            watched,
            snapshots=SnapshotWriter(self._asynchronous, keys=self._keys),
            passes=self._passes,
            revision=self._revision,
            debounce=settings.debounce,
            mark=self._mark,
            leads=self._leads,
        )
        self.liveness = ProcessLiveness(client, "controller", settings.identity, settings.silence)
        self._lease = Lease(
            kube,
            f"{leases.CONTROLLER_PREFIX}{settings.shard}",
            settings.identity,
            duration=settings.lease,
            ended=self.liveness.is_dead,
        )
        self._news = ShardNews(self._asynchronous, settings.shard)
        self._queued = functools.partial(waiting, client, ("plan",))
        self._monitor = self._monitor_of(settings.shard)
        self._other_shards = OtherShardsMonitor(kube, self._monitor_of)
        self._renewing = asyncio.Lock()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Lead whenever possible, until ``stop``. Raises nothing for what servers and networks can do.

        It ends within seconds even if nothing answers, and releases the Lease if that is possible.
        """
        leading, stopped = asyncio.ensure_future(self._lead_on()), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((leading, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(leading, stopped)
            await self._asynchronous.aclose()
        if not leading.cancelled():
            leading.result()

    async def _lead_on(self) -> None:
        while not self._stop.is_set():
            if await self._acquire():
                silent = self._lease.holder if self.liveness.is_dead(self._lease.holder) else ""
                _log.info("leading", shard=self._shard, **({"instead_of": silent} if silent else {}))
                await self._lead()
            else:
                await self._wait_for_lead()

    async def _wait_for_lead(self) -> None:
        """Wait until the Lease is worth another look: a while has passed, or its holder is dead."""
        ends = time.monotonic() + min(LOOK_SECONDS, self._settings.lease / 5)
        while time.monotonic() < ends and not self._stop.is_set():
            await wait(self._stop, min(TICK_SECONDS, self.liveness.every))
            if self.liveness.is_dead(self._lease.holder):
                return

    def stop(self) -> None:
        """End ``run`` soon, releasing the Lease."""
        self._stop.set()

    def _monitor_of(self, shard: str) -> PassMonitor:
        reporter = PassReporter(self._kube, shard, self._settings.identity, self._settings.resync)
        return PassMonitor(self._kube, shard, reporter, self._passes, self._queued)

    def watched_holders(self) -> list[str]:
        """The identities whose death lets this controller lead: the holder of the Lease."""
        return [self._lease.holder]

    @property
    def ready(self) -> bool:
        """Whether it leads with a complete snapshot in Redis."""
        return self._snapshot.synced

    def fetch_soon(self) -> None:
        """Fetch the repository soon: a webhook was called."""
        self._revision.fetch_soon()

    async def _acquire(self) -> bool:
        try:
            return await self._lease.acquire() is not None
        except KubeError as error:
            _log.warning("lease not readable", reason=str(error))
            return False

    async def _lead(self) -> None:
        """Run every part until the Lease is lost, ``stop`` is called or a part has a bug."""
        tasks: list[asyncio.Future[None]] = []
        try:
            tasks += map(asyncio.ensure_future, await self._parts())
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(*tasks)
            self._snapshot.synced = False
            with contextlib.suppress(KubeError, TimeoutError):  # the others then wait until it expires
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._lease.release()
        for task in done:
            task.result()

    async def _parts(self) -> list[Coroutine[None, None, None]]:
        """The parts that run while it leads. The source is reported before the snapshot begins, so no worker sees a
        cluster that does not yet say where its state is declared.
        """
        reported = await self._revision.report_source()
        await self._snapshot.begin(self._stop)
        parts = [reflector.run() for reflector in self._snapshot.fixed_reflectors]
        parts.append(self._snapshot.workloads.run())
        parts += [self._renew_lease(), self._snapshot.run(), self._dispatch(), self._stop_requested()]
        parts.append(self._monitor.run())
        if self._shard == MAIN_SHARD:
            parts.append(self._other_shards.run())
        if not reported:
            parts.append(self._report_source_again())
        if self._revision.following:
            parts.append(self._revision.follow(self._stop))
        return parts

    async def _stop_requested(self) -> None:
        await self._stop.wait()

    async def _report_source_again(self) -> None:
        await self._revision.report_source_again()
        await self._stop.wait()  # the controller ends with the first of its parts

    async def _leads(self) -> bool:
        """Whether the Lease is ours still, as far as the API server says."""
        async with self._renewing:
            try:
                return await self._lease.renew()
            except KubeError:
                return True

    async def _renew_lease(self) -> None:
        """Renew the Lease; returns when it is lost. If the API server is away, that is after the Lease's duration."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < self._settings.lease:
            await asyncio.sleep(self._settings.lease / 5)
            try:
                async with self._renewing:
                    if not await self._lease.renew():
                        break
                renewed = time.monotonic()
            except KubeError as error:
                _log.warning("lease not renewed", reason=str(error))
        _log.warning("no longer leading", shard=self._shard)

    # passes

    async def _mark(self) -> None:
        await asyncio.to_thread(self._triggers.mark, self._shard)
        await asyncio.to_thread(self._hand_out)

    def _hand_out(self) -> float | None:
        """Send what is due; blocking. Returns the seconds until something is due; None while nothing waits."""
        due, later = self._triggers.look()
        for shard in due:
            self._send(self._keys.wrap(RECONCILE, shard))
        return later

    async def _dispatch(self) -> None:
        """Send what is due, mark the shard every ``resync`` seconds, and serve requests for a fetch or a fresh list."""
        resync, renewed, beat = 0.0, time.monotonic(), 0.0
        while True:
            now = time.monotonic()
            try:
                if self.ready and now - beat >= BEAT_SECONDS:
                    beat = now
                    await asyncio.to_thread(self._beat)
                if self.ready and now - resync >= self._settings.resync:
                    resync = now
                    await asyncio.to_thread(self._triggers.mark, self._shard)
                    self._snapshot.wake()
                if now - renewed >= RENEW_SECONDS:
                    renewed = now
                    await self._revision.expire()
                requests, due = await asyncio.to_thread(self._look)
                if requests.fetch:
                    self.fetch_soon()
                if requests.relist:
                    self._snapshot.relist()

                # what a pass holds back for a moment is written when it is due, not with the next look
                ends = [now + PAUSE_SECONDS] if due is None else [now + PAUSE_SECONDS, time.monotonic() + due]
                if self.ready:
                    ends += [beat + BEAT_SECONDS, resync + self._settings.resync]
                await asyncio.sleep(LEAST_SECONDS)
                await self._news.wait(min(ends) - time.monotonic())
            except StoreUnavailable as error:
                await self._snapshot.heal(error)
                await asyncio.sleep(RETRY_SECONDS)

    def _look(self) -> tuple[Requests, float | None]:
        """One look at Redis, in two questions; requests last, so none is lost."""
        due = self._hand_out()
        return self._passes.take_requests(self._shard), due

    def _beat(self) -> None:
        self._passes.beat(f"{CONTROLLER_BEAT}{self._shard}", self._passes.now(), BEAT_KEPT_SECONDS)


def main(kubeconfig: str | None = None, source_file: str | None = None) -> int:
    """`belay controller`: the settings come from the environment. Raises InputError for bad ones."""
    settings = from_environment(kubeconfig=kubeconfig, source_file=source_file)
    log.configure(settings.log_level, "controller")
    tracing.configure("controller")
    warn(_log)
    hot_loops.start()
    asyncio.run(_serve(settings))
    return 0


async def _serve(settings: Settings) -> None:
    async with Kube.from_config(
        settings.kubeconfig or None, settings.context or None, kube_variables(settings)
    ) as kube:
        controller = Controller(
            settings,
            kube,
            functools.partial(send, connect(settings.redis_url), RECONCILE),
            source=source_configuration.source_of(settings),
        )

        def end_soon() -> None:
            stop_all()  # a fetch from a silent repository must not outlive this process
            controller.stop()

        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, end_soon)
        controller.liveness.start(lambda _: controller.watched_holders())
        try:
            await controller.run()
        finally:
            controller.liveness.stop()
