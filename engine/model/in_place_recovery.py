"""Healing chips under the job that uses them: the protocol of training managers, engine and agents.

The device plugin calls it graceful fault tolerance (``-hotReset=1``, up to v26.0). Policies, their order and status
values are those of ``reset-config-<job>``. Sources: component/ascend-device-plugin/pkg/device/ascendtolerance.go,
docs/zh/scheduling/04_usage/04_resumable_training/03_configuration/01_configuring_fault_detection_levels.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from belay.engine.model.levels import FaultLevel, known

#: Policies for a chip, from doing nothing to isolating it.
EMPTY, IGNORE, RESTART_REQUEST, RESTART, FREE_RESET, RESET, ISOLATE = (
    "", "ignore", "restart_request", "restart", "free_reset", "reset", "isolate",
)  # fmt: skip
POLICIES: Final = (EMPTY, IGNORE, RESTART_REQUEST, RESTART, FREE_RESET, RESET, ISOLATE)
#: Policies that are carried out under the running job.
ACTING: Final = frozenset({RESTART_REQUEST, RESTART, RESET})
#: Status of a rank: its processes must stop; may restart; the chip failed, so the container ends.
UNRECOVERED, RECOVERED, FAILED = "unrecovered", "recovered", "failed"

#: Seconds and their ranges (``GraceTolerance`` of faultCustomization.json): for managers to read what was written,
#: for a reset chip to boot, for a fault to heal once no process runs.
READ_SECONDS, READ_RANGE = 30, (5, 90)
BOOT_SECONDS, BOOT_RANGE = 150, (60, 180)
HEAL_SECONDS, HEAL_RANGE = 15, (1, 30)


def policy_of(level: str) -> str:
    """The policy for a chip of this level."""
    found = known(level)
    match found:
        case FaultLevel.NORMAL:
            return EMPTY
        case FaultLevel.NOT_HANDLE | FaultLevel.SUB_HEALTH:
            return IGNORE
        case FaultLevel.RESTART_REQUEST:
            return RESTART_REQUEST
        case FaultLevel.RESTART_BUSINESS:
            return RESTART
        case FaultLevel.FREE_RESTART:
            return FREE_RESET
        case FaultLevel.RESTART:
            return RESET
        case FaultLevel.PRE_SEPARATE | FaultLevel.SEPARATE | FaultLevel.MANUALLY_SEPARATE:
            return ISOLATE
        case _:
            assert_never(found)


def gravest(policies: Iterable[str]) -> str:
    """The policy of a task: the highest among its chips."""
    return max(policies, key=POLICIES.index, default=EMPTY)


__all__ = [
    "ACTING", "BOOT_RANGE", "BOOT_SECONDS", "EMPTY", "FAILED", "FREE_RESET", "HEAL_RANGE", "HEAL_SECONDS", "IGNORE",
    "ISOLATE", "POLICIES", "READ_RANGE", "READ_SECONDS", "RECOVERED", "RESET", "RESTART", "RESTART_REQUEST",
    "UNRECOVERED", "gravest", "policy_of",
]  # fmt: skip
