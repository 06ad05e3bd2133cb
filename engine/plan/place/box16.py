"""Atlas 200T/200I A2 Box16: rings {0-7} and {8-15}; more than eight chips are balanced over both rings.

Source: component/ascend-for-volcano/internal/npu/ascend910/ascend910b/module910bx16.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.cluster import ids_of
from engine.plan.place.base import NODE_INVALID, sizes
from engine.plan.place.verdict import (
    SHORTAGE,
    SHORTAGE_PREFIX,
    TOPOLOGY,
    Ask,
    Refusal,
    Seat,
    Shape,
    Verdict,
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

    def check(self, shape: Shape) -> Refusal | None:
        """1 to 8, 10, 12, 14 or 16 chips a pod."""
        return sizes(shape, CHIPS, ILLEGAL)

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """16 x (allocatable - unfitness) + (16 - free chips)."""
        if seat.free >> CHIPS:
            return Refusal(NODE_INVALID, f"node npu top<{listed(seat.free)}> is invalid")
        free = seat.free.bit_count()
        if ask.want <= RING:
            rings = ((seat.free & LEFT).bit_count(), (seat.free & RIGHT).bit_count())
            best = min((count - ask.want for count in rings if count >= ask.want), default=-1)
        else:
            best = len(_cross(seat.free, ask)) // 2 - ask.want // 2
        if best < 0:
            text = f"{SHORTAGE_PREFIX}node top<{listed(seat.free)}> can not meet task req<{ask.want}>"
            return Refusal(SHORTAGE if free < ask.want else TOPOLOGY, text)
        return CHIPS * (seat.allocatable - best) + (CHIPS - free)

    def choose(self, seat: Seat, ask: Ask) -> int:
        """From the tightest ring, left first; above eight chips the first of l0, r0, l1, r1, …"""
        if ask.want > RING:
            return sum(1 << chip for chip in _cross(seat.free, ask)[: ask.want])
        fitting = [ring for ring in (seat.free & LEFT, seat.free & RIGHT) if ring.bit_count() >= ask.want]
        return lowest(min(fitting, key=int.bit_count), ask.want)


def _cross(free: int, ask: Ask) -> list[int]:
    """Usable chips of both rings, interleaved."""
    left, right = free & LEFT, free & RIGHT
    if not ask.distributed:
        pairs = left & (right >> RING)
        left, right = pairs, pairs << RING
    return [chip for pair in zip(ids_of(left), ids_of(right), strict=False) for chip in pair]
