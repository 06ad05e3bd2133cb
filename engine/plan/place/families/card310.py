"""300I servers: cards of four chips; a pod stays on one card (strategy card) or fills broken cards first (chip).

Source: component/ascend-for-volcano/internal/npu/ascend310/card310x4 and chip310x4.
"""

from __future__ import annotations

from dataclasses import dataclass

from belay.engine.model.pending_reasons import INVALID_REQUEST, TOPOLOGY
from belay.engine.plan.place.families.base import NODE_INVALID, Base, enough, sizes
from belay.engine.plan.place.handler import (
    UNSCHEDULABLE_TOPOLOGY,
    JobRequest,
    NodeChips,
    PodRequest,
    Refusal,
    ScoreOrRefusal,
    groups,
    listed,
    lowest,
)

CARD = 4
UNFIT = 4
#: Unfitness by request and number of free chips on a card (1 to 4).
UNFITNESS = {1: (0, 2, 1, 3), 2: (4, 0, 1, 2), 3: (4, 4, 0, 1), 4: (4, 4, 4, 0)}
#: Which card to take: by its number of free chips, best first; then by id.
PREFERENCE = {1: (1, 3, 2, 4), 2: (2, 3, 4), 3: (3, 4), 4: (4,)}


@dataclass(frozen=True, slots=True)
class Card310:
    """All chips of a pod on one card."""

    max: int = 64
    network_aware: bool = False

    def check(self, job: JobRequest) -> Refusal | None:
        """1 to 4 chips a pod."""
        return sizes(job, CARD, frozenset())

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """8 x (4 - unfitness of the best card)."""
        if node.free.bit_count() > self.max:
            return Refusal(NODE_INVALID, f"node npu top<{listed(node.free)}> is invalid")
        row = UNFITNESS.get(request.chips)
        if row is None:
            return Refusal(INVALID_REQUEST, f"illegal request npu number: {request.chips}")
        counts = (card.bit_count() for card in groups(node.free, CARD, node.free.bit_length()))
        best = min((row[count - 1] for count in counts if count), default=UNFIT)
        if best == UNFIT:
            return Refusal(
                TOPOLOGY,
                f"checkNodeNPUByTask {UNSCHEDULABLE_TOPOLOGY} : req npu({request.chips}) illegal not meet node "
                f"top<{listed(node.free)}>",
                evictable=True,
            )
        return 8 * (4 - best)

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """The lowest chips of the first card of the preferred size."""
        cards = groups(node.free, CARD, node.free.bit_length())
        for size in PREFERENCE[request.chips]:
            for card in cards:
                if card.bit_count() == size:
                    return lowest(card, request.chips)
        raise ValueError(f"no card of {listed(node.free)} holds {request.chips} chips; score must be asked first")


@dataclass(frozen=True, slots=True)
class Chip310:
    """Any chips, broken cards first."""

    max: int = 64
    network_aware: bool = False

    def check(self, job: JobRequest) -> Refusal | None:
        """1 to 64 chips a pod."""
        return sizes(job, self.max, frozenset())

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """As on nodes without topology."""
        return enough(node, request, self.max) or Base(self.max).score(node, request)

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """Cards with one free chip first, then two, three, four."""
        cards = sorted((card for card in groups(node.free, CARD, node.free.bit_length()) if card), key=int.bit_count)
        return take_in_order(cards, request.chips)


def take_in_order(parts: list[int], count: int) -> int:
    """``count`` chips from groups in their order, the lowest of each first."""
    taken = 0
    for part in parts:
        taken |= lowest(part, min(count - taken.bit_count(), part.bit_count()))
        if taken.bit_count() == count:
            break
    return taken
