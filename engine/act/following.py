"""The pods' watch beside a batch of bindings: what becomes of every pod, without asking for each.

Two reads a binding cost more than the binding itself. A watch from the very version of the snapshot on which the plan
rests says the same, at the price of one connection: whatever became of a pod since is known before it is bound, as far
as it has been told, and the event that the binding itself brings forth says which pod was bound. Nobody relies on the
watch being quick: what is not heard of in time is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from engine.kube import Kube, KubeError, Object, end
from engine.log import get

_log = get("act")
FEWEST: Final = 8
"""Bindings below which reading each pod is cheaper than a watch."""
OPEN_SECONDS: Final = 5.0
"""How long the watch may take to open before pods are read instead."""
HEAR_SECONDS: Final = 2.0
"""How long a binding's event may take before the pod is read."""
SETTLE_SECONDS: Final = 0.02
"""What has changed since the snapshot is told at once; after so long a silence it has been, mostly."""
SETTLED_SECONDS: Final = 0.5
"""Longest wait for that silence."""
MOST: Final = 50_000
"""Pods whose changes are remembered; a watch that hears of more is ended, and pods are read."""


class Seen(NamedTuple):
    """What the newest event said of a pod: its UID, its node (empty: none), and whether it goes or is gone."""

    uid: str
    node: str
    deleting: bool
    gone: bool


class Following:
    """A watch on pods from a version on, for as long as somebody is inside ``from_version``."""

    def __init__(self, kube: Kube, *, hear: float = HEAR_SECONDS) -> None:
        self._kube = kube
        self._hear = hear
        self._task: asyncio.Task[None] | None = None
        self._settled: asyncio.Task[None] | None = None
        self._open = asyncio.Event()
        self._start = ""
        self._heard = 0
        self._users = 0
        self._seen: dict[tuple[str, str], Seen] = {}
        self._waiting: dict[tuple[str, str], list[asyncio.Future[Object | None]]] = {}
        self._unheard: set[asyncio.Future[Object | None]] = set()

    @contextlib.asynccontextmanager
    async def from_version(self, version: str) -> AsyncIterator[bool]:
        """Follow while inside; False when that is not possible, so that pods have to be read.

        Several batches of one pass share the watch; one that rests on an older snapshot than it began with reads.
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
                await end(*tasks)
                self._forget()

    @property
    def alive(self) -> bool:
        """Whether the watch is open, so that events can be waited for."""
        return self._task is not None and not self._task.done() and self._open.is_set()

    def seen(self, namespace: str, name: str) -> Seen | None:
        """What became of a pod since the snapshot; None: nothing that was heard of."""
        return self._seen.get((namespace, name))

    def expect(self, namespace: str, name: str) -> asyncio.Future[Object | None]:
        """Call it before binding: the pod as the first event shows it that finds it bound; None when it is gone."""
        future: asyncio.Future[Object | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((namespace, name), []).append(future)
        return future

    async def heard(self, namespace: str, name: str, future: asyncio.Future[Object | None]) -> Object | None:
        """What ``expect`` promised; raises TimeoutError when it is not heard of in time, or the watch has ended."""
        # a timer of our own is half the price of asyncio.timeout
        timer = asyncio.get_running_loop().call_later(self._hear, self._give_up, future)
        try:
            found = await future
            if future in self._unheard:
                raise TimeoutError("the pod was not heard of")
            return found
        finally:
            timer.cancel()
            self.drop(namespace, name, future)

    def drop(self, namespace: str, name: str, future: asyncio.Future[Object | None]) -> None:
        """Nobody waits for this any more."""
        self._unheard.discard(future)
        waiting = self._waiting.get((namespace, name), [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop((namespace, name), None)

    async def _covers(self, version: str) -> bool:
        """Whether the watch began at or before this version; waits until it has told what happened since."""
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
            await end(opened)
        ends = asyncio.get_running_loop().time() + SETTLED_SECONDS
        heard = -1
        while self.alive and heard != self._heard and asyncio.get_running_loop().time() < ends:
            heard = self._heard
            await asyncio.sleep(SETTLE_SECONDS)

    async def _follow(self) -> None:
        try:
            async for kind, pod in self._kube.pod_heads(self._start, seconds=120, on_open=self._open.set):
                if kind != "BOOKMARK":
                    self._take(kind == "DELETED", pod)
                if len(self._seen) > MOST:
                    return
        except KubeError as error:  # too old a version, a broken connection: pods are read then
            _log.debug("pods are read, their watch ended", reason=str(error))
        finally:
            self._forget()

    def _take(self, gone: bool, pod: Object) -> None:
        self._heard += 1
        metadata = pod["metadata"]
        key = (str(metadata.get("namespace") or ""), str(metadata["name"]))
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        self._seen[key] = Seen(str(metadata.get("uid") or ""), node, bool(metadata.get("deletionTimestamp")), gone)
        if node or gone:
            _tell(self._waiting.get(key, ()), None if gone else pod)

    def _give_up(self, future: asyncio.Future[Object | None]) -> None:
        # a cancelled future could not be told from a cancelled caller
        if not future.done():
            self._unheard.add(future)
            future.set_result(None)

    def _forget(self) -> None:
        self._seen.clear()
        for waiting in self._waiting.values():
            for future in waiting:
                self._give_up(future)


def _tell(waiting: Iterable[asyncio.Future[Object | None]], pod: Object | None) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(pod)
