"""Saves and loads objects: through the pool if there is one, otherwise directly.

save(state, path)                   returns after one memory copy; the writing process does the rest
pending = save_async(state, path)   returns at once; ``pending.copied()`` before the optimizer changes the state
load(path)                          from memory, else from the disk, verified by its checksums
"""

from __future__ import annotations

import enum
import logging
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from belay.agents.training.checkpoint import devices, durable, image, layout, pages, reading, slots, wire
from belay.agents.training.checkpoint.client import Resident, Ticket, WriterClient
from belay.agents.training.checkpoint.errors import CheckpointError, PoolFull, WriterGone
from belay.agents.training.checkpoint.image import Image
from belay.agents.training.checkpoint.settings import WriterSettings
from belay.agents.training.checkpoint.sources import MemorySource

log = logging.getLogger("belay.checkpoint")


class Way(enum.IntEnum):
    """The way of a save, with the numbers of ``mindio_acp.save``."""

    FAILED = -1
    TORCH = 0
    MEMORY = 1
    FILE = 2


class Pending:
    """A save in progress; ``way`` is known after :meth:`copied`."""

    def __init__(self) -> None:
        self.way = Way.FAILED
        self.ticket: Ticket | None = None
        self.error: BaseException | None = None
        self._copied = threading.Event()
        self._client: WriterClient | None = None

    def copied(self, wait_s: float | None = None) -> bool:
        """Wait until the state may be changed again; False when that takes longer than ``wait_s``.

        Raises the error of the copy or of the direct write.
        """
        if not self._copied.wait(wait_s):
            return False
        if self.error is not None:
            raise self.error
        return True

    def durable(self, wait_s: float = 3000.0) -> bool:
        """Wait until the save is on the disk; False when that takes longer than ``wait_s`` seconds.

        Raises :class:`CheckpointError` with the reason when it cannot be written.
        """
        if not self.copied(wait_s):
            return False
        if self.ticket is None or self._client is None:
            return self.way is not Way.FAILED
        left = self._client.wait([self.ticket], wait_s)
        if self.ticket.error is not None:
            raise CheckpointError(f"{self.ticket.paths[0]} was not written: {self.ticket.error}")
        return not left


class Saver:
    """Saves of one process; safe for threads, one copy at a time."""

    def __init__(self, client: WriterClient | None) -> None:
        self.client = client
        self._copying = threading.Lock()
        self._warned = False
        # a permanent thread: starting one takes milliseconds in a busy interpreter
        self._background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-copy")

    def save(
        self, obj: object, path: Path, links: Sequence[Path] = (), *, mode: int = 0o600, wait_s: float = 600.0
    ) -> Pending:
        """Save ``obj`` under ``path`` and the names in ``links``; its memory may be changed when this returns.

        Raises :class:`Unsupported`, ``RuntimeError`` and ``TypeError`` for objects that cannot be stored, ``OSError``
        when it had to be written directly and that failed.
        """
        pending = Pending()
        self._run(pending, image.image(obj), _whole_paths(path, links), mode, wait_s)
        pending.copied()
        return pending

    def save_async(
        self, obj: object, path: Path, links: Sequence[Path] = (), *, mode: int = 0o600,
        done: Callable[[Pending], None] | None = None,
    ) -> Pending:  # fmt: skip
        """Like :meth:`save`, but copy while the caller computes: tensors must not change before ``copied()`` returns.

        The object's structure (numbers, texts, which tensors) is fixed when this returns. ``done`` is called by
        another thread when the copy is finished.
        """
        pending, found, paths = Pending(), image.image(obj), _whole_paths(path, links)
        # in the streams of this thread; the copying thread has others
        after = found.marks()

        def work() -> None:
            self._run(pending, found, paths, mode, 600.0, after)
            if done:
                done(pending)

        self._background.submit(work)
        return pending

    def _run(
        self, pending: Pending, found: Image, paths: tuple[Path, ...], mode: int, wait_s: float,
        after: dict[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        try:
            with self._copying:
                if not self._through_memory(pending, found, paths, mode, wait_s, after):
                    if self.client is not None:
                        self.client.before_direct(paths)
                    _directly(found, paths, mode, after)
                    pending.way = Way.FILE
        except BaseException as error:
            pending.error = error
        finally:
            pending._copied.set()

    def _through_memory(
        self, pending: Pending, found: Image, paths: tuple[Path, ...], mode: int, wait_s: float,
        after: dict[Any, Any] | None,
    ) -> bool:  # fmt: skip
        if self.client is None:
            return False
        try:
            ticket = self.client.allocate(found.size, wait_s)
            try:
                pinned = devices.pin(ticket.memory, found.kinds)
                slice_bytes = self.client.settings.slice_mb << 20
                found.fill(
                    ticket.memory.address, self.client.threads, after=after, pinned=pinned, slice_bytes=slice_bytes
                )
            except BaseException:
                self.client.drop(ticket)
                raise
            self.client.commit(ticket, paths, mode)
        except (WriterGone, PoolFull, CheckpointError) as error:
            if not self._warned or isinstance(error, PoolFull):
                log.warning("%s; %s is written directly", error, paths[0])
            self._warned = True
            return False
        self._warned = False
        pending.ticket, pending.way, pending._client = ticket, Way.MEMORY, self.client
        return True

    def load(self, path: Path, *, weights_only: bool = True, proven: bool = True, mapped: bool | None = None) -> Any:
        """The object saved under ``path``: from memory if it is there, else from the disk.

        Tensors of a large object in memory begin as a private mapping of it and are copied in the background. With
        ``mapped`` those of all objects and files do, see :func:`reading.load`: for files that are not cut short or
        written in place. With ``mapped=False`` none do. Raises :class:`NotThisFormat` for other files,
        :class:`Damaged`, :class:`Unsupported`, ``OSError``.
        """
        path = _whole(path)
        if self.client is not None:
            with ExitStack() as held:
                slot = held.enter_context(self.client.resident(path))
                memory = _mapping(slot, mapped) if slot is not None else None
                if slot is not None and memory is not None:
                    # the slot is held until the background copy is complete
                    release = held.pop_all().close
                    return reading.from_mapping(memory, slots.HEADER, slot.size, str(path), release, weights_only)
                if slot is not None:
                    return reading.from_source(MemorySource(str(path), slot.content), [], weights_only=weights_only)
        return reading.load(path, weights_only=weights_only, proven=proven, mapped=bool(mapped))

    def reserve(self, obj: object, slots: int = 2) -> None:
        """Prepare shared memory for objects of this size, so that the first saves cost no more than later ones.

        Two slots, because one may still be on its way to the disk when the next save begins.
        """
        if self.client is not None:
            try:
                found = image.image(obj)
                self.client.reserve(found.size, slots, lambda memory: devices.pin(memory, found.kinds))
            except CheckpointError as error:
                log.warning("%s", error)

    def failed(self) -> list[str]:
        """Saves of this process that could not be written, with reasons; each is returned once."""
        return self.client.failures() if self.client is not None else []

    def flush(self, wait_s: float = 3000.0) -> None:
        """Wait until everything handed over is on the disk. Raises ``TimeoutError``."""
        if self.client is not None:
            self.client.wait(None, wait_s)


def saver(work: Path | None = None, settings: WriterSettings | None = None, owner: str = "") -> Saver:
    """A saver for this process, with the writing process of ``work`` (default: the user's own)."""
    rank = os.environ.get("RANK", "")
    return Saver(WriterClient(work or wire.work_folder(), settings, owner or (f"rank-{rank}" if rank else "")))


def _directly(found: Image, paths: tuple[Path, ...], mode: int, after: dict[Any, Any] | None) -> None:
    """Write without the pool; an interrupted write leaves the old file."""
    buffer = torch.empty(max(1, found.size), dtype=torch.uint8)
    found.fill(buffer.data_ptr(), after=after)
    content = image.bytes_of(buffer.untyped_storage(), found.size)
    durable.write(paths[0], content, mode=mode, links=paths[1:])


def _mapping(slot: Resident, mapped: bool | None) -> mmap.mmap | None:
    """A private mapping of a slot; None when the object is to be copied."""
    wanted = slot.size >= layout.LARGE if mapped is None else mapped
    if not wanted or not pages.can_populate():
        return None
    if os.fstatvfs(slot.memory.handle).f_bsize > pages.PAGE:
        # a copy of reserved huge pages would take others that are reserved for saves
        return None
    try:
        return mmap.mmap(slot.memory.handle, slot.memory.length, flags=mmap.MAP_PRIVATE)
    except OSError:
        # no room in the address space: a copy fails with a better message
        return None


def _whole(path: Path) -> Path:
    """The name without symbolic links, so that memory and disk mean the same file."""
    return Path(os.path.realpath(path))


def _whole_paths(path: Path, links: Sequence[Path]) -> tuple[Path, ...]:
    return (_whole(path), *(_whole(link) for link in links))
