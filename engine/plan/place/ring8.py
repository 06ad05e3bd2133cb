"""The old 8-chip training server: HCCS rings {0-3} and {4-7}, PCIe between them.

Source: component/ascend-for-volcano/internal/npu/ascend910/ascend910old/module910x8.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.cluster import ids_of
from engine.plan.place.base import NODE_INVALID, sizes
from engine.plan.place.verdict import TOPOLOGY, Ask, Refusal, Seat, Shape, Verdict, listed, lowest

CHIPS = 8
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

    def check(self, shape: Shape) -> Refusal | None:
        """1, 2, 4 or 8 chips a pod."""
        return sizes(shape, CHIPS, frozenset(range(1, CHIPS + 1)) - LEGAL)

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """8 x (allocatable x 4 - unfitness of the better ring) + (8 - free chips)."""
        free = seat.free.bit_count()
        if seat.free >> CHIPS:
            return Refusal(NODE_INVALID, f"node npu top<{listed(seat.free)}> is invalid")
        if ask.want == CHIPS:
            best = 0 if free == CHIPS else UNFIT
        else:
            row = UNFITNESS.get(ask.want, (UNFIT,) * 4)
            counts = ((seat.free & ring).bit_count() for ring in RINGS)
            best = min((row[count - 1] for count in counts if count), default=UNFIT)
        if best == UNFIT:
            shown = " ".join(str(chip) for chip in ids_of(seat.network))
            return Refusal(TOPOLOGY, f"npu topology not meet job require,network unhealthy card is [ {shown} ]")
        return CHIPS * (seat.allocatable * 4 - best) + (CHIPS - free)

    def choose(self, seat: Seat, ask: Ask) -> int:
        """The lowest chips of the ring whose number of free chips is preferred for this request, left ring first."""
        if ask.want == CHIPS:
            return seat.free
        for size in PREFERENCE[ask.want]:
            for ring in RINGS:
                if (seat.free & ring).bit_count() == size:
                    return lowest(seat.free & ring, ask.want)
        raise ValueError(f"no ring of {listed(seat.free)} holds {ask.want} chips; judge must be asked first")
