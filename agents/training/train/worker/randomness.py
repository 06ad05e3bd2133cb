"""Random numbers that are the same whenever a step is repeated, in any process.

At the beginning of each step the generators (PyTorch's, Python's, NumPy's where it is imported, those of the
accelerator once it is used) are seeded from the seed that the script had set when training began and from the number
of the step. A generator's running state is not enough: it is lost with its process, and a rank that was interrupted in
a step has used part of it.

A step finds little of this code in the processor's caches, so what takes 8 microseconds in a loop takes 60 there: the
generators are called without the functions that the libraries put around them.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from belay.agents.training.train.worker.groups import accelerator

_PYTHON: Any = random.seed.__self__  # type: ignore[attr-defined]
"""The generator behind the functions of ``random``."""
_SEED_PYTHON = super(random.Random, _PYTHON).seed
_MASK = (1 << 64) - 1


def step_seed(seed: int, step: int) -> int:
    """64 bits for a step: SplitMix64 of both (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators)."""
    value = (seed + (step + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Randomness:
    """The seeds of one rank. ``kept`` leaves the generators to the script."""

    def __init__(self, kept: bool) -> None:
        self.seed = int(torch.initial_seed()) & _MASK
        self.kept = kept
        self.step = 0
        """The step under way."""
        self._entered_with: int | None = None
        """The seed that the generator had when the function was entered; None once a step has begun."""
        self._seed_torch = torch.default_generator.manual_seed
        self._seed_numpy: Any = None
        self._accelerators: list[Any] | None = None

    def enter(self, step: int) -> None:
        """The function is entered at ``step``; a seed that it sets before its steps is the script's."""
        self.step = step
        if self._entered_with is not None:
            # a fault ended the former entry before its first step; this one will set the same seed once more
            self._take_seed()
        self._entered_with = int(torch.initial_seed()) & _MASK

    def begin(self, step: int) -> None:
        """Seed for a step."""
        self.step = step
        if self.kept:
            return
        if self._entered_with is not None:
            self._take_seed()

        seed = step_seed(self.seed, step)
        self._seed_torch(seed)
        _SEED_PYTHON(seed)
        _PYTHON.gauss_next = None
        if self._seed_numpy is None:
            self._find_numpy()
        if self._seed_numpy is not None:
            self._seed_numpy(seed & 0xFFFFFFFF)
        if self._accelerators is None:
            self._accelerators = _accelerators()
        for device in self._accelerators:
            if device.is_initialized():
                device.manual_seed_all(seed)

    def _take_seed(self) -> None:
        """The first step of an entry begins: a seed that the function has set before is the script's."""
        found = int(torch.initial_seed()) & _MASK
        if self._entered_with != found:
            self.seed = found
        self._entered_with = None

    def _find_numpy(self) -> None:
        """NumPy may be imported in any step."""
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            self._seed_numpy = numpy.random.mtrand._rand.seed


def _accelerators() -> list[Any]:
    """PyTorch's modules of the accelerators of this machine. torch_npu puts its own into torch.npu, and into torch.cuda
    where a script is transferred; it need not be known to torch.accelerator."""
    modules: list[Any] = [getattr(torch, kind, None) for kind in sorted({"cuda", "npu", accelerator()} - {"cpu"})]
    return [one for one in modules if hasattr(one, "manual_seed_all") and one.is_available()]
