"""Copies and reads of many blocks of memory by a few permanent threads, without the interpreter lock."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

SLICE = 16 << 20
"""Bytes that a thread copies at a time."""
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_guard = threading.Lock()


def workers(limit: int = 16) -> int:
    """A useful number of threads on this host."""
    return max(1, min(limit, len(os.sched_getaffinity(0))))


def each(count: int, work: Callable[[int], None], threads: int) -> None:
    """Call ``work`` for 0..count-1 by up to ``threads`` threads, of which the caller is one; the first error is raised
    after all threads have left.
    """
    if count <= 1 or threads <= 1:
        for number in range(count):
            work(number)
        return
    numbers, guard, failed = itertools.count(), threading.Lock(), threading.Event()

    def drain() -> None:
        try:
            while not failed.is_set():
                with guard:
                    number = next(numbers)
                if number >= count:
                    return
                work(number)
        except BaseException:
            failed.set()
            raise

    others = [_pool(threads - 1).submit(drain) for _ in range(min(threads, count) - 1)]
    try:
        drain()
    finally:
        wait(others)
    for other in others:
        other.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """The permanent threads; a forked child gets its own."""
    key = (os.getpid(), threads)
    with _guard:
        if key not in _pools:
            _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="checkpoint")
        return _pools[key]


def copy(pieces: Sequence[tuple[int, int, int]], threads: int, piece_bytes: int = SLICE) -> None:
    """Copy memory: (target address, source address, bytes) each. The caller keeps both sides alive meanwhile.

    Small pieces travel together, great ones are cut, so that threads get about ``piece_bytes`` at a time.
    """
    batches: list[list[tuple[int, int, int]]] = []
    room = 0
    for target, source, size in pieces:
        while size > 0:
            if room <= 0:
                batches.append([])
                room = piece_bytes
            part = min(size, room)
            batches[-1].append((target, source, part))
            target, source, size, room = target + part, source + part, size - part, room - part

    def work(number: int) -> None:
        for target, source, size in batches[number]:
            ctypes.memmove(target, source, size)

    each(len(batches), work, threads)
