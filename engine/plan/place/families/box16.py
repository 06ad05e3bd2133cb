"""Atlas 200T/200I A2 Box16: rings {0-7} and {8-15}; more than eight chips are balanced over both rings.

Source: component/ascend-for-volcano/internal/npu/ascend910/ascend910b/module910bx16.
"""

from __future__ import annotations

from dataclasses import dataclass

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.pending_reasons import SHORTAGE, TOPOLOGY
from belay.engine.plan.place.families.base import NODE_INVALID, sizes
from belay.engine.plan.place.handler import (
    SHORTAGE_PREFIX,
    JobRequest,
    NodeChips,
    PodRequest,
    Refusal,
    ScoreOrRefusal,
    listed,
    lowest,
)

CHIPS = 16
RING = 8
LEFT, RIGHT = 0x00FF, 0xFF00
ILLEGAL = frozenset({9, 11, 13, 15})


@dataclass(frozen=True, slots=True)
class Box16:
    """Up to eight chips from one ring; single pods of more take index pairs (i, i+8), distributed ones any balance."""

    max: int = CHIPS
    network_aware: bool = True

    def check(self, job: JobRequest) -> Refusal | None:
        """1 to 8, 10, 12, 14 or 16 chips a pod."""
        return sizes(job, CHIPS, ILLEGAL)

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """16 x (allocatable - unfitness) + (16 - free chips)."""
        if node.free >> CHIPS:
            return Refusal(NODE_INVALID, f"node npu top<{listed(node.free)}> is invalid")
        free = node.free.bit_count()
        if request.chips <= RING:
            rings = ((node.free & LEFT).bit_count(), (node.free & RIGHT).bit_count())
            best = min((count - request.chips for count in rings if count >= request.chips), default=-1)
        else:
            best = len(_cross(node.free, request)) // 2 - request.chips // 2
        if best < 0:
            text = f"{SHORTAGE_PREFIX}node top<{listed(node.free)}> can not meet task req<{request.chips}>"
            return Refusal(SHORTAGE if free < request.chips else TOPOLOGY, text, evictable=True)
        return CHIPS * (node.allocatable - best) + (CHIPS - free)

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """From the tightest ring, left first; above eight chips the first of l0, r0, l1, r1, …"""
        if request.chips > RING:
            return sum(1 << chip for chip in _cross(node.free, request)[: request.chips])
        fitting = [ring for ring in (node.free & LEFT, node.free & RIGHT) if ring.bit_count() >= request.chips]
        return lowest(min(fitting, key=int.bit_count), request.chips)


def _cross(free: int, request: PodRequest) -> list[int]:
    """Usable chips of both rings, interleaved."""
    left, right = free & LEFT, free & RIGHT
    if not request.distributed:
        pairs = left & (right >> RING)
        left, right = pairs, pairs << RING
    return [chip for pair in zip(ids_of(left), ids_of(right), strict=False) for chip in pair]
