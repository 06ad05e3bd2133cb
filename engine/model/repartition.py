"""The cheapest repartition for more vNPUs of one template: which idle vNPUs to destroy, on which chips.

Rules of templates: docs/zh/scheduling/04_usage/02_virtual_instance. A vNPU in use is never destroyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from belay.engine.model.vnpu import ChipCapacity, ExistingVNPU, TemplateSize, unfit

#: With more idle vNPUs on a chip no repartition is searched; no family has so many on a chip worth changing.
MAX_IDLE: Final = 16


class ChipRepartition(NamedTuple):
    """``more`` new vNPUs on one chip, in place of the idle ones with these ids."""

    more: int
    destroy: tuple[int, ...]
    cores: int
    fresh: bool

    @property
    def cost(self) -> tuple[int, int, int]:
        """vNPUs destroyed, their AI cores, whole chips that are partitioned."""
        return len(self.destroy), self.cores, int(self.fresh)


Chosen = tuple[tuple[int, int, int], tuple[tuple[str, int, ChipRepartition], ...]]


def repartitions(
    totals: ChipCapacity, there: Sequence[tuple[ExistingVNPU, TemplateSize]], wanted: TemplateSize, most: int
) -> list[ChipRepartition]:
    """The cheapest repartition of a chip for each of 1, 2 … ``most`` more vNPUs, while they fit."""
    busy = [size for vnpu, size in there if vnpu.busy]
    idle = sorted((row for row in there if not row[0].busy), key=lambda row: row[0].id)
    found: list[ChipRepartition] = []
    least = 0
    for count in range(1, most + 1):
        cut = _cut(totals, busy, idle, wanted, count, least)
        if cut is None:
            break
        found.append(cut)
        least = len(cut.destroy)
    return found


def allocate(
    options: Iterable[tuple[str, int, Sequence[ChipRepartition]]], wanted: int
) -> tuple[tuple[str, int, ChipRepartition], ...]:
    """Divide ``wanted`` more vNPUs among chips at the least total cost; empty when there is no room.

    Args:
        options: node, chip and its repartitions for 1, 2 … more, sorted by name; ties go to the first.
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
    totals: ChipCapacity,
    busy: list[TemplateSize],
    idle: Sequence[tuple[ExistingVNPU, TemplateSize]],
    wanted: TemplateSize,
    count: int,
    least: int,
) -> ChipRepartition | None:
    """Destroy the fewest idle vNPUs, then the fewest AI cores, then the lowest ids."""
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
            return ChipRepartition(count, destroy, cores, not idle and not busy)
    return None
