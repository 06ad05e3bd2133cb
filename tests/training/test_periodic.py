"""Models that are made inside the protected function, and checkpoints that are saved and loaded by themselves."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from tests import needs
from tests.training import checkpoint_world as world
from tests.training.conftest import Launch
from tests.training.launched import Job, descendants, gone, history

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, or requirements-training.lock says which")

from belay.agents.training.checkpoint import sets
from belay.agents.training.checkpoint.errors import CheckpointError
from belay.agents.training.train.decide.donors import shard_text
from belay.agents.training.train.worker.buckets import Buckets
from belay.agents.training.train.worker.interruption import TrainingError
from belay.agents.training.train.worker.periodic import VARIABLE, PeriodicCheckpoints
from belay.agents.training.train.worker.protected import Protected
from belay.agents.training.train.worker.randomness import Randomness
from belay.agents.training.train.worker.run import Run

FOUR = ("--nproc", "4")
STEPS = 30


def different(job: Job, calm: Job) -> set[tuple[int, int]]:
    """(rank, step) whose loss or weights differ from an undisturbed run."""
    expected, found = history(calm, 4), history(job, 4)
    assert all((rank, STEPS - 1) in found for rank in range(4))
    return {key for key in found if found[key] != expected[key]}


@pytest.mark.e2e
@pytest.mark.xdist_group("training")
@pytest.mark.timeout(300)
def test_a_shard_of_fsdp_is_taken_from_its_copy(launch: Launch) -> None:
    calm = launch("sharded.py", STEPS, 0, 2, "fsdp", options=FOUR)
    assert calm.end(120) == 0, calm.errors()
    job = launch("sharded.py", STEPS, 0.02, 2, "fsdp", options=FOUR)
    job.reached(8, 4)
    kept = [job.pid(rank) for rank in range(4)]
    job.next_step_of_all(job.kill(2), 4)
    assert [job.pid(rank) == pid for rank, pid in enumerate(kept)] == [True, True, False, True]
    assert job.end(120) == 0, job.errors()
    assert different(job, calm) == set()


@pytest.mark.e2e
@pytest.mark.xdist_group("training")
@pytest.mark.timeout(300)
def test_a_shard_without_a_copy_and_a_job_that_begins_again_come_from_checkpoints(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = launch("sharded.py", STEPS, 0, 4, "fsdp", options=FOUR)
    assert calm.end(120) == 0, calm.errors()
    work = tmp_path / "work"
    monkeypatch.setenv("MINDIO_ACP_LOG_PATH", str(work))
    place = tmp_path / "checkpoints"
    options = (*FOUR, "--checkpoints", str(place), "--checkpoint-every", "5", "--checkpoint-keep", "0")
    job = launch("sharded.py", STEPS, 0.02, 4, "fsdp", options=options)
    job.reached(7, 4)
    job.next_step_of_all(job.kill(2), 4)
    job.reached(16, 4)
    assert [one["step"] for one in job.recoveries()][-1:] in ([5], [10])
    # on a busy machine saves come behind: one is damaged, and another is to be there
    world.until(lambda: sum(one.complete for one in sets.scan(place)) > 1)
    # the whole job ends at once, as on a power cut, and one file of its newest checkpoint is damaged
    ranks = descendants(job.process.pid)
    os.kill(job.process.pid, signal.SIGKILL)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    gone(ranks)
    newest = next(one for one in sets.scan(place) if one.complete)
    content = bytearray(newest.files[1].read_bytes())
    content[len(content) // 2] ^= 1
    newest.files[1].write_bytes(content)
    again = launch("sharded.py", STEPS, 0, 4, "fsdp", options=options, folder=job.folder)
    assert again.end(120) == 0, again.errors()
    assert f"step-{newest.step:09d}" in again.errors()
    assert different(again, calm) == set()
    # the contract that no process is left has no exception
    writer = world.pid_of(work)
    assert writer is not None
    world.until(lambda: not world.alive(writer))
    resumed = [one.step for one in again.steps(0)]
    assert any(after <= before for before, after in itertools.pairwise(resumed)), "it began again"
    assert resumed.count(0) == 1, "and not at step 0"


def small() -> tuple[Protected, torch.nn.Linear]:
    model = torch.nn.Linear(4, 2)
    return Protected(model, torch.optim.AdamW(model.parameters()), None, None, 0), model


def bound(folder: Path, shards: list[str], rank: int = 0) -> tuple[PeriodicCheckpoints, torch.nn.Linear]:
    one = PeriodicCheckpoints(folder, every=10, keep=0)
    protected, model = small()
    one.bind(protected, Buckets(), rank, shards)
    return one, model


def test_ranks_that_are_copies_save_once_and_any_number_of_them_loads(tmp_path: Path) -> None:
    first, model = bound(tmp_path, ["", "", ""])
    second, _ = bound(tmp_path, ["", "", ""], 1)
    for one in (first, second):
        one.stepped(9)
        one.stepped(10)
        one.flush()
    assert [len(one.files) for one in sets.scan(tmp_path)] == [1]
    other, loaded = bound(tmp_path, [""])
    assert other.steps() == [10] and other.latest() == 10
    other.load(10)
    assert torch.equal(loaded.weight, model.weight)


def test_a_checkpoint_of_other_shards_is_refused_with_both_numbers_and_not_offered_again(tmp_path: Path) -> None:
    one, _ = bound(tmp_path, [""])
    one.stepped(10)
    one.flush()
    other, _ = bound(tmp_path, ["a", "b"])
    assert other.steps() == [10]
    with pytest.raises(CheckpointError, match=r"has 1 shards, this job has 2"):
        other.load(10)
    assert other.steps() == []


def test_a_folder_that_cannot_be_written_is_a_warning_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    one, _ = bound(tmp_path / "file", [""])
    one.stepped(10)
    one.copied()
    assert "was not saved" in caplog.text and str(tmp_path / "file") in caplog.text


@pytest.mark.parametrize(
    ("wrong", "text"),
    [({"every": 0}, "every=0"), ({"every": True}, "every=True"), ({"every": 5, "keep": -1}, "keep=-1"),
     ({"every": 5, "peer": "h:1"}, "need a file with a secret")],
)  # fmt: skip
def test_wrong_arguments_are_named(tmp_path: Path, wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PeriodicCheckpoints(tmp_path, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["{", "[]", '{"folder": "/x"}', '{"folder": "/x", "every": 0}', "[" * 10_000])
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(TrainingError, match=f"{VARIABLE} cannot be read"):
        PeriodicCheckpoints.of_environment()


def test_the_part_of_a_zero_optimizer_is_taken_and_given_without_a_collective() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        models = [torch.nn.Linear(4, 2) for _ in range(2)]
        parts = [ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1) for model in models]
        for seed, (model, part) in enumerate(zip(models, parts, strict=True)):
            model(torch.full((1, 4), float(seed + 1))).sum().backward()
            part.step()
        one, other = (Protected(model, part, None, None, 0) for model, part in zip(models, parts, strict=True))
        assert shard_text(one.shard()) == "optimizer of rank 0"
        described, tensors = one.capture()
        other.restore(described, [tensor.clone() for tensor in tensors])
        for model, part in zip(models, parts, strict=True):
            model.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            part.step()
        assert torch.equal(models[0].weight, models[1].weight)
    finally:
        dist.destroy_process_group()


def run_of(given: Protected | None) -> Run:
    return Run(0, 1, 0, 1, given, Randomness(True), lambda: None, None)


def test_steps_before_anything_is_protected_say_what_to_call() -> None:
    with pytest.raises(TrainingError, match=r"call run.protect\(model="):
        next(run_of(None).steps(3))


def test_protecting_twice_is_refused() -> None:
    protected, model = small()
    with pytest.raises(TrainingError, match="once an entry"):
        run_of(protected).protect(model=model)
