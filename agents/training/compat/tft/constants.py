"""Names and numbers of MindIO TFT 7.3.0 (component/mindio/tft), as scripts see them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

MAX_RANKS = 100_000


class OptimizerType(Enum):
    """The optimizer of a rank; the index in the list of `tft_set_optimizer_replica`."""

    ATTENTION = 0
    MOE = 1


class Action(Enum):
    """The next action of a waiting train thread."""

    RETRY = 0
    EXIT = 1


class ReportState(Enum):
    """States that the train function reports."""

    RS_NORMAL = 0
    RS_RETRY = 1
    RS_UCE = 2
    RS_UCE_CORRUPTED = 3
    RS_HCCL_FAILED = 4
    RS_INIT_FINISH = 5
    RS_PREREPAIR_FINISH = 6
    RS_STEP_FINISH = 7
    RS_UNKNOWN = 8


class RepairType(Enum):
    """The part of a rank in a repair."""

    RT_SEND = 0
    RT_UCE_HIGHLEVEL = 1
    RT_UCE_LOWLEVEL = 2
    RT_RECV_REPAIR = 3
    RT_ROLLBACK = 4
    RT_LOAD_CKPT = 5
    RT_LOAD_REBUILD = 6


class DataStatus(IntEnum):
    """Whether a rank's optimizer state is complete."""

    UPDATED = 0
    UPDATING = 1
    COPYING = 2


class TrainState(IntEnum):
    """State of a rank in the controller."""

    NORMAL = 0
    ABNORMAL = 1
    UCE_HIGH = 2
    UCE_LOW = 3
    UCE_CORRUPTED = 4
    OFFLINE = 5
    ISOLATE = 6
    INIT_FINISH = 7
    PREREPAIR_FINISH = 8
    PRECISION_ERROR = 9
    STEP_FINISH = 10
    EXIT = 11
    HCCL_FAILED = 12


class FaultType(IntEnum):
    """Types of faults on ClusterD's wire."""

    MEMORY = 0
    PROCESS = 1
    NETWORK = 2


class Result(IntEnum):
    """Result of a procedure of the controller or of an action of a processor."""

    OK = 0
    ERROR = 1
    WAIT_CHECK = 2
    STOP_SERVICE = 3
    TIMEOUT = 4
    NEED_RETRY = 5
    DOWNGRADE = 6
    REPAIR = 7
    PAUSE = 8
    SWITCH = 9
    RERUN = 10
    AGAIN = 11  # another fault during a repair: a new generation starts


class ControllerState(Enum):
    """States of the controller."""

    INIT = "init"
    NORMAL = "normal"
    PAUSE = "pause"
    STEP_FINISH = "step finish"
    MIGRATION = "migration"
    ABNORMAL = "abnormal"
    ENV_CLEAR = "environment clear"
    REPAIR = "repair"
    DG_REPAIR = "downgrade repair"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    DUMP = "dump"
    EXIT = "exit"
    FINAL = "final"


TRANSITIONS: dict[tuple[ControllerState, Result], ControllerState] = {
    (ControllerState.INIT, Result.OK): ControllerState.NORMAL,
    (ControllerState.INIT, Result.ERROR): ControllerState.FINAL,
    (ControllerState.NORMAL, Result.OK): ControllerState.NORMAL,
    (ControllerState.NORMAL, Result.ERROR): ControllerState.ABNORMAL,
    (ControllerState.NORMAL, Result.PAUSE): ControllerState.PAUSE,
    (ControllerState.NORMAL, Result.SWITCH): ControllerState.STEP_FINISH,
    (ControllerState.NORMAL, Result.STOP_SERVICE): ControllerState.FINAL,
    (ControllerState.PAUSE, Result.OK): ControllerState.NORMAL,
    (ControllerState.PAUSE, Result.ERROR): ControllerState.ABNORMAL,
    (ControllerState.STEP_FINISH, Result.OK): ControllerState.MIGRATION,
    (ControllerState.STEP_FINISH, Result.RERUN): ControllerState.NORMAL,
    (ControllerState.MIGRATION, Result.OK): ControllerState.NORMAL,
    (ControllerState.MIGRATION, Result.ERROR): ControllerState.DUMP,
    (ControllerState.ABNORMAL, Result.OK): ControllerState.ENV_CLEAR,
    (ControllerState.ABNORMAL, Result.RERUN): ControllerState.NORMAL,
    (ControllerState.ABNORMAL, Result.ERROR): ControllerState.DUMP,
    (ControllerState.ENV_CLEAR, Result.OK): ControllerState.REPAIR,
    (ControllerState.ENV_CLEAR, Result.ERROR): ControllerState.DUMP,
    (ControllerState.ENV_CLEAR, Result.DOWNGRADE): ControllerState.DG_REPAIR,
    (ControllerState.REPAIR, Result.OK): ControllerState.NORMAL,
    (ControllerState.REPAIR, Result.DOWNGRADE): ControllerState.DG_REPAIR,
    (ControllerState.REPAIR, Result.ERROR): ControllerState.DUMP,
    (ControllerState.DG_REPAIR, Result.OK): ControllerState.DOWNGRADE,
    (ControllerState.DG_REPAIR, Result.ERROR): ControllerState.DUMP,
    (ControllerState.DOWNGRADE, Result.OK): ControllerState.DOWNGRADE,
    (ControllerState.DOWNGRADE, Result.NEED_RETRY): ControllerState.UPGRADE,
    (ControllerState.DOWNGRADE, Result.ERROR): ControllerState.ABNORMAL,
    (ControllerState.UPGRADE, Result.OK): ControllerState.ENV_CLEAR,
    (ControllerState.UPGRADE, Result.ERROR): ControllerState.DUMP,
    (ControllerState.DUMP, Result.OK): ControllerState.EXIT,
    (ControllerState.DUMP, Result.ERROR): ControllerState.EXIT,
    (ControllerState.EXIT, Result.OK): ControllerState.FINAL,
    (ControllerState.EXIT, Result.STOP_SERVICE): ControllerState.FINAL,
}
"""MindIO's table with two additions: a fault during a repair starts a new generation (AGAIN leads from every state to
ABNORMAL), and a fault of a shrunk job leads to ABNORMAL, where only dump and exit are offered."""


def after(state: ControllerState, result: Result) -> ControllerState:
    """The state that follows. Raises KeyError for a pair that is not in the table, which is a bug."""
    if result is Result.AGAIN:
        return ControllerState.ABNORMAL
    if result is Result.STOP_SERVICE and state is not ControllerState.EXIT and state is not ControllerState.NORMAL:
        return ControllerState.EXIT
    return TRANSITIONS[state, result]


@dataclass(frozen=True)
class Code:
    """Result codes that ClusterD understands."""

    OK = 0
    ISOLATE = 201
    NOT_READY = 404
    RECOVERABLE = 405
    FALL_BACK = 406
    FAILED = 499


FAULT_OF: dict[TrainState, FaultType] = {
    TrainState.HCCL_FAILED: FaultType.NETWORK,
    TrainState.UCE_HIGH: FaultType.MEMORY,
    TrainState.UCE_LOW: FaultType.MEMORY,
    TrainState.UCE_CORRUPTED: FaultType.MEMORY,
    TrainState.PRECISION_ERROR: FaultType.MEMORY,
    TrainState.ABNORMAL: FaultType.PROCESS,
    TrainState.OFFLINE: FaultType.PROCESS,
}

STATE_OF: dict[ReportState, TrainState] = {
    ReportState.RS_NORMAL: TrainState.NORMAL,
    ReportState.RS_RETRY: TrainState.PRECISION_ERROR,
    ReportState.RS_UCE: TrainState.UCE_HIGH,
    ReportState.RS_UCE_CORRUPTED: TrainState.UCE_CORRUPTED,
    ReportState.RS_HCCL_FAILED: TrainState.HCCL_FAILED,
    ReportState.RS_INIT_FINISH: TrainState.INIT_FINISH,
    ReportState.RS_PREREPAIR_FINISH: TrainState.PREREPAIR_FINISH,
    ReportState.RS_STEP_FINISH: TrainState.STEP_FINISH,
    ReportState.RS_UNKNOWN: TrainState.ABNORMAL,
}
