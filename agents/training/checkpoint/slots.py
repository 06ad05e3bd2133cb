"""Slots: pieces of shared memory (memfd) that a rank fills and the writing process writes out.

Each begins with a page that both sides read: the number of its save (``generation``) and its state. So a rank sees
without a request whether its save is on the disk, and can write it when the writing process has died.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import weakref
from pathlib import Path

from belay.agents.training.checkpoint import blocks, pages, sources

HEADER = 4096
"""Bytes before the content: a page, so that the content stays aligned for O_DIRECT."""
UNIT = 2 << 20
"""The size of a slot is a multiple of this: a huge page."""
_FIELDS = struct.Struct("<8sQQQ")
_MAGIC = b"belayck1"


class SlotState(enum.IntEnum):
    """State of the content of a slot."""

    FREE = 0
    FILLING = 1
    COMMITTED = 2
    """Complete in memory, not yet on the disk."""
    DURABLE = 3
    FAILED = 4
    HELD = 5
    """A copy for another host, kept in memory only."""


class Memory:
    """A mapped slot; ``capacity`` is the room for content in bytes."""

    def __init__(self, handle: int, length: int) -> None:
        self.handle, self.length = handle, length
        self.capacity = length - HEADER
        self._map = mmap.mmap(handle, length)
        self.view = memoryview(self._map)
        self.pinned: dict[str, bool] = {}
        """Kind of device → whether its driver was given this memory; see ``devices``."""
        # a rank lets slots go by forgetting them: an open handle would keep the memory of a removed one
        self._closing = weakref.finalize(self, os.close, handle)
        self._closing.atexit = False

    @property
    def address(self) -> int:
        """Address of the content."""
        return sources.address(self.view) + HEADER

    def content(self, size: int) -> memoryview:
        """The first ``size`` bytes of the content."""
        return self.view[HEADER : HEADER + size]

    @property
    def header(self) -> tuple[int, SlotState, int]:
        """Generation, state and size of the content."""
        magic, generation, state, size = _FIELDS.unpack_from(self.view)
        if magic != _MAGIC or size > self.capacity:
            return 0, SlotState.FREE, 0
        return generation, SlotState(state), size

    def mark(self, generation: int, state: SlotState, size: int) -> None:
        """Write generation, state and size into the header."""
        _FIELDS.pack_into(self.view, 0, _MAGIC, generation, state, size)

    def populate(self, threads: int) -> None:
        """Populate the pages now: a page fault during the copy costs ten times the copy."""
        start, step = sources.address(self.view), 64 << 20
        count = -(-self.length // step)

        def work(number: int) -> None:
            pages.advise(start + number * step, min(step, self.length - number * step), "populate")

        blocks.each(count, work, threads)

    def close(self) -> None:
        """Close the handle and the mapping; the mapping stays while a view uses it."""
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            # a view of a reader keeps the mapping until the view is dropped
            pass
        self._closing()


def create(size: int) -> Memory:
    """Shared memory for ``size`` bytes; huge pages where the host has reserved enough. Raises ``OSError``."""
    length = -(-(size + HEADER) // UNIT) * UNIT
    if _free_huge_pages() * UNIT >= length:
        try:
            return _made(length, os.MFD_CLOEXEC | os.MFD_HUGETLB | os.MFD_HUGE_2MB)
        except OSError:
            # other processes took them in the meantime
            pass
    memory = _made(length, os.MFD_CLOEXEC)
    pages.advise(sources.address(memory.view), length, "huge")
    return memory


def _made(length: int, flags: int) -> Memory:
    handle = os.memfd_create("belay-checkpoint", flags)
    try:
        os.ftruncate(handle, length)
        return Memory(handle, length)
    except BaseException:
        # the memory, which closes it, does not exist
        os.close(handle)
        raise


def _free_huge_pages() -> int:
    try:
        return int(Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())
    except (OSError, ValueError):
        return 0


def host_memory() -> int:
    """Bytes of memory that this process may use: the host's, or the control group's limit when that is less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found = min(found, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return found
