"""Data loaders without a generator of their own: what they draw in the middle of an epoch, in another process."""

from __future__ import annotations

import gc
import importlib.util
import json
import random
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from tests import needs

if importlib.util.find_spec("torch") is None:
    if needs.required():
        raise RuntimeError("PyTorch is not installed: run make venv-training")
    pytest.skip("PyTorch is not installed: run make venv-training", allow_module_level=True)

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from belay.agents.training.train.worker.loaders import Loaders, Records
from belay.agents.training.train.worker.randomness import Randomness
from belay.agents.training.train.worker.sharing import Feed

EXAMPLES, BATCH, EACH = 12, 2, 6


class Noisy(Dataset[torch.Tensor]):
    """Each example draws from PyTorch's generator and from Python's."""

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()).item(), random.random()])


class Rank:
    """A process that has entered its training function at a step, with what was recorded of its loaders."""

    def __init__(self, step: int = 0, records: Records | None = None, kept: bool = False) -> None:
        torch.manual_seed(3)
        self.randomness = Randomness(kept)
        self.loaders = Loaders(self.randomness)
        self.loaders.records = json.loads(json.dumps(records or {}))
        self.randomness.enter(step)
        self.loaders.enter()
        self.step = step

    def steps(self, batches: Iterator[Any], count: int) -> list[Any]:
        """What that many steps see: their batch, and a number that is drawn after it (dropout)."""
        found = []
        for step in range(self.step, self.step + count):
            self.randomness.begin(step)
            found.append((next(batches).tolist(), torch.rand(()).item()))
            self.loaders.finished()
        self.step += count
        return found


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave PyTorch's loader as it was."""
    original = DataLoader.__iter__
    yield
    DataLoader.__iter__ = original


def shuffled() -> DataLoader[torch.Tensor]:
    return DataLoader(Noisy(), BATCH, shuffle=True)


def epoch(rank: Rank, loader: Any, begin: int = 0) -> Iterator[Any]:
    """Its batches from ``begin`` on, as scripts take them. It is iterated in the step that uses the first one."""
    rank.randomness.begin(rank.step)
    return islice(loader, begin, None)


def test_an_epoch_goes_on_in_another_process_with_its_order_and_what_its_examples_draw() -> None:
    calm = Rank()
    expected = calm.steps(epoch(calm, shuffled()), EACH)
    lost = Rank()
    lost.steps(epoch(lost, shuffled()), 3)
    assert lost.loaders.records == {"0": [0, 3]}

    replaced = Rank(3, lost.loaders.records)
    assert replaced.steps(epoch(replaced, shuffled(), 3), 3) == expected[3:]
    # without the record it would be another order: the test could fail
    forgetful = Rank(3)
    assert forgetful.steps(epoch(forgetful, shuffled(), 3), 3) != expected[3:]


def test_workers_are_seeded_like_the_iteration_that_began_first() -> None:
    def one_worker() -> DataLoader[torch.Tensor]:
        return DataLoader(Noisy(), BATCH, shuffle=True, num_workers=1)

    calm = Rank()
    batches = epoch(calm, one_worker())
    expected = calm.steps(batches, 4)
    replaced = Rank(2, {"0": [0, 2]})
    assert replaced.steps(epoch(replaced, one_worker(), 2), 2) == expected[2:]


def test_an_iteration_at_its_end_and_one_that_was_dropped_are_forgotten() -> None:
    rank = Rank()
    loader = shuffled()
    first = rank.steps(epoch(rank, loader), EACH)
    assert rank.loaders.records == {}

    second = rank.steps(epoch(rank, loader), EACH)
    assert [batch for batch, _ in second] != [batch for batch, _ in first], "the second epoch had the first one's order"

    dropped = epoch(rank, loader)
    rank.steps(dropped, 1)
    assert rank.loaders.records == {"0": [2 * EACH, 1]}
    del dropped
    rank.loaders.finished()
    assert rank.loaders.records == {}


def test_an_iteration_that_went_on_after_a_repair_ends_with_its_last_reference() -> None:
    # the garbage collector would close the queues of its workers first, and PyTorch wait 5 s for each worker
    loader = shuffled()
    replaced = Rank(3, {"0": [0, 3]})
    replaced.randomness.begin(3)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)

    left = weakref.ref(iterator)
    gc.disable()
    try:
        del iterator
        assert left() is None
    finally:
        gc.enable()


def test_two_loaders_are_known_by_the_order_in_which_they_are_iterated_first() -> None:
    calm = Rank()
    one, two = epoch(calm, shuffled()), epoch(calm, shuffled())
    expected = [batch.tolist() for batch in (next(one), next(two), next(one), next(two))]
    assert sorted(expected[0] + expected[2]) != sorted(expected[1] + expected[3]), "both drew the same order"
    calm.loaders.finished()
    assert calm.loaders.records == {"0": [0, 2], "1": [0, 2]}


@pytest.mark.parametrize("kept", [False, True])
def test_a_generator_of_the_script_s_own_and_random_keep_are_left_alone(kept: bool) -> None:
    rank = Rank(kept=kept)
    own = torch.Generator().manual_seed(11)
    loader = DataLoader(Noisy(), BATCH, shuffle=True, generator=None if kept else own)
    rank.steps(epoch(rank, loader), 2)
    assert rank.loaders.records == {}
    assert loader.generator is (None if kept else own)

    sampler = RandomSampler(Noisy(), generator=torch.Generator().manual_seed(12))
    held = sampler.generator
    rank.steps(epoch(rank, DataLoader(Noisy(), BATCH, sampler=sampler)), 1)
    assert sampler.generator is held


def test_run_batches_begins_in_the_middle_of_any_epoch() -> None:
    def sharded() -> DataLoader[torch.Tensor]:
        return DataLoader(Noisy(), BATCH, sampler=DistributedSampler(Noisy(), 2, 1, seed=5))

    def seen(first: int, records: Records) -> tuple[list[Any], list[Records]]:
        rank, feed = Rank(first, records), Feed(sharded())
        batches, noted = [], []
        for step in range(first, 8):
            rank.randomness.begin(step)
            batches.append(feed.batch(step).tolist())
            rank.loaders.finished()
            noted.append(rank.loaders.records)
        return batches, noted

    expected, noted = seen(0, {})
    for step in range(1, 8):
        assert seen(step, noted[step - 1])[0] == expected[step:]
    epochs = [sorted(row[0] for batch in expected[begin : begin + 3] for row in batch) for begin in (0, 3)]
    assert all(len(set(indexes)) == 6 for indexes in epochs) and expected[:3] != expected[3:6]
