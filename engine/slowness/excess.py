"""How much longer each rank and each parallel group takes than its peers, in one window of a job.

Ranks of one job wait for each other, so the whole steps of all of them are equally long. What differs is where the time
goes: a slow rank works longer and waits less in collectives; in a slow group even the last member to arrive waits.
Peers are compared in the same window, so that what slows everything down alike counts for none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from belay.engine.model.step_times import Slowness, StepWindow

PIPELINE: Final = "pp"
LEAST_SPREAD: Final = 0.002
"""Smallest standard deviation that is believed, as a share of a step: measurements are no more exact."""
MANY_NODES: Final = 8
"""With fewer nodes one slow node moves the median of all, so a rank is compared with other nodes only."""
_MAD: Final = 1.4826
"""Median absolute deviation → standard deviation of a normal distribution."""

Subject = tuple[Slowness, str, tuple[int, ...]]
"""What may be slow: the kind, the kind of group (empty for a rank), the ranks."""


class Excess(NamedTuple):
    """``share``: of the peers' work (computation) or step; ``spread``: standard deviation among such subjects; times in
    microseconds.
    """

    share: float
    spread: float
    time: int
    peers: int
    compared: int


def excesses(windows: Mapping[int, StepWindow], node_of: Mapping[int, str]) -> dict[Subject, Excess]:
    """The excess of every subject that has peers, for one window by rank. ``node_of`` maps ranks to nodes."""
    whole = [one.step for one in windows.values() if one.step > 0]
    if not whole:
        return {}
    step = max(1.0, median(whole))
    stages = stages_of(windows)
    found: dict[Subject, Excess] = {}
    for kind in (Slowness.COMPUTATION, Slowness.DATA_LOADING):
        times = {
            rank: one.work if kind is Slowness.COMPUTATION else one.data
            for rank, one in windows.items()
            if kind is Slowness.DATA_LOADING or one.work > 0
        }
        # a slow chip is slow in proportion to its work; where work is little, what counts is what it costs
        least = step / 2 if kind is Slowness.COMPUTATION else 0.0
        for rank, excess in _of_ranks(times, stages, node_of, step, least).items():
            found[(kind, "", (rank,))] = excess
    found.update(_of_groups(windows, stages, step))
    return found


def stages_of(windows: Mapping[int, StepWindow]) -> dict[int, int]:
    """The pipeline stage of each rank: its place in its pipeline group, 0 without one.

    Stages hold other layers, so only ranks of one stage do the same work.
    """
    stages = dict.fromkeys(windows, 0)
    for one in windows.values():
        for group in one.groups:
            if group.kind == PIPELINE and len(group.ranks) > 1:
                for place, rank in enumerate(group.ranks):
                    if rank in stages:
                        stages[rank] = place
    return stages


def _of_ranks(
    times: Mapping[int, int], stages: Mapping[int, int], node_of: Mapping[int, str], step: float, least: float
) -> dict[int, Excess]:
    """``least`` > 0: excesses are shares of the peers' time, of at least this much; 0: shares of a step."""
    by_stage: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(times):
        by_stage[stages[rank]].append(rank)
    few = len({node_of.get(rank, "") for rank in times}) < MANY_NODES
    shares: dict[int, tuple[float, float, int]] = {}
    within: list[float] = []
    for ranks in by_stage.values():
        if len(ranks) < 2:
            continue
        cells: dict[str, list[int]] = defaultdict(list)
        for rank in ranks:
            cells[node_of.get(rank, "")].append(times[rank])
        middle = median(times[rank] for rank in ranks)
        whole = max(least, middle) if least else step
        others = {
            node: (median(rest), len(rest))
            for node in cells
            if (rest := [time for other, members in cells.items() if other != node for time in members])
        } if few and len(cells) > 1 else {}  # fmt: skip
        for members in cells.values():
            if len(members) > 1:
                centre = median(members)
                within += [abs(time - centre) / whole for time in members]
        for rank in ranks:
            peers, compared = others.get(node_of.get(rank, ""), (middle, len(ranks) - 1))
            if not others and len(ranks) < MANY_NODES:
                peers = median(times[other] for other in ranks if other != rank)
            shares[rank] = ((times[rank] - peers) / whole, peers, compared)
    if not shares:
        return {}
    between = [share for share, _, _ in shares.values()]
    spread = _MAD * median(within) if few and within else _spread(between)
    spread = max(LEAST_SPREAD, spread)
    return {
        rank: Excess(share, spread, times[rank], round(peers), compared)
        for rank, (share, peers, compared) in shares.items()
    }


def _of_groups(windows: Mapping[int, StepWindow], stages: Mapping[int, int], step: float) -> dict[Subject, Excess]:
    """A group's time is that of its member that waits least: the others wait for it, it waits for the network only."""
    least: dict[tuple[str, tuple[int, ...]], int] = {}
    seen: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
    for one in windows.values():
        for group in one.groups:
            key = (group.kind, group.ranks)
            seen[key] += 1
            least[key] = min(least.get(key, group.time), group.time)
    alike: dict[tuple[str, int, int], list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for key in sorted(least):
        kind, ranks = key
        # of a group that did not report whole, the member that waits least may be missing
        if len(ranks) > 1 and seen[key] == len(ranks):
            stage = stages[ranks[0]] if len({stages.get(rank) for rank in ranks}) == 1 else -1
            alike[(kind, len(ranks), stage)].append(key)
    found: dict[Subject, Excess] = {}
    for keys in alike.values():
        if len(keys) < 3:  # two that differ do not say which of them is right
            continue
        peers = median(least[key] for key in keys)
        shares = {key: (least[key] - peers) / step for key in keys}
        spread = max(LEAST_SPREAD, _spread(shares.values()))
        for key, share in shares.items():
            subject = (Slowness.COMMUNICATION, *key)
            found[subject] = Excess(share, spread, least[key], round(peers), len(keys) - 1)
    return found


def culprits(slow: Collection[tuple[int, ...]], sound: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks in every slow group that are in no sound group of the same kind: one rank, or none to blame alone."""
    if len(slow) < 2:
        return ()
    shared = set.intersection(*map(set, slow))
    for group in sound:
        shared -= set(group)
    return tuple(sorted(shared)) if len(shared) == 1 else ()


def _spread(shares: Collection[float] | Sequence[float]) -> float:
    values = list(shares)
    if not values:
        return 0.0
    centre = median(values)
    return _MAD * median(abs(value - centre) for value in values)


__all__ = ["Excess", "Subject", "culprits", "excesses", "stages_of"]
