"""300I Duo servers: cards of two chips; strategies card and chip, and single-pod jobs spread over several cards.

Source: component/ascend-for-volcano/internal/npu/ascend310p/card310px2 and chip310px2.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan.place.base import NODE_INVALID, enough, sizes
from engine.plan.place.card310 import take_in_order
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

CARD = 2
NODE_LABEL = "card-300i-duo"
UNFIT = 2
UNFITNESS = {1: (0, 1), 2: (2, 0)}
PREFERENCE = {1: (1, 2), 2: (2,)}
#: Unfitness of spread jobs by request and free chips; 16 where nothing is written.
ODD_WITH_HALF = {
    1: {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7},
    3: {3: 1, 4: 2, 5: 3, 6: 4, 7: 5},
    5: {5: 1, 6: 2, 7: 3},
    7: {7: 1},
}
ODD_FULL_ONLY = {1: {2: 9, 4: 10, 6: 11, 8: 12}, 3: {4: 9, 6: 10, 8: 11}, 5: {6: 9, 8: 10}, 7: {8: 9}}
EVEN = {
    2: {free: free - 1 for free in range(2, 9)},
    4: {free: free - 3 for free in range(4, 9)},
    6: {6: 1, 7: 2, 8: 3},
    8: {8: 1},
}
WORST = 16


@dataclass(frozen=True, slots=True)
class DuoCard:
    """All chips of a pod on one card."""

    max: int = 32
    network_aware: bool = False

    def check(self, shape: Shape) -> Refusal | None:
        """1 or 2 chips a pod; a spread job has one NPU pod."""
        return _one_pod(shape, "should has only") or sizes(shape, CARD, frozenset())

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """8 x (2 - unfitness of the best card)."""
        if seat.free.bit_count() > self.max:
            return Refusal(NODE_INVALID, f"node npu top<{listed(seat.free)}> is invalid")
        row = UNFITNESS.get(ask.want)
        if row is None:
            return Refusal(INVALID_REQUEST, f"illegal request npu number: {ask.want}")
        counts = (card.bit_count() for card in groups(seat.free, CARD, seat.free.bit_length()))
        best = min((row[count - 1] for count in counts if count), default=UNFIT)
        if best == UNFIT:
            return _misfit(seat, ask)
        return 8 * (2 - best)

    def choose(self, seat: Seat, ask: Ask) -> int:
        """The lowest chips of the first card of the preferred size."""
        cards = groups(seat.free, CARD, seat.free.bit_length())
        ranked = (card for size in PREFERENCE[ask.want] for card in cards if card.bit_count() == size)
        return lowest(next(ranked), ask.want)


@dataclass(frozen=True, slots=True)
class DuoChip:
    """Any chips, half-free cards first; spread jobs keep their chips on as few cards as possible."""

    max: int = 16
    network_aware: bool = False

    def check(self, shape: Shape) -> Refusal | None:
        """1 to 16 chips a pod; a spread job has one NPU pod."""
        return _one_pod(shape, "should have only") or sizes(shape, self.max, frozenset())

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """Only spread jobs are scored: 8 x (16 - unfitness); others get 0."""
        if seat.card != NODE_LABEL:
            return Refusal("NodeLabelMismatch", f"judgeNodeLabel node card label not right, is {seat.card}")
        refusal = enough(seat, ask, self.max)
        if refusal is not None or not ask.spread:
            return refusal or 0
        half, full = _cards(seat.free, self.max)
        if ask.want % 2 == 0:
            if ask.want > 2 * len(full):
                return _misfit(seat, ask, f"node full cards is {len(full)}")
            table = EVEN
        else:
            if ask.want - 1 > 2 * len(full) or ask.want > len(half) + 2 * len(full):
                return _misfit(seat, ask, f"node half cards is {len(half)}, node full cards is {len(full)}")
            table = ODD_WITH_HALF if half else ODD_FULL_ONLY
        return 8 * (WORST - table.get(ask.want, {}).get(seat.free.bit_count(), WORST))

    def choose(self, seat: Seat, ask: Ask) -> int:
        """Half-free cards before full ones; a spread job takes at most one chip of a half-free card."""
        half, full = _cards(seat.free, self.max)
        if not ask.spread:
            return take_in_order(half + full, ask.want)
        return take_in_order((half[:1] if ask.want % 2 else []) + full, ask.want)


def _cards(free: int, most: int) -> tuple[list[int], list[int]]:
    cards = groups(free, CARD, max(most, free.bit_length()))
    return [card for card in cards if card.bit_count() == 1], [card for card in cards if card.bit_count() == CARD]


def _one_pod(shape: Shape, words: str) -> Refusal | None:
    if shape.labels.get("distributed") != "true" or shape.pods <= 1:
        return None
    return Refusal(
        INVALID_REQUEST,
        f"job <{shape.name}> task num <{shape.pods}> is invalid, job with label of distributed=true {words} 1 npu pod ",
    )


def _misfit(seat: Seat, ask: Ask, detail: str = "") -> Refusal:
    tail = f", {detail}" if detail else ""
    return Refusal(
        TOPOLOGY,
        f"checkNodeNPUByTask {UNSCHEDULABLE_TOPOLOGY} : req npu({ask.want}) illegal not meet node "
        f"top<{listed(seat.free)}>{tail}",
    )
