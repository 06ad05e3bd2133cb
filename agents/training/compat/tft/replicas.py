"""Which rank holds which shard of the optimizer state, saves it, or gives it to a rank that lost it. Pure.

Rules of MindIO TFT (component/mindio/tft, `07_references`, replica choice): in a group of n ranks, sorted, with c
copies, shard i of d = n / c lies on the ranks at i, i + d, i + 2d, …; with the shifted layout
(``TTP_FRAMEWORK_TYPE=1``) d is the shift, over the first d x c ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class ReplicaGroup:
    """Ranks that hold the same kind of optimizer state, each shard of it ``copies`` times. Raises ValueError."""

    kind: int
    ranks: tuple[int, ...]
    copies: int
    shift: int = 0

    def __post_init__(self) -> None:
        if not self.ranks or tuple(sorted(set(self.ranks))) != self.ranks:
            raise ValueError(f"ranks of a replica group must be sorted and different, got {self.ranks[:20]}")
        if not 1 <= self.copies <= len(self.ranks):
            raise ValueError(f"replica_cnt must lie in 1..{len(self.ranks)} (length of rank_list), got {self.copies}")
        if self.shift < 0:
            raise ValueError(f"replica_shift must not be negative, got {self.shift}")

    @property
    def distance(self) -> int:
        """Number of shards without a shift. Ranks left over by the division hold the first shards again."""
        return max(1, len(self.ranks) // self.copies)


@dataclass(frozen=True, order=True)
class Move:
    """``source`` sends its shard of ``kind`` to ``target``."""

    target: int
    kind: int
    source: int
    shard: int


@dataclass(frozen=True)
class Missing:
    """A shard that no healthy rank holds."""

    kind: int
    shard: int
    holders: tuple[int, ...]

    def __str__(self) -> str:
        return f"shard {self.shard} of optimizer {self.kind} (ranks {', '.join(map(str, self.holders[:8]))})"


@dataclass(frozen=True)
class SavePlan:
    """The writers of the last checkpoint: per group the first healthy holder of each shard."""

    chosen: tuple[tuple[ReplicaGroup, tuple[int, ...]], ...]
    missing: tuple[Missing, ...]

    def orders(self) -> dict[int, list[dict[str, object]]]:
        """The argument of each chosen rank: ``[{type, ranks}]``, in the order of kinds."""
        found: dict[int, list[dict[str, object]]] = {}
        for group, ranks in self.chosen:
            for rank in ranks:
                found.setdefault(rank, []).append({"type": group.kind, "ranks": list(ranks)})
        return found


@dataclass(frozen=True)
class RepairPlan:
    """Moves of shards between ranks; missing shards can only come from a checkpoint."""

    moves: tuple[Move, ...]
    missing: tuple[Missing, ...]


def groups_of(replicas: Mapping[int, Iterable[ReplicaGroup]]) -> tuple[ReplicaGroup, ...]:
    """The distinct groups that ranks declared, sorted."""
    found = {group for groups in replicas.values() for group in groups}
    return tuple(sorted(found, key=lambda group: (group.kind, group.ranks, group.copies, group.shift)))


def holders(group: ReplicaGroup, shifted: bool = False) -> tuple[tuple[int, ...], ...]:
    """Per shard the ranks that hold it, in the group's order."""
    distance = group.shift if shifted and group.shift else group.distance
    span = min(len(group.ranks), distance * group.copies) if shifted and group.shift else len(group.ranks)
    return tuple(group.ranks[shard:span:distance] for shard in range(min(distance, span)))


def save_plan(groups: Iterable[ReplicaGroup], healthy: Collection[int], shifted: bool = False) -> SavePlan:
    """The ranks that write a checkpoint; ``missing`` is empty when it is complete."""
    chosen: list[tuple[ReplicaGroup, tuple[int, ...]]] = []
    missing: list[Missing] = []
    for group in groups:
        first = [next((rank for rank in ranks if rank in healthy), None) for ranks in holders(group, shifted)]
        rest = _beyond(group, shifted)
        if None not in first:
            chosen.append((group, tuple(rank for rank in first if rank is not None)))
        elif rest and all(rank in healthy for rank in rest):
            chosen.append((group, rest))
        else:
            missing += [
                Missing(group.kind, shard, ranks)
                for shard, ranks in enumerate(holders(group, shifted))
                if first[shard] is None
            ]
    return SavePlan(tuple(chosen), tuple(missing))


def complete(groups: Iterable[ReplicaGroup], healthy: Collection[int], shifted: bool = False) -> bool:
    """Whether a healthy rank holds every shard."""
    held = frozenset(healthy)
    # most groups have all their ranks
    broken = [group for group in groups if not held.issuperset(group.ranks)]
    return not save_plan(broken, held, shifted).missing


def repair_plan(
    groups: Iterable[ReplicaGroup], lost: Collection[int], healthy: Collection[int], shifted: bool = False
) -> RepairPlan:
    """Donors for every lost rank: at index i the first healthy one of i + d, i + 2d, …, modulo the ranks."""
    moves: list[Move] = []
    missing: list[Missing] = []
    lost = frozenset(lost)
    for group in groups:
        if lost.isdisjoint(group.ranks):
            continue
        for shard, ranks in enumerate(holders(group, shifted)):
            for index, rank in enumerate(ranks):
                if rank not in lost:
                    continue
                turned = ranks[index + 1 :] + ranks[:index]
                donor = next((other for other in turned if other in healthy and other not in lost), None)
                if donor is None:
                    missing.append(Missing(group.kind, shard, ranks))
                else:
                    moves.append(Move(target=rank, kind=group.kind, source=donor, shard=shard))
        missing += [Missing(group.kind, -1, (rank,)) for rank in _beyond(group, shifted) if rank in lost]
    return RepairPlan(tuple(sorted(moves)), tuple(dict.fromkeys(missing)))


def without(ranks: Iterable[int], groups: Iterable[tuple[int, ...]]) -> frozenset[int]:
    """All ranks that share a data-parallel index with one of ``ranks``, in any group: they leave together when the job
    gets smaller.
    """
    listed = list(groups)
    indices = {group.index(rank) for rank in ranks for group in listed if rank in group}
    found = {group[index] for group in listed for index in indices if index < len(group)}
    return frozenset(found | set(ranks))


def _beyond(group: ReplicaGroup, shifted: bool) -> tuple[int, ...]:
    return group.ranks[group.shift * group.copies :] if shifted and group.shift else ()
