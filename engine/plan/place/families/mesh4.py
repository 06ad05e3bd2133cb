"""Atlas 350 boards with meshes of four chips, 8 or 16 chips a server.

Source: component/ascend-for-volcano/internal/npu/policy/chip4nodex.
"""

from __future__ import annotations

from dataclasses import dataclass

from belay.engine.model.pending_reasons import TOPOLOGY
from belay.engine.plan.place.families.base import enough, sizes
from belay.engine.plan.place.handler import (
    JobRequest,
    NodeChips,
    PodRequest,
    Refusal,
    ScoreOrRefusal,
    groups,
    listed,
    lowest,
)

MESH = 4


@dataclass(frozen=True, slots=True)
class Mesh4:
    """Up to three chips stay in one mesh, multiples of four take whole meshes, other sizes take any chips."""

    max: int = 8
    network_aware: bool = True

    def check(self, job: JobRequest) -> Refusal | None:
        """Any number up to the server's chips."""
        return sizes(job, self.max, frozenset())

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """Higher the less is left over, counted in meshes first."""
        refusal = enough(node, request, self.max)
        if refusal is not None:
            return refusal
        spare = node.free.bit_count() - request.chips
        if not _affine(request.chips):
            return self.max * (self.max - spare)
        least = min(request.chips, MESH)
        available = sum(1 for mesh in groups(node.free, MESH, self.max) if mesh.bit_count() >= least)
        needed = max(1, request.chips // MESH)
        if available < needed:
            return Refusal(TOPOLOGY, f"node top<{listed(node.free)}> not meet task in 4Pmesh, req<{request.chips}>")
        unfitness = self.max * (available - needed) + spare
        worst = 16 if self.max == 8 else 64
        return worst * (worst - unfitness)

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """The tightest mesh for up to three chips, whole meshes by id for multiples of four, else the lowest chips."""
        if not _affine(request.chips):
            return lowest(node.free, request.chips)
        meshes = [mesh for mesh in groups(node.free, MESH, self.max) if mesh.bit_count() >= min(request.chips, MESH)]
        if request.chips < MESH:
            return lowest(min(meshes, key=int.bit_count), request.chips)
        return sum(meshes[: request.chips // MESH])


def _affine(count: int) -> bool:
    return count <= MESH or count % MESH == 0
