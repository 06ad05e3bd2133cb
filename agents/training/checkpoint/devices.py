"""Copies from devices to host memory, on a stream of their own, while the device computes on.

A copy waits for what the caller's stream had to do at the call, and for nothing that comes later. CUDA's driver is
given the slots of the pool (``cudaHostRegister``), so that the device writes into them itself; drivers that cannot take
given memory (Ascend's through torch_npu) copy to a few pinned buffers, which the copying thread empties into the slot.
Pageable memory would make each copy synchronous: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution".
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from belay.agents.training.checkpoint.slots import Memory

log = logging.getLogger("belay.checkpoint")

BUFFER = 32 << 20
"""Bytes of a pinned buffer."""
BUFFERS = 4
"""Pinned buffers of a device: one is filled while another is emptied, with two to spare for a late thread."""
_PORTABLE = 1
"""``cudaHostRegisterPortable``: the memory counts as pinned for every device of this process."""


class DeviceBackend(Protocol):
    """What copying from one kind of device takes. Events are opaque: only the backend that made one waits for it."""

    def mark(self, device: Any) -> Any:
        """An event behind all work in the caller's current stream of ``device``."""

    def copy(self, storage: Any, start: int, size: int, target: int, after: Any) -> Any:
        """Begin to copy ``size`` bytes of ``storage`` from ``start`` to host memory at ``target``, once ``after`` has
        happened; the event at its end.
        """

    def wait(self, event: Any) -> None:
        """Wait for an event without the interpreter lock."""

    def register(self, address: int, size: int) -> Callable[[], object] | None:
        """Pin host memory that exists already; what undoes it, or ``None`` where the driver cannot."""

    def buffer(self, size: int) -> tuple[int, Any]:
        """New pinned host memory: its address, and what keeps it."""


class TorchBackend:
    """Any device that torch knows by a module with streams and events: ``torch.cuda``, ``torch.npu``, ``torch.xpu``."""

    def __init__(self, kind: str) -> None:
        self.kind, self.module = kind, torch.get_device_module(kind)
        self._streams: dict[int, Any] = {}

    def mark(self, device: Any) -> Any:
        """An event in the current stream."""
        event = self.module.Event(blocking=True)
        event.record(self.module.current_stream(device))
        return event

    def copy(self, storage: Any, start: int, size: int, target: int, after: Any) -> Any:
        """A copy in the stream for copies."""
        stream = self._stream(storage.device)
        host: Any = (ctypes.c_ubyte * size).from_address(target)
        with self.module.stream(stream):
            stream.wait_event(after)
            source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            torch.frombuffer(host, dtype=torch.uint8).copy_(source[start : start + size], non_blocking=True)
            event = self.module.Event(blocking=True)
            event.record(stream)
        return event

    def _stream(self, device: Any) -> Any:
        index = device.index or 0
        if index not in self._streams:
            self._streams[index] = self.module.Stream(device)
        return self._streams[index]

    def wait(self, event: Any) -> None:
        """Wait for an event."""
        event.synchronize()

    def register(self, address: int, size: int) -> Callable[[], object] | None:
        """By CUDA's runtime; torch has no such call for other devices."""
        if self.kind != "cuda":
            return None
        runtime = self.module.cudart()
        if error := int(runtime.cudaHostRegister(address, size, _PORTABLE)):
            log.warning("%d bytes cannot be pinned (CUDA error %d): copies go through pinned buffers", size, error)
            self._forget_error()
            return None
        return partial(runtime.cudaHostUnregister, address)

    def _forget_error(self) -> None:
        """The failure of a call would otherwise be reported by the next kernel, as its own."""
        with suppress(RuntimeError):
            torch.zeros(1, device=self.kind)

    def buffer(self, size: int) -> tuple[int, Any]:
        """Pinned by torch's own allocator."""
        found = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return found.data_ptr(), found


BACKENDS: dict[str, DeviceBackend] = {}
"""Kind of device → its backend, made when it is first needed."""


def backend(kind: str) -> DeviceBackend:
    """The backend of a kind of device."""
    if kind not in BACKENDS:
        BACKENDS[kind] = TorchBackend(kind)
    return BACKENDS[kind]


@dataclass(frozen=True)
class DeviceCopy:
    """All of ``storage``, ``size`` bytes, to host memory at ``target``."""

    target: int
    storage: Any
    size: int


def marks(storages: Iterable[Any]) -> dict[Any, Any]:
    """An event per device in the caller's streams: to be taken before another thread begins the copies."""
    found: dict[Any, Any] = {}
    for storage in storages:
        device = storage.device
        if device.type != "cpu" and device not in found:
            found[device] = backend(device.type).mark(device)
    return found


def pin(memory: Memory, kinds: Iterable[str]) -> bool:
    """Let devices of these kinds write to a slot themselves; registered once, until the slot is let go. False when one
    of the kinds cannot.
    """
    whole = True
    for kind in kinds:
        if kind not in memory.pinned:
            undo = backend(kind).register(memory.address, memory.capacity)
            memory.pinned[kind] = undo is not None
            if undo is not None:
                weakref.finalize(memory, undo).atexit = False
        whole = whole and memory.pinned[kind]
    return whole


class Copies:
    """Copies that are under way; :meth:`finish` returns when the host has all bytes."""

    def __init__(self, pieces: Sequence[DeviceCopy], after: dict[Any, Any], pinned: bool) -> None:
        self._events: list[tuple[DeviceBackend, Any]] = []
        self._staged = [] if pinned else list(pieces)
        self.after = after or marks(piece.storage for piece in pieces)
        if pinned:
            try:
                for piece in pieces:
                    self._begin(piece)
            except BaseException:
                self.settle()
                raise

    def _begin(self, piece: DeviceCopy) -> None:
        if piece.size:
            one = backend(piece.storage.device.type)
            after = self.after[piece.storage.device]
            self._events.append((one, one.copy(piece.storage, 0, piece.size, piece.target, after)))

    def finish(self) -> None:
        """Wait for what goes directly, and carry the rest through pinned buffers."""
        for kind in sorted({piece.storage.device.type for piece in self._staged}):
            _through_buffers(kind, [piece for piece in self._staged if piece.storage.device.type == kind], self.after)
        for one, event in self._events:
            one.wait(event)

    def settle(self) -> None:
        """Wait for the copies that have begun, after an error: their target may be given back then."""
        for one, event in self._events:
            _settled(one, event)


def _settled(one: DeviceBackend, event: Any) -> None:
    try:
        one.wait(event)
    except Exception as error:
        # the error that came first is raised; the other copies are waited for too
        log.warning("a copy from a device, begun before an error, failed too: %s", str(error)[:300])


_buffers: dict[str, list[tuple[int, Any]]] = {}


def _through_buffers(kind: str, pieces: Sequence[DeviceCopy], after: dict[Any, Any]) -> None:
    """Parts of ``BUFFER`` bytes in turn through pinned buffers of this kind; a call beside another makes its own."""
    one = backend(kind)
    free: list[tuple[int, Any]] = _buffers.pop(kind, []) or [one.buffer(BUFFER) for _ in range(BUFFERS)]
    filled: deque[tuple[Any, tuple[int, Any], int, int]] = deque()

    def empty() -> None:
        event, buffer, target, size = filled.popleft()
        one.wait(event)
        ctypes.memmove(target, buffer[0], size)
        free.append(buffer)

    try:
        for piece in pieces:
            for start in range(0, piece.size, BUFFER):
                if not free:
                    empty()
                buffer, size = free.pop(), min(BUFFER, piece.size - start)
                event = one.copy(piece.storage, start, size, buffer[0], after[piece.storage.device])
                filled.append((event, buffer, piece.target + start, size))
        while filled:
            empty()
    except BaseException:
        # the buffers are let go
        for event, *_ in filled:
            _settled(one, event)
        raise
    # kept for the next save: pinning costs more than copying
    _buffers[kind] = free
