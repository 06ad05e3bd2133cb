"""The protocol of process-level recovery: states, events, signals, strategies, status codes, timers.

Values are those of MindCluster's ClusterD (component/clusterd, recovery controller and recover.proto); names that reach
the wire are spelt as there, mistakes included.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class RecoveryPhase(StrEnum):
    """A part of a state of the conversation, with a limit of its own; what is stored stays text."""

    SEND = "send"
    PAUSE = "pause"
    RUNNING = "running"
    ENABLE = "enable"
    RESOURCES = "resources"
    RANK_TABLE = "rank-table"
    IN_PLACE = "in-place"
    ROUTE = "route"
    SCHEDULE = "schedule"
    CLEAR = "clear"
    STATUS = "status"
    PRE_EXIT = "pre-exit"
    PLATFORM = "platform"
    FLUSH = "flush"
    LIST = "list"
    RELEASE = "release"
    RELEASED = "released"
    CONFIRM = "confirm"
    RESULT = "result"
    SMALL = "small"
    BROKE = "broke"


class State(StrEnum):
    """State of one job's conversation."""

    INIT = "INIT"
    WAIT_FLUSHING = "NotifyWaitFaultFlushingState"
    STOP_TRAIN = "NotifyStopTrainState"
    DUMP = "NotifyDumpState"
    WAIT_STOP = "WaitReportStopCompleteState"
    WAIT_FLUSHED = "WaitFaultFlushFinishedState"
    GLOBAL_FAULT = "NotifyGlobalFaultState"
    WAIT_STRATEGY = "WaitReportRecoverStrategyState"
    DECIDED = "NotifyDecidedStrategyState"
    WAIT_RETRY = "WaitReportStepRetryStatusState"
    WAIT_RECOVER = "WaitReportProcessRecoverStatusState"
    WAIT_DUMP = "WaitReportDumpStatusState"
    CHECK = "CheckRecoverResultState"
    KILL_PODS = "KillPodForUnrecoverableRetryState"
    LISTEN_SCHEDULE = "ListenScheduleResultState"
    RESTART_ALL = "NotifyRestartAllProcessState"
    WAIT_RESTART_ALL = "WaitRestartAllProcessState"
    FAULT_CLEAR = "FaultClearState"
    FAULT_RETRY = "FaultRetryState"
    KILL_JOB = "NotifyKillJobState"
    # operations on a running job: link switch and stress test
    PAUSE = "NotifyPauseTrainState"
    WAIT_PAUSE = "WaitReportPauseCompleteState"
    SWITCH_NIC = "NotifySwitchNicState"
    WAIT_SWITCH_NIC = "WaitSwitchNicFinishedState"
    STRESS_TEST = "NotifyStressTestState"
    WAIT_STRESS_TEST = "WaitStressTestFinishedState"
    CONTINUE = "NotifyContinueTrainState"
    WAIT_CONTINUE = "WaitContinueTrainState"
    # elastic training
    SCALE_IN = "NotifyScaleInStrategyState"
    WAIT_ISOLATE = "WaitReportScaleInIsolateRanksState"
    CHECK_ISOLATE = "CheckReportScaleInIsolateRanksState"
    WAIT_SCALE_IN = "WaitReportScaleInStatusState"
    SCALE_RUNNING = "ScaleRunningState"
    WAIT_SCALE_OUT = "WaitReportScaleOutStatusState"
    # hot switch of a sub-healthy pod
    HOT_PREPARE = "notifyPrepareHotSwitchState"
    HOT_WAIT_POD = "WaitNewPodState"
    HOT_POD_FAILED = "WaitNotifyPodFailedResultState"
    HOT_POD_RUNNING = "WaitNotifyPodRunningResultState"
    HOT_WAIT_PAUSE = "WaitReportPauseResultState"
    HOT_STOP_JOB = "NotifyStopJobState"
    HOT_WAIT_DELETED = "WaitOldPodDeletedState"
    HOT_RESTART = "WaitNotifyRestartTrainResultState"
    HOT_WAIT_RESTART = "WaitReportRestartTrainResultState"


class RecoveryEvent(StrEnum):
    """Event that moves the conversation to another state."""

    FAULT = "faultOccur"
    FINISH_NOTIFY = "notifyFinish"
    PLATFORM_TIMEOUT = "waitPlatStrategyTimeout"
    DUMP = "dumpForFault"
    SENT = "notifySuccess"
    UNSENT = "notifyFail"
    REPORT = "receiveReport"
    TIMEOUT = "receiveTimeout"
    NOT_READY = "processNotReadyEvent"
    FLUSHED = "flushFinished"
    CONFIRM_TIMEOUT = "writeConfirmFaultOrWaitResultFaultTimeout"
    RANK_TABLE_TIMEOUT = "waitRankTableTimeout"
    RETRY_SENT = "notifyRetryStrategySuccess"
    RECOVER_SENT = "notifyRecoverStrategySuccess"
    DUMP_SENT = "notifyDumpStrategySuccess"
    EXIT_SENT = "notifyExitStrategySuccess"
    ROUTE_FAILED = "waitHCCLRoutingConvergenceFail"
    SCHEDULE_TIMEOUT = "scheduleTimeout"
    SCHEDULED = "scheduleSuccess"
    CLEARED = "clearSuccess"
    UNCLEARED = "clearFail"
    RECOVERED = "recoverSuccess"
    UNRECOVERED = "recoverFail"
    RETRY_AGAIN = "recoverableRetryError"
    RETRY_LOST = "unRecoverableRetryError"
    CHECKED = "checkFinish"
    PODS_KILLED = "finishKillPod"
    RESTARTED = "restartFinish"
    FINISHED = "finish"
    PAUSE_LABEL = "changeSwitchPauseError"
    ENABLE_LABEL = "changeSwitchEnableError"
    START_NIC = "startSwitchNic"
    START_STRESS = "startStressTest"
    PAUSE_FAILED = "processPauseFail"
    NIC_PAUSED = "switchNicRecvPause"
    STRESS_PAUSED = "stressTestRecvPause"
    NIC_FAULT = "waitSwitchNicRecvFault"
    NIC_FAILED = "switchNicFail"
    STRESS_FAILED = "stressTestFail"
    CONTINUE_SENT = "notifyContinueSuccessEvent"
    NIC_CONTINUED = "switchNicRecvContinue"
    STRESS_CONTINUED = "stressTestRecvContinue"
    CONTINUE_FAILED = "continueTrainFail"
    SCALE_IN_SENT = "notifyScaleInStrategySuccessEvent"
    SCALE_OUT_SENT = "notifyScaleOutStrategySuccessEvent"
    TRY_SCALE_IN = "needTryScaleStrategyInEvent"
    NODES_EXIT_SENT = "notifyFaultNodesExitSuccessEvent"
    SCALED_IN = "scaleInSuccessEvent"
    SCALED_OUT = "scaleOutSuccessEvent"
    HOT_SWITCH = "BeginHotSwitchEvent"
    POD_RUNNING = "NewPodRunningEvent"
    POD_TIMEOUT = "NewPodTimeoutEvent"
    HOT_EXIT = "ExitEvent"
    MIGRATE = "MigrationEvent"
    OLD_POD_GONE = "OldPodDeletedEvent"
    RESTART_OK = "RestartSuccessEvent"
    RESTART_FAILED = "RestartFaildEvent"


class RecoveryStrategy(StrEnum):
    """Strategy that a job may be configured with, in the order of trial."""

    RETRY = "retry"
    IN_PLACE = "recover-in-place"
    RECOVER = "recover"
    ELASTIC = "elastic-training"
    DUMP = "dump"
    EXIT = "exit"


class ChangeStrategy(StrEnum):
    """Value of ``changeStrategy`` on the wire."""

    RETRY = "retry"
    RECOVER = "recover"
    DUMP = "dump"
    EXIT = "exit"
    CONTINUE = "continue"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    MIGRATION = "migration"


class Code(IntEnum):
    """Status codes of ClusterD (component/clusterd/pkg/interface/grpc/common)."""

    OK = 0
    SUCCESS = 200
    EXIT_ISOLATE_RANKS = 201
    UNREGISTERED = 400
    ORDER_MIX = 401
    JOB_NOT_EXIST = 402
    ENABLE_OFF = 403
    PROCESS_NOT_READY = 404
    RECOVERABLE_RETRY = 405
    UNRECOVERABLE_RETRY = 406
    DUMP_ERROR = 407
    UNINITIALISED = 408
    BAD_PARAMETER = 409
    BAD_RATE = 410
    OPERATION_RUNNING = 411
    BAD_OPERATION = 413
    RATE_LIMITED = 429
    CLIENT_ERROR = 499
    TOO_MANY_JOBS = 500
    CONFIG_MAP = 501
    POD_GROUP = 502
    SCHEDULE_TIMEOUT = 503
    SIGNAL_QUEUE_BUSY = 504
    EVENT_QUEUE_BUSY = 505
    CANCELLED = 506
    REPORT_TIMEOUT = 507
    PLATFORM_TIMEOUT = 508
    CONFIRM_FAULT = 509
    ROUTE_CONVERGENCE = 510
    INNER = 599


# signal types and actions of ProcessManageSignal
KILL_MASTER, STOP_TRAIN, GLOBAL_FAULT, CHANGE_STRATEGY = "killMaster", "stopTrain", "globalFault", "changeStrategy"
SAVE_AND_EXIT, KEEP_ALIVE, NODES_EXIT, HOT_SWITCH = "saveAndExit", "keep-alive", "faultNodesExit", "hot-switch"
PAUSE_START, CONTINUE_START, PRE_EXIT = "pauseStartAgent", "continueStartAgent", "preExitProcess"

SCALE_IN_PARAMS = '{"scale-in-strategy": "DP"}'
SCALE_OUT_PARAMS = '{"scale-out-strategy": "DP"}'
IN_PLACE_PARAMS = "recover-in-place"
DUMP_EXIT_PARAMS = "dump_exit"

UCE, NORMAL, HCCL = "0", "1", "2"  # faultType of a rank: on-chip memory, other, network
RETRY_TYPES = frozenset({UCE, HCCL})

# seconds
REPORT_TIMEOUT = 900
FLUSH = 1
FLUSH_QUIET = 0.2  # without a further fault: those of one cause come together
KEEP_ALIVE_PERIOD = 5
SIGNAL_ENQUEUE = 1
KILL_ENQUEUE = 60
#: A signal sent at most this long before a server took over may have been lost with the previous server …
LOST = 30
#: … and is sent again when no answer came this long after the clients returned.
REPEAT = 10
PLATFORM_LIMIT = 300
RESCHEDULE_LIMIT = 270
RESCHEDULE_RANGE = (30, 270)
RUNNING_LIMIT = 135
RUNNING_POLL = 5
EXIT_SCHEDULE_LIMIT = 20
RESTART_ALL_WAIT = 60
IN_PLACE_LIMIT = 15
IN_PLACE_READ = 5  # for agents to read which processes to restart
ROUTE_WAIT = 3
HCCL_CLIENT_TIMEOUT = 33
HOT_POD_LIMIT = 60
STRESS_PAUSE_TIMEOUT = 900
PRE_EXIT_WAIT = 10
RELEASE_WAIT = 10
PRE_EXIT_ANSWER = 60
STRESS_LIMIT = 900
ELASTIC_DEFAULT_WAIT = 20
MAX_HOT_PODS = 10
