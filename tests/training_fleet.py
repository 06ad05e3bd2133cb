"""A training job of many ranks in numbers: who works how long, who waits for whom, and what an agent would measure.

Each step: the members of a tensor group wait for its slowest, a pipeline for its slowest stage, a data group for its
slowest pipeline. Work has lognormal noise, chips always differ a little, now and then a rank stands still (garbage
collection), all ranks stand still together (a checkpoint), and everything becomes slower and faster alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from statistics import median_low
from typing import NamedTuple

from belay.engine.model.step_times import WINDOW_STEPS, GroupTime, StepWindow

STEP_US = 1_000_000
STAGE_WORK = (0.70, 0.62, 0.66, 0.74)
"""Work of pipeline stages as shares of a step; they repeat."""
TRANSFER = {"tp": 40_000, "pp": 15_000, "dp": 60_000}
DATA_US = 8_000


class Layout(NamedTuple):
    tp: int
    pp: int
    dp: int

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    def groups(self) -> dict[str, list[tuple[int, ...]]]:
        """The groups of each kind; a rank is tp + tp·(dp + dp·pp), as Megatron numbers them."""

        def rank(t: int, d: int, p: int) -> int:
            return t + self.tp * (d + self.dp * p)

        tps, dps, pps = range(self.tp), range(self.dp), range(self.pp)
        found = {
            "tp": [tuple(rank(t, d, p) for t in tps) for p in pps for d in dps],
            "dp": [tuple(rank(t, d, p) for d in dps) for p in pps for t in tps],
            "pp": [tuple(rank(t, d, p) for p in pps) for d in dps for t in tps],
        }
        return {kind: groups for kind, groups in found.items() if len(groups[0]) > 1}


class Injected(NamedTuple):
    """What is wrong, from one step to another: factors of the work, microseconds of data and of a group's transfers."""

    begin: int
    end: int
    work: Mapping[int, float] = {}
    data: Mapping[int, int] = {}
    transfer: Mapping[tuple[str, int], int] = {}


def windows(
    layout: Layout,
    steps: int,
    seed: int,
    injected: Injected | None = None,
    *,
    noise: float = 0.03,
    differ: float = 0.004,
) -> Iterator[list[StepWindow]]:
    """The windows of a run, all ranks of a window together."""
    rng = random.Random(seed)
    table = [math.exp(rng.gauss(0.0, noise)) for _ in range(65_536)]
    own = [max(0.9, rng.gauss(1.0, differ)) for _ in range(layout.ranks)]
    per_stage = layout.tp * layout.dp
    base = [STEP_US * STAGE_WORK[rank // per_stage % len(STAGE_WORK)] * own[rank] for rank in range(layout.ranks)]
    groups = layout.groups()
    member = {kind: {rank: i for i, group in enumerate(found) for rank in group} for kind, found in groups.items()}
    wrong = injected or Injected(0, 0)
    for begin in range(0, steps, WINDOW_STEPS):
        rows: list[list[tuple[int, int, int, tuple[int, ...]]]] = [[] for _ in range(layout.ranks)]
        for step in range(begin, begin + WINDOW_STEPS):
            bad = wrong.begin <= step < wrong.end
            common = 1.0 + 0.1 * math.sin(step / 700) + (0.25 if rng.random() < 0.01 else 0.0)
            stall = 3 * STEP_US if step % 400 == 399 else 0
            jitter = rng.choices(table, k=layout.ranks)
            work = [one * common * wobble for one, wobble in zip(base, jitter, strict=True)]
            for _ in range(1 + layout.ranks // 50):
                work[rng.randrange(layout.ranks)] *= 1.3  # garbage collection
            data = [DATA_US * wobble for wobble in jitter]
            if bad:
                for rank, factor in wrong.work.items():
                    work[rank] *= factor
                for rank, more in wrong.data.items():
                    data[rank] += more
            waits: dict[str, list[int]] = {}
            ready = [one + two for one, two in zip(work, data, strict=True)]
            for kind in ("tp", "pp", "dp"):
                if kind not in groups:
                    continue
                waits[kind] = [0] * layout.ranks
                for index, group in enumerate(groups[kind]):
                    transfer = TRANSFER[kind] * table[(step * 31 + index * 17) & 0xFFFF]
                    if bad:
                        transfer += wrong.transfer.get((kind, index), 0)
                    last = max(ready[rank] for rank in group)
                    for rank in group:
                        waits[kind][rank] = round(last - ready[rank] + transfer)
                        ready[rank] = last + transfer
            for rank in range(layout.ranks):
                rows[rank].append((
                    round(ready[rank]) + stall, round(work[rank]), round(data[rank]),
                    tuple(waits[kind][rank] for kind in waits),
                ))  # fmt: skip
        kinds = [kind for kind in ("tp", "pp", "dp") if kind in groups]
        yield [
            StepWindow(
                rank,
                begin // WINDOW_STEPS,
                WINDOW_STEPS,
                *(median_low(column) for column in list(zip(*measured, strict=True))[:3]),
                tuple(
                    GroupTime(kind, groups[kind][member[kind][rank]], median_low(row[3][place] for row in measured))
                    for place, kind in enumerate(kinds)
                ),
            )
            for rank, measured in enumerate(rows)
        ]


def nodes(layout: Layout, per_node: int = 8) -> dict[int, str]:
    """The node of each rank."""
    return {rank: f"node-{rank // per_node}" for rank in range(layout.ranks)}


__all__ = ["Injected", "Layout", "nodes", "windows"]
