"""Data loaders draw the same after a repair as without it.

A ``DataLoader`` without a generator of its own draws from the global one when it is iterated: the seeds of its workers,
and of the order when it shuffles. After a repair it is iterated again, in the middle of an epoch: then it would draw
another order, and whatever draws after it in that step (dropout) would draw other numbers. So each iteration gets a
generator of its own, seeded from the step in which it began first; that step is remembered while the iteration is not
at its end.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from belay.agents.training.train.worker.randomness import Randomness, step_seed

Records = dict[str, list[int]]
"""Number of a loader, in the order in which they were first iterated → the step in which its iteration began, and how
many batches it has given."""
_ORIGINAL = DataLoader.__iter__


@dataclass
class _Iteration:
    """An iteration that has begun in this entry."""

    iterator: weakref.ref[Any]
    began: int
    length: int


class Loaders:
    """Stands before ``DataLoader.__iter__`` while training functions run."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self.records: Records = {}
        """Iterations under way after the last finished step."""
        self._seen: list[Any] = []
        self._iterations: dict[int, _Iteration] = {}
        self._resumed: Records = {}
        self._owned: weakref.WeakSet[torch.Generator] = weakref.WeakSet()
        loaders = self
        DataLoader.__iter__ = lambda loader: loaders._iterate(loader)

    def enter(self) -> None:
        """Enter the training function: loaders are iterated again."""
        self._seen, self._iterations, self._resumed = [], {}, dict(self.records)

    def finished(self) -> None:
        """A step was finished."""
        if not self._iterations:
            if self.records:
                self.records = {}
            return
        self.records = {}
        for number, one in self._iterations.items():
            iterator = one.iterator()
            given = int(getattr(iterator, "_num_yielded", 0))
            if iterator is not None and (one.length < 0 or given < one.length):
                self.records[str(number)] = [one.began, given]

    def _iterate(self, loader: Any) -> Any:
        if self._randomness.kept or loader.generator is not None:
            return _ORIGINAL(loader)
        number = next((at for at, one in enumerate(self._seen) if one is loader), len(self._seen))
        if number == len(self._seen):
            self._seen.append(loader)
        began, given = self._resumed.pop(str(number), (self._randomness.step, 0))

        seed = step_seed(step_seed(self._randomness.seed, began), number)
        loader.generator = self._generator(seed)
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            held = getattr(sampler, "generator", loader)
            if sampler is not None and (held is None or held in self._owned):
                sampler.generator = self._generator(seed ^ 1)
        try:
            iterator = _ORIGINAL(loader)
        finally:
            loader.generator = None

        if given:
            _undrawn(iterator, given)
        self._iterations[number] = _Iteration(weakref.ref(iterator), began, _length(loader))
        return iterator

    def _generator(self, seed: int) -> torch.Generator:
        made = torch.Generator()
        made.manual_seed(seed)
        self._owned.add(made)
        return made


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:
        return -1


def _undrawn(iterator: Any, given: int) -> None:
    """Let the first ``given`` batches, which a script passes over, draw nothing from the generators of this step."""
    fetch = type(iterator)._next_data
    # Not the iterator itself: one that holds itself is left to the garbage collector, which closes the queues to its
    # workers before it asks them to end, and PyTorch then waits 5 s for each.
    reference: Callable[[], Any] = weakref.ref(iterator)

    def next_data() -> Any:
        iterator = reference()
        if iterator._num_yielded >= given:
            return fetch(iterator)
        states = random.getstate(), torch.get_rng_state()
        try:
            return fetch(iterator)
        finally:
            random.setstate(states[0])
            torch.set_rng_state(states[1])

    iterator._next_data = next_data
