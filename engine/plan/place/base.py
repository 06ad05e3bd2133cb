"""Nodes without a topology to respect: any free chips will do; also the words that all families share.

Servers: Atlas 800T A2 and its kin (8 chips in a full mesh), half-populated 4-chip servers, 300T cards, Atlas 350
without interconnect, Atlas 850 as a plain cluster, 300I Pro and 300V. Source:
component/ascend-for-volcano/internal/npu/base/frame.go and node.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.plan.place.verdict import (
    INVALID_REQUEST,
    SHORTAGE,
    SHORTAGE_PREFIX,
    Ask,
    Refusal,
    Seat,
    Shape,
    Verdict,
    listed,
    lowest,
)

NODE_INVALID = "NodeInvalid"


@dataclass(frozen=True, slots=True)
class Base:
    """Healthy nodes first, then the fuller one; lowest chips."""

    max: int
    network_aware: bool = False
    invalid: frozenset[int] = field(default_factory=frozenset)

    def check(self, shape: Shape) -> Refusal | None:
        """Every pod asks for at most ``max`` chips and no illegal number; pods without NPU ride along."""
        return sizes(shape, self.max, self.invalid)

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """(Max - unhealthy chips) x 100 - free chips."""
        refusal = enough(seat, ask, self.max)
        return refusal or (self.max - seat.unhealthy) * 100 - seat.free.bit_count()

    def choose(self, seat: Seat, ask: Ask) -> int:
        """The lowest free chips."""
        return lowest(seat.free, ask.want)


def sizes(shape: Shape, most: int, invalid: frozenset[int]) -> Refusal | None:
    """The common check of request sizes, in upstream's words."""
    for task in shape.tasks:
        if task.want > most or task.want in invalid:
            illegal = "map[" + " ".join(f"{size}:{{}}" for size in sorted(invalid)) + "]"
            return Refusal(
                INVALID_REQUEST,
                f"expected: job<{shape.name}> req npu num should small than {most}, and not in {illegal}, "
                f"actual: task<{task.name}> req npu: {task.want}, ",
            )
    return None


def enough(seat: Seat, ask: Ask, most: int) -> Refusal | None:
    """The common check of one node: a sane list, a sane request, and free chips for it."""
    free = seat.free.bit_count()
    if free > most:
        return Refusal(NODE_INVALID, f"node npu top<{listed(seat.free)}> is invalid")
    if not 1 <= ask.want <= most:
        return Refusal(INVALID_REQUEST, f"judgeNodeAndTaskNPU task req num<{ask.want}> is invalid")
    if free < ask.want:
        return short(ask.want, free)
    return None


def short(count: int, free: int) -> Refusal:
    """Too few free chips, in upstream's words."""
    return Refusal(SHORTAGE, f"{SHORTAGE_PREFIX}node don't have enough resource, req<{count}>, idle<{free}>")
