"""Healing chips under the job that uses them: the words that training managers, engine and agents share.

The device plugin called it graceful fault tolerance (``-hotReset=1``, up to v26.0). Policies, their order and status
values are those of ``reset-config-<job>``. Sources: component/ascend-device-plugin/pkg/device/ascendtolerance.go,
docs/zh/scheduling/04_usage/04_resumable_training/03_configuration/01_configuring_fault_detection_levels.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from engine.model.levels import (
    FREE_RESTART,
    NORMAL,
    NOT_HANDLE,
    RESTART_BUSINESS,
    SUB_HEALTH,
)
from engine.model.levels import (
    RESTART as RESTART_NPU,
)
from engine.model.levels import (
    RESTART_REQUEST as REQUEST_LEVEL,
)

#: What is done about a chip, from nothing to giving it up.
EMPTY, IGNORE, RESTART_REQUEST, RESTART, FREE_RESET, RESET, ISOLATE = (
    "", "ignore", "restart_request", "restart", "free_reset", "reset", "isolate",
)  # fmt: skip
POLICIES: Final = (EMPTY, IGNORE, RESTART_REQUEST, RESTART, FREE_RESET, RESET, ISOLATE)
#: Policies that are carried out while the job is there.
ACTING: Final = frozenset({RESTART_REQUEST, RESTART, RESET})
#: Status of a rank: its processes are to stop; may start again; the chip is given up, so the container ends.
UNRECOVERED, RECOVERED, FAILED = "unrecovered", "recovered", "failed"

_OF_LEVEL: Final = {
    NORMAL: EMPTY, NOT_HANDLE: IGNORE, SUB_HEALTH: IGNORE, REQUEST_LEVEL: RESTART_REQUEST, RESTART_BUSINESS: RESTART,
    FREE_RESTART: FREE_RESET, RESTART_NPU: RESET,
}  # fmt: skip

#: Seconds and their ranges (``GraceTolerance`` of faultCustomization.json): for managers to read what was written,
#: for a reset chip to boot, for a fault to heal once no process runs.
READ_SECONDS, READ_RANGE = 30, (5, 90)
BOOT_SECONDS, BOOT_RANGE = 150, (60, 180)
HEAL_SECONDS, HEAL_RANGE = 15, (1, 30)


def policy_of(level: str) -> str:
    """The policy for a chip of this level."""
    return _OF_LEVEL.get(level, ISOLATE)


def gravest(policies: Iterable[str]) -> str:
    """The policy of a task: the highest among its chips."""
    return max(policies, key=POLICIES.index, default=EMPTY)


__all__ = [
    "ACTING", "BOOT_RANGE", "BOOT_SECONDS", "EMPTY", "FAILED", "FREE_RESET", "HEAL_RANGE", "HEAL_SECONDS", "IGNORE",
    "ISOLATE", "POLICIES", "READ_RANGE", "READ_SECONDS", "RECOVERED", "RESET", "RESTART", "RESTART_REQUEST",
    "UNRECOVERED", "gravest", "policy_of",
]  # fmt: skip
