"""Pages for fresh memory: huge ones, and taken ahead of those who fill it, since a page fault costs more than the copy.

A huge page is quick where one lies free. Where memory is fragmented the kernel moves others for it, and a virtual
machine whose host takes free memory back gets each again: then a huge page costs many times its filling, and small
pages, which come from what was just freed, are the better ones.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

HUGE = 2 << 20
PAGE = 4096
STEP = 8 << 20
"""Bytes taken at a time."""
SLOW = 1e9
"""Bytes in a second below which huge pages are taken for slow: clearing them takes a fifth of that time at most."""
PATIENCE = 3
"""Slow steps in a row after which huge pages are given up: a busy machine makes single ones slow."""
_ADVICE = {"huge": 14, "small": 15, "read": 22, "populate": 23}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def advise(address: int, size: int, what: str) -> bool:
    """Advise the kernel on whole pages of memory: ``huge``, ``small``, ``populate`` (take them now), or ``read`` (read
    the file behind them now). False where it refuses: without huge pages, where a file cannot be read, or older than
    5.14, when pages are taken at the first access.
    """
    return bool(_libc.madvise(address, size, _ADVICE[what]) == 0)


@functools.cache
def can_populate() -> bool:
    """Whether the kernel takes pages ahead on request (from 5.14 on)."""
    with mmap.mmap(-1, PAGE) as memory:
        return advise(ctypes.addressof(ctypes.c_char.from_buffer(memory)), PAGE, "populate")


def whole(address: int, size: int, page: int = HUGE) -> tuple[int, int]:
    """Address and size of the whole pages in a range of memory; size 0 without one."""
    start = -(-address // page) * page
    return start, max(0, (address + size) // page * page - start)


class Ahead:
    """Takes the pages of ``ranges`` (address, size), in order, by a thread of its own, for the time of a with
    statement; the caller keeps the memory alive for as long.
    """

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        advise: Callable[[int, int, str], bool] = advise,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.huge = True
        self._ranges = [found for one in ranges if (found := whole(*one, page=4096))[1] >= HUGE]
        self._advise, self._clock = advise, clock
        self._left = False
        self._thread = threading.Thread(target=self.run, daemon=True, name="checkpoint-pages")

    def __enter__(self) -> Self:
        if self._ranges:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        if self._ranges:
            self._thread.join()

    def run(self) -> None:
        """Take all pages, or those up to the end of the with statement."""
        slow = 0
        for address, size in self._ranges:
            inner = whole(address, size)
            if self.huge and inner[1]:
                self._advise(*inner, "huge")
            for start in range(address, address + size, STEP):
                length = min(STEP, address + size - start)
                begin = self._clock()
                if self._left or not self._advise(start, length, "populate"):
                    return
                slow = slow + 1 if length / max(self._clock() - begin, 1e-9) < SLOW else 0
                if self.huge and slow >= PATIENCE:
                    self.huge = False
                    self._advise(*inner, "small")
