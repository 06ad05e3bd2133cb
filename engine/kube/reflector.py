"""A live copy of one kind: list, then watch, with backoff, until cancelled.

The official client's informer has no backoff (thousands of requests a second on errors), no pages and no bookmarks, and
repeats every object on each relist; hence our own. Level-triggered: it reports the newest state of a key, never an
event.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from belay.engine.kube.backoff import Backoff
from belay.engine.kube.cancellation import cancel_all
from belay.engine.kube.client import Kube
from belay.engine.kube.errors import Forbidden, Gone, KubeError, NotFound
from belay.engine.kube.lister import Object
from belay.engine.kube.resources import Resource
from belay.engine.log import get

_log = get("kube.reflector")

LISTED: Final = 200
"""Objects per page of a list: read one by one, so a larger page only takes more memory at a time."""
Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped kinds."""


class WatchChange(msgspec.Struct, frozen=True):
    """The newest state of one object: ``obj`` is None when it is gone; ``rv`` is the version at which that was seen."""

    key: Key
    obj: Object | None
    rv: str


Sink = Callable[["Reflector", WatchChange], None]


class Reflector:
    """Follows one kind (in one namespace, under selectors) and reports each real difference once.

    ``synced`` is True once a full list was reported; ``watermark`` is the resourceVersion up to which everything was
    reported; ``stale`` is True while the last attempt failed, ``stale_since`` since when (monotonic seconds).
    """

    def __init__(
        self,
        kube: Kube,
        res: Resource,
        ns: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        *,
        on_change: Sink,
        on_progress: Callable[[Reflector], None] | None = None,
        may_be_closed: bool = False,
        seconds: int = 290,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.res = res
        self.ns = ns
        self.labels = labels
        self.fields = fields
        self._absences = (NotFound, Forbidden) if may_be_closed else (NotFound,)
        self.synced = False
        self.absent = False
        self.watermark = ""
        self.stale_since: float | None = clock()
        self._kube = kube
        self._on_change = on_change
        self._on_progress = on_progress
        self._seconds = seconds
        self._backoff = backoff or Backoff(base=0.5, cap=30.0, floor=0.1)
        self._sleep = sleep
        self._clock = clock
        self._known: dict[Key, str] = {}
        self._following: asyncio.Task[float] | None = None
        self._relist_requested = False
        self._rest = 0.0

    @property
    def stale(self) -> bool:
        return self.stale_since is not None

    def relist(self) -> None:
        """Report every object again from a fresh consistent list, e.g. after the copy in Redis was lost."""
        self.synced = False
        self.watermark = ""
        self._known.clear()
        self._relist_requested = True
        if self._following is not None:
            self._following.cancel()

    async def run(self) -> None:
        """Follow until cancelled; errors of server and network are never raised."""
        while True:
            pause = await self._interruptible(self._follow())
            if pause:
                await self._interruptible(self._sleeping(pause))

    async def _interruptible(self, work: Coroutine[Any, Any, float]) -> float:
        """The result of ``work``, or 0 when ``relist`` cut it short."""
        self._following = asyncio.create_task(work)
        try:
            await asyncio.wait({self._following})
        finally:
            await cancel_all(self._following)
        return 0.0 if self._following.cancelled() else self._following.result()

    async def _sleeping(self, seconds: float) -> float:
        await self._sleep(seconds)
        return 0.0

    async def _follow(self) -> float:
        """List if needed, then watch until that ends; returns the pause in seconds before the next try."""
        started = self._clock()
        if self.absent and not await self._kube.may_serve(self.res, self._rest):
            self._forget_all()
            return self._rest_while_absent()
        try:
            if not self.watermark:
                await self._list()
            await self._watch()
        except Gone:
            self.watermark = ""
        except KubeError as error:
            return self._failed(error)
        else:
            if self._clock() - started >= 1.0:
                self._backoff.reset()
                return 0.0
        return self._backoff.next()  # a watch that ends at once must not become a hot loop

    def _rest_while_absent(self) -> float:
        """The pause before the next look at a kind whose version is not served. Half as long as others, for the list
        of versions that the look shares may be as old: forty kinds cost one question, not one each.
        """
        self._rest = self._backoff.next() / 2
        return self._rest

    def _failed(self, error: KubeError) -> float:
        if self.stale_since is None:
            self.stale_since = self._clock()
        delay = self._backoff.next()
        self._rest = delay / 2
        if isinstance(error, self._absences):  # the kind is not served, or not for us: no object of it is known
            if not self.absent:
                why = "kind is not served" if isinstance(error, NotFound) else "kind may not be read"
                _log.info(why, kind=self.res.kind, version=self.res.api_version)
            self._forget_all()
        else:
            _log.warning("following stalled", kind=self.res.kind, reason=str(error), retry_in_s=round(delay, 2))
        return delay

    async def _list(self) -> None:
        self._relist_requested = False
        seen: set[Key] = set()
        version = ""
        async for page in self._kube.pages(self.res, self.ns, self.labels, self.fields, LISTED):
            version = page.resource_version
            self._check_relist()
            for obj in page.items:
                seen.add(self._report(obj))
        for key in [key for key in self._known if key not in seen]:
            self._report_deleted(key, version)
        self.watermark = version
        self.absent = False
        self.synced = True
        self._fresh()
        self._progress()

    async def _watch(self) -> None:
        async with contextlib.aclosing(
            self._kube.watch(
                self.res, self.ns, self.labels, self.fields, self.watermark, seconds=self._seconds, on_open=self._fresh
            )
        ) as events:
            async for kind, obj in events:
                self._receive(kind, obj)

    def _fresh(self) -> None:
        self.stale_since = None

    def _check_relist(self) -> None:
        """End the watch when ``relist`` was called and a library swallowed the cancellation."""
        if self._relist_requested:
            raise Gone("a fresh list was asked for", status=410)

    def _receive(self, kind: str, obj: Object) -> None:
        self._check_relist()
        version = _version(obj)
        if kind == "DELETED":
            self._report_deleted(_key(obj), version)
        elif kind in {"ADDED", "MODIFIED"}:
            self._report(obj)
        self.watermark = version or self.watermark
        self._backoff.reset()
        self._progress()

    def _report(self, obj: Object) -> Key:
        key, version = _key(obj), _version(obj)
        if self._known.get(key) != version:
            self._known[key] = version
            self._on_change(self, WatchChange(key, obj, version))
        return key

    def _report_deleted(self, key: Key, version: str) -> None:
        if self._known.pop(key, None) is not None:
            self._on_change(self, WatchChange(key, None, version))

    def _forget_all(self) -> None:
        for key in list(self._known):
            self._report_deleted(key, self.watermark)
        self.watermark = ""
        self.absent = True
        self.synced = True
        self._progress()

    def _progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self)


def _key(obj: Object) -> Key:
    metadata: dict[str, Any] = obj.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _version(obj: Object) -> str:
    return str((obj.get("metadata") or {}).get("resourceVersion") or "")
