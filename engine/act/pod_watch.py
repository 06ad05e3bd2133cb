"""A watch on pods during a batch of bindings, which replaces reading each pod.

Two reads per binding cost more than the binding itself. A watch from the version of the plan's snapshot gives the same
for one connection: changes of a pod since then are known before it is bound, and the event of the binding says which
pod was bound. No binding relies on the watch being quick: a pod without an event in time is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from belay.engine.kube import Kube, KubeError, Object, cancel_all
from belay.engine.log import get

_log = get("act")
MIN_BINDINGS: Final = 8
"""Fewest bindings for which a watch is cheaper than reading each pod."""
OPEN_SECONDS: Final = 5.0
"""Longest time for the watch to open; after it, pods are read."""
EVENT_SECONDS: Final = 2.0
"""Longest time for a binding's event; after it, the pod is read."""
SETTLE_SECONDS: Final = 0.02
"""Silence after which the changes since the snapshot count as received; they come at once."""
SETTLED_SECONDS: Final = 0.5
"""Longest wait for that silence."""
MAX_PODS: Final = 50_000
"""Most pods whose changes are kept; a watch with more ends, and pods are read."""


class WatchedPod(NamedTuple):
    """A pod in its newest event: UID, node (empty: none), whether it is being deleted or gone."""

    uid: str
    node: str
    deleting: bool
    gone: bool


class PodWatch:
    """A watch on pods from a version on, open while a caller is inside ``from_version``."""

    def __init__(self, kube: Kube, *, event_seconds: float = EVENT_SECONDS) -> None:
        self._kube = kube
        self._event_seconds = event_seconds
        self._task: asyncio.Task[None] | None = None
        self._settled: asyncio.Task[None] | None = None
        self._open = asyncio.Event()
        self._start = ""
        self._received = 0
        self._users = 0
        self._seen: dict[tuple[str, str], WatchedPod] = {}
        self._waiting: dict[tuple[str, str], list[asyncio.Future[Object | None]]] = {}
        self._expired: set[asyncio.Future[Object | None]] = set()

    @contextlib.asynccontextmanager
    async def from_version(self, version: str) -> AsyncIterator[bool]:
        """Watch while inside; yields False when that is not possible, so that pods have to be read.

        Batches of one pass share the watch. A batch whose snapshot is older than the watch reads.
        """
        self._users += 1
        try:
            if self._task is None and version:
                self._start, self._open = version, asyncio.Event()
                self._task = asyncio.create_task(self._follow())
                self._settled = asyncio.create_task(self._settle(self._task))
            yield await self._covers(version)
        finally:
            self._users -= 1
            if not self._users and self._task is not None:
                tasks = [task for task in (self._task, self._settled) if task is not None]
                self._task = self._settled = None
                await cancel_all(*tasks)
                self._forget()

    @property
    def alive(self) -> bool:
        """Whether the watch is open, so that events can be waited for."""
        return self._task is not None and not self._task.done() and self._open.is_set()

    def seen(self, namespace: str, name: str) -> WatchedPod | None:
        """The newest event of a pod since the snapshot; None without one."""
        return self._seen.get((namespace, name))

    def expect(self, namespace: str, name: str) -> asyncio.Future[Object | None]:
        """A future of the pod in its first event as bound; None when it is gone. Call it before binding."""
        future: asyncio.Future[Object | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((namespace, name), []).append(future)
        return future

    async def wait_for(self, namespace: str, name: str, future: asyncio.Future[Object | None]) -> Object | None:
        """Wait for a future of ``expect``. Raises TimeoutError without an event in time or after the watch ended."""
        # call_later costs half as much as asyncio.timeout
        timer = asyncio.get_running_loop().call_later(self._event_seconds, self._give_up, future)
        try:
            found = await future
            if future in self._expired:
                raise TimeoutError("no event of the pod in time")
            return found
        finally:
            timer.cancel()
            self.cancel(namespace, name, future)

    def cancel(self, namespace: str, name: str, future: asyncio.Future[Object | None]) -> None:
        """Drop a future of ``expect``."""
        self._expired.discard(future)
        waiting = self._waiting.get((namespace, name), [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop((namespace, name), None)

    async def _covers(self, version: str) -> bool:
        """Whether the watch began at or before this version; waits until earlier changes were received."""
        if self._settled is None or not version.isdecimal() or not self._start.isdecimal():
            return False
        if int(self._start) > int(version):
            return False
        await asyncio.wait({self._settled})
        return self.alive

    async def _settle(self, following: asyncio.Task[None]) -> None:
        opened = asyncio.create_task(self._open.wait())
        try:
            await asyncio.wait({opened, following}, timeout=OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(opened)
        ends = asyncio.get_running_loop().time() + SETTLED_SECONDS
        received = -1
        while self.alive and received != self._received and asyncio.get_running_loop().time() < ends:
            received = self._received
            await asyncio.sleep(SETTLE_SECONDS)

    async def _follow(self) -> None:
        try:
            async for kind, pod in self._kube.pod_heads(self._start, seconds=120, on_open=self._open.set):
                if kind != "BOOKMARK":
                    self._receive(kind == "DELETED", pod)
                if len(self._seen) > MAX_PODS:
                    return
        except KubeError as error:  # too old a version or a broken connection: pods are read
            _log.debug("pods are read, their watch ended", reason=str(error))
        finally:
            self._forget()

    def _receive(self, gone: bool, pod: Object) -> None:
        self._received += 1
        metadata = pod["metadata"]
        key = (str(metadata.get("namespace") or ""), str(metadata["name"]))
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        self._seen[key] = WatchedPod(
            str(metadata.get("uid") or ""), node, bool(metadata.get("deletionTimestamp")), gone
        )
        if node or gone:
            _resolve(self._waiting.get(key, ()), None if gone else pod)

    def _give_up(self, future: asyncio.Future[Object | None]) -> None:
        # a cancelled future could not be distinguished from a cancelled caller
        if not future.done():
            self._expired.add(future)
            future.set_result(None)

    def _forget(self) -> None:
        self._seen.clear()
        for waiting in self._waiting.values():
            for future in waiting:
                self._give_up(future)


def _resolve(waiting: Iterable[asyncio.Future[Object | None]], pod: Object | None) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(pod)
