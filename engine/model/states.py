"""States of chips and nodes as plans and status show them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, assert_never


class ChipHealth(StrEnum):
    """State of a chip.

    ``suspect``: a fault is present but withheld by a filter, a duration or a wait. ``recovering``: its reset is done
    and a clean report is awaited.
    """

    HEALTHY = "healthy"
    SUB_HEALTHY = "sub-healthy"
    SUSPECT = "suspect"
    ISOLATED = "isolated"
    RESETTING = "resetting"
    RECOVERING = "recovering"
    MANUALLY_ISOLATED = "manually-isolated"


class NodeHealth(StrEnum):
    """State of a node; ``unknown``: it has NPUs and no report that is young enough."""

    HEALTHY = ChipHealth.HEALTHY.value
    SUB_HEALTHY = ChipHealth.SUB_HEALTHY.value
    PRE_ISOLATED = "pre-isolated"
    ISOLATED = ChipHealth.ISOLATED.value
    NOT_READY = "not-ready"
    MANUALLY_ISOLATED = ChipHealth.MANUALLY_ISOLATED.value
    UNKNOWN = "unknown"


def takes_work(state: ChipHealth) -> bool:
    """Whether a chip in this state takes work."""
    match state:
        case ChipHealth.HEALTHY | ChipHealth.SUB_HEALTHY | ChipHealth.SUSPECT:
            return True
        case ChipHealth.ISOLATED | ChipHealth.MANUALLY_ISOLATED | ChipHealth.RESETTING | ChipHealth.RECOVERING:
            return False
        case _:
            assert_never(state)


#: States in which a chip takes work, and in which it takes none.
IN_SERVICE: Final[frozenset[str]] = frozenset(state for state in ChipHealth if takes_work(state))
OUT_OF_SERVICE: Final[frozenset[str]] = frozenset(ChipHealth) - IN_SERVICE


def is_isolated(state: NodeHealth) -> bool:
    """Whether a node in this state is kept from new work by an order."""
    match state:
        case NodeHealth.PRE_ISOLATED | NodeHealth.ISOLATED | NodeHealth.MANUALLY_ISOLATED:
            return True
        case NodeHealth.HEALTHY | NodeHealth.SUB_HEALTHY | NodeHealth.NOT_READY | NodeHealth.UNKNOWN:
            return False
        case _:
            assert_never(state)


#: States of nodes that an order keeps from new work.
ISOLATED: Final[frozenset[str]] = frozenset(state for state in NodeHealth if is_isolated(state))


def concern(state: ChipHealth | NodeHealth) -> Literal["", "warn", "bad"]:
    """How a state is shown: plainly, as a warning, or as bad."""
    match state:
        case ChipHealth.HEALTHY | NodeHealth.HEALTHY:
            return ""
        case ChipHealth.SUB_HEALTHY | ChipHealth.SUSPECT | ChipHealth.RESETTING | ChipHealth.RECOVERING:
            return "warn"
        case NodeHealth.SUB_HEALTHY | NodeHealth.PRE_ISOLATED | NodeHealth.UNKNOWN:
            return "warn"
        case ChipHealth.ISOLATED | ChipHealth.MANUALLY_ISOLATED:
            return "bad"
        case NodeHealth.ISOLATED | NodeHealth.MANUALLY_ISOLATED | NodeHealth.NOT_READY:
            return "bad"
        case _:
            assert_never(state)


CONCERNS: Final[dict[str, str]] = {state.value: concern(state) for state in (*ChipHealth, *NodeHealth)}
"""How each state is shown, by its word."""
