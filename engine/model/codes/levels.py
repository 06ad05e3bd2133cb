"""Codes of how bad a fault is, and of the kinds of actions that a plan is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belay.engine.model import levels
from belay.engine.model.codes.rows import ExplainedCode as Row
from belay.engine.model.levels import NodeLevel, SwitchLevel, SwitchTableLevel

_FAULT: Final = "concepts/fault.md"
_POLICY: Final = "concepts/fault-policy.md"
_ACTION: Final = "concepts/action.md"
_RESET: Final = "concepts/reset.md"
_ISOLATION: Final = "concepts/isolation.md"

LEVELS: Final[Mapping[str, Row]] = {
    levels.NORMAL: Row("Nothing is wrong.", "", "", _FAULT),
    levels.NOT_HANDLE: Row("A fault is known, and nothing follows from it.", "",
                           "Nothing; a fault policy can make more of it.", _POLICY),
    levels.SUB_HEALTH: Row("It works with less than its full quality.", "",
                           "The job's subHealthyStrategy says whether it stays.", _FAULT),
    levels.RESTART_REQUEST: Row("The request that failed is to be made again.", "",
                                "Nothing: the job's task is rescheduled, and an idle chip is reset.", _FAULT),
    levels.RESTART_BUSINESS: Row("The job on the chip is to be started again.", "",
                                 "Nothing: the job's task is rescheduled, and an idle chip is reset.", _FAULT),
    levels.FREE_RESTART: Row("The chip is to be reset when its job has left it.", "",
                             "Nothing: the chip takes no new work until its reset.", _RESET),
    levels.RESTART: Row("The chip is to be reset.", "",
                        "Nothing: the job's task is rescheduled, and the chip is reset when it is idle.", _RESET),
    levels.PRE_SEPARATE: Row("The chip takes no new work; what runs on it stays.", "",
                             "Have it looked at before the job ends.", _ISOLATION),
    levels.SEPARATE: Row("The chip is out of service; what ran on it is rescheduled.", "",
                         "Have it repaired; it is back when its report is clean.", _ISOLATION),
    levels.MANUALLY_SEPARATE: Row("The chip stays out of service until a person lets it back.",
                                  "It failed more often than its policy allows.",
                                  "belay release NODE/CHIP, when it was looked at.", _ISOLATION),
    NodeLevel.PRE_SEPARATE: Row("The node or switch takes no new work; what runs stays.", "",
                                "Have it looked at before its jobs end.", _ISOLATION),
    NodeLevel.SEPARATE: Row("The node or switch is out of service; what ran there is rescheduled.", "",
                            "Have it repaired; it is back when its report is clean.", _ISOLATION),
    SwitchLevel.NOT_HANDLE: Row("A fault of a switch is known, and nothing follows from it.", "", "", _FAULT),
    SwitchLevel.PRE_SEPARATE: Row("Chips behind the switch take no new work; what runs stays.", "", "", _ISOLATION),
    SwitchLevel.SEPARATE: Row("Chips behind the switch are out of service.", "", "Have the switch repaired.",
                              _ISOLATION),
    SwitchTableLevel.RESTART_REQUEST: Row("The request that failed at the switch is to be made again.", "", "", _FAULT),
    SwitchTableLevel.RESET: Row("The switch is to be reset.", "", "", _FAULT),
}  # fmt: skip

KINDS_OF_ACTION: Final[Mapping[str, Row]] = {
    "CreateObject": Row("An object that Git declares, or that a job needs, is made.", page=_ACTION),
    "PatchObject": Row("An object is changed to what Git declares, or its status is written.", page=_ACTION),
    "DeleteObject": Row("An object that Git no longer declares, or that a job left behind, is deleted.", page=_ACTION),
    "CreatePod": Row("A pod of a job is made.", page=_ACTION),
    "BindPod": Row("A pod is given its node and its chips.", page=_ACTION),
    "EvictPod": Row("A pod is asked to go, within the safety budget.", "", "belay explain job JOB says why.",
                    _ACTION),
    "IsolateChip": Row("A chip is kept from new work.", "", "belay explain chip NODE/CHIP says why, and what ends it.",
                       _ISOLATION),
    "ReleaseChip": Row("A chip is back in service.", page=_ISOLATION),
    "IsolateNode": Row("A node is kept from new work.", "", "belay explain node NODE says why, and what ends it.",
                       _ISOLATION),
    "ReleaseNode": Row("A node is back in service.", page=_ISOLATION),
    "ResetChips": Row("Chips that nothing uses are reset together, once.", page=_RESET),
    "PartitionChip": Row("A chip is cut into vNPUs, or put together again.", page="concepts/vnpu-layout.md"),
    "ScaleJob": Row("A job is given fewer or more pods.", page="concepts/recovery.md"),
    "SignalJob": Row("A job's processes are asked to stop, save or go on.", page="concepts/recovery.md"),
    "WriteRankTable": Row("The list by which a job's processes find each other is written.",
                          page="concepts/rank-table.md"),
}  # fmt: skip
