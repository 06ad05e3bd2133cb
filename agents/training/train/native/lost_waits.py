"""Gloo: waits for messages that gloo has lost, and their end.

When the socket of a pair of ranks fails, gloo ends the operations that are queued for it, and forgets two that are in
no queue any more: a message of which a part was received, and one that it was about to send, or of which a part was
sent (``gloo/transport/tcp/pair.cc``, ``Pair::signalException``: ``rx_.ubuf`` and ``tx_[].ubuf``). The thread that waits
for such a message stays in ``UnboundBuffer::waitRecv`` or ``waitSend`` until the time-out of its group, with the main
thread behind it, however many sockets are shut down. A rank that is killed in the middle of a message of several
megabytes does this to its peers each time; with small messages it takes a death between two system calls.

The kernel says in which futex a thread waits; it lies in the buffer of the message, whose class is known by the table
of its methods. Gloo's own method for a failed socket is then called for this buffer, and the collective raises.

A thread that connects a group waits likewise for a rank that died before it came (``Pair::waitUntilConnected``), where
no socket is there to shut down. The pair is closed then.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import platform
import struct
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNCHANGED = 0.25
"""Seconds for which a wait must stand before it counts as lost while gloo still has sockets of its group open: the
thread that would end it may want for a processor."""
CLOSED = 0.02
"""The same where gloo has closed them all and ends no wait any more."""
_FUTEX = {"x86_64": 202, "aarch64": 98}
_BUFFER = "_ZTVN4gloo9transport3tcp13UnboundBufferE"
_SIGNAL = "_ZN4gloo9transport3tcp13UnboundBuffer15signalExceptionENSt15__exception_ptr13exception_ptrE"
_PAIR = "_ZTVN4gloo9transport3tcp4PairE"
_CLOSE = "_ZN4gloo9transport3tcp4Pair5closeEv"
_METHODS = 16
"""Bytes of a C++ class table before its methods, where objects point to."""
_IN_BUFFER, _IN_PAIR = 256, 768
"""Bytes before the futex in which the beginning of its object is looked for. In a buffer two condition variables, a
mutex and five words lie between them, in a pair two addresses of sockets beside such."""
_RUN_LOOP = "pt_gloo_runloop"
"""The threads that run the collectives of one group."""


@dataclass(frozen=True)
class GlooWait:
    """A thread that waits in an object of gloo, which begins at ``place``. ``switches``: how often it has given up its
    processor."""

    thread: int
    place: int
    switches: str


@dataclass(frozen=True)
class _Kind:
    """A class of gloo whose objects threads wait in: its table of methods, and how far into an object the futex lies at
    most."""

    table: int
    before: int


class LostWaits:
    """The waits of this process for messages and ranks of groups whose generation is over."""

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._since: dict[GlooWait, float] = {}
        self._unconnected: dict[GlooWait, float] = {}
        self._of_threads: dict[int, int] = {}
        """Thread of a run loop → a generation that is not older than its group."""

    def end(self, generation: int, left: bool, closed: bool) -> int:
        """End the lost waits of groups before ``generation``, the newest; their number. Takes some milliseconds.

        ``left``: whether the main thread has left those groups; until then all waits are theirs, afterwards those of
        their run loops. ``closed``: whether gloo has closed all of their sockets.
        """
        library = _gloo()
        if library is None:
            return 0
        # a wait must not be ended by two threads: its message is gone after the first
        with self._looking:
            self._look(generation, left, library)
            if closed and self._since:
                time.sleep(CLOSED)
                self._look(generation, left, library)
            now, enough = time.monotonic(), CLOSED if closed else UNCHANGED
            lost = [wait for wait, since in self._since.items() if now - since >= enough]
            for wait in lost:
                library.fail(wait.place)
                del self._since[wait]
        return len(lost)

    def unconnected(self, threads: Collection[int]) -> int:
        """End the waits of these threads, each of which is inside of gloo and connects a group of an ended generation,
        for ranks that have not come; their number."""
        library = _gloo()
        if library is None:
            return 0
        with self._looking:
            now = time.monotonic()
            waits = _waits(library.pair, threads)
            self._unconnected = {wait: self._unconnected.get(wait, now) for wait in waits}
            # one that has just begun may end as well, and its pair with it
            lost = [wait for wait, since in self._unconnected.items() if now - since >= UNCHANGED]
            for wait in lost:
                library.close(wait.place)
                del self._unconnected[wait]
        return len(lost)

    def _look(self, generation: int, left: bool, library: _Gloo) -> None:
        """Note since when each wait of an ended group stands."""
        loops = [thread for thread in _threads() if _read(f"/proc/self/task/{thread}/comm").startswith(_RUN_LOOP)]
        # one that is seen for the first time may be of the newest group
        self._of_threads = {thread: self._of_threads.get(thread, generation) for thread in loops}

        found = _waits(library.buffer, _threads())
        waits = (wait for wait in found if not left or self._is_older(wait.thread, generation))
        now = time.monotonic()
        self._since = {wait: self._since.get(wait, now) for wait in waits}

    def _is_older(self, thread: int, generation: int) -> bool:
        return self._of_threads.get(thread, generation) < generation


class _Gloo:
    """What is called of gloo. Raises ``AttributeError`` or ``ValueError`` where this PyTorch has no such symbol."""

    def __init__(self, library: ctypes.CDLL, standard: ctypes.CDLL) -> None:
        self.buffer = _Kind(_address(library, _BUFFER) + _METHODS, _IN_BUFFER)
        self.pair = _Kind(_address(library, _PAIR) + _METHODS, _IN_PAIR)
        self.close = _function(library, _CLOSE, None, ctypes.c_void_p)
        """End a pair, connected or not: threads that wait for its connection go on."""
        self._signal = _function(library, _SIGNAL, None, ctypes.c_void_p, ctypes.c_void_p)
        self._error = _Error(standard, b"the peer of this collective was lost in the middle of a message")

    def fail(self, buffer: int) -> None:
        """Let the threads that wait for this message raise."""
        with self._error.held() as pointer:
            self._signal(buffer, pointer)


class _Error:
    """A ``std::runtime_error``, which stays for the life of the process."""

    def __init__(self, standard: ctypes.CDLL, text: bytes) -> None:
        allocate = _function(standard, "__cxa_allocate_exception", ctypes.c_void_p, ctypes.c_size_t)
        begin = _function(standard, "__cxa_init_primary_exception", ctypes.c_void_p, *(ctypes.c_void_p,) * 3)
        construct = _function(standard, "_ZNSt13runtime_errorC1EPKc", None, ctypes.c_void_p, ctypes.c_char_p)
        pointer = "_ZNSt15__exception_ptr13exception_ptr"
        self._hold = _function(standard, f"{pointer}C1EPv", None, ctypes.c_void_p, ctypes.c_void_p)
        self._release = _function(standard, f"{pointer}D1Ev", None, ctypes.c_void_p)

        # as std::make_exception_ptr does it
        self._thrown = allocate(2 * ctypes.sizeof(ctypes.c_void_p))
        begin(self._thrown, _address(standard, "_ZTISt13runtime_error"), _address(standard, "_ZNSt13runtime_errorD1Ev"))
        construct(self._thrown, text)
        self._kept = ctypes.c_void_p()
        self._hold(ctypes.byref(self._kept), self._thrown)

    @contextlib.contextmanager
    def held(self) -> Iterator[Any]:
        """A ``std::exception_ptr`` to pass to a function, which may move it to a place of its own."""
        pointer = ctypes.c_void_p()
        self._hold(ctypes.byref(pointer), self._thrown)
        yield ctypes.byref(pointer)
        self._release(ctypes.byref(pointer))


def _function(library: ctypes.CDLL, name: str, returns: Any, *takes: Any) -> Any:
    found = library[name]
    found.restype, found.argtypes = returns, takes
    return found


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(library, name))


@functools.cache
def _gloo() -> _Gloo | None:
    """The gloo of the PyTorch of this process; None where it does not show its symbols."""
    if platform.machine() not in _FUTEX:
        return None
    import torch

    folder = Path(torch.__file__).parent / "lib"
    try:
        return _Gloo(ctypes.CDLL(str(folder / "libtorch_cpu.so")), ctypes.CDLL("libstdc++.so.6"))
    except (OSError, AttributeError, ValueError):
        return None


def _waits(kind: _Kind, threads: Collection[int]) -> Iterator[GlooWait]:
    """Those of these threads that wait in an object of this kind."""
    with contextlib.suppress(OSError), open("/proc/self/mem", "rb", buffering=0) as memory:
        for thread in threads:
            # number of the call, its arguments
            fields = _read(f"/proc/self/task/{thread}/syscall").split()
            if len(fields) < 2 or fields[0] != str(_FUTEX[platform.machine()]):
                continue
            if place := _object_around(memory, int(fields[1], 16), kind):
                status = _read(f"/proc/self/task/{thread}/status")
                switches = [line for line in status.splitlines() if line.startswith("voluntary")]
                yield GlooWait(thread, place, "".join(switches))


def _object_around(memory: Any, address: int, kind: _Kind) -> int:
    """The object of this kind that a futex lies in; 0 when it lies in something else."""
    word = struct.calcsize("P")
    end = address - address % word
    # where no memory lies before the page of the futex, the object begins in that page
    for start in (end - kind.before, max(end - kind.before, end - end % mmap.PAGESIZE)):
        found = _bytes(memory, start, end - start)
        words = struct.unpack(f"{len(found) // word}P", found)
        for place in reversed(range(len(words))):
            if words[place] == kind.table:
                return start + word * place
    return 0


def _bytes(memory: Any, start: int, length: int) -> bytes:
    """What lies in the memory of this process; nothing where no memory is."""
    try:
        memory.seek(start)
        found: bytes = memory.read(length)
    except (OSError, OverflowError, ValueError):
        return b""
    return found if len(found) == length else b""


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _read(path: str) -> str:
    """A file of the kernel about a thread; empty when the thread has ended."""
    try:
        # not by pathlib, which interns each part of a path: numbers of threads that come and go let Python make its
        # table of such strings again and again, megabytes in the arena of another thread each time
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
