"""Fitting nodes by super pod, best first, kept in order while others are placed.

A cluster of thousands of nodes places thousands of super-pod jobs in one pass; none of them sorts all nodes anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from engine.plan.scope import NodeView

SUB_HEALTHY: Final = "sub-healthy"

Rank = tuple[int, bool, int, str]
"""Penalty of the node for the gang, whether it is sub-healthy, how many of its chips fail again and again, its name."""


class _Shelf:
    """The nodes of one super pod in the order of their ranks."""

    __slots__ = ("names", "ranks")

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self.names: list[str] = []

    def add(self, rank: Rank) -> None:
        at = bisect_left(self.ranks, rank)
        self.ranks.insert(at, rank)
        self.names.insert(at, rank[3])

    def remove(self, rank: Rank) -> None:
        at = bisect_left(self.ranks, rank)
        del self.ranks[at], self.names[at]


class Shelves:
    """Nodes that fit one kind of pod, on one shelf per super pod; ``by_idle`` keeps them apart by free chips, too."""

    def __init__(
        self, views: Mapping[str, NodeView], penalty: Mapping[str, int], fitting: Iterable[str], *, by_idle: bool
    ) -> None:
        self._views, self._penalty, self._by_idle = views, penalty, by_idle
        self._where: dict[str, tuple[tuple[bool, int], int]] = {}
        self._rows: dict[tuple[bool, int], dict[int, _Shelf]] = {}
        for rank in sorted(map(self._rank, fitting)):  # in order, so that every addition is at an end
            self._add(rank)

    def renew(self, name: str, fits: bool) -> None:
        """The node fits now, or does not; its free chips may have changed."""
        rank = self._rank(name)
        before = self._where.pop(name, None)
        if before is not None:
            row, home = before
            shelf = self._rows[row][home]
            shelf.remove(rank)
            if not shelf.names:
                del self._rows[row][home]
                if not self._rows[row]:
                    del self._rows[row]
        if fits:
            self._add(rank)

    def pools(self) -> dict[int, Sequence[str]]:
        """Nodes per super pod, best first; the super pod of the best node comes first. With ``by_idle`` only nodes with
        the fewest free chips, sub-healthy ones only where there is no other. The nodes hold until the next ``renew``.
        """
        if not self._rows:
            return {}
        shelves = self._rows[min(self._rows)]
        return {home: shelves[home].names for home in sorted(shelves, key=lambda home: shelves[home].ranks[0])}

    def _add(self, rank: Rank) -> None:
        name = rank[3]
        view = self._views[name]
        if view.report is None:
            return
        row = (rank[1], view.free.bit_count()) if self._by_idle else (False, 0)
        home = view.report.super_pod_id
        self._where[name] = (row, home)
        shelves = self._rows.setdefault(row, {})
        if home not in shelves:
            shelves[home] = _Shelf()
        shelves[home].add(rank)

    def _rank(self, name: str) -> Rank:
        view = self._views[name]
        return (abs(self._penalty.get(name, 0)), view.state == SUB_HEALTHY, view.lemons.bit_count(), name)
