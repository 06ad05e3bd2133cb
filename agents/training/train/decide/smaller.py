"""A job that goes on with fewer nodes: when it may, and which ranks do the shares of those that are away. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from belay.agents.training.train.decide.members import Limits, RankStatus


def shares(active: Sequence[int], nproc: int, world: int) -> tuple[tuple[int, ...], ...]:
    """For each rank of ``active``, ascending, the ranks of the whole job whose shares of the batch it does, its own
    first. Those of a node that is away go to one node, each to the rank with the same place there: ranks that share
    one copy of a model do equally many.
    """
    nodes = sorted({rank // nproc for rank in active})
    lost = sorted(set(range(world // nproc)) - set(nodes))
    helped: dict[int, list[int]] = {node: [] for node in nodes}
    for index, node in enumerate(lost):
        helped[nodes[index % len(nodes)]].append(node)
    return tuple((rank, *(node * nproc + rank % nproc for node in helped[rank // nproc])) for rank in sorted(active))


def refusal(nodes: Collection[int], count: int, limits: Limits) -> str:
    """Why a job of ``count`` nodes does not go on with these ones; empty when it does."""
    least = limits.least or count
    if len(nodes) < least:
        return f"{len(nodes)} of {count} nodes are left, at least {least} are wanted"
    if limits.elected and 2 * len(nodes) + (0 in nodes) <= count:
        return f"{len(nodes)} of {count} nodes are not the majority: the others may be going on without them"
    return ""


def unique(left: Iterable[RankStatus], others: Iterable[RankStatus]) -> list[int]:
    """The ranks of ``left`` that hold state of which none of ``others`` has a copy."""
    held = {one.shard for one in others}
    return [one.rank for one in left if one.shard not in held]
