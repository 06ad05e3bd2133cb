"""torch.distributed.checkpoint through the pool: one argument, another number of ranks, refused as a whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.training import checkpoint_world as world

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, or requirements-training.lock says which")

from belay.agents.training.checkpoint import durable, sets
from belay.agents.training.checkpoint.dcp import PoolReader, PoolStager, PoolWriter
from belay.agents.training.checkpoint.saver import Saver

pytestmark = [pytest.mark.real_time, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def through(tmp_path: Path) -> Iterator[Saver]:
    with world.writing(tmp_path / "work") as client:
        yield Saver(client)


def state(step: int) -> dict[str, Any]:
    return {
        "model": {
            "w": torch.full((64, 32), float(step)),
            "half": torch.ones(5).bfloat16() * step,
            "empty": torch.empty(0),
        },
        "step": step,
        "view": torch.arange(100.0)[10:20] + step,
        "names": ["a", step],
    }


def empty() -> dict[str, Any]:
    return state(0)


def load(folder: Path) -> dict[str, Any]:
    found = empty()
    dcp.load(found, storage_reader=PoolReader(folder), no_dist=True)
    return found


def same(found: dict[str, Any], step: int) -> bool:
    wanted = state(step)
    return bool(
        all(torch.equal(found["model"][name], wanted["model"][name]) for name in wanted["model"])
        and torch.equal(found["view"], wanted["view"])
        and (found["step"], found["names"]) == (step, ["a", step])
    )


def test_a_state_is_saved_and_loaded_by_one_argument(tmp_path: Path, through: Saver):
    dcp.save(state(7), storage_writer=PoolWriter(tmp_path / "set-7", through), no_dist=True)
    assert same(load(tmp_path / "set-7"), 7)
    one = sets.scan(tmp_path)[0]
    assert (one.kind, one.step, one.complete, one.world_size) == ("dcp", 7, True, 1)


def test_an_overlapped_save_holds_the_state_of_the_call(tmp_path: Path, through: Saver):
    stager = PoolStager()
    for step in (1, 2, 3):
        model = state(step)
        folder = tmp_path / f"set-{step}"
        future = dcp.async_save(model, storage_writer=PoolWriter(folder, through), async_stager=stager, no_dist=True)
        model["model"]["w"].zero_()
        future.result()
        assert same(load(folder), step)


def test_a_lost_shard_is_named_and_the_set_refused_before_anything_is_loaded(tmp_path: Path, through: Saver):
    folder = tmp_path / "set-7"
    dcp.save(state(7), storage_writer=PoolWriter(folder, through), no_dist=True)
    (folder / "__0_0.mindio").rename(tmp_path / "away")
    found = empty()
    with pytest.raises(CheckpointException, match=r"is refused, it lacks: __0_0\.mindio"):
        dcp.load(found, storage_reader=PoolReader(folder), no_dist=True)
    assert same(found, 0) and not sets.scan(tmp_path)[0].complete
    (tmp_path / "away").rename(folder / "__0_0.mindio")
    assert same(load(folder), 7)


def test_a_damaged_shard_is_named_and_changes_nothing(tmp_path: Path, through: Saver):
    folder = tmp_path / "set-7"
    dcp.save(state(7), storage_writer=PoolWriter(folder, through), no_dist=True)
    path = folder / "__0_0.mindio"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = empty()
    with pytest.raises(CheckpointException, match=r"the shard .*__0_0\.mindio is damaged: bytes 0\.\."):
        dcp.load(found, storage_reader=PoolReader(folder), no_dist=True)
    assert same(found, 0)


def test_code_in_the_metadata_is_not_run(tmp_path: Path, through: Saver):
    folder = tmp_path / "set-7"
    dcp.save(state(7), storage_writer=PoolWriter(folder, through), no_dist=True)
    bomb = b"cos\nmkdir\n(S'" + str(tmp_path / "gone off").encode() + b"'\ntR."
    durable.write(folder / sets.METADATA, memoryview(bytearray(bomb)))
    with pytest.raises(CheckpointException, match="is not allowed in the metadata of a checkpoint"):
        load(folder)
    assert not (tmp_path / "gone off").exists()


RANK = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from pathlib import Path
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor, Shard
from belay.agents.training.checkpoint.dcp import PoolReader, PoolStager, PoolWriter
from belay.agents.training.checkpoint.client import WriterClient
from belay.agents.training.checkpoint.saver import Saver
what, place, rank, world = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{place}/{what}-{world}", rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
full = torch.arange(12 * 5.0).reshape(12, 5)
state = {"w": distribute_tensor(full if what == "save" else torch.zeros(12, 5), mesh, [Shard(0)]),
         "b": torch.full((3,), 4.0) if what == "save" else torch.zeros(3), "step": 9 if what == "save" else 0}
torch.manual_seed(len(what) + world)
model = torch.nn.Linear(5, 7)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

def step():
    model(torch.ones(2, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def values():
    moments = optimizer.state[model.weight]
    return [one.full_tensor() for one in (model.weight.detach(), moments["exp_avg"], moments["exp_avg_sq"])]

step()
state["model"], state["optimizer"] = get_state_dict(model, optimizer)
folder = place / "set-9"
if what == "save":
    writer = PoolWriter(folder, Saver(WriterClient(place / "work")))
    torch.save(values(), place / f"values-{rank}")
    # the save and training talk to other ranks at the same time
    pending = dcp.async_save(state, storage_writer=writer, async_stager=PoolStager(), process_group=dist.new_group())
    step()
    pending.result()
else:
    dcp.load(state, storage_reader=PoolReader(folder))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert all(map(torch.equal, values(), torch.load(place / "values-0", weights_only=True)))
    assert torch.equal(state["w"].full_tensor(), full), state["w"]
    assert state["b"].sum() == 12 and state["step"] == 9
dist.destroy_process_group()
"""


def ranks(what: str, place: Path, world_size: int) -> list[str]:
    running = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", RANK, what, str(place), str(rank), str(world_size)],
                         stderr=subprocess.PIPE, text=True)
        for rank in range(world_size)
    ]  # fmt: skip
    errors = [one.communicate(timeout=280)[1] for one in running]
    return [error for one, error in zip(running, errors, strict=True) if one.returncode]


@pytest.mark.timeout(300)
def test_what_two_ranks_of_fsdp2_saved_is_loaded_by_three_or_refused_by_all(tmp_path: Path, through: Saver):
    assert through.client is not None
    through.client.connect()
    assert not ranks("save", tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "set-9").glob("__*")) == ["__0_0.mindio", "__1_0.mindio"]
    assert not ranks("load", tmp_path, 3)
    (tmp_path / "set-9" / "__1_0.mindio").unlink()
    assert "it lacks: __1_0.mindio" in ranks("load", tmp_path, 1)[0]
