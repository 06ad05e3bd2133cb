"""The cheapest way to more vNPUs of one template: which idle vNPUs go, on which chips, so that as few change as can be.

Chips are cut as docs/zh/scheduling/04_usage/02_virtual_instance tells; a vNPU in use never goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from engine.model.vnpu import Existing, Size, Totals, unfit

#: More idle vNPUs than this on a chip are not weighed one by one; no family has so many on a chip that is worth it.
MAX_IDLE: Final = 16


class Cut(NamedTuple):
    """``more`` new vNPUs on one chip, in place of the idle ones with these ids."""

    more: int
    destroy: tuple[int, ...]
    cores: int
    fresh: bool

    @property
    def cost(self) -> tuple[int, int, int]:
        """vNPUs that go, their AI cores, chips that were whole so far."""
        return len(self.destroy), self.cores, int(self.fresh)


Chosen = tuple[tuple[int, int, int], tuple[tuple[str, int, Cut], ...]]


def cuts(totals: Totals, there: Sequence[tuple[Existing, Size]], wanted: Size, most: int) -> list[Cut]:
    """For 1, 2 … ``most`` more vNPUs on a chip the cheapest cut each, as long as they fit."""
    busy = [size for vnpu, size in there if vnpu.busy]
    idle = sorted((row for row in there if not row[0].busy), key=lambda row: row[0].id)
    found: list[Cut] = []
    least = 0
    for count in range(1, most + 1):
        cut = _cut(totals, busy, idle, wanted, count, least)
        if cut is None:
            break
        found.append(cut)
        least = len(cut.destroy)
    return found


def share_out(options: Iterable[tuple[str, int, Sequence[Cut]]], wanted: int) -> tuple[tuple[str, int, Cut], ...]:
    """Which chips get how many of ``wanted`` more vNPUs, at the least cost in all; empty when there is no room.

    Args:
        options: node, chip and its cuts for 1, 2 … more, in the order of names; ties go to the first.
    """
    best: dict[int, Chosen] = {0: ((0, 0, 0), ())}
    for node, chip, rows in options:
        after = dict(best)
        for have, (cost, chosen) in best.items():
            for cut in rows:
                total = have + cut.more
                if total > wanted:
                    break
                sums = (cost[0] + cut.cost[0], cost[1] + cut.cost[1], cost[2] + cut.cost[2])
                known = after.get(total)
                if known is None or sums < known[0]:
                    after[total] = (sums, (*chosen, (node, chip, cut)))
        best = after
    return best[wanted][1] if wanted in best else ()


def _cut(
    totals: Totals, busy: list[Size], idle: Sequence[tuple[Existing, Size]], wanted: Size, count: int, least: int
) -> Cut | None:
    """The fewest idle vNPUs to go, among those the ones with the fewest AI cores, then the lowest ids."""
    more = [wanted] * count
    if unfit(totals, [*busy, *more]) is not None or len(idle) > MAX_IDLE:
        return None
    for gone in range(least, len(idle) + 1):
        ways: list[tuple[int, tuple[int, ...]]] = []
        for going in combinations(range(len(idle)), gone):
            kept = [size for index, (_, size) in enumerate(idle) if index not in going]
            if unfit(totals, [*busy, *kept, *more]) is None:
                cores = sum(idle[index][1].aicore for index in going)
                ways.append((cores, tuple(idle[index][0].id for index in going)))
        if ways:
            cores, destroy = min(ways)
            return Cut(count, destroy, cores, not idle and not busy)
    return None
