"""Sources of the bytes of a checkpoint: a file, memory, or any file-like object with ranges."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from belay.agents.training.checkpoint import blocks, pages, sums
from belay.agents.training.checkpoint.errors import Damaged

PAGE = 4096
DIRECT = 64 << 20
"""Files of at least this size are read past the page cache, in bytes."""
MAPPED_STEP = 16 << 20
"""Bytes of a mapped file that are read at a time."""
TAIL_READ = 1 << 20
"""Bytes to read from the end of a file first; they almost always contain the whole map."""


class Source(Protocol):
    """Bytes with addresses; ``name`` is for messages."""

    name: str
    size: int

    def into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes from ``start``; :class:`Damaged` when there are fewer."""

    def block(self, start: int, size: int, buffer: mmap.mmap) -> memoryview:
        """``size`` bytes from ``start``, where they lie or in ``buffer``, which is a page greater."""


class FileSource:
    """A file, open until :meth:`close`; large ones bypass the page cache if the file system allows."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        # a pipe without a writer would be waited for
        self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self.handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.handle)
            raise OSError(errno.EINVAL, "no regular file", self.name)
        self.size = status.st_size
        self._direct: int | None = None
        if self.size >= DIRECT:
            try:
                self._direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError:
                # fall back to the page cache
                pass

    def block(self, start: int, size: int, buffer: mmap.mmap) -> memoryview:
        """``size`` bytes from ``start``, read into ``buffer``."""
        view, done = memoryview(buffer), 0
        if self._direct is not None and start % PAGE == 0:
            try:
                done = min(size, os.preadv(self._direct, [view[: -(-size // PAGE) * PAGE]], start)) // PAGE * PAGE
            except OSError:
                # other sector size, or a bad disk: reading through the cache shows which
                done = 0
        if done < size:
            self.into(start + done, view[done:size])
        return view[:size]

    def into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` from ``start``."""
        while len(target):
            try:
                done = os.preadv(self.handle, [target], start)
            except OSError as error:
                raise Damaged(f"{self.name}: bytes {start}..{start + len(target)} cannot be read: {error}") from error
            if not done:
                raise Damaged(f"{self.name} ends at {start}; {len(target)} more bytes are due: truncated")
            target, start = target[done:], start + done

    def close(self) -> None:
        """Close the file."""
        os.close(self.handle)
        if self._direct is not None:
            os.close(self._direct)


class MappedFile:
    """A private mapping of a whole open file. What cannot be read is an error here, and not the end of the process that
    a plain access to the mapping would be.

    The file is read in order, by one thread at a time: the kernel's readahead takes reads of several threads for random
    ones, and 2 GiB take 1.1 s instead of 0.6 s.
    """

    def __init__(self, file: FileSource) -> None:
        self.name, self.size, self._file = file.name, file.size, file
        self.memory = mmap.mmap(file.handle, file.size, flags=mmap.MAP_PRIVATE)
        self._view = memoryview(self.memory)
        self._start = address(self._view)
        self._reading = threading.Lock()
        self._read = 0
        self._refused: set[int] = set()
        """Starts of steps that the kernel did not read."""

    def block(self, start: int, size: int, buffer: mmap.mmap) -> memoryview:
        """``size`` bytes where they lie, read from the file before; read into ``buffer`` where the kernel cannot."""
        with self._reading:
            while self._read < start + size:
                if not pages.advise(self._start + self._read, min(MAPPED_STEP, self.size - self._read), "read"):
                    self._refused.add(self._read)
                self._read += MAPPED_STEP
        first = start // MAPPED_STEP * MAPPED_STEP
        if self._refused.isdisjoint(range(first, start + size, MAPPED_STEP)):
            return self._view[start : start + size]
        found = memoryview(buffer)[:size]
        self._file.into(start, found)
        return found

    def into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` from ``start``."""
        self._file.into(start, target)


class MemorySource:
    """Bytes in memory, as a view that stays valid until reading has ended."""

    def __init__(self, name: str, view: memoryview) -> None:
        self.name, self.view, self.size = name, view, len(view)

    def block(self, start: int, size: int, buffer: mmap.mmap) -> memoryview:
        """``size`` bytes where they lie."""
        if start + size > self.size:
            raise Damaged(f"{self.name} has {self.size} bytes; {start + size} are due: truncated")
        return self.view[start : start + size]

    def into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` from ``start``."""
        if start + len(target) > self.size:
            raise Damaged(f"{self.name} has {self.size} bytes; {start + len(target)} are due: truncated")
        ctypes.memmove(address(target), address(self.view) + start, len(target))


def address(view: memoryview) -> int:
    """Address of a writable view."""
    if not len(view):
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def read(source: Source, start: int, size: int) -> bytes:
    """``size`` bytes from ``start``."""
    data = bytearray(size)
    source.into(start, memoryview(data))
    return bytes(data)


def gather(
    source: Source,
    targets: list[tuple[int, memoryview]],
    known: sums.Sums | None,
    threads: int,
    everything: bool = True,
) -> list[tuple[int, int]]:
    """Fill all targets, (start in the source, view) each, in order and not overlapping, by parallel threads.

    With ``known`` every block of the file is verified on the way, including those outside the targets unless
    ``everything`` is False; returns the damaged ranges (start, end) in bytes.
    """
    size = known.block if known else sums.BLOCK
    plan = _by_block(targets, size)
    wanted = range(len(known.values)) if known and everything else sorted(plan)
    return _blocks(source, list(wanted), size, known, threads, plan, None)


def read_all(source: Source, threads: int) -> None:
    """Read everything once, comparing nothing. Raises :class:`Damaged` for what cannot be read."""
    _blocks(source, list(range(-(-source.size // sums.BLOCK))), sums.BLOCK, None, threads, {}, None)


def prove(
    source: Source, known: sums.Sums, threads: int, progress: Callable[[int], None] | None = None
) -> list[tuple[int, int]]:
    """Read everything and return the damaged ranges; ``progress`` gets the bytes of each finished block."""
    return _blocks(source, list(range(len(known.values))), known.block, known, threads, {}, progress)


def _blocks(
    source: Source,
    wanted: list[int],
    size: int,
    known: sums.Sums | None,
    threads: int,
    plan: dict[int, list[tuple[int, memoryview]]],
    progress: Callable[[int], None] | None,
) -> list[tuple[int, int]]:
    hashing = sums.function(known.algorithm, source.name) if known else None
    if known and known.size != source.size:
        raise Damaged(f"{source.name} has {source.size} bytes, its sums are of {known.size}: truncated or overwritten")
    damaged: list[tuple[int, int]] = []
    spare: list[mmap.mmap] = []

    def work(place: int) -> None:
        number = wanted[place]
        start, end = number * size, min(source.size, (number + 1) * size)
        try:
            buffer = spare.pop()
        except IndexError:
            buffer = mmap.mmap(-1, size + PAGE)
        with source.block(start, end - start, buffer) as found:
            if known and hashing and hashing(found) != known.values[number]:
                damaged.append((start, end))
            for begin, view in plan.get(number, ()):
                ctypes.memmove(address(view), address(found) + begin - start, len(view))
        spare.append(buffer)
        if progress:
            progress(end - start)

    # more threads than cores, since some wait for the disk while others copy
    blocks.each(len(wanted), work, max(threads, 4) if threads > 1 else 1)
    return sorted(damaged)


def _by_block(targets: list[tuple[int, memoryview]], size: int) -> dict[int, list[tuple[int, memoryview]]]:
    plan: dict[int, list[tuple[int, memoryview]]] = {}
    for start, view in targets:
        while len(view):
            number = start // size
            part = min(len(view), (number + 1) * size - start)
            plan.setdefault(number, []).append((start, view[:part]))
            start, view = start + part, view[part:]
    return plan
