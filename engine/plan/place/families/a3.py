"""A3 servers: modules of two dies; even requests take whole modules, a single die prefers a broken module.

Source: component/ascend-for-volcano/internal/npu/ascend910/ascend910a3 (base.go and module910a3x16/frame.go).
"""

from __future__ import annotations

from dataclasses import dataclass

from belay.engine.model.pending_reasons import INVALID_REQUEST, TOPOLOGY
from belay.engine.plan.place.causes import IllegalSize, OddTotal, OnePodOnly
from belay.engine.plan.place.families.base import enough
from belay.engine.plan.place.handler import (
    UNSCHEDULABLE_TOPOLOGY,
    JobRequest,
    NodeChips,
    PodRequest,
    Refusal,
    ScoreOrRefusal,
    groups,
    listed,
)

MODULE = 2
ONE_CHIP = "one chip a pod"
SCALE = 16
BROKEN_MODULE_FIRST = 16


@dataclass(frozen=True, slots=True)
class A3:
    """Dies 2k and 2k+1 form a module; ``max`` is 16."""

    max: int = 16
    network_aware: bool = True

    def check(self, job: JobRequest) -> Refusal | None:
        """One die for a single-pod job, else an even number of dies up to ``max`` in every pod."""
        if job.total == 1 or (job.pods == 1 and any(task.chips == 1 for task in job.tasks)):
            if job.pods != 1:
                return Refusal(
                    INVALID_REQUEST, "only single task job can request single npu", OnePodOnly(job.pods, ONE_CHIP)
                )
            return None
        if job.total % MODULE:
            return Refusal(
                INVALID_REQUEST,
                "except for single task job can request single npu, job require npu num should be even number, "
                f"instead of {job.total}",
                OddTotal(job.total),
            )
        wrong = next((task for task in job.tasks if task.chips % MODULE or task.chips > self.max), None)
        if wrong is not None:
            return Refusal(
                INVALID_REQUEST,
                "only standalone job can request single npu, npu num required by task in a3×16 job must be 2n, "
                f"and <= {self.max}",
                IllegalSize(wrong.name, wrong.chips, tuple(range(MODULE, self.max + 1, MODULE)), job.pods),
            )
        return None

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """16 x (32 - free dies beyond the request), a single die worse where it would break a module."""
        refusal = enough(node, request, self.max)
        if refusal is not None:
            return refusal
        modules = [module.bit_count() for module in groups(node.free, MODULE, node.free.bit_length())]
        if request.chips > 1 and MODULE * modules.count(MODULE) < request.chips:
            text = f"npu top<{listed(node.free)}> is not meet task req<{request.chips}>"
            return Refusal(TOPOLOGY, f"checkNodeNPUByTask {UNSCHEDULABLE_TOPOLOGY} err: {text}", evictable=True)
        unfitness = node.free.bit_count() - request.chips
        if request.chips == 1 and 1 not in modules:
            unfitness += BROKEN_MODULE_FIRST
        return SCALE * (2 * SCALE - unfitness)

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """Whole modules by ascending id; a single die from the module with the fewest free dies."""
        if node.free.bit_count() == request.chips:
            return node.free
        modules = [module for module in groups(node.free, MODULE, node.free.bit_length()) if module]
        if request.chips == 1:
            tightest = min(modules, key=int.bit_count)
            return tightest & -tightest
        whole = [module for module in modules if module.bit_count() == MODULE]
        return sum(whole[: request.chips // MODULE])
