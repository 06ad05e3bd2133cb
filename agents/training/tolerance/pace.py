"""How often ranks compare what they hold, and keep a copy of it, so that both together cost at most 1 % of the time.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FOUND = 50
"""Steps within which a changed weight is found, where that costs at most 1 %."""
LADDER = (1, 5, 10, FOUND, 100, 500, 1000, 5000, 10_000)
"""Distances in steps; each divides the next, so that a step whose state is kept is one that is compared."""
COMPARED, KEPT = 0.004, 0.004
"""Parts of the time for comparing weights, and for comparing and keeping everything."""
MESSAGE = 0.01
"""Seconds between comparisons for each rank: the coordinator takes their messages, about 50 µs each."""
KEPT_SECONDS = 1.0
"""Seconds between copies at the least: that of one step is needed until the next one is proven."""


@dataclass(frozen=True)
class Pace:
    """``compare``: steps from one comparison of weights to the next; ``keep``: of everything, with a copy. 0: only
    after the first update."""

    compare: int = 0
    keep: int = 0


@dataclass(frozen=True)
class Costs:
    """Seconds that a rank needs to compute the checksum of its weights, and for the checksum and the copy of all."""

    compare: float
    keep: float


def pace(costs: Iterable[Costs], step: float, ranks: int) -> Pace:
    """The pace for ranks with these costs; ``step``: the median duration of a step."""
    found = list(costs)
    if not found or step <= 0:
        return Pace()
    weights, whole = max(one.compare for one in found), max(one.keep for one in found)
    compare = _rung(max(weights / COMPARED, ranks * MESSAGE) / step)
    if compare > FOUND and weights / FOUND <= 2 * COMPARED * step:
        compare = FOUND
    keep = _rung(max(whole / KEPT, KEPT_SECONDS) / step)
    return Pace(compare, max(compare, keep))


def _rung(steps: float) -> int:
    return next((rung for rung in LADDER if rung >= steps), LADDER[-1])


__all__ = ["Costs", "Pace", "pace"]
