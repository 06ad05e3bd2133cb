"""Random numbers that are the same whenever a step is repeated, in any process.

At the beginning of each step the generators (PyTorch's, Python's, NumPy's where it is imported) are seeded from the
seed that the script had set when training began and from the number of the step. A generator's running state is not
enough: it is lost with its process, and a rank that was interrupted in a step has used part of it.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

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

    def enter(self, step: int) -> None:
        """The function is entered at ``step``; a seed that it sets before its steps is the script's."""
        self.step = step
        self._entered_with = int(torch.initial_seed()) & _MASK

    def begin(self, step: int) -> None:
        """Seed for a step."""
        self.step = step
        if self.kept:
            return
        found = int(torch.initial_seed()) & _MASK
        if self._entered_with not in (None, found):
            self.seed = found
        self._entered_with = None
        seed = step_seed(self.seed, step)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            numpy.random.seed(seed & 0xFFFFFFFF)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
