"""Which node runs the coordinator where none was given. Pure: events have the time as an argument.

Every node asks the candidates (the lowest node ranks) who leads. The lowest candidate that answers leads; one that
leads already is followed. Two leaders after a cut find each other by the same questions: the one with fewer nodes
steps back.
No majority is needed for safety: a generation begins when *all* nodes have joined one coordinator, and a node is joined
to one at a time, so two leaders cannot both train.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

CANDIDATES = 8
"""Number of nodes, from rank 0, that may run the coordinator."""
WAIT = 3.0
"""Seconds for which a candidate looks for lower ones that do not answer, before it leads."""
FRESH = 1.5
"""Seconds for which an answer counts."""


class Role(StrEnum):
    """What a node does in the election."""

    SEARCHING = "searching"
    FOLLOWING = "following"
    LEADING = "leading"


@dataclass(frozen=True)
class Claim:
    """What a node says of itself: the leader it follows or is (-1: none), the highest term it has seen, and, when it
    leads, how many nodes have joined it."""

    node: int
    term: int
    leader: int = -1
    joined: int = 0

    @property
    def leads(self) -> bool:
        """Whether the node itself runs the coordinator."""
        return self.leader == self.node

    def weight(self) -> tuple[int, int, int]:
        """Of two leaders the heavier one stays."""
        return self.joined, self.term, -self.node


@dataclass(frozen=True)
class Lead:
    """Run the coordinator."""

    term: int


@dataclass(frozen=True)
class Follow:
    """Join the coordinator of ``node``, and give up an own one."""

    node: int


class Election:
    """The state of one node. ``candidates``: nodes that may lead."""

    def __init__(self, node: int, candidates: Collection[int], now: float) -> None:
        self.node, self.candidates = node, sorted(candidates)
        self.term, self.leader, self.role = 0, -1, Role.SEARCHING
        self._since = now
        self._heard: dict[int, tuple[float, Claim]] = {}

    def claim(self, joined: int = 0) -> Claim:
        """What this node says when it is asked."""
        return Claim(self.node, self.term, self.leader, joined if self.role is Role.LEADING else 0)

    def heard(self, claim: Claim, now: float) -> None:
        """A node asked or answered."""
        if claim.node != self.node:
            self.term = max(self.term, claim.term)
            self._heard[claim.node] = now, claim

    def lost(self, now: float) -> None:
        """The leader cannot be reached any more, or does not lead any more."""
        if self.role is Role.FOLLOWING:
            self._heard.pop(self.leader, None)
            self.role, self.leader, self._since = Role.SEARCHING, -1, now

    def asks(self, joined: Collection[int]) -> list[int]:
        """The candidates to ask now; ``joined``: nodes that are connected to this node's coordinator."""
        if self.role is Role.FOLLOWING:
            return []
        return [node for node in self.candidates if node != self.node and node not in joined]

    def decide(self, now: float, joined: int = 1) -> Lead | Follow | None:
        """What follows from what was heard; ``joined``: nodes at this node's coordinator, itself among them."""
        fresh = [claim for at, claim in self._heard.values() if now - at <= FRESH]
        leaders = [claim for claim in fresh if claim.leads]
        best = max(leaders, key=Claim.weight, default=None)
        if self.role is Role.LEADING:
            return self._follow(best) if best and best.weight() > self.claim(joined).weight() else None
        if self.role is Role.FOLLOWING:
            return None
        if best is not None:
            return self._follow(best)
        if self.node not in self.candidates or any(claim.leader not in (-1, self.node) for claim in fresh):
            # others follow a leader that this node has not reached yet
            return None
        known = {claim.node for claim in fresh}
        others = set(self.candidates) - {self.node}
        if any(node < self.node for node in known & others) or (others - known and now - self._since < WAIT):
            return None
        self.term += 1
        self.role, self.leader = Role.LEADING, self.node
        return Lead(self.term)

    def _follow(self, claim: Claim) -> Follow:
        self.role, self.leader = Role.FOLLOWING, claim.node
        return Follow(claim.node)
