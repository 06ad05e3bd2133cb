"""The old 8-chip training server: HCCS rings {0-3} and {4-7}, PCIe between them.

Source: component/ascend-for-volcano/internal/npu/ascend910/ascend910old/module910x8.
"""

from __future__ import annotations

from dataclasses import dataclass

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.pending_reasons import TOPOLOGY
from belay.engine.plan.place.families.base import NODE_INVALID, sizes
from belay.engine.plan.place.handler import JobRequest, NodeChips, PodRequest, Refusal, ScoreOrRefusal, listed, lowest

CHIPS = 8
DEVICE_PREFIX = "Ascend910-"
RINGS = (0x0F, 0xF0)
LEGAL = frozenset({1, 2, 4, 8})
UNFIT = 4
#: Unfitness by request and number of free chips in a ring (1 to 4).
UNFITNESS = {1: (0, 2, 1, 3), 2: (4, 0, 2, 1), 4: (4, 4, 4, 0)}
#: Which ring to take from: by its number of free chips, best first.
PREFERENCE = {1: (1, 3, 2, 4), 2: (2, 4, 3), 4: (4,)}


@dataclass(frozen=True, slots=True)
class Ring8:
    """A pod of up to four chips stays in one ring; fragments are filled before whole rings are broken."""

    max: int = CHIPS
    network_aware: bool = True

    def check(self, job: JobRequest) -> Refusal | None:
        """1, 2, 4 or 8 chips a pod."""
        return sizes(job, CHIPS, frozenset(range(1, CHIPS + 1)) - LEGAL)

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """8 x (allocatable x 4 - unfitness of the better ring) + (8 - free chips)."""
        free = node.free.bit_count()
        if node.free >> CHIPS:
            return Refusal(NODE_INVALID, f"node npu top<{listed(node.free)}> is invalid")
        if request.chips == CHIPS:
            best = 0 if free == CHIPS else UNFIT
        else:
            row = UNFITNESS.get(request.chips, (UNFIT,) * 4)
            counts = ((node.free & ring).bit_count() for ring in RINGS)
            best = min((row[count - 1] for count in counts if count), default=UNFIT)
        if best == UNFIT:
            shown = ",".join(f"{DEVICE_PREFIX}{chip}" for chip in ids_of(node.network))
            return Refusal(TOPOLOGY, f"npu topology not meet job require,network unhealthy card is [ {shown} ]")
        return CHIPS * (node.allocatable * 4 - best) + (CHIPS - free)

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """The lowest chips of the ring whose number of free chips is preferred for this request, left ring first."""
        if request.chips == CHIPS:
            return node.free
        for size in PREFERENCE[request.chips]:
            for ring in RINGS:
                if (node.free & ring).bit_count() == size:
                    return lowest(node.free & ring, request.chips)
        raise ValueError(f"no ring of {listed(node.free)} holds {request.chips} chips; score must be asked first")
