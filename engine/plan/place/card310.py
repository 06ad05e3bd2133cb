"""300I servers: cards of four chips; a pod stays on one card (strategy card) or fills broken cards first (chip).

Source: component/ascend-for-volcano/internal/npu/ascend310/card310x4 and chip310x4.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan.place.base import NODE_INVALID, Base, enough, sizes
from engine.plan.place.verdict import (
    INVALID_REQUEST,
    TOPOLOGY,
    UNSCHEDULABLE_TOPOLOGY,
    Ask,
    Refusal,
    Seat,
    Shape,
    Verdict,
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

    def check(self, shape: Shape) -> Refusal | None:
        """1 to 4 chips a pod."""
        return sizes(shape, CARD, frozenset())

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """8 x (4 - unfitness of the best card)."""
        if seat.free.bit_count() > self.max:
            return Refusal(NODE_INVALID, f"node npu top<{listed(seat.free)}> is invalid")
        row = UNFITNESS.get(ask.want)
        if row is None:
            return Refusal(INVALID_REQUEST, f"illegal request npu number: {ask.want}")
        counts = (card.bit_count() for card in groups(seat.free, CARD, seat.free.bit_length()))
        best = min((row[count - 1] for count in counts if count), default=UNFIT)
        if best == UNFIT:
            return Refusal(
                TOPOLOGY,
                f"checkNodeNPUByTask {UNSCHEDULABLE_TOPOLOGY} : req npu({ask.want}) illegal not meet node "
                f"top<{listed(seat.free)}>",
            )
        return 8 * (4 - best)

    def choose(self, seat: Seat, ask: Ask) -> int:
        """The lowest chips of the first card of the preferred size."""
        cards = groups(seat.free, CARD, seat.free.bit_length())
        for size in PREFERENCE[ask.want]:
            for card in cards:
                if card.bit_count() == size:
                    return lowest(card, ask.want)
        raise ValueError(f"no card of {listed(seat.free)} holds {ask.want} chips; judge must be asked first")


@dataclass(frozen=True, slots=True)
class Chip310:
    """Any chips, broken cards first."""

    max: int = 64
    network_aware: bool = False

    def check(self, shape: Shape) -> Refusal | None:
        """1 to 64 chips a pod."""
        return sizes(shape, self.max, frozenset())

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """As on nodes without topology."""
        return enough(seat, ask, self.max) or Base(self.max).judge(seat, ask)

    def choose(self, seat: Seat, ask: Ask) -> int:
        """Cards with one free chip first, then two, three, four."""
        cards = sorted((card for card in groups(seat.free, CARD, seat.free.bit_length()) if card), key=int.bit_count)
        return take_in_order(cards, ask.want)


def take_in_order(parts: list[int], count: int) -> int:
    """``count`` chips from groups in their order, the lowest of each first."""
    taken = 0
    for part in parts:
        taken |= lowest(part, min(count - taken.bit_count(), part.bit_count()))
        if taken.bit_count() == count:
            break
    return taken
