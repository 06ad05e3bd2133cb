"""The files of accelerators, against stand-ins of torch_npu and of NCCL's groups; real ones where there are any."""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
import types
from typing import Any

import pytest

from tests import needs

if importlib.util.find_spec("torch") is None:
    if needs.required():
        raise RuntimeError("PyTorch is not installed: run make venv-training")
    pytest.skip("PyTorch is not installed: run make venv-training", allow_module_level=True)

import torch
from torch.distributed import distributed_c10d as c10d

from belay.agents.training.train.native import kinds
from belay.agents.training.train.native.nccl import Nccl
from belay.agents.training.train.native.npu import Npu
from belay.agents.training.train.worker.link_failures import is_link_failure
from belay.agents.training.train.worker.protected import Protected
from belay.agents.training.train.worker.randomness import Randomness
from belay.agents.training.train.worker.run import Run


class Group:
    """A group with a backend for one kind of device, or with gloo only."""

    def __init__(self, kind: str, log: list[Any], blocks: threading.Event | None = None) -> None:
        self.kind, self.log, self.blocks = kind, log, blocks

    def _get_backend(self, device: torch.device) -> Group:
        if device.type != self.kind:
            raise RuntimeError("No backend type associated with device type")
        return self

    def _group_start(self) -> None:
        self.log.append("start")

    def _group_end(self) -> None:
        self.log.append("end")

    def abort(self) -> None:
        if self.blocks is not None:
            self.blocks.wait(10)
        self.log.append(self)


@pytest.fixture
def pgs(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """torch's table of groups, empty."""
    table: dict[Any, Any] = {}
    # torch_npu gives the name to a device of torch
    monkeypatch.setattr(torch, "device", lambda kind: types.SimpleNamespace(type=kind))
    monkeypatch.setattr(c10d, "_world", types.SimpleNamespace(pg_map=table))
    return table


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in of the GPU: what was asked of it."""
    asked: list[Any] = []
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: asked.append(("set", index)))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda index: asked.append(("wait", index)))
    return asked


def test_communicators_are_aborted_together_once_and_without_blocking(pgs: dict[Any, Any], gpu: list[Any]) -> None:
    log: list[Any] = []
    held = threading.Event()
    default, gloo, other = Group("cuda", log, held), Group("cpu", log), Group("cuda", log)
    pgs.update(dict.fromkeys((default, gloo, other)))
    nccl = Nccl()
    nccl.made()
    nccl.free()
    nccl.free()
    assert "end" not in log
    held.set()
    nccl.leave()
    assert log == ["start", other, default, "end"]
    assert gpu == [("set", 3), ("wait", 3)]
    # the next generation has other groups
    pgs.clear()
    nccl.leave()
    again = Group("cuda", log)
    pgs[again] = None
    nccl.free()
    nccl.leave()
    assert log[4:] == ["start", again, "end"]


def test_a_gpu_that_cannot_be_left_is_named(pgs: dict[Any, Any], gpu: list[Any]) -> None:
    class Broken(Group):
        def abort(self) -> None:
            raise RuntimeError("unhandled cuda error")

    pgs[Broken("cuda", [])] = None
    nccl = Nccl()
    nccl.free()
    with pytest.raises(RuntimeError, match="GPU 0 cannot be aborted: unhandled cuda error"):
        nccl.leave()
    nccl.leave()


class TorchNpu(types.ModuleType):
    """A stand-in of torch_npu: answers as its API reference says."""

    def __init__(self, answer: int | Exception | None = 0) -> None:
        super().__init__("torch_npu")
        self.asked: list[Any] = []
        self.answer = answer
        self.npu = types.SimpleNamespace(
            current_device=lambda: 5,
            stop_device=self.stop,
            restart_device=lambda index: self.asked.append(("restart", index)),
        )
        self.distributed = types.SimpleNamespace(
            reinit_process_group=lambda group, rebuild: self.asked.append((group, rebuild))
        )

    def stop(self, index: int) -> int | None:
        self.asked.append(("stop", index))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [0, None])
def test_an_npu_is_stopped_started_again_and_its_links_are_dropped(
    pgs: dict[Any, Any], monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    module = TorchNpu(answer)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    monkeypatch.setattr(
        torch, "npu", types.SimpleNamespace(synchronize=lambda: module.asked.append("wait")), raising=False
    )
    npu = kinds.device_for("npu")
    assert isinstance(npu, Npu)
    npu.made()
    npu.free()
    npu.leave()
    assert module.asked == []
    first, last = Group("npu", []), Group("npu", [])
    pgs.update({first: None, Group("cpu", []): None, last: None})
    npu.free()
    npu.free()
    npu.leave()
    npu.settle()
    assert module.asked == [("stop", 5), ("restart", 5), (last, True), (first, True), "wait"]


@pytest.mark.parametrize(("answer", "text"), [(1, "did not succeed"), (RuntimeError("507018"), "507018")])
def test_an_npu_that_does_not_stop_is_not_started_again(
    pgs: dict[Any, Any], monkeypatch: pytest.MonkeyPatch, answer: Any, text: str
) -> None:
    module = TorchNpu(answer)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    npu = Npu()
    pgs[Group("npu", [])] = None
    npu.free()
    with pytest.raises(RuntimeError, match=text):
        npu.leave()
    assert ("restart", 0) not in module.asked


def test_an_npu_draws_the_same_when_a_step_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, state = random.Random(1), {"initialized": False, "available": True}
    npu = types.SimpleNamespace(
        is_available=lambda: state["available"],
        is_initialized=lambda: state["initialized"],
        manual_seed_all=chance.seed,
    )
    # without torch_npu's transfer, which puts it into torch.cuda
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    randomness = Randomness(kept=False)

    randomness.begin(3)
    untouched = random.Random(1).random()
    assert chance.random() == untouched, "a device that is not used is not started"

    state["initialized"] = True
    randomness.begin(4)
    first = chance.random()
    randomness.begin(5)
    assert chance.random() != first
    randomness.begin(4)
    assert chance.random() == first

    state["available"] = False
    Randomness(kept=False).begin(5)
    assert chance.random() != first


def test_cpu_has_no_file_and_a_missing_torch_npu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds.device_for("cpu") is None
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(ImportError, match="torch_npu"):
        kinds.device_for("npu")


def test_what_a_stopped_device_raises_is_explained_by_the_fault() -> None:
    groups: Any = None  # neither is asked for its group
    assert is_link_failure(RuntimeError("FORCE STOP, error code is 107019"), groups, 0)
    assert not is_link_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), groups, 0)


def test_state_does_not_change_when_the_generation_ends_while_its_collectives_are_awaited() -> None:
    protected = Protected(torch.nn.Linear(1, 1), None, None, None, 0)
    protected.done = 0
    over = False

    def settle() -> None:
        # the abort ends the kernels that are awaited
        nonlocal over
        over = True

    def check() -> None:
        if over:
            raise InterruptedError

    run = Run(0, 1, 0, 1, protected, Randomness(kept=False), check, None, settle=settle)
    with pytest.raises(InterruptedError):
        for step in run.steps(1):
            with run.updating(step):
                raise AssertionError("the window was entered")
    assert (protected.done, protected.whole) == (0, True)


def test_a_blocked_rank_on_a_gpu_is_freed_by_an_abort() -> None:
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        pytest.skip("no two GPUs: NCCL needs one for each rank")
    store = torch.distributed.HashStore()
    torch.cuda.set_device(0)
    nccl = Nccl()
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    nccl.made()
    torch.distributed.all_reduce(torch.ones(1, device="cuda"))
    nccl.free()
    nccl.leave()
