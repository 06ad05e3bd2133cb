"""300I Duo servers: cards of two chips; strategies card and chip, and single-pod jobs spread over several cards.

Source: component/ascend-for-volcano/internal/npu/ascend310p/card310px2 and chip310px2.
"""

from __future__ import annotations

from dataclasses import dataclass

from belay.engine.model.pending_reasons import INVALID_REQUEST, TOPOLOGY
from belay.engine.plan.place.causes import OnePodOnly
from belay.engine.plan.place.families.base import NODE_INVALID, enough, sizes
from belay.engine.plan.place.families.card310 import take_in_order
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

CARD = 2
NODE_LABEL = "card-300i-duo"
UNFIT = 2
UNFITNESS = {1: (0, 1), 2: (2, 0)}
PREFERENCE = {1: (1, 2), 2: (2,)}
#: Unfitness of spread jobs by request and free chips; 16 where no entry exists.
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

    def check(self, job: JobRequest) -> Refusal | None:
        """1 or 2 chips a pod; a spread job has one NPU pod."""
        return _one_pod(job, "should has only") or sizes(job, CARD, frozenset())

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """8 x (2 - unfitness of the best card)."""
        if node.free.bit_count() > self.max:
            return Refusal(NODE_INVALID, f"node npu top<{listed(node.free)}> is invalid")
        row = UNFITNESS.get(request.chips)
        if row is None:
            return Refusal(INVALID_REQUEST, f"illegal request npu number: {request.chips}")
        counts = (card.bit_count() for card in groups(node.free, CARD, node.free.bit_length()))
        best = min((row[count - 1] for count in counts if count), default=UNFIT)
        if best == UNFIT:
            return _misfit(node, request)
        return 8 * (2 - best)

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """The lowest chips of the first card of the preferred size."""
        cards = groups(node.free, CARD, node.free.bit_length())
        ranked = (card for size in PREFERENCE[request.chips] for card in cards if card.bit_count() == size)
        return lowest(next(ranked), request.chips)


@dataclass(frozen=True, slots=True)
class DuoChip:
    """Any chips, half-free cards first; spread jobs keep their chips on as few cards as possible."""

    max: int = 16
    network_aware: bool = False

    def check(self, job: JobRequest) -> Refusal | None:
        """1 to 16 chips a pod; a spread job has one NPU pod."""
        return _one_pod(job, "should have only") or sizes(job, self.max, frozenset())

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """Only spread jobs are scored: 8 x (16 - unfitness); others get 0."""
        if node.card != NODE_LABEL:
            return Refusal("NodeLabelMismatch", f"judgeNodeLabel node card label not right, is {node.card}")
        refusal = enough(node, request, self.max)
        if refusal is not None or not request.spread:
            return refusal or 0
        half, full = _cards(node.free, self.max)
        if request.chips % 2 == 0:
            if request.chips > 2 * len(full):
                return _misfit(node, request, f"node full cards is {len(full)}")
            table = EVEN
        else:
            if request.chips - 1 > 2 * len(full) or request.chips > len(half) + 2 * len(full):
                return _misfit(node, request, f"node half cards is {len(half)}, node full cards is {len(full)}")
            table = ODD_WITH_HALF if half else ODD_FULL_ONLY
        return 8 * (WORST - table.get(request.chips, {}).get(node.free.bit_count(), WORST))

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """Half-free cards before full ones; a spread job takes at most one chip of a half-free card."""
        half, full = _cards(node.free, self.max)
        if not request.spread:
            return take_in_order(half + full, request.chips)
        return take_in_order((half[:1] if request.chips % 2 else []) + full, request.chips)


def _cards(free: int, most: int) -> tuple[list[int], list[int]]:
    cards = groups(free, CARD, max(most, free.bit_length()))
    return [card for card in cards if card.bit_count() == 1], [card for card in cards if card.bit_count() == CARD]


def _one_pod(job: JobRequest, words: str) -> Refusal | None:
    if not job.options.distributed or job.pods <= 1:
        return None
    return Refusal(
        INVALID_REQUEST,
        f"job <{job.name}> task num <{job.pods}> is invalid, job with label of distributed=true {words} 1 npu pod ",
        OnePodOnly(job.pods, "label distributed=true"),
    )


def _misfit(node: NodeChips, request: PodRequest, detail: str = "") -> Refusal:
    tail = f", {detail}" if detail else ""
    return Refusal(
        TOPOLOGY,
        f"checkNodeNPUByTask {UNSCHEDULABLE_TOPOLOGY} : req npu({request.chips}) illegal not meet node "
        f"top<{listed(node.free)}>{tail}",
        evictable=True,
    )
