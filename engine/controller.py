"""The controller: follows Kubernetes and Git, keeps the shard's snapshot in Redis, marks triggers, hands out passes.

One is active per shard, by a Lease. It decides nothing: whatever it loses, repeats or reorders, the next full state
mends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import orjson
import redis.asyncio

from engine import log
from engine.kube import Change, Kube, KubeError, Object, Reflector
from engine.lease import Lease
from engine.reconcile.intent import last_good_of
from engine.settings import Settings
from engine.snapshot import WATCHED, Watched
from engine.source import FetchResult, Source
from engine.store import (
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
from engine.wire import names

_log = log.get("controller")
TICK_SECONDS = 0.25
_OWN_OUTPUT = (names.POOL_PREFIX, names.HISTORY, names.JOB_PREFIX, names.LEDGER_PREFIX, names.SYNC, names.BUDGET)
_KEPT_ELSEWHERE = ("mindx-dl-", "cluster-info-", "vcjob-", "rings-config-", "reset-config-", "volcano-", "belay-")
_REPORTS = (names.DEVICE_PREFIX, names.NODE_PREFIX, names.REPORT_PREFIX)
_QUIET_KEYS = frozenset({"UpdateTime", "CheckCode", "seq", "time"})
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
        self._generation, self._synced = "", False
        works: list[Awaitable[None]] = [reflector.run() for reflector in self._reflectors]
        works += [self._hold(), self._pump(), self._dispatch(), self._stop_requested()]
        if self._source is not None:
            works.append(self._follow_source(self._source))
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
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
        resync = 0.0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                if await asyncio.to_thread(self._passes.take_relist, self._shard):
                    self._generation = ""
                    self._inbox.wake()
                if self._synced and time.monotonic() - resync >= self._settings.resync:
                    resync = time.monotonic()
                    await asyncio.to_thread(self._triggers.mark, self._shard)
                    await self._revisions.expire(self._clock())
                    self._put = None
                    self._inbox.wake()  # a snapshot that was flushed meanwhile is noticed now
                await self._hand_out()
            except StoreUnavailable as error:
                _log.warning("Redis does not answer", reason=str(error))
                await asyncio.sleep(1.0)
            except OSError as error:  # kombu's OperationalError is one on a lost broker
                _log.warning("no message sent", reason=str(error)[:256])

    # the revision

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
        """Put the revision in force unless it is there already; its blobs are read only where Redis lacks them."""
        result, source = self._fetched, self._source
        if source is None or result is None or result.revision is None:
            return
        revision = result.revision
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
        except ValueTooLarge as error:
            _log.error("revision not put in force", reason=str(error))
        self._put = wanted

    async def _blobs(self, source: Source, missing: set[str], needed: set[str]) -> dict[str, bytes]:
        """Contents from Git. Older good versions may be gone there: then the worker does without them."""
        found = await asyncio.to_thread(source.read, missing & needed)
        for blob in sorted(missing - needed):
            with contextlib.suppress(Exception):
                found.update(await asyncio.to_thread(source.read, [blob]))
        return found

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)


class Letter(NamedTuple):
    """One changed object on its way to Redis; ``kept`` are blob ids that ``belay-sync`` asks to keep."""

    field: str
    value: bytes | None
    wakes: bool
    kept: frozenset[str] | None


class Inbox:
    """The newest state of every object that changed since it was last emptied: bounded by the number of objects."""

    def __init__(self) -> None:
        self._letters: dict[str, Letter] = {}
        self._marks: dict[str, str] = {}
        self._essence: dict[str, bytes] = {}
        self._news = asyncio.Event()

    def take(self, reflector: Reflector, change: Change) -> None:
        """A change from a watch."""
        res = reflector.res
        field = f"{res.api_version}|{res.kind}|{change.key[0]}|{change.key[1]}"
        if change.obj is None:
            known = self._essence.pop(field, None) is not None
            self._letters[field] = Letter(field, None, known, None)
        elif wanted(change.obj):
            self._put(field, change.obj)
        self._news.set()

    def progress(self, reflector: Reflector) -> None:
        """A watch got further, even if nothing we want changed."""
        if reflector.watermark:
            self._marks[f"{reflector.res.api_version}|{reflector.res.kind}"] = reflector.watermark
        self._news.set()

    def wake(self) -> None:
        """Make ``wait`` return."""
        self._news.set()

    async def wait(self) -> None:
        """Until there is news."""
        await self._news.wait()

    def empty(self) -> tuple[list[Letter], dict[str, str]]:
        """Everything that came, and how far the watches are."""
        self._news.clear()
        letters, marks = list(self._letters.values()), dict(self._marks)
        self._letters.clear()
        self._marks.clear()
        return letters, marks

    def clear(self) -> None:
        """Forget everything: it will be told anew."""
        self.empty()
        self._essence.clear()

    def _put(self, field: str, obj: Object) -> None:
        slim = slimmed(obj)
        digest = essence(slim)
        wakes = self._essence.get(field) != digest and not own_output(slim)
        earlier = self._letters.get(field)
        self._essence[field] = digest
        kept = None
        metadata = slim["metadata"]
        if metadata.get("name") == names.SYNC and metadata.get("namespace") == names.SYSTEM:
            kept = frozenset(blob for ids in last_good_of(slim).values() for blob in ids)
        wakes = wakes or (earlier is not None and earlier.wakes)
        self._letters[field] = Letter(field, orjson.dumps(slim), wakes, kept)


def wanted(obj: Object) -> bool:
    """Whether the snapshot holds the object: all but ConfigMaps that are none of Belay's and MindCluster's business."""
    if obj.get("kind") != "ConfigMap":
        return True
    metadata = obj["metadata"]
    if metadata.get("namespace") in {names.SYSTEM, names.NODES}:
        return True
    if str(metadata.get("name") or "").startswith(_KEPT_ELSEWHERE):
        return True
    return any(entry.get("manager") == "belay" for entry in metadata.get("managedFields") or [])


def own_output(obj: Object) -> bool:
    """Whether only Belay writes the object, as the result of a pass: seeing it again is no reason for another one."""
    metadata: Mapping[str, Any] = obj["metadata"]
    if obj["kind"] != "ConfigMap":
        return False
    name = str(metadata.get("name") or "")
    if metadata.get("namespace") == names.SYSTEM:
        return name.startswith(_OWN_OUTPUT)
    return name.startswith(("cluster-info-", "vcjob-fault-npu-cm"))


def slimmed(obj: Object) -> Object:
    """The object with its field owners cut down to their names: the rest is half of its size and nobody plans by it."""
    metadata = dict(obj["metadata"])
    managers = {str(entry.get("manager")) for entry in metadata.pop("managedFields", None) or []}
    if managers:
        metadata["managedFields"] = [{"manager": manager} for manager in sorted(managers)]
    return {**obj, "metadata": metadata}


def essence(obj: Object) -> bytes:
    """A digest of what may change a decision: heartbeats alone do not."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in {"resourceVersion", "managedFields"}}
    rest: dict[str, Any] = {**obj, "metadata": metadata}
    if obj["kind"] == "Node":
        conditions = (obj.get("status") or {}).get("conditions") or []
        still = [{k: v for k, v in one.items() if k != "lastHeartbeatTime"} for one in conditions]
        rest["status"] = {**(obj.get("status") or {}), "conditions": still}
    elif obj["kind"] == "ConfigMap" and str(metadata.get("name") or "").startswith(_REPORTS):
        rest["data"] = {key: _quiet(value) for key, value in (obj.get("data") or {}).items()}
    return hashlib.blake2b(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS), digest_size=12).digest()


def _quiet(value: object) -> object:
    """A report without its clock: parsed where it is JSON, as it is otherwise."""
    try:
        parsed = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return value
    if not isinstance(parsed, dict):
        return value
    return {
        key: {k: v for k, v in inner.items() if k not in _QUIET_KEYS} if isinstance(inner, dict) else inner
        for key, inner in parsed.items()
        if key not in _QUIET_KEYS
    }
