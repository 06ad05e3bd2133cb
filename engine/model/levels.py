"""How bad a fault is: the words of the fault tables, their order, and what follows from them.

Reports may hold words that no table knows, so what is read stays text; :func:`known` makes a level of it. Decisions by
level ``match`` exhaustively: a new level makes mypy name each of them.

Sources: docs/zh/scheduling/06_api/02_ascend_device_plugin.md, 03_noded.md and
component/ascend-device-plugin/pkg/common/fault_code.go.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, assert_never


class FaultLevel(StrEnum):
    """Level of a chip, from harmless to worst; a chip's level is the maximum over its codes."""

    NORMAL = "NormalNPU"
    NOT_HANDLE = "NotHandleFault"
    SUB_HEALTH = "SubHealthFault"
    RESTART_REQUEST = "RestartRequest"
    RESTART_BUSINESS = "RestartBusiness"
    FREE_RESTART = "FreeRestartNPU"
    RESTART = "RestartNPU"
    PRE_SEPARATE = "PreSeparateNPU"
    SEPARATE = "SeparateNPU"
    MANUALLY_SEPARATE = "ManuallySeparateNPU"


class NodeLevel(StrEnum):
    """Level of a node's hardware (NodeD), low to high."""

    NOT_HANDLE = FaultLevel.NOT_HANDLE.value
    PRE_SEPARATE = "PreSeparateFault"
    SEPARATE = "SeparateFault"


class SwitchLevel(StrEnum):
    """Level that ``SwitchInfoCfg`` reports, low to high."""

    NOT_HANDLE = "NotHandle"
    SUB_HEALTH = FaultLevel.SUB_HEALTH.value
    RESTART_REQUEST = FaultLevel.RESTART_REQUEST.value
    PRE_SEPARATE = "PreSeparate"
    SEPARATE = "Separate"


class SwitchTableLevel(StrEnum):
    """Level of the switch's own fault table."""

    NOT_HANDLE = FaultLevel.NOT_HANDLE.value
    SUB_HEALTH = FaultLevel.SUB_HEALTH.value
    RESTART_REQUEST = "RestartRequestFault"
    PRE_SEPARATE = NodeLevel.PRE_SEPARATE.value
    SEPARATE = NodeLevel.SEPARATE.value
    RESET = "ResetFault"


class NodeStatus(StrEnum):
    """``NodeStatus`` of NodeD and of the switch, from good to bad; NodeD knows no SubHealthy."""

    HEALTHY = "Healthy"
    SUB_HEALTHY = "SubHealthy"
    PRE_SEPARATE = SwitchLevel.PRE_SEPARATE.value
    UNHEALTHY = "UnHealthy"


class FaultAction(StrEnum):
    """What a level does to a chip, by how the chip is used (``FaultPolicy.spec.actions``)."""

    IGNORE = "ignore"
    KEEP = "keep"
    STRATEGY = "strategy"
    TOLERATE = "tolerate"
    RESCHEDULE = "reschedule"
    RESET = "reset"
    ISOLATE = "isolate"


NORMAL: Final = FaultLevel.NORMAL
NOT_HANDLE: Final = FaultLevel.NOT_HANDLE
SUB_HEALTH: Final = FaultLevel.SUB_HEALTH
RESTART_REQUEST: Final = FaultLevel.RESTART_REQUEST
RESTART_BUSINESS: Final = FaultLevel.RESTART_BUSINESS
FREE_RESTART: Final = FaultLevel.FREE_RESTART
RESTART: Final = FaultLevel.RESTART
PRE_SEPARATE: Final = FaultLevel.PRE_SEPARATE
SEPARATE: Final = FaultLevel.SEPARATE
MANUALLY_SEPARATE: Final = FaultLevel.MANUALLY_SEPARATE


def _stays_in_service(level: FaultLevel) -> bool:
    match level:
        case FaultLevel.NORMAL | FaultLevel.NOT_HANDLE | FaultLevel.SUB_HEALTH:
            return True
        case FaultLevel.RESTART_REQUEST | FaultLevel.RESTART_BUSINESS | FaultLevel.FREE_RESTART | FaultLevel.RESTART:
            return False
        case FaultLevel.PRE_SEPARATE | FaultLevel.SEPARATE | FaultLevel.MANUALLY_SEPARATE:
            return False
        case _:
            assert_never(level)


def _may_be_reset(level: FaultLevel) -> bool:
    match level:
        case FaultLevel.RESTART_REQUEST | FaultLevel.RESTART_BUSINESS | FaultLevel.FREE_RESTART | FaultLevel.RESTART:
            return True
        case FaultLevel.NORMAL | FaultLevel.NOT_HANDLE | FaultLevel.SUB_HEALTH:
            return False
        case FaultLevel.PRE_SEPARATE | FaultLevel.SEPARATE | FaultLevel.MANUALLY_SEPARATE:
            return False
        case _:
            assert_never(level)


def _is_healed_in_place(level: FaultLevel) -> bool:
    match level:
        case FaultLevel.RESTART_REQUEST | FaultLevel.RESTART_BUSINESS | FaultLevel.RESTART:
            return True
        case FaultLevel.FREE_RESTART:
            return False  # the chip is kept until the job leaves it
        case FaultLevel.NORMAL | FaultLevel.NOT_HANDLE | FaultLevel.SUB_HEALTH:
            return False
        case FaultLevel.PRE_SEPARATE | FaultLevel.SEPARATE | FaultLevel.MANUALLY_SEPARATE:
            return False
        case _:
            assert_never(level)


def _is_on_network_plane(level: FaultLevel) -> bool:
    match level:
        case FaultLevel.NOT_HANDLE | FaultLevel.SUB_HEALTH | FaultLevel.PRE_SEPARATE | FaultLevel.SEPARATE:
            return True
        case FaultLevel.RESTART_REQUEST | FaultLevel.RESTART_BUSINESS | FaultLevel.FREE_RESTART | FaultLevel.RESTART:
            return False
        case FaultLevel.NORMAL | FaultLevel.MANUALLY_SEPARATE:
            return False
        case _:
            assert_never(level)


CHIP_LEVELS: Final[tuple[FaultLevel, ...]] = tuple(FaultLevel)
#: Levels a chip reset may heal (faults "RestartRequest…RestartNPU").
RESETTABLE: Final[frozenset[str]] = frozenset(level for level in FaultLevel if _may_be_reset(level))
#: Levels that can be healed under the job that uses the chip.
HEALED_IN_PLACE: Final[frozenset[str]] = frozenset(level for level in FaultLevel if _is_healed_in_place(level))
#: Levels with which a chip stays in service.
IN_SERVICE: Final[frozenset[str]] = frozenset(level for level in FaultLevel if _stays_in_service(level))
#: Levels that the parameter plane knows.
NETWORK_LEVELS: Final[frozenset[str]] = frozenset(level for level in FaultLevel if _is_on_network_plane(level))
NODE_LEVELS: Final[tuple[NodeLevel, ...]] = tuple(NodeLevel)
SWITCH_LEVELS: Final[tuple[SwitchLevel, ...]] = tuple(SwitchLevel)

# plain text as keys: reports hold plain text, and such dictionaries are the fastest
_BY_WORD: Final[dict[str, FaultLevel]] = {level.value: level for level in FaultLevel}
_CHIP_RANK: Final[dict[str, int]] = {level.value: rank for rank, level in enumerate(FaultLevel)}
_NODE_RANK: Final[dict[str, int]] = {level.value: rank for rank, level in enumerate(NodeLevel)}


def known(level: str) -> FaultLevel:
    """The chip level that a word names; an unknown word counts as SeparateNPU (fails safe)."""
    return _BY_WORD.get(level, SEPARATE)


def rank(level: str) -> int:
    """Position of a chip level in the severity order; an unknown word ranks with SeparateNPU (fails safe)."""
    return _CHIP_RANK.get(level, _CHIP_RANK[SEPARATE])


def worst(*levels: str) -> str:
    """The highest of the given chip levels, ``NormalNPU`` when there is none."""
    return max(levels, key=rank, default=NORMAL)


def node_rank(level: str) -> int:
    """Position of a node level; an unknown word ranks with SeparateFault."""
    return _NODE_RANK.get(level, len(NODE_LEVELS) - 1)


def node_status(level: str) -> NodeStatus:
    """NodeD's ``NodeStatus`` for a node level; an unknown word counts as SeparateFault."""
    found = NODE_LEVELS[node_rank(level)]
    match found:
        case NodeLevel.NOT_HANDLE:
            return NodeStatus.HEALTHY
        case NodeLevel.PRE_SEPARATE:
            return NodeStatus.PRE_SEPARATE
        case NodeLevel.SEPARATE:
            return NodeStatus.UNHEALTHY
        case _:
            assert_never(found)


def _on_node(level: FaultLevel) -> NodeLevel | None:
    match level:
        case FaultLevel.PRE_SEPARATE:
            return NodeLevel.PRE_SEPARATE
        case FaultLevel.SEPARATE | FaultLevel.MANUALLY_SEPARATE:
            return NodeLevel.SEPARATE
        case FaultLevel.NORMAL | FaultLevel.NOT_HANDLE | FaultLevel.SUB_HEALTH:
            return None
        case FaultLevel.RESTART_REQUEST | FaultLevel.RESTART_BUSINESS | FaultLevel.FREE_RESTART | FaultLevel.RESTART:
            return None
        case _:
            assert_never(level)


#: What the node table calls a level of the chip, node and switch tables; others mean nothing for a node.
TO_NODE: Final[dict[str, NodeLevel]] = {level.value: found for level in FaultLevel if (found := _on_node(level))} | {
    NodeLevel.PRE_SEPARATE.value: NodeLevel.PRE_SEPARATE,
    NodeLevel.SEPARATE.value: NodeLevel.SEPARATE,
}
#: What the chip table calls a level of the node and switch tables, where that differs.
TO_CHIP: Final[dict[str, FaultLevel]] = {
    SwitchTableLevel.RESTART_REQUEST.value: RESTART_REQUEST,
    NodeLevel.PRE_SEPARATE.value: PRE_SEPARATE,
    NodeLevel.SEPARATE.value: SEPARATE,
}


def reported(level: SwitchTableLevel) -> SwitchLevel:
    """The level that the device plugin reports for one of the switch's table."""
    match level:
        case SwitchTableLevel.NOT_HANDLE:
            return SwitchLevel.NOT_HANDLE
        case SwitchTableLevel.SUB_HEALTH:
            return SwitchLevel.SUB_HEALTH
        case SwitchTableLevel.RESTART_REQUEST:
            return SwitchLevel.RESTART_REQUEST
        case SwitchTableLevel.PRE_SEPARATE:
            return SwitchLevel.PRE_SEPARATE
        case SwitchTableLevel.SEPARATE | SwitchTableLevel.RESET:
            return SwitchLevel.SEPARATE
        case _:
            assert_never(level)


SWITCH_WORDS: Final[dict[str, SwitchLevel]] = {level.value: reported(level) for level in SwitchTableLevel}
"""Word of the switch's table → level that is reported."""


def switch_status(level: SwitchLevel) -> NodeStatus:
    """``NodeStatus`` that the device plugin reports with a switch level."""
    match level:
        case SwitchLevel.NOT_HANDLE:
            return NodeStatus.HEALTHY
        case SwitchLevel.SUB_HEALTH:
            return NodeStatus.SUB_HEALTHY
        case SwitchLevel.PRE_SEPARATE:
            return NodeStatus.PRE_SEPARATE
        case SwitchLevel.RESTART_REQUEST | SwitchLevel.SEPARATE:
            return NodeStatus.UNHEALTHY
        case _:
            assert_never(level)


def stays_healthy(level: str, in_use: bool) -> bool:
    """Whether the device plugin would keep the chip out of ``-Unhealthy``.

    PreSeparateNPU spares the running task and refuses new ones
    (component/ascend-device-plugin/pkg/device/ascendcommon.go).
    """
    return level in IN_SERVICE or (level == PRE_SEPARATE and in_use)
