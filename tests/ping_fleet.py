"""Pings of a fleet in numbers: what agents would measure of every path, window by window.

Two shapes. ``a3``: nodes of a super pod with one address a chip; every chip pings its node and its counterparts.
``rack950``: racks of nodes whose chips have an address on each of two planes, and a mesh inside the rack. Each round
of a path has lognormal noise, paths differ by their cables, all paths become slower and faster alike, and now and then
a path stands still for a round (congestion).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from belay.engine.model.pings import WINDOW_ROUNDS, PathEnd
from belay.engine.slowness.blame import Element, crossed
from belay.engine.slowness.paths import PingSample

PACKETS = 10
"""Packets of one round."""


class Injected(NamedTuple):
    """What is wrong from one window on: a part, what its paths take more, and which share of packets it loses."""

    element: Element
    begin: int
    delay: float = 0.0
    loss: float = 0.0
    end: int = 1 << 30


def a3(nodes: int, chips: int = 8) -> list[tuple[PathEnd, PathEnd]]:
    """The paths of one super pod of A3."""
    ends = {(n, c): PathEnd(f"192.{n}.2.{199 - c}", f"node-{n}", c, 0) for n in range(nodes) for c in range(chips)}
    inside = [(ends[n, a], ends[n, b]) for n in range(nodes) for a in range(chips) for b in range(chips) if a != b]
    beyond = [
        (ends[n, c], ends[m, c]) for n in range(nodes) for m in range(nodes) for c in range(chips) if n != m
    ]  # fmt: skip
    return inside + beyond


def rack950(
    racks: int, nodes: int = 4, chips: int = 8, planes: int = 2, reach: int = 3
) -> list[tuple[PathEnd, PathEnd]]:
    """The paths of one super pod of Ascend950: each address pings ``reach`` nodes of its rack and as many racks."""
    paths = []
    for rack in range(racks):
        for node in range(nodes):
            for chip in range(chips):

                def end(r: int, n: int, c: int, plane: int, layer: int) -> PathEnd:
                    text = f"{r:04x}{n:04x}{c:04x}{plane:04x}{layer:016x}"
                    return PathEnd(text, f"r{r}-n{n}", c, 0, r, plane, layer)

                for other in range(chips):
                    if other != chip:
                        paths.append((end(rack, node, chip, 0, 0), end(rack, node, other, 0, 0)))
                for plane in range(planes):
                    own = end(rack, node, chip, plane, 1)
                    near = {(rack, (node + step) % nodes) for step in range(1, reach + 1)} - {(rack, node)}
                    far = {((rack + step) % racks, node) for step in range(1, reach + 1)} - {(rack, node)}
                    paths += [(own, end(*place, chip, plane, 1)) for place in sorted(near | far)]
    return paths


def windows(
    paths: Sequence[tuple[PathEnd, PathEnd]],
    count: int,
    seed: int,
    injected: Sequence[Injected] = (),
    *,
    noise: float = 0.03,
    differ: float = 0.05,
    congested: float = 0.002,
    lost: float = 1e-5,
) -> Iterator[list[PingSample]]:
    """The windows of a run, all paths of a window together."""
    rng = random.Random(seed)
    # the mean of a window's rounds without the fastest and the slowest, many times
    table = [_window(rng, noise, congested) for _ in range(16_384)]
    base = [_usual(source, target) * max(0.8, rng.gauss(1.0, differ)) for source, target in paths]
    hit = [[bad for bad in injected if bad.element in crossed(*path)] for path in paths]
    level = 1.0
    pick: Callable[[], float] = rng.random
    sent = PACKETS * WINDOW_ROUNDS
    for number in range(count):
        # jobs begin and end: the whole network becomes slower and faster alike
        level = 1.0 + 0.3 * rng.random() if rng.random() < 0.05 else 1.0 + 0.9 * (level - 1.0)
        rows = []
        for (source, target), usual, wrong in zip(paths, base, hit, strict=True):
            delay, share = usual * level * table[int(pick() * 16_384)], lost
            for bad in wrong:
                if bad.begin <= number < bad.end:
                    delay, share = delay * (1 + bad.delay), share + bad.loss
            gone = sum(pick() < share for _ in range(sent)) if share > 1e-3 else int(pick() < share * sent)
            rows.append(PingSample(source, target, round(delay) if gone < sent else 0, sent, gone))
        yield rows


def _window(rng: random.Random, noise: float, congested: float) -> float:
    rounds = sorted(
        math.exp(rng.gauss(0.0, noise)) * (1 + (rng.random() < congested) * rng.expovariate(1.0))
        for _ in range(WINDOW_ROUNDS)
    )
    kept = rounds[1:-1]
    return sum(kept) / len(kept)


def _usual(source: PathEnd, target: PathEnd) -> float:
    """Nanoseconds of a round trip."""
    if source.node == target.node:
        return 8_000.0
    return 14_000.0 if source.rack == target.rack else 22_000.0
