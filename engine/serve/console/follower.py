"""The status ConfigMaps of a live cluster, followed by one watch; each change becomes a new document.

Changes that come together become one document, and a large cluster is not derived more often than that takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.errors import bounded
from belay.engine.kube import CONFIGMAP, Kube, Reflector, WatchChange
from belay.engine.log import get
from belay.engine.serve.console import failures
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.document import SELECTOR, Builder, Data, StateDocument, data_of
from belay.engine.serve.console.repository import RepositoryCommit, commit_of
from belay.engine.wire import names

_log = get("console")
DEBOUNCE_SECONDS: Final = 0.03
"""Seconds that changes are collected: a pass writes several ConfigMaps."""
SHARE: Final = 4.0
"""A document is derived at most every so many times the seconds that the last one took."""
LOOK_SECONDS: Final = 5.0
"""Seconds between looks at what is no ConfigMap: heartbeats, the repository."""
STALE_SECONDS: Final = 10.0

Problems = Callable[[], Awaitable[Sequence[str]]]
Commits = Callable[[str], Awaitable[Sequence[Mapping[str, Any]]]]


class StatusFollower:
    """Publishes a document for every change.

    Args:
        problems: what else cannot be read, asked every few seconds.
        commits: the newest commits of the repository, given the revision in force.
        published: called with every new document.
        taken: called with every ConfigMap that changed: its name, its data (None: it is gone), and the object.
    """

    def __init__(
        self,
        kube: Kube,
        changes: ChangeStream,
        *,
        shard: str = names.MAIN_SHARD,
        problems: Problems | None = None,
        commits: Commits | None = None,
        published: Callable[[StateDocument, bytes, float], None] | None = None,
        taken: Callable[[str, Data | None, Mapping[str, Any] | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._changes, self._builder = changes, Builder(shard)
        self._problems, self._commits, self._published, self._taken = problems, commits, published, taken
        self._clock, self._wall = clock, wall
        self._found: dict[str, Data] = {}
        self._changed = asyncio.Event()
        self._git: tuple[str, Sequence[RepositoryCommit]] = ("", ())
        self._said: tuple[str, ...] = ("the API server has not been read yet",)
        self._broken = ""
        self._reflector = Reflector(kube, CONFIGMAP, names.SYSTEM, SELECTOR, on_change=self._take)

    @property
    def synced(self) -> bool:
        """Whether the whole status was read once."""
        return self._reflector.synced

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._look())
            group.create_task(self._derive())

    def _take(self, reflector: Reflector, change: WatchChange) -> None:
        key = change.key[1]
        if change.obj is None:
            self._found.pop(key, None)
        else:
            self._found[key] = data_of([change.obj]).get(key, {})
        if self._taken is not None:
            self._taken(key, self._found.get(key), change.obj)
        self._changed.set()

    async def _derive(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(DEBOUNCE_SECONDS)
            if not self._reflector.synced:
                await asyncio.sleep(DEBOUNCE_SECONDS)
                continue
            self._changed.clear()
            began = self._clock()
            self._publish_guarded()
            await asyncio.sleep((self._clock() - began) * (SHARE - 1))

    def _publish_guarded(self) -> None:
        """Publish; a ConfigMap that nothing foresaw costs its document and a finding, not all that follow."""
        try:
            self._publish()
            self._broken = ""
        except Exception as error:  # whatever a document of an unforeseen status raises
            failures.count("document")
            if not self._broken:
                _log.exception("the status is not shown")
            self._broken = f"a status ConfigMap cannot be shown ({type(error).__name__}); what is shown is old"

    def _publish(self) -> None:
        now = round(self._wall(), 3)
        document = self._builder.build(self._found, time=now, problems=self._said, git=self._git[1])
        before = self._changes.document
        if before is not None and before.sections == document.sections and before.layout is document.layout:
            return
        self._changes.publish(document)
        if self._published is not None:
            self._published(document, document.encoded(), now)

    async def _look(self) -> None:
        while True:
            said = []
            since = self._reflector.stale_since
            if since is not None and self._clock() - since > STALE_SECONDS:
                said.append("the API server does not answer; what is shown is old")
            elif not self._reflector.synced:
                said.append("the API server has not been read yet")
            elif names.SYNC not in self._found:
                said.append("Belay has not written its status yet")
            if self._problems is not None:
                said += await self._problems()
            applied = self._found.get(names.SYNC, {}).get("attemptedRevision", "")
            if self._commits is not None and applied != self._git[0] and await self._read_commits(applied):
                self._changed.set()
            if self._broken:
                said.append(self._broken)
            if tuple(said) != self._said:
                self._said = tuple(said)
                if self._reflector.synced or self._changes.document is None:
                    self._publish_guarded()
            await asyncio.sleep(LOOK_SECONDS if self._reflector.synced else 0.2)

    async def _read_commits(self, applied: str) -> bool:
        """Read the newest commits; whether there are any. One that cannot be read is tried again with the next look."""
        assert self._commits is not None
        try:
            found = [commit_of(one) for one in await self._commits(applied)]
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            _log.warning("the repository's commits are not shown", reason=bounded(str(error), 200))
            found = []
        if found:
            self._git = (applied, found)
        return bool(found)
