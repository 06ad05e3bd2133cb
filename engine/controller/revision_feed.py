"""Git to Redis: the repository that a shard follows, and the revision in force."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import orjson

from belay.engine import log, tracing
from belay.engine.controller.accepted_revisions import AcceptedRevisions
from belay.engine.controller.commit_proofs import CommitProofs
from belay.engine.errors import SourceError
from belay.engine.kube import Backoff, Kube, KubeError, cancel_all
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.model.traces import of_commit
from belay.engine.settings import Settings
from belay.engine.source import FetchResult, GitSource, Revision, configuration
from belay.engine.source.pending_deletion import PendingDeletion
from belay.engine.source.worktree import blob_id
from belay.engine.store import RevisionWriter, StoreUnavailable, ValueTooLarge
from belay.engine.wire import lastchanges, sourceinfo

_log = log.get("controller")
NO_SOURCE = "no repository is followed: give --source FILE or BELAY_SOURCE_URL; nothing is applied from Git"


class RevisionFeed:
    """Follows one repository and writes its revision to Redis.

    Args:
        source: the repository, None when none is followed.
        mark: marks the shard for a pass.
        clock: Unix seconds.
    """

    def __init__(
        self,
        settings: Settings,
        kube: Kube,
        source: GitSource | None,
        *,
        revisions: RevisionWriter,
        mark: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._shard = settings.shard
        self._kube = kube
        self._source = source
        self._revisions = revisions
        self._mark = mark
        self._clock = clock
        self._accepted = AcceptedRevisions(kube, settings.shard, clock, OrderKeys(settings.order_keys))
        self._proofs = CommitProofs(kube, settings.shard, clock)
        self._fetched: FetchResult | None = None
        self._kept: frozenset[str] = frozenset()
        self._table: tuple[Revision | None, dict[str, bytes]] = (None, {})
        self._waiting = PendingDeletion()
        self._put: tuple[str, str, frozenset[str]] | None = None

    @property
    def following(self) -> bool:
        """Whether there is a repository to follow."""
        return self._source is not None

    def fetch_soon(self) -> None:
        """Fetch the repository soon: a webhook was called."""
        if self._source is not None:
            self._source.fetch_soon()

    def keep(self, blobs: frozenset[str], base: str, *, waits: bool) -> None:
        """Keep these blobs in Redis. ``base`` is the revision before a deletion, ``waits`` whether one waits."""
        self._kept = blobs
        self._waiting.base, self._waiting.waits = base, waits

    def repeat(self) -> None:
        """Write the revision again with the next ``put``, whatever Redis held."""
        self._put = None

    async def expire(self) -> None:
        """Renew the files in use and drop those that no shard has used for long."""
        self.repeat()
        await self._revisions.expire(self._clock())

    async def report_source(self) -> bool:
        """Write to Kubernetes which repository is followed; False when the cluster did not take it."""
        following = configuration.source_info(self._source)
        if not following.url:
            _log.warning(NO_SOURCE, shard=self._shard)
        return await self._report(following)

    async def report_source_again(self) -> None:
        """Repeat ``report_source`` until the cluster takes it."""
        backoff = Backoff(base=1.0, cap=60.0)
        while not await self._report(configuration.source_info(self._source)):
            await asyncio.sleep(backoff.next())

    async def _report(self, following: sourceinfo.FollowedRepository) -> bool:
        try:
            await self._kube.apply(sourceinfo.build(following, self._shard))
        except KubeError as error:
            _log.warning("source not reported to the workers", reason=str(error))
            return False
        return True

    async def follow(self, stop: asyncio.Event) -> None:
        """Follow the repository; start over when its document changes, e.g. to suspend or resume it."""
        while self._source is not None:
            if not self._settings.source_file:
                return await self._follow(self._source, stop)
            following = asyncio.ensure_future(self._follow(self._source, stop))
            changed = asyncio.ensure_future(configuration.changed(self._settings, self._source.config))
            try:
                await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    return following.result()
                self._source = changed.result()
                _log.info("the Source document changed", suspend=self._source.config.suspend)
                await self._report(configuration.source_info(self._source))
            finally:
                await cancel_all(following, changed)

    async def _follow(self, source: GitSource, stop: asyncio.Event) -> None:
        await self._load_accepted()
        async for cause in source.watch(stop):
            source.remember(self._accepted.of(source.config), self._accepted.problem)
            previous = self._fetched.revision if self._fetched else None
            began = time.time()
            result = await asyncio.to_thread(source.fetch, previous)
            new_conditions = self._fetched is None or self._fetched.conditions != result.conditions
            self._fetched = result
            if result.changed_ref or new_conditions:
                sha = result.revision.sha if result.revision else ""
                _log.info("revision", sha=sha, attempted=result.attempted or "", cause=cause)
                try:
                    await self.put()
                    await self._mark()
                    if result.changed_ref and result.revision is not None:
                        _trace_fetch(result.revision, began, cause)
                except StoreUnavailable as error:  # put again with the next snapshot
                    _log.warning("Redis does not answer", reason=str(error))

    async def _load_accepted(self) -> None:
        """Read the log of accepted revisions: without it, nothing may come into force."""
        backoff = Backoff(base=1.0, cap=60.0)
        while True:
            try:
                return await self._accepted.load()
            except KubeError as error:
                _log.warning("log of accepted revisions not readable", reason=str(error))
                await asyncio.sleep(backoff.next())

    async def _record(self, revision: Revision, source: GitSource) -> bool:
        """Append to the log of accepted revisions; False when a verified revision must not come into force."""
        try:
            await self._accepted.record(revision, source.config)
        except (KubeError, SourceError) as error:
            _log.warning("revision not recorded as accepted", sha=revision.sha, reason=str(error))
            return source.config.verify_mode == "none"
        return True

    def _table_of(self, revision: Revision) -> dict[str, bytes]:
        """Who last changed the revision's files, as a blob beside them by its id; none where nothing is known."""
        if self._table[0] is not revision:
            table = lastchanges.encode(revision.last_changes)
            self._table = (revision, {blob_id(table): table} if table else {})
        return self._table[1]

    async def put(self) -> None:
        """Put the revision in force unless it is there already; its blobs are read only where Redis lacks them.

        Without any (Git never answered) an empty one says so to the workers, and why.
        """
        result, source = self._fetched, self._source
        if source is None or result is None:
            return
        revision = result.revision or Revision(sha="", files={})
        deletion = await asyncio.to_thread(self._waiting.ask, source, revision.sha)
        meta = {
            "attempted": result.attempted or revision.sha,
            "conditions": msgspec.to_builtins(result.conditions),
            "problems": msgspec.to_builtins(revision.problems),
            "confirmed": deletion.confirmed,
            "earlier": deletion.earlier,
        }
        changes = self._table_of(revision)
        if changes:
            meta[lastchanges.META] = next(iter(changes))
        kept = self._kept.union(deletion.earlier.values(), changes)
        wanted = (revision.sha, orjson.dumps(meta).decode(), kept)
        if wanted == self._put:
            return await self._proofs.put(revision, source, self._accepted.before(revision.sha, source.config))
        if not await self._record(revision, source):
            return  # tried again with the next snapshot
        await self._proofs.put(revision, source, self._accepted.before(revision.sha, source.config))
        blobs: dict[str, bytes] = dict(changes)
        try:
            for _ in range(2):
                missing = await self._revisions.put_revision(
                    self._shard, revision.sha, revision.files, blobs, now=self._clock(), meta=meta, keep=kept
                )
                if not missing:
                    break
                blobs = await _blobs(source, missing, set(revision.files.values()))
        except (ValueTooLarge, SourceError) as error:
            _log.error("revision not put in force", reason=str(error))
            return
        self._put = wanted


def _trace_fetch(revision: Revision, began: float, cause: str) -> None:
    """Begin the trace of a revision: what took it from the repository into Redis."""
    said: tracing.Attributes = {
        "vcs.ref.head.revision": revision.sha,
        "belay.commit.time": int(revision.committed),
        "belay.files.changed": len(revision.changed),
        "belay.cause": cause,
    }
    tracing.record("fetch", of_commit(revision.sha), began, time.time(), said, root=True)


async def _blobs(source: GitSource, missing: set[str], needed: set[str]) -> dict[str, bytes]:
    """Contents from Git. Older good versions may be gone there: then the worker does without them."""
    found = await asyncio.to_thread(source.read, missing & needed)
    for blob in sorted(missing - needed):
        try:
            found.update(await asyncio.to_thread(source.read, [blob]))
        except SourceError as error:
            _log.info("an older version is no longer in Git", blob=blob, reason=str(error))
    return found
