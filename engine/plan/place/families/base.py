"""Nodes without a topology: any free chips fit; also the checks that all families share.

Servers: Atlas 800T A2 and its kin (8 chips in a full mesh), half-populated 4-chip servers, 300T cards, Atlas 350
without interconnect, Atlas 850 as a plain cluster, 300I Pro and 300V. Source:
component/ascend-for-volcano/internal/npu/base/frame.go and node.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from belay.engine.model.pending_reasons import INVALID_REQUEST, SHORTAGE
from belay.engine.plan.place.causes import IllegalSize
from belay.engine.plan.place.handler import (
    IdleChips,
    JobRequest,
    NodeChips,
    PodRequest,
    Refusal,
    ScoreOrRefusal,
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

    def check(self, job: JobRequest) -> Refusal | None:
        """Every pod asks for at most ``max`` chips and no illegal number; pods without NPU are accepted."""
        return sizes(job, self.max, self.invalid)

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """(Max - unhealthy chips) x 100 - free chips."""
        refusal = enough(node, request, self.max)
        return refusal or (self.max - node.unhealthy) * 100 - node.free.bit_count()

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """The lowest free chips."""
        return lowest(node.free, request.chips)


def sizes(job: JobRequest, most: int, invalid: frozenset[int]) -> Refusal | None:
    """Why a request size is illegal, in MindCluster's words; shared by families."""
    for task in job.tasks:
        if task.chips > most or task.chips in invalid:
            illegal = "map[" + " ".join(f"{size}:{{}}" for size in sorted(invalid)) + "]"
            return Refusal(
                INVALID_REQUEST,
                f"expected: job<{job.name}> req npu num should small than {most}, and not in {illegal}, "
                f"actual: task<{task.name}> req npu: {task.chips}, ",
                IllegalSize(task.name, task.chips, tuple(sorted({*range(1, most + 1)} - invalid)), job.pods),
            )
    return None


def enough(node: NodeChips, request: PodRequest, most: int) -> Refusal | None:
    """Why a node cannot serve a request: an invalid list, an invalid request, or too few free chips."""
    free = node.free.bit_count()
    if free > most:
        return Refusal(NODE_INVALID, f"node npu top<{listed(node.free)}> is invalid")
    if not 1 <= request.chips <= most:
        return Refusal(INVALID_REQUEST, f"judgeNodeAndTaskNPU task req num<{request.chips}> is invalid")
    if free < request.chips:
        return short(request.chips, free)
    return None


def short(count: int, free: int) -> Refusal:
    """Too few free chips, in MindCluster's words."""
    idle = IdleChips(count, free)
    return Refusal(SHORTAGE, idle.text, idle=idle, evictable=True)
