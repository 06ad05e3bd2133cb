"""The controller: follows Kubernetes and Git, keeps the shard's snapshot in Redis, marks triggers, hands out passes.

One is active per shard, by a Lease. It decides nothing: whatever it loses, repeats or reorders, the next full state
mends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import orjson
import redis.asyncio

from engine import log
from engine.errors import SourceError
from engine.inbox import Inbox
from engine.kube import Kube, KubeError, Reflector, end
from engine.lease import Lease
from engine.settings import Settings, from_environment, warn
from engine.snapshot import WATCHED, Watched
from engine.source import FetchResult, Revision, Source, declared
from engine.store import (
    CONTROLLER_BEAT,
    PassStore,
    RevisionWriter,
    SnapshotWriter,
    StoreUnavailable,
    ValueTooLarge,
    connect,
    connect_async,
    fits,
)
from engine.triggers import Triggers

_log = log.get("controller")
TICK_SECONDS = 0.25
BEAT_SECONDS = 5.0
"""How often a leading controller with a complete snapshot says in Redis that it lives."""
BEAT_KEPT_SECONDS = 3600.0
"""How long that is remembered, so that a silent controller can be told from one that never was."""
RENEW_SECONDS = 600.0
"""How often the files in Redis are said to be still in use."""
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
        source: Source | None = None,
        watched: Iterable[Watched] = WATCHED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._shard = settings.shard
        self._send = send
        self._source = source
        self._clock = clock
        self._asynchronous: redis.asyncio.Redis = connect_async(settings.redis_url)
        client = connect(settings.redis_url)
        self._triggers = Triggers(client)
        self._passes = PassStore(client)
        self._snapshots = SnapshotWriter(self._asynchronous)
        self._revisions = RevisionWriter(self._asynchronous)
        self._inbox = Inbox()
        self._reflectors = [
            Reflector(
                kube,
                one.resource,
                one.namespace,
                one.labels,
                one.fields,
                on_change=self._inbox.take,
                on_progress=self._inbox.progress,
            )
            for one in watched
        ]
        self._lease = Lease(kube, f"belay-controller-{settings.shard}", settings.identity, duration=settings.lease)
        self._generation = ""
        self._synced = False
        self._fetched: FetchResult | None = None
        self._kept: frozenset[str] = frozenset()
        self._put: tuple[str, str, frozenset[str]] | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Lead whenever possible, until ``stop``. Raises nothing for what servers and networks can do."""
        while not self._stop.is_set():
            if await self._acquire():
                _log.info("leading", shard=self._shard)
                await self._lead()
            else:
                await self._wait(self._settings.lease / 5)
        await self._asynchronous.aclose()

    def stop(self) -> None:
        """End ``run`` soon, giving the Lease back."""
        self._stop.set()

    @property
    def ready(self) -> bool:
        """Whether it leads with a complete snapshot in Redis."""
        return self._synced

    def poke(self) -> None:
        """Look for a new revision now: a webhook was called."""
        if self._source is not None:
            self._source.poke()

    async def _acquire(self) -> bool:
        try:
            return await self._lease.acquire() is not None
        except KubeError as error:
            _log.warning("lease not readable", reason=str(error))
            return False

    async def _lead(self) -> None:
        """Everything at once, until the Lease is lost, ``stop`` is called or a part has a bug."""
        await self._begin_patiently()
        works: list[Awaitable[None]] = [reflector.run() for reflector in self._reflectors]
        works += [self._hold(), self._pump(), self._dispatch(), self._stop_requested()]
        if self._source is not None:
            works.append(self._follow())
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*tasks)
            self._synced = False
            with contextlib.suppress(KubeError):  # then others wait for its whole duration
                await self._lease.release()
        for task in done:
            task.result()

    async def _stop_requested(self) -> None:
        await self._stop.wait()

    async def _hold(self) -> None:
        """Keep the Lease; returns when it is lost. An API server that is away loses it only after its duration."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < self._settings.lease:
            await asyncio.sleep(self._settings.lease / 5)
            try:
                if not await self._lease.renew():
                    break
                renewed = time.monotonic()
            except KubeError as error:
                _log.warning("lease not renewed", reason=str(error))
        _log.warning("no longer leading", shard=self._shard)

    # the snapshot

    async def _pump(self) -> None:
        """Carry changes from the watches to Redis and mark the shard; begin anew whenever Redis lost what it had."""
        while True:
            await self._inbox.wait()
            await asyncio.sleep(self._settings.debounce)
            try:
                if not self._generation:
                    await self._begin()
                elif not await self._flush():
                    _log.warning("Redis lost the snapshot, listing everything anew", shard=self._shard)
                    self._generation = ""
                    self._inbox.wake()
            except StoreUnavailable as error:
                _log.warning("Redis does not answer", reason=str(error))
                self._generation = ""
                self._inbox.wake()
                await asyncio.sleep(1.0)

    async def _begin_patiently(self) -> None:
        self._generation, self._synced = "", False
        while not self._generation and not self._stop.is_set():
            try:
                await self._begin()
            except StoreUnavailable as error:
                _log.warning("Redis does not answer", reason=str(error))
                await self._wait(1.0)

    async def _begin(self) -> None:
        self._synced = False
        self._generation = await self._snapshots.begin(self._shard)
        self._put = None
        self._inbox.clear()
        for reflector in self._reflectors:
            reflector.relist()
        await self._put_revision()

    async def _flush(self) -> bool:
        """Write what is in the inbox; False when the snapshot is gone."""
        synced = all(reflector.synced for reflector in self._reflectors)
        changes, marks = self._inbox.empty()
        changed: dict[str, bytes | None] = {}
        wakes = synced and not self._synced
        for letter in changes:
            wakes |= letter.wakes
            if letter.value is not None and not fits(letter.value):
                _log.error("object too large for the snapshot, left out", field=letter.field, bytes=len(letter.value))
                continue
            changed[letter.field] = letter.value
            if letter.kept is not None:
                self._kept = letter.kept
        if not await self._snapshots.put(self._shard, self._generation, changed, marks, synced):
            return False
        if synced and not self._synced:
            _log.info("snapshot complete", shard=self._shard, generation=self._generation)
        self._synced = synced
        await self._put_revision()
        if wakes and synced:
            await self._mark()
        return True

    # passes

    async def _mark(self) -> None:
        await asyncio.to_thread(self._triggers.mark, self._shard)
        await self._hand_out()

    async def _hand_out(self) -> None:
        for shard in await asyncio.to_thread(self._triggers.ready):
            await asyncio.to_thread(self._send, shard)

    async def _dispatch(self) -> None:
        """Hand out what is due, mark the shard now and then whatever happened, and serve requests for a fresh list."""
        resync, renewed, beat = 0.0, time.monotonic(), 0.0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                if await asyncio.to_thread(self._passes.take_fetch, self._shard):
                    self.poke()
                if self._synced and time.monotonic() - beat >= BEAT_SECONDS:
                    beat = time.monotonic()
                    await asyncio.to_thread(self._beat)
                if await asyncio.to_thread(self._passes.take_relist, self._shard):
                    self._generation = ""
                    self._inbox.wake()
                if self._synced and time.monotonic() - resync >= self._settings.resync:
                    resync = time.monotonic()
                    await asyncio.to_thread(self._triggers.mark, self._shard)
                    self._inbox.wake()  # a snapshot that was flushed meanwhile is noticed now
                if time.monotonic() - renewed >= RENEW_SECONDS:
                    renewed = time.monotonic()
                    self._put = None
                    await self._revisions.expire(self._clock())
                await self._hand_out()
                await asyncio.to_thread(self._passes.beat, f"controller/{self._shard}", self._clock())
            except StoreUnavailable as error:
                _log.warning("Redis does not answer", reason=str(error))
                await asyncio.sleep(1.0)

    def _beat(self) -> None:
        self._passes.beat(f"{CONTROLLER_BEAT}{self._shard}", self._passes.now(), BEAT_KEPT_SECONDS)

    # the revision

    async def _follow(self) -> None:
        """Follow the repository; begin anew when its document changes, e.g. to suspend or resume it."""
        while self._source is not None:
            if not self._settings.source_file:
                return await self._follow_source(self._source)
            following = asyncio.ensure_future(self._follow_source(self._source))
            changed = asyncio.ensure_future(declared.changed(self._settings, self._source.config))
            try:
                await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    return following.result()
                self._source = changed.result()
                _log.info("the Source document changed", suspend=self._source.config.suspend)
            finally:
                await end(following, changed)

    async def _follow_source(self, source: Source) -> None:
        async for cause in source.watch(self._stop):
            previous = self._fetched.revision if self._fetched else None
            result = await asyncio.to_thread(source.fetch, previous)
            told = self._fetched is None or self._fetched.conditions != result.conditions
            self._fetched = result
            if result.changed_ref or told:
                sha = result.revision.sha if result.revision else ""
                _log.info("revision", sha=sha, attempted=result.attempted or "", cause=cause)
                try:
                    await self._put_revision()
                    await self._mark()
                except StoreUnavailable as error:  # put again with the next snapshot
                    _log.warning("Redis does not answer", reason=str(error))

    async def _put_revision(self) -> None:
        """Put the revision in force unless it is there already; its blobs are read only where Redis lacks them.

        Without any (Git never answered) an empty one tells the workers so, and why.
        """
        result, source = self._fetched, self._source
        if source is None or result is None:
            return
        revision = result.revision or Revision(sha="", files={})
        meta = {
            "attempted": result.attempted or revision.sha,
            "conditions": msgspec.to_builtins(result.conditions),
            "problems": msgspec.to_builtins(revision.problems),
        }
        wanted = (revision.sha, orjson.dumps(meta).decode(), self._kept)
        if wanted == self._put:
            return
        blobs: dict[str, bytes] = {}
        try:
            for _ in range(2):
                missing = await self._revisions.put_revision(
                    self._shard, revision.sha, revision.files, blobs, now=self._clock(), meta=meta, keep=self._kept
                )
                if not missing:
                    break
                blobs = await self._blobs(source, missing, set(revision.files.values()))
        except (ValueTooLarge, SourceError) as error:
            _log.error("revision not put in force", reason=str(error))
            return
        self._put = wanted

    async def _blobs(self, source: Source, missing: set[str], needed: set[str]) -> dict[str, bytes]:
        """Contents from Git. Older good versions may be gone there: then the worker does without them."""
        found = await asyncio.to_thread(source.read, missing & needed)
        for blob in sorted(missing - needed):
            try:
                found.update(await asyncio.to_thread(source.read, [blob]))
            except SourceError as error:
                _log.info("an older version is no longer in Git", blob=blob, reason=str(error))
        return found

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


def main(kubeconfig: str | None = None, source_file: str | None = None) -> int:
    """`belay controller`: the settings come from the environment. Raises InputError for bad ones."""
    settings = from_environment(kubeconfig=kubeconfig, source_file=source_file)
    log.configure(settings.log_level, "controller")
    warn(_log)
    asyncio.run(_serve(settings))
    return 0


async def _serve(settings: Settings) -> None:
    from celery import Celery

    from engine.messages import RECONCILE, configuration, send

    application = Celery("belay-controller", set_as_current=False)
    application.config_from_object(configuration(settings))
    async with Kube.from_config(settings.kubeconfig or None, settings.context or None) as kube:
        controller = Controller(
            settings,
            kube,
            functools.partial(send, application, connect(settings.redis_url), RECONCILE),
            source=declared.source_of(settings),
        )
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, controller.stop)
        await controller.run()
