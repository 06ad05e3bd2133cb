"""Fitting nodes by super pod, best first, kept sorted while pods are assigned.

A pass may place thousands of super-pod jobs on thousands of nodes; no job sorts all nodes again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from belay.engine.model.states import NodeHealth
from belay.engine.plan.node_view import NodeView

Rank = tuple[int, bool, int, str]
"""Penalty of the node for the gang, whether it is sub-healthy, how many of its chips fail repeatedly, its name."""


# read often: members of an enumeration are slow to look up
_SUB_HEALTHY: Final = NodeHealth.SUB_HEALTHY


class _RankedNodes:
    """The nodes of one super pod, sorted by rank."""

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


class SuperPodIndex:
    """Nodes that fit one kind of pod, by super pod; ``by_idle`` also groups them by their number of free chips."""

    def __init__(
        self, views: Mapping[str, NodeView], penalty: Mapping[str, int], fitting: Iterable[str], *, by_idle: bool
    ) -> None:
        self._views, self._penalty, self._by_idle = views, penalty, by_idle
        self._where: dict[str, tuple[tuple[bool, int], int]] = {}
        self._rows: dict[tuple[bool, int], dict[int, _RankedNodes]] = {}
        for rank in sorted(map(self._rank, fitting)):  # in order, so that every addition is at an end
            self._add(rank)

    def update(self, name: str, fits: bool) -> None:
        """Move the node to its place after its fit or its free chips changed."""
        rank = self._rank(name)
        before = self._where.pop(name, None)
        if before is not None:
            row, home = before
            nodes = self._rows[row][home]
            nodes.remove(rank)
            if not nodes.names:
                del self._rows[row][home]
                if not self._rows[row]:
                    del self._rows[row]
        if fits:
            self._add(rank)

    def by_super_pod(self) -> dict[int, Sequence[str]]:
        """Nodes per super pod, best first; the super pod of the best node comes first. With ``by_idle`` only nodes with
        the fewest free chips, sub-healthy ones only where there is no other. Valid until the next ``update``.
        """
        if not self._rows:
            return {}
        rows = self._rows[min(self._rows)]
        return {home: rows[home].names for home in sorted(rows, key=lambda home: rows[home].ranks[0])}

    def _add(self, rank: Rank) -> None:
        name = rank[3]
        view = self._views[name]
        if view.report is None:
            return
        row = (rank[1], view.free.bit_count()) if self._by_idle else (False, 0)
        home = view.report.super_pod_id
        self._where[name] = (row, home)
        rows = self._rows.setdefault(row, {})
        if home not in rows:
            rows[home] = _RankedNodes()
        rows[home].add(rank)

    def _rank(self, name: str) -> Rank:
        view = self._views[name]
        sub_healthy = view.state == _SUB_HEALTHY
        return (abs(self._penalty.get(name, 0)), sub_healthy, view.repeat_offenders.bit_count(), name)
