"""A chip's family by board id and name, its Kubernetes names, and the chips that reset together.

Sources: component/ascend-common/devmanager/common/utils.go, constants.go; component/ascend-common/api/default_name.go;
component/ascend-device-plugin/pkg/server/hot_reset_manager.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from belay.agents.drivers.failures import DriverError

A1, A2, A3, A5 = "Ascend910", "Ascend910B", "Ascend910A3", "Ascend910A5"
P310, B310, C310 = "Ascend310P", "Ascend310B", "Ascend310"

A3_BOARDS: Final = frozenset({0xB0, 0xB1, 0xB2, 0xB3, 0xB4, 0x81, 0x83, 0xD1, 0xD3})
NO_RING_BOARDS: Final = frozenset({0x28, 0x29, 0x33, 0x3C})
"""A2 boards without an HCCS ring: Atlas 300I A2 and Atlas 800I A2 without HCCS."""
INFER_CARD_BOARDS: Final = frozenset({0x28, 0x29})
OWN_MODULE_MAINBOARDS: Final = frozenset({0x1C, 0x1D})
"""Atlas 9000 A3 SuperPoD: a module resets without the one it shares optical ports with."""
CARD_BOARDS: Final = frozenset({0x1A, 0x1B, 0x1C})
CARD_TYPES: Final = {0x68: "300I-Atlas350", 0x6C: "300I-Atlas350-4p"}
"""Main board → annotation ``cardType``: Atlas 350 cards, single and four in a mesh."""
RUN_MODES: Final[Mapping[str, str]] = {
    A1: "Ascend910", A2: "Ascend910", A3: "Ascend910", A5: "npu", C310: "Ascend310", B310: "Ascend310",
    P310: "Ascend310P",
}  # fmt: skip
DUO: Final = "Atlas 300I Duo"


def family(chip_name: str, board: int) -> str:
    """Return the family of a chip. Raises DriverError for an unknown chip."""
    if board in A3_BOARDS:
        return A3
    if chip_name.startswith("Ascend950") and len(chip_name) <= 32:
        return A5
    if re.match(r"(310P\d{0,1}|I2\d{0,1})", chip_name):
        return P310
    if "310B" in chip_name:
        return B310
    if "310" in chip_name:
        return C310
    if re.match(r"(910B\d{1}|A2G\d{1})", chip_name):
        return A2
    if chip_name.startswith("910"):
        return A1
    raise DriverError(f"chip name {chip_name[:64]!r} with board id {board:#x} is unknown")


def card_type(board: int, mainboard: int) -> str:
    """Annotation ``cardType`` of servers with Ascend950 cards; empty for others."""
    return CARD_TYPES.get(mainboard, "") if board in CARD_BOARDS else ""


def reset_group(
    chip_family: str, board: int, mainboard: int, product: str, chip: int, cards: Mapping[int, int], brother: int | None
) -> Sequence[int]:
    """Return the physical ids of the chips that reset with ``chip``.

    ``cards`` is card by physical id; ``brother`` the card that shares optical ports with that of ``chip`` (A3).
    """
    everyone = sorted(cards)
    own = [other for other in everyone if cards[other] == cards[chip]]
    if chip_family == A1:
        return [other for other in everyone if other // 4 == chip // 4]
    if chip_family == A2:
        if board in NO_RING_BOARDS:
            return [chip]
        size = 16 if len(everyone) > 8 else 8
        return [other for other in everyone if other // size == chip // size]
    if chip_family == A3:
        if brother is None or mainboard in OWN_MODULE_MAINBOARDS:
            return own
        return [other for other in everyone if cards[other] in (cards[chip], brother)]
    if product == DUO:
        return own
    return [chip]
