"""How often ranks compare what they hold, and keep a copy of it, so that both together cost at most 1 % of the time.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LADDER = (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000)
"""Distances in steps; each divides the next, so that a step whose state is kept is one that is compared."""
COMPARED, KEPT = 0.003, 0.003
"""Parts of the time for comparing weights, and for comparing and keeping everything."""
RECOMPUTED = 250
"""Steps from one in which ranks compute for each other to the next: each costs less than another step, so 0.4 %."""
MESSAGE = 0.01
"""Seconds between comparisons for each rank: the coordinator takes their messages, about 50 µs each."""
KEPT_SECONDS = 1.0
"""Seconds between copies at the least: that of one step is needed until the next one is proven."""


@dataclass(frozen=True)
class Pace:
    """``compare``: steps from one comparison of weights to the next; ``keep``: of everything, with a copy. 0: only
    after the first update. ``check``: from one step in which ranks compute for each other to the next."""

    compare: int = 0
    keep: int = 0
    check: int = RECOMPUTED


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
    keep = _rung(max(whole / KEPT, KEPT_SECONDS) / step)
    return Pace(compare, max(compare, keep))


def given(steps: int) -> Pace:
    """The pace that a user asks for: 0 as costs say, -1 none."""
    return Pace(steps, steps, 50 * steps) if steps > 0 else Pace(-1, -1, 0) if steps < 0 else Pace()


def _rung(steps: float) -> int:
    return next((rung for rung in LADDER if rung >= steps), LADDER[-1])
