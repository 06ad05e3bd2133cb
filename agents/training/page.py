"""A page of shared memory through which a rank shows its progress to its node agent, written after each step."""

from __future__ import annotations

import mmap
import os
import struct

SIZE = 4096
_FIELDS = struct.Struct("=qqqqq")


class Page:
    """Finished steps (-1: unknown), the time of the last one, the median duration of the last 20, and the time of the
    first step of the current generation. Times are nanoseconds of the host's monotonic clock.

    A torn read is possible and harmless: the next read is right.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, SIZE)

    @staticmethod
    def create() -> int:
        """Create a page; its descriptor, which child processes do not inherit unless it is passed to them."""
        descriptor = os.memfd_create("belay-rank")
        os.ftruncate(descriptor, SIZE)
        os.pwrite(descriptor, _FIELDS.pack(-1, 0, 0, 0, 0), 0)
        return descriptor

    def write(self, done: int, at: int, median: int, first: int = 0, generation: int = 0) -> None:
        """Publish the progress of this rank."""
        _FIELDS.pack_into(self._map, 0, done, at, median, first, generation)

    def read(self) -> tuple[int, int, int]:
        """Finished steps, time of the last one, median duration of a step."""
        done, at, median, _, _ = _FIELDS.unpack_from(self._map, 0)
        return done, at, median

    def first(self) -> tuple[int, int]:
        """Generation, and the time when its first step was finished (0: not yet)."""
        _, _, _, first, generation = _FIELDS.unpack_from(self._map, 0)
        return generation, first

    def close(self) -> None:
        self._map.close()
