"""The faults that follow from ports of Ascend950 chips being down; pure.

The driver says that a port went down; how much that matters follows from how many did. Of the two bonded UBOE ports one
is enough to go on. A chip that lost a UB port is cut off from the others, unless every chip of the node lost one.
Source: component/ascend-device-plugin/pkg/common/fault_code.go, pkg/device/ascendcommon.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from belay.agents.drivers.base import Code

#: Codes of the driver: a UBOE port is down, a UB port is down.
UBOE_DOWN: Final = "81078607"
UB_DOWN: Final = "81B18603"
PORT_CODES: Final = frozenset({UBOE_DOWN, UB_DOWN})
#: One of two bonded ports is down, both are; UB ports are down on this chip, on every chip.
UBOE_PART: Final = "110000002"
UBOE_CUT: Final = "110001024"
UB_CUT: Final = "020001002"
UB_EVERYWHERE: Final = "020000002"
#: Main boards whose bonded ports are asked without a code of the driver (Atlas 850).
UBOE_BOARDS: Final = frozenset({0x23, 0x25, 0x27})


class PortsDown(NamedTuple):
    """How many ports of a chip are down: bonded Ethernet ports, and UB ports that are wired."""

    uboe: int
    ub: int


_NONE: Final = PortsDown(0, 0)


def derived(
    codes: Mapping[int, frozenset[str]], down: Mapping[int, PortsDown], mainboard: int
) -> dict[int, tuple[Code, ...]]:
    """The codes that follow, by chip; those of the driver as well where it names none, as it does not repeat an event
    after a start or a reset. ``codes``: those that it names about ports, of every chip of the node."""
    cut = {chip for chip, known in codes.items() if UB_DOWN in known or down.get(chip, _NONE).ub > 0}
    everywhere = len(cut) == len(codes)
    found: dict[int, tuple[Code, ...]] = {}
    for chip, known in codes.items():
        rows: list[Code] = []
        lost = down.get(chip, _NONE).uboe
        if lost and (UBOE_DOWN in known or mainboard in UBOE_BOARDS):
            rows += [Code(UBOE_DOWN, 0, "network"), Code(UBOE_PART if lost == 1 else UBOE_CUT, 0, "network")]
        if chip in cut:
            rows += [Code(UB_DOWN, 0), Code(UB_EVERYWHERE if everywhere else UB_CUT, 0)]
        if rows := [row for row in rows if row.code not in known]:
            found[chip] = tuple(rows)
    return found
