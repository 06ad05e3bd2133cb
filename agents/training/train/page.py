"""A page of shared memory through which a rank shows its progress to its node agent, written after each step."""

from __future__ import annotations

import mmap
import os
import statistics
import struct

SIZE = 4096
KEPT_STEPS = 20
"""Number of durations for the median of a step."""
_FIELDS = struct.Struct("=qqqqq")
_DURATIONS = struct.Struct(f"={KEPT_STEPS}q")
_DURATION = struct.Struct("=q")


class Page:
    """Finished steps (-1: unknown), the time of the last one, the current generation, the time of its first step, the
    number of its steps, and the durations of the last 20. Times are nanoseconds of the host's monotonic clock. The
    median is left to who reads, which is seldom.

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

    def write(self, done: int, at: int, duration: int, first: int, generation: int, count: int) -> None:
        """Publish a step of this rank, the one number ``count`` of its generation, from 1."""
        _DURATION.pack_into(self._map, _FIELDS.size + count % KEPT_STEPS * _DURATION.size, duration)
        _FIELDS.pack_into(self._map, 0, done, at, first, generation, count)

    def read(self) -> tuple[int, int, int]:
        """Finished steps, time of the last one, median duration of a step."""
        done, at, _, _, count = _FIELDS.unpack_from(self._map, 0)
        durations = _DURATIONS.unpack_from(self._map, _FIELDS.size)
        # the first lies in the second place
        kept = durations if count >= KEPT_STEPS else durations[1 : count + 1]
        return done, at, statistics.median_high(kept) if kept else 0

    def first(self) -> tuple[int, int]:
        """Generation, and the time when its first step was finished (0: not yet)."""
        _, _, first, generation, _ = _FIELDS.unpack_from(self._map, 0)
        return generation, first

    def close(self) -> None:
        self._map.close()
