"""Exponential backoff with full jitter, so that many clients do not retry in step."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays in seconds: uniform in ``(0, min(cap, base * 2^n))``, but never below ``floor``.

    The floor prevents a hot loop when the jitter is near zero.
    """

    def __init__(
        self,
        base: float = 0.2,
        cap: float = 30.0,
        floor: float = 0.05,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._base = base
        self._cap = cap
        self._floor = floor
        self._uniform = uniform
        self._failures = 0

    def next(self) -> float:
        """The delay before the next try; grows with each call until ``reset``."""
        ceiling = min(self._cap, self._base * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return max(self._floor, self._uniform(0.0, ceiling))

    def reset(self) -> None:
        self._failures = 0
