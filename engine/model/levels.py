"""How bad a fault is: the words of the fault tables, their order, and what follows from them.

Sources: docs/zh/scheduling/06_api/02_ascend_device_plugin.md, 03_noded.md and
component/ascend-device-plugin/pkg/common/fault_code.go.
"""

from __future__ import annotations

from typing import Final

NORMAL: Final = "NormalNPU"
NOT_HANDLE: Final = "NotHandleFault"
SUB_HEALTH: Final = "SubHealthFault"
RESTART_REQUEST: Final = "RestartRequest"
RESTART_BUSINESS: Final = "RestartBusiness"
FREE_RESTART: Final = "FreeRestartNPU"
RESTART: Final = "RestartNPU"
PRE_SEPARATE: Final = "PreSeparateNPU"
SEPARATE: Final = "SeparateNPU"
MANUALLY_SEPARATE: Final = "ManuallySeparateNPU"

#: Chip levels from harmless to worst; a chip's level is the maximum over its codes.
CHIP_LEVELS: Final[tuple[str, ...]] = (
    NORMAL,
    NOT_HANDLE,
    SUB_HEALTH,
    RESTART_REQUEST,
    RESTART_BUSINESS,
    FREE_RESTART,
    RESTART,
    PRE_SEPARATE,
    SEPARATE,
    MANUALLY_SEPARATE,
)
_CHIP_RANK: Final[dict[str, int]] = {level: rank for rank, level in enumerate(CHIP_LEVELS)}

#: Levels a chip reset may heal (faults "RestartRequest…RestartNPU").
RESETTABLE: Final[frozenset[str]] = frozenset({RESTART_REQUEST, RESTART_BUSINESS, FREE_RESTART, RESTART})

#: Levels with which a chip stays in service.
IN_SERVICE: Final[frozenset[str]] = frozenset({NORMAL, NOT_HANDLE, SUB_HEALTH})

#: Node hardware levels (NodeD), low to high.
NODE_LEVELS: Final[tuple[str, ...]] = ("NotHandleFault", "PreSeparateFault", "SeparateFault")
_NODE_RANK: Final[dict[str, int]] = {level: rank for rank, level in enumerate(NODE_LEVELS)}

#: Levels that SwitchInfoCfg reports, low to high.
SWITCH_LEVELS: Final[tuple[str, ...]] = ("NotHandle", "SubHealthFault", "RestartRequest", "PreSeparate", "Separate")


def rank(level: str) -> int:
    """Position of a chip level in the severity order; an unknown word ranks with SeparateNPU (fails safe)."""
    return _CHIP_RANK.get(level, _CHIP_RANK[SEPARATE])


def worst(*levels: str) -> str:
    """The highest of the given chip levels, ``NormalNPU`` when there is none."""
    return max(levels, key=rank, default=NORMAL)


def node_rank(level: str) -> int:
    """Position of a node level; an unknown word ranks with SeparateFault."""
    return _NODE_RANK.get(level, len(NODE_LEVELS) - 1)


def node_status(level: str) -> str:
    """NodeD's ``NodeStatus`` for a node level: Healthy, PreSeparate or UnHealthy."""
    return ("Healthy", "PreSeparate", "UnHealthy")[node_rank(level)]


def stays_healthy(level: str, in_use: bool) -> bool:
    """Whether the device plugin would keep the chip out of ``-Unhealthy``.

    PreSeparateNPU spares the running task and refuses new ones
    (component/ascend-device-plugin/pkg/device/ascendcommon.go).
    """
    return level in IN_SERVICE or (level == PRE_SEPARATE and in_use)
