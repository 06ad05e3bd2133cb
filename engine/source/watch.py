"""When to fetch again: file events for folders, a jittered poll for every source, and requests of a webhook."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belay.engine import log
from belay.engine.source.records import SourceConfig
from belay.engine.source.tree import ROOTS

if TYPE_CHECKING:
    from watchfiles import Change

_MIN_SPACING: Final = 0.5
"""Least seconds between fetches that requests cause: at most two fetches a second in a flood of webhooks."""

_DEBOUNCE_MS: Final = 100
_STEP_MS: Final = 20
_GIT_FILES: Final = ("HEAD", "packed-refs", "logs/HEAD")
_log = log.get("source")


class Watch:
    """Wakes the consumer of `causes`. `delay` returns the seconds until the next poll."""

    def __init__(self, config: SourceConfig, delay: Callable[[], float]) -> None:
        self._root = config.local
        self._prefix = config.prefix
        self._delay = delay
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._cause: str | None = None

    def fetch_soon(self) -> None:
        """Make a fetch due, from any thread; remembered until a watcher starts."""
        self._wake_with("request")

    async def causes(self, stop: asyncio.Event) -> AsyncIterator[str]:
        """Yield why a fetch is due until `stop` is set: `start` at once, then `files`, `request` or `poll`."""
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        if self._cause:
            self._wake.set()
        stopping = asyncio.create_task(stop.wait())
        tasks: list[asyncio.Task[Any]] = [stopping]
        if self._root is not None:
            tasks.append(asyncio.create_task(self._follow_files(self._root, stop)))
        try:
            yield "start"
            while not stop.is_set():
                await self._until_woken(stopping)
                if stop.is_set():
                    return
                cause, self._cause = self._cause or "poll", None
                self._wake.clear()
                yield cause
                if cause == "request":
                    await asyncio.wait([stopping], timeout=_MIN_SPACING)
        finally:
            self._loop = self._wake = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_woken(self, stopping: asyncio.Task[bool]) -> None:
        assert self._wake is not None
        waking = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait([waking, stopping], timeout=self._delay(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            await asyncio.wait([waking])  # raises no error of the task, so that cancelling this coroutine still works

    def _wake_with(self, cause: str) -> None:
        self._cause = cause
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(wake.set)

    async def _follow_files(self, root: Path, stop: asyncio.Event) -> None:
        from watchfiles import (
            awatch,
        )  # with what it needs it takes 2 MiB, and most repositories are not on this machine

        while not stop.is_set():
            if root.is_dir():
                # a separate event: awatch sets its event when cancelled, but `stop` ends more than this watch
                ended = asyncio.Event()
                relay = asyncio.create_task(_relay(stop, ended))
                try:
                    async for _ in awatch(
                        root, watch_filter=self._matters, debounce=_DEBOUNCE_MS, step=_STEP_MS, stop_event=ended
                    ):
                        self._wake_with("files")
                except (OSError, RuntimeError) as error:
                    # out of inotify watches, or the folder vanished: polling goes on, and the watch is tried again with
                    # it
                    _log.warning("file events are not available", error=str(error))
                finally:
                    relay.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._delay()):
                    await stop.wait()

    def _matters(self, _change: Change, path: str) -> bool:
        assert self._root is not None
        try:
            relative = Path(path).relative_to(self._root).as_posix()
        except ValueError:
            return False
        if relative.startswith(".git/"):
            inner = relative.removeprefix(".git/")
            return inner in _GIT_FILES or (inner.startswith("refs/heads/") and not inner.endswith(".lock"))
        inside = relative.removeprefix(self._prefix) if relative.startswith(self._prefix) else ""
        return inside in ROOTS or inside.startswith(tuple(f"{root}/" for root in ROOTS))


async def _relay(stop: asyncio.Event, ended: asyncio.Event) -> None:
    await stop.wait()
    ended.set()
