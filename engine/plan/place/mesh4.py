"""Atlas 350 boards with meshes of four chips, 8 or 16 chips a server.

Source: component/ascend-for-volcano/internal/npu/policy/chip4nodex.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan.place.base import enough, sizes
from engine.plan.place.verdict import TOPOLOGY, Ask, Refusal, Seat, Shape, Verdict, groups, listed, lowest

MESH = 4


@dataclass(frozen=True, slots=True)
class Mesh4:
    """Up to three chips stay in one mesh, multiples of four take whole meshes, other sizes take what there is."""

    max: int = 8
    network_aware: bool = True

    def check(self, shape: Shape) -> Refusal | None:
        """Any number up to the server's chips."""
        return sizes(shape, self.max, frozenset())

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """The less is left over, meshes first, the better."""
        refusal = enough(seat, ask, self.max)
        if refusal is not None:
            return refusal
        spare = seat.free.bit_count() - ask.want
        if not _affine(ask.want):
            return self.max * (self.max - spare)
        least = min(ask.want, MESH)
        available = sum(1 for mesh in groups(seat.free, MESH, self.max) if mesh.bit_count() >= least)
        needed = max(1, ask.want // MESH)
        if available < needed:
            return Refusal(TOPOLOGY, f"node top<{listed(seat.free)}> not meet task in 4Pmesh, req<{ask.want}>")
        unfitness = self.max * (available - needed) + spare
        worst = 16 if self.max == 8 else 64
        return worst * (worst - unfitness)

    def choose(self, seat: Seat, ask: Ask) -> int:
        """The tightest mesh for up to three chips, whole meshes by id for multiples of four, else the lowest chips."""
        if not _affine(ask.want):
            return lowest(seat.free, ask.want)
        meshes = [mesh for mesh in groups(seat.free, MESH, self.max) if mesh.bit_count() >= min(ask.want, MESH)]
        if ask.want < MESH:
            return lowest(min(meshes, key=int.bit_count), ask.want)
        return sum(meshes[: ask.want // MESH])


def _affine(count: int) -> bool:
    return count <= MESH or count % MESH == 0
