"""A3 servers: modules of two dies; even requests take whole modules, a single die prefers a broken module.

Source: component/ascend-for-volcano/internal/npu/ascend910/ascend910a3 (base.go and module910a3x16/frame.go).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan.place.base import enough
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
)

MODULE = 2
SCALE = 16
BROKEN_MODULE_FIRST = 16


@dataclass(frozen=True, slots=True)
class A3:
    """Dies 2k and 2k+1 form a module; ``max`` is 16."""

    max: int = 16
    network_aware: bool = True

    def check(self, shape: Shape) -> Refusal | None:
        """One die for a single-pod job, else an even number of dies up to ``max`` in every pod."""
        if shape.total == 1 or (shape.pods == 1 and any(task.want == 1 for task in shape.tasks)):
            if shape.pods != 1:
                return Refusal(INVALID_REQUEST, "only single task job can request single npu")
            return None
        if shape.total % MODULE:
            return Refusal(
                INVALID_REQUEST,
                "except for single task job can request single npu, job require npu num should be even number, "
                f"instead of {shape.total}",
            )
        if any(task.want % MODULE or task.want > self.max for task in shape.tasks):
            return Refusal(
                INVALID_REQUEST,
                "only standalone job can request single npu, npu num required by task in a3×16 job must be 2n, "
                f"and <= {self.max}",
            )
        return None

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """16 x (32 - free dies beyond the request), a single die worse where it would break a module."""
        refusal = enough(seat, ask, self.max)
        if refusal is not None:
            return refusal
        modules = [module.bit_count() for module in groups(seat.free, MODULE, seat.free.bit_length())]
        if ask.want > 1 and MODULE * modules.count(MODULE) < ask.want:
            text = f"npu top<{listed(seat.free)}> is not meet task req<{ask.want}>"
            return Refusal(TOPOLOGY, f"checkNodeNPUByTask {UNSCHEDULABLE_TOPOLOGY} err: {text}")
        unfitness = seat.free.bit_count() - ask.want
        if ask.want == 1 and 1 not in modules:
            unfitness += BROKEN_MODULE_FIRST
        return SCALE * (2 * SCALE - unfitness)

    def choose(self, seat: Seat, ask: Ask) -> int:
        """Whole modules by ascending id; a single die from the module with the fewest free dies."""
        if seat.free.bit_count() == ask.want:
            return seat.free
        modules = [module for module in groups(seat.free, MODULE, seat.free.bit_length()) if module]
        if ask.want == 1:
            tightest = min(modules, key=int.bit_count)
            return tightest & -tightest
        whole = [module for module in modules if module.bit_count() == MODULE]
        return sum(whole[: ask.want // MODULE])
