"""State between ranks: how it is divided and checked; how a group's keys meet; what a new DDP need not send again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.needs import lacking

try:
    import torch
except ImportError:
    lacking("torch is not installed: make venv-training")

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from belay.agents.training.train.decide.rendezvous import Rendezvous
from belay.agents.training.train.protocol import Store, StoreAnswer
from belay.agents.training.train.values import join, split
from belay.agents.training.train.worker import repair
from belay.agents.training.train.worker.buckets import Buckets
from belay.agents.training.train.worker.interruption import Interrupted
from belay.agents.training.train.worker.protected import Protected
from belay.agents.training.train.worker.store import FormingStore


class Wire:
    """In the place of ``torch.distributed``: one direction, messages in order; ``hurt`` changes the nth one."""

    def __init__(self, hurt: int = -1) -> None:
        self.sent: queue.Queue[torch.Tensor] = queue.Queue()
        self.count, self.hurt = 0, hurt

    def isend(self, data: torch.Tensor, receiver: int) -> Any:
        copy = data.clone()
        if self.count == self.hurt:
            raw = copy.view(torch.uint8)
            # the end of the first message is padding
            raw[min(40, raw.numel() - 1)] ^= 1
        self.count += 1
        self.sent.put(copy)
        return SimpleNamespace(wait=lambda: None)

    def irecv(self, data: torch.Tensor, donor: int) -> Any:
        found = self.sent.get(timeout=10)
        assert (found.shape, found.dtype) == (data.shape, data.dtype)
        return SimpleNamespace(wait=lambda: data.copy_(found))

    def send(self, data: torch.Tensor, receiver: int) -> None:
        self.isend(data, receiver).wait()

    def recv(self, data: torch.Tensor, donor: int) -> None:
        self.irecv(data, donor).wait()


def protected(seed: int, *sizes: int) -> Protected:
    made = torch.Generator().manual_seed(seed)
    state = {f"t{index}": torch.randn(size, generator=made) for index, size in enumerate(sizes)}
    more = {"half": torch.randn(3, 5, generator=made).bfloat16(), "none": torch.zeros(0), "one": torch.tensor(seed)}
    return Protected(None, None, None, state | more, 0)


def copied(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], hurt: int = -1) -> Wire:
    wire, donor, receiver = Wire(hurt), protected(1, *sizes), protected(2, *sizes)
    monkeypatch.setattr(repair, "dist", wire)
    thread = threading.Thread(target=repair.send_state, args=(donor, 1, 7))
    thread.start()
    try:
        taken = repair.receive_state(receiver, 0, 7)
    finally:
        thread.join(10)
    assert taken == sum(t.numel() * t.element_size() for t in donor.tensors.values())
    assert not receiver.whole  # until the caller has the order of buckets, too
    for name, tensor in donor.tensors.items():
        assert torch.equal(receiver.tensors[name], tensor), name
    return wire


def test_a_small_state_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    assert copied(monkeypatch, (10, 200)).count == 1


def test_a_state_of_small_and_large_tensors_arrives_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "PIECE", 4096)
    monkeypatch.setattr(repair, "SMALL", 2048)
    monkeypatch.setattr(repair, "FIRST", 1024)
    # the text is longer than the first message; large ones in pieces, small ones together, sums at the end
    assert copied(monkeypatch, (5000, 3, 511, 512, 1025, *[300] * 40)).count > 15


@pytest.mark.parametrize("which", [0, 1, 4])
def test_a_changed_byte_is_noticed(monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    monkeypatch.setattr(repair, "SMALL", 2048)
    with pytest.raises(Interrupted, match=r"another checksum|cannot be read"):
        copied(monkeypatch, (600, 700, 800), hurt=which)


class Line:
    """A rank's connection to the coordinator's store."""

    def __init__(self, store: Rendezvous, rank: int) -> None:
        self.store, self.rank, self.asked = store, rank, 0

    def check(self, generation: int) -> None:
        pass

    def send(self, said: Store, payload: bytes) -> None:
        self.store.ask(str(self.rank), said.id, said.generation, said.verb, list(said.keys), split(payload))

    def ask(
        self, generation: int, verb: str, keys: Sequence[str], payload: bytes, number: int
    ) -> tuple[StoreAnswer, bytes]:
        self.asked += 1
        (answer,) = self.store.ask(str(self.rank), 1, generation, verb, list(keys), split(payload))
        return StoreAnswer(1, answer.number), join(answer.values)


def test_a_group_connects_with_one_question_for_each_rank() -> None:
    store = Rendezvous()
    store.begin(3)
    lines = [Line(store, rank) for rank in range(4)]
    stores = [FormingStore(line, 3, rank, 4) for rank, line in enumerate(lines)]  # type: ignore[arg-type]
    for rank, one in enumerate(stores):
        one.set(f"gloo/3/0/{rank}", f"address {rank}")
    for line, one in zip(lines, stores, strict=True):
        for rank in range(4):
            one.wait([f"gloo/3/0/{rank}"])
            assert one.get(f"gloo/3/0/{rank}") == f"address {rank}".encode()
        assert line.asked == 1


def test_a_repaired_model_is_not_sent_again_and_another_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "Reducer", dist.Reducer)
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    module = "torch.nn.parallel.distributed._sync_module_states"
    sent: list[torch.nn.Module] = []
    monkeypatch.setattr(module, lambda module, **_: sent.append(module))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, other, buckets = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), Buckets()
        buckets.enter(0)
        buckets.repaired(model.parameters())
        DistributedDataParallel(model)
        assert sent == [model], "nothing was repaired before step 0"
        buckets.enter(5)
        DistributedDataParallel(model)
        assert sent == [model, model], "this entry has not repaired it yet"
        buckets.repaired(model.parameters())
        DistributedDataParallel(model)
        DistributedDataParallel(other)
        assert sent == [model, model, other]
    finally:
        dist.destroy_process_group()


class Memory(bytearray):
    """Host memory of a tensor, counted while it lives."""

    now = most = 0

    def __init__(self, size: int) -> None:
        super().__init__(size)
        Memory.now += 1
        Memory.most = max(Memory.most, Memory.now)

    def __del__(self) -> None:
        Memory.now -= 1


def counted(size: int) -> torch.Tensor:
    return torch.frombuffer(Memory(size), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)


def test_few_tensors_of_a_device_lie_in_host_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "PIECE", 2048)
    monkeypatch.setattr(repair, "SMALL", 1024)
    monkeypatch.setattr(repair, "FIRST", 1024)
    monkeypatch.setattr(Memory, "now", 0)
    # the device is played by other host memory
    flat, placed = repair._bytes, repair._placed
    monkeypatch.setattr(repair, "_bytes", lambda tensor: counted(tensor.nbytes).copy_(flat(tensor)))
    monkeypatch.setattr(repair, "_placed", lambda found, kind: placed(found, kind).clone())
    monkeypatch.setattr(repair, "_host", counted)
    sizes = [1000] * 40
    wire, donor, receiver = Wire(), protected(1, *sizes), protected(2, *sizes)
    monkeypatch.setattr(repair, "dist", wire)
    for way in (lambda: repair.send_state(donor, 1, 7), lambda: repair.receive_state(receiver, 0, 7)):
        monkeypatch.setattr(Memory, "most", 0)
        way()
        # those in flight, one before and one after, and the small ones, which share a piece
        assert 0 < Memory.most <= repair.FLYING + 2 + 3
        assert not Memory.now
    assert all(torch.equal(receiver.tensors[name], tensor) for name, tensor in donor.tensors.items())
