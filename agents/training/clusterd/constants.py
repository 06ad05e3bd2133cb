"""Names and times of the manager; the values are those of MindCluster's TaskD and of ClusterD's recovery service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KILL_MASTER: Final = "killMaster"
STOP_TRAIN: Final = "stopTrain"
GLOBAL_FAULT: Final = "globalFault"
CHANGE_STRATEGY: Final = "changeStrategy"
SAVE_AND_EXIT: Final = "saveAndExit"
KEEP_ALIVE: Final = "keep-alive"
FAULT_NODES_EXIT: Final = "faultNodesExit"
HOT_SWITCH: Final = "hot-switch"
PAUSE_START: Final = "pauseStartAgent"
CONTINUE_START: Final = "continueStartAgent"
PRE_EXIT: Final = "preExitProcess"
SIGNALS: Final = frozenset({
    KILL_MASTER, STOP_TRAIN, GLOBAL_FAULT, CHANGE_STRATEGY, SAVE_AND_EXIT, KEEP_ALIVE, FAULT_NODES_EXIT, HOT_SWITCH,
    PAUSE_START, CONTINUE_START, PRE_EXIT,
})  # fmt: skip

RETRY, RECOVER, DUMP, EXIT, CONTINUE = "retry", "recover", "dump", "exit", "continue"
DOWNGRADE, UPGRADE, MIGRATION = "downgrade", "upgrade", "migration"
IN_PLACE: Final = "recover-in-place"

NODES_EXIT_ACTION: Final = "fault_nodes_exit"
PRE_EXIT_ACTION: Final = "pre exit process"
CHANGE_ACTION: Final = "change_strategy"
SAVE_ACTION: Final = "save_and_exit"
CONTROLLER_ACTIONS: Final = ("stop_train", "pause_train", "on_global_rank")
HOT_SWITCH_ACTIONS: Final = ("hot switch", "stop switch", "new pod running")
RESTART_CONTROLLER: Final = "restart_controller"
DESTROY_CONTROLLER: Final = "destroy_controller"

ISOLATE_CODE: Final = 201
"""The only result with which a status report names ranks that leave."""

SWITCH_UUID, GLOBAL_RANKS, GLOBAL_OPS = "switchNicUUID", "globalRankIDs", "globalOps"
SWITCH_OK, SWITCH_FAIL = "switchOK", "switchFail"
STRESS_UUID, STRESS_OPS = "stressTestUUID", "StressTestRankOPStr"
STRESS_TIMEOUT: Final = "3"

PORT: Final = 9601
LOOP_SECONDS: Final = 0.1
LOOP_RANGE_MS: Final = (100, 1000)
RANK0_FAULT_SECONDS: Final = 25 * 60.0
SWITCH_SECONDS: Final = 120 * 60.0
STRESS_SECONDS: Final = 15 * 60.0
HEARTBEAT_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 600
MAX_PAUSE_SECONDS: Final = 7200
RESEND_WAITS: Final = (0.2, 1.0, 3.0, 3.0, 3.0)
"""Seconds before an undelivered message is sent again, attempt by attempt."""
CONTROLLER_PAUSE: Final = 1.0
"""Seconds between the end of a controller and its new start."""


def own_port(environ: Mapping[str, str], name: str, default: int) -> str:
    """A port as text: the variable's when it is one from 1 to 65535, otherwise the default."""
    text = environ.get(name, "")
    return text if text.isascii() and text.isdigit() and 0 < int(text) < 65536 else str(default)
