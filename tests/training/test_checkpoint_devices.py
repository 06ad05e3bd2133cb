"""Copies from devices: a device of ours that computes and copies only when it is waited for."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

try:
    import torch
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, see requirements-training.lock")

from belay.agents.training.checkpoint import devices, image, slots
from belay.agents.training.checkpoint.devices import DeviceCopy
from belay.agents.training.checkpoint.image import Image, Piece
from belay.agents.training.checkpoint.saver import Saver
from tests.bench import checkpoint_device
from tests.training import checkpoint_world as world


@dataclass(frozen=True)
class Device:
    type: str = "ours"
    index: int = 0


@dataclass
class Storage:
    """A storage in "device memory": bytes that only the device's queue changes and reads."""

    data: bytearray
    device: Device = Device()


@dataclass
class Ours:
    """A backend whose device does nothing until it is waited for, then everything up to there in order."""

    can_register: bool
    queue: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0
    registered: dict[int, int] = field(default_factory=dict)
    buffers: int = 0
    most: int = 0
    outside: list[int] = field(default_factory=list)

    def compute(self, work: Callable[[], None]) -> None:
        self.queue.append(work)

    def mark(self, device: Any) -> int:
        return len(self.queue)

    def copy(self, storage: Storage, start: int, size: int, target: int, after: int) -> int:
        def work() -> None:
            assert self.done >= after, "copied before what it must wait for"
            ctypes.memmove(target, bytes(storage.data[start : start + size]), size)

        if self.can_register and not any(a <= target and target + size <= a + n for a, n in self.registered.items()):
            self.outside.append(target)
        self.queue.append(work)
        self.most = max(self.most, len(self.queue) - self.done)
        return len(self.queue)

    def wait(self, event: int) -> None:
        while self.done < event:
            self.queue[self.done]()
            self.done += 1

    def register(self, address: int, size: int) -> Callable[[], object] | None:
        if not self.can_register:
            return None
        self.registered[address] = size
        return lambda: self.registered.pop(address)

    def buffer(self, size: int) -> tuple[int, Any]:
        self.buffers += 1
        kept = (ctypes.c_ubyte * size)()
        return ctypes.addressof(kept), kept


@pytest.fixture(params=[True, False], ids=["registered", "buffers"])
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ours]:
    one = Ours(request.param)
    monkeypatch.setitem(devices.BACKENDS, "ours", one)
    monkeypatch.setattr(devices, "BUFFER", 1000)
    monkeypatch.setattr(devices, "_buffers", {})
    yield one


def of_device(*sizes: int) -> tuple[Image, list[Storage]]:
    storages = [Storage(bytearray(os.urandom(size))) for size in sizes]
    pieces, start = [], 10
    for storage, size in zip(storages, sizes, strict=True):
        pieces.append(Piece(start, size, storage))
        start += size
    return Image(b"structure!", pieces, b"tail", start + 4), storages


def expected(storages: list[Storage]) -> bytes:
    return b"structure!" + b"".join(storage.data for storage in storages) + b"tail"


def test_all_bytes_of_a_device_arrive(ours: Ours):
    found, storages = of_device(3500, 0, 1, 1000, 7)
    memory = slots.create(found.size)
    pinned = devices.pin(memory, found.kinds)
    assert pinned is ours.can_register
    found.fill(memory.address, 1, pinned=pinned)
    assert bytes(memory.content(found.size)) == expected(storages)
    assert not ours.outside, "the device wrote to memory that is not pinned"
    if not ours.can_register:
        assert ours.buffers == devices.BUFFERS and ours.most <= devices.BUFFERS + 1
        # the buffers are kept from save to save
        found.fill(memory.address, 1)
        assert ours.buffers == devices.BUFFERS
    memory.close()


def test_a_copy_waits_for_the_work_before_the_call_only(ours: Ours):
    found, (storage,) = of_device(2500)
    memory = slots.create(found.size)

    def computed() -> None:
        storage.data[:] = b"x" * 2500

    ours.compute(computed)
    after = devices.marks(piece.storage for piece in found.pieces)
    found.fill(memory.address, 1, after=after, pinned=devices.pin(memory, found.kinds))
    assert bytes(memory.content(found.size)) == expected([storage]) and storage.data == b"x" * 2500
    memory.close()


def test_a_slot_is_registered_once_and_let_go_with_its_memory(ours: Ours):
    memory = slots.create(100)
    for _ in range(3):
        devices.pin(memory, ["ours"])
    assert len(ours.registered) == ours.can_register
    del memory
    gc.collect()
    assert not ours.registered


def test_a_save_of_a_device_is_the_state_of_the_call(ours: Ours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found, (storage,) = of_device(5000)
    monkeypatch.setattr(image, "image", lambda obj: found)
    was = expected([storage])
    with world.writing(tmp_path / "work") as client:
        saver = Saver(client)
        saver.reserve(None, slots=1)
        assert bool(ours.registered) is ours.can_register
        for way in (saver.save, saver.save_async):
            pending = way(None, tmp_path / "a.pt")
            assert pending.durable(60.0)
            assert (tmp_path / "a.pt").read_bytes() == was
            (tmp_path / "a.pt").unlink()
    # and without a writing process
    Saver(None).save(None, tmp_path / "b.pt")
    assert (tmp_path / "b.pt").read_bytes() == was


def test_host_and_device_go_into_one_file(ours: Ours):
    found, storages = of_device(1500)
    host = torch.arange(250, dtype=torch.float32).untyped_storage()
    both = Image(found.structure, [*found.pieces, Piece(1510, 1000, host)], b"tail", 2514)
    memory = slots.create(both.size)
    both.fill(memory.address, 2, pinned=devices.pin(memory, both.kinds))
    assert bytes(memory.content(2510)) == b"structure!" + storages[0].data + bytes(host)
    memory.close()


def test_torchs_own_backend_orders_its_streams():
    """Against a stand-in of a device module: what torch's backend asks of `torch.cuda` or `torch.npu`."""
    said: list[str] = []

    class Event:
        def __init__(self, blocking: bool) -> None:
            assert blocking, "a thread that spins takes a core from training"

        def record(self, stream: str) -> None:
            said.append(f"record {stream}")

        def synchronize(self) -> None:
            said.append("synchronize")

    class Stream:
        def __init__(self, device: Any) -> None:
            said.append(f"stream of {device.type}")

        def __enter__(self) -> None:
            said.append("enter")

        def __exit__(self, *_: object) -> None:
            said.append("exit")

        def wait_event(self, event: Event) -> None:
            said.append("wait")

        def __str__(self) -> str:
            return "copies"

    class Module:
        @staticmethod
        def current_stream(device: Any) -> str:
            return "current"

        @staticmethod
        def stream(stream: Stream) -> Stream:
            return stream

    one = devices.TorchBackend.__new__(devices.TorchBackend)
    Module.Event, Module.Stream = Event, Stream  # type: ignore[attr-defined]
    one.kind, one.module, one._streams = "ours", Module, {}
    storage = torch.arange(10, dtype=torch.uint8).untyped_storage()
    target = (ctypes.c_ubyte * 4)()
    for _ in range(2):
        one.wait(one.copy(storage, 3, 4, ctypes.addressof(target), one.mark(storage.device)))
    assert bytes(target) == bytes([3, 4, 5, 6])
    order = ["record current", "enter", "wait", "record copies", "exit", "synchronize"]
    assert said == [order[0], "stream of cpu", *order[1:], *order]
    assert one.register(0, 4096) is None, "only CUDA's runtime is given memory"


def test_cuda_registers_memory_and_falls_back_when_it_may_not(monkeypatch: pytest.MonkeyPatch):
    class Runtime:
        answer = 0
        held: set[int] = set()

        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
            assert flags == 1
            self.held.add(address)
            return self.answer

        def cudaHostUnregister(self, address: int) -> int:
            self.held.remove(address)
            return 0

    class Module:
        @staticmethod
        def cudart() -> Runtime:
            return runtime

    runtime = Runtime()
    one = devices.TorchBackend.__new__(devices.TorchBackend)
    one.kind, one.module, one._streams = "cuda", Module, {}
    undo = one.register(4096, 100)
    assert undo is not None and runtime.held == {4096}
    undo()
    assert not runtime.held
    runtime.answer = 2
    forgotten: list[bool] = []
    monkeypatch.setattr(one, "_forget_error", lambda: forgotten.append(True))
    assert one.register(4096, 100) is None and forgotten


def test_copies_of_nothing_end_at_once():
    devices.Copies([], {}, True).finish()
    assert DeviceCopy(0, None, 0).size == 0


@pytest.mark.parametrize("where", ["host", "begin"])
def test_a_device_has_ended_its_copies_when_a_fill_fails(ours: Ours, monkeypatch: pytest.MonkeyPatch, where: str):
    found, _ = of_device(2500, 2500)
    memory = slots.create(found.size)
    begin = ours.copy

    def full(*_: object) -> None:
        raise MemoryError("no memory")

    def second(storage: Storage, start: int, size: int, target: int, after: int) -> int:
        if len(ours.queue) > 1:
            full()
        return begin(storage, start, size, target, after)

    if where == "host":
        monkeypatch.setattr("belay.agents.training.checkpoint.blocks.copy", full)
    else:
        monkeypatch.setattr(ours, "copy", second)
    if where == "begin":
        ours.compute(lambda: None)
    with pytest.raises(MemoryError, match="no memory"):
        found.fill(memory.address, 1, pinned=devices.pin(memory, found.kinds))
    assert ours.done == len(ours.queue), "the device still writes to memory that is given back"
    assert ours.can_register or where == "host" or ours.done == 2
    memory.close()


def test_the_benchmark_measures_every_figure_of_the_device_that_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The host's memory in the place of a device's: what the section does where there is an accelerator."""
    waited: list[bool] = []

    class Module:
        @staticmethod
        def synchronize() -> None:
            waited.append(True)

        @staticmethod
        def mem_get_info() -> tuple[int, int]:
            return 8 << 20, 16 << 20

    class Accelerated:
        accelerator = SimpleNamespace(is_available=lambda: True, current_accelerator=lambda: torch.device("cpu"))

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def get_device_module(self, device: Any) -> type[Module]:
            return Module

        def empty_like(self, tensor: Any, *, device: str, pin_memory: bool) -> Any:
            assert device == "cpu" and pin_memory
            return torch.empty_like(tensor)

    monkeypatch.setattr(checkpoint_device, "PASSES", 1)
    monkeypatch.setattr(checkpoint_device, "WIDTH", 64)
    rows = checkpoint_device._measure(Accelerated(), tmp_path)
    assert [len(row.runs) for row in rows] == [5] * 4 and [row.limit for row in rows] == [20, 5, 1.02, 1.1]
    assert rows[0].remark == "0.0 GiB" and all(run > 0 for row in rows for run in row.runs)
    assert len(waited) > 20, "what a device does is timed to its end"
