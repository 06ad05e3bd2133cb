"""The transition table of process-level recovery, and its diagram.

Rows and their order are those of ClusterD's controller (component/clusterd, recovery state machine rules); rows marked
``OWN`` are Belay's, where the original leaves a state without a way out.
"""

from __future__ import annotations

from typing import NamedTuple

from belay.engine.model.recovery.protocol import RecoveryEvent as E
from belay.engine.model.recovery.protocol import State as S


class TransitionRow(NamedTuple):
    """In ``state``, ``event`` leads to ``to``."""

    state: S
    event: E
    to: S


RECOVERY = (
    TransitionRow(S.INIT, E.FAULT, S.WAIT_FLUSHING),
    TransitionRow(S.WAIT_FLUSHING, E.FINISH_NOTIFY, S.STOP_TRAIN),
    TransitionRow(S.WAIT_FLUSHING, E.PLATFORM_TIMEOUT, S.FAULT_RETRY),
    TransitionRow(S.WAIT_FLUSHING, E.DUMP, S.DUMP),
    TransitionRow(S.WAIT_FLUSHING, E.UNSENT, S.KILL_JOB),
    TransitionRow(S.STOP_TRAIN, E.SENT, S.WAIT_STOP),
    TransitionRow(S.STOP_TRAIN, E.UNSENT, S.FAULT_CLEAR),
    TransitionRow(S.DUMP, E.SENT, S.WAIT_DUMP),
    TransitionRow(S.DUMP, E.UNSENT, S.FAULT_CLEAR),
    TransitionRow(S.WAIT_STOP, E.REPORT, S.WAIT_FLUSHED),
    TransitionRow(S.WAIT_STOP, E.TIMEOUT, S.FAULT_CLEAR),
    TransitionRow(S.WAIT_STOP, E.NOT_READY, S.KILL_JOB),
    TransitionRow(S.WAIT_FLUSHED, E.FLUSHED, S.GLOBAL_FAULT),
    TransitionRow(S.GLOBAL_FAULT, E.SENT, S.WAIT_STRATEGY),
    TransitionRow(S.GLOBAL_FAULT, E.UNSENT, S.KILL_JOB),
    TransitionRow(S.GLOBAL_FAULT, E.CONFIRM_TIMEOUT, S.FAULT_RETRY),
    TransitionRow(S.WAIT_STRATEGY, E.REPORT, S.DECIDED),
    TransitionRow(S.WAIT_STRATEGY, E.TIMEOUT, S.FAULT_CLEAR),
    TransitionRow(S.DECIDED, E.RANK_TABLE_TIMEOUT, S.FAULT_CLEAR),
    TransitionRow(S.DECIDED, E.UNSENT, S.FAULT_CLEAR),
    TransitionRow(S.DECIDED, E.RETRY_SENT, S.WAIT_RETRY),
    TransitionRow(S.DECIDED, E.RECOVER_SENT, S.WAIT_RECOVER),
    TransitionRow(S.DECIDED, E.DUMP_SENT, S.WAIT_DUMP),
    TransitionRow(S.DECIDED, E.EXIT_SENT, S.CHECK),
    TransitionRow(S.DECIDED, E.ROUTE_FAILED, S.KILL_JOB),
    TransitionRow(S.WAIT_RETRY, E.REPORT, S.CHECK),
    TransitionRow(S.WAIT_RETRY, E.TIMEOUT, S.FAULT_RETRY),
    TransitionRow(S.WAIT_RECOVER, E.REPORT, S.CHECK),
    TransitionRow(S.WAIT_RECOVER, E.SCHEDULE_TIMEOUT, S.FAULT_CLEAR),
    TransitionRow(S.WAIT_RECOVER, E.TIMEOUT, S.FAULT_CLEAR),
    TransitionRow(S.WAIT_RECOVER, E.UNCLEARED, S.FAULT_RETRY),
    TransitionRow(S.WAIT_DUMP, E.REPORT, S.CHECK),
    TransitionRow(S.WAIT_DUMP, E.TIMEOUT, S.FAULT_CLEAR),
    TransitionRow(S.CHECK, E.RECOVERED, S.INIT),
    TransitionRow(S.CHECK, E.UNRECOVERED, S.DECIDED),
    TransitionRow(S.CHECK, E.RETRY_AGAIN, S.WAIT_FLUSHED),
    TransitionRow(S.CHECK, E.RETRY_LOST, S.KILL_PODS),
    TransitionRow(S.CHECK, E.CHECKED, S.LISTEN_SCHEDULE),
    TransitionRow(S.KILL_PODS, E.PODS_KILLED, S.DECIDED),
    TransitionRow(S.LISTEN_SCHEDULE, E.SCHEDULE_TIMEOUT, S.FAULT_CLEAR),
    TransitionRow(S.LISTEN_SCHEDULE, E.SCHEDULED, S.RESTART_ALL),
    TransitionRow(S.RESTART_ALL, E.SENT, S.WAIT_RESTART_ALL),
    TransitionRow(S.RESTART_ALL, E.UNSENT, S.FAULT_CLEAR),
    TransitionRow(S.WAIT_RESTART_ALL, E.RESTARTED, S.FAULT_CLEAR),
    TransitionRow(S.FAULT_CLEAR, E.CLEARED, S.FAULT_RETRY),
    TransitionRow(S.FAULT_CLEAR, E.UNCLEARED, S.KILL_JOB),
    TransitionRow(S.FAULT_RETRY, E.FINISHED, S.INIT),
    TransitionRow(S.FAULT_RETRY, E.PAUSE_LABEL, S.KILL_JOB),
    TransitionRow(S.FAULT_RETRY, E.ENABLE_LABEL, S.KILL_JOB),
    TransitionRow(S.FAULT_RETRY, E.SCHEDULE_TIMEOUT, S.KILL_JOB),
    TransitionRow(S.KILL_JOB, E.FINISHED, S.INIT),
)

OPERATIONS = (
    TransitionRow(S.INIT, E.START_NIC, S.PAUSE),
    TransitionRow(S.INIT, E.START_STRESS, S.PAUSE),
    TransitionRow(S.PAUSE, E.SENT, S.WAIT_PAUSE),
    TransitionRow(S.PAUSE, E.UNSENT, S.KILL_JOB),
    TransitionRow(S.WAIT_PAUSE, E.TIMEOUT, S.KILL_JOB),
    TransitionRow(S.WAIT_PAUSE, E.PAUSE_FAILED, S.KILL_JOB),
    TransitionRow(S.WAIT_PAUSE, E.NIC_PAUSED, S.SWITCH_NIC),
    TransitionRow(S.WAIT_PAUSE, E.STRESS_PAUSED, S.STRESS_TEST),
    TransitionRow(S.SWITCH_NIC, E.SENT, S.WAIT_SWITCH_NIC),
    TransitionRow(S.SWITCH_NIC, E.UNSENT, S.KILL_JOB),
    TransitionRow(S.STRESS_TEST, E.SENT, S.WAIT_STRESS_TEST),
    TransitionRow(S.STRESS_TEST, E.UNSENT, S.KILL_JOB),
    TransitionRow(S.WAIT_SWITCH_NIC, E.REPORT, S.CONTINUE),
    TransitionRow(S.WAIT_SWITCH_NIC, E.NIC_FAULT, S.STOP_TRAIN),
    TransitionRow(S.WAIT_SWITCH_NIC, E.TIMEOUT, S.STOP_TRAIN),
    TransitionRow(S.WAIT_SWITCH_NIC, E.NIC_FAILED, S.STOP_TRAIN),
    TransitionRow(S.WAIT_STRESS_TEST, E.REPORT, S.CONTINUE),
    TransitionRow(S.WAIT_STRESS_TEST, E.TIMEOUT, S.STOP_TRAIN),
    TransitionRow(S.WAIT_STRESS_TEST, E.STRESS_FAILED, S.STOP_TRAIN),
    TransitionRow(S.CONTINUE, E.CONTINUE_SENT, S.WAIT_CONTINUE),
    TransitionRow(S.CONTINUE, E.UNSENT, S.KILL_JOB),
    TransitionRow(S.WAIT_CONTINUE, E.NIC_CONTINUED, S.INIT),
    TransitionRow(S.WAIT_CONTINUE, E.STRESS_CONTINUED, S.INIT),
    TransitionRow(S.WAIT_CONTINUE, E.TIMEOUT, S.KILL_JOB),
    TransitionRow(S.WAIT_CONTINUE, E.CONTINUE_FAILED, S.KILL_JOB),
)

ELASTIC = (
    TransitionRow(S.DECIDED, E.SCALE_IN_SENT, S.WAIT_ISOLATE),
    TransitionRow(S.WAIT_RECOVER, E.TRY_SCALE_IN, S.SCALE_IN),
    TransitionRow(S.SCALE_IN, E.SCALE_IN_SENT, S.WAIT_ISOLATE),
    TransitionRow(S.SCALE_IN, E.UNSENT, S.FAULT_CLEAR),
    TransitionRow(S.WAIT_ISOLATE, E.REPORT, S.CHECK_ISOLATE),
    TransitionRow(S.WAIT_ISOLATE, E.TIMEOUT, S.DECIDED),
    TransitionRow(S.CHECK_ISOLATE, E.UNSENT, S.DECIDED),
    TransitionRow(S.CHECK_ISOLATE, E.UNRECOVERED, S.DECIDED),
    TransitionRow(S.CHECK_ISOLATE, E.NODES_EXIT_SENT, S.WAIT_SCALE_IN),
    TransitionRow(S.WAIT_SCALE_IN, E.REPORT, S.CHECK),
    TransitionRow(S.WAIT_SCALE_IN, E.TIMEOUT, S.FAULT_CLEAR),
    TransitionRow(S.CHECK, E.SCALED_IN, S.SCALE_RUNNING),
    TransitionRow(S.CHECK, E.SCALED_OUT, S.INIT),
    TransitionRow(S.SCALE_RUNNING, E.SCALE_OUT_SENT, S.WAIT_SCALE_OUT),
    TransitionRow(S.SCALE_RUNNING, E.FAULT, S.STOP_TRAIN),
    TransitionRow(S.SCALE_RUNNING, E.FINISHED, S.INIT),
    TransitionRow(S.SCALE_RUNNING, E.UNSENT, S.SCALE_RUNNING),
    TransitionRow(S.WAIT_SCALE_OUT, E.REPORT, S.CHECK),
    TransitionRow(S.WAIT_SCALE_OUT, E.TIMEOUT, S.FAULT_CLEAR),
)

HOT_SWITCH = (
    TransitionRow(S.INIT, E.HOT_SWITCH, S.HOT_PREPARE),
    TransitionRow(S.HOT_PREPARE, E.SENT, S.HOT_WAIT_POD),
    TransitionRow(S.HOT_PREPARE, E.UNSENT, S.INIT),
    TransitionRow(S.HOT_WAIT_POD, E.POD_RUNNING, S.HOT_POD_RUNNING),
    TransitionRow(S.HOT_WAIT_POD, E.POD_TIMEOUT, S.HOT_POD_FAILED),
    TransitionRow(S.HOT_POD_FAILED, E.SENT, S.INIT),
    TransitionRow(S.HOT_POD_FAILED, E.UNSENT, S.INIT),
    TransitionRow(S.HOT_POD_RUNNING, E.SENT, S.HOT_WAIT_PAUSE),
    TransitionRow(S.HOT_POD_RUNNING, E.UNSENT, S.HOT_WAIT_PAUSE),
    TransitionRow(S.HOT_WAIT_PAUSE, E.TIMEOUT, S.HOT_STOP_JOB),
    TransitionRow(S.HOT_WAIT_PAUSE, E.HOT_EXIT, S.HOT_STOP_JOB),
    TransitionRow(S.HOT_WAIT_PAUSE, E.MIGRATE, S.HOT_WAIT_DELETED),
    TransitionRow(S.HOT_STOP_JOB, E.SENT, S.INIT),
    TransitionRow(S.HOT_STOP_JOB, E.UNSENT, S.INIT),
    TransitionRow(S.HOT_WAIT_DELETED, E.OLD_POD_GONE, S.HOT_RESTART),
    TransitionRow(S.HOT_RESTART, E.SENT, S.HOT_WAIT_RESTART),
    TransitionRow(S.HOT_RESTART, E.UNSENT, S.HOT_STOP_JOB),
    TransitionRow(S.HOT_WAIT_RESTART, E.RESTART_OK, S.INIT),
    TransitionRow(S.HOT_WAIT_RESTART, E.RESTART_FAILED, S.HOT_STOP_JOB),
    TransitionRow(S.HOT_WAIT_RESTART, E.TIMEOUT, S.HOT_STOP_JOB),
)

OWN = (
    # an old pod whose deletion never ends (a lost kubelet) would block the job endlessly
    TransitionRow(S.HOT_WAIT_DELETED, E.TIMEOUT, S.HOT_STOP_JOB),
)

ROWS = RECOVERY + OPERATIONS + ELASTIC + HOT_SWITCH + OWN
NEXT: dict[tuple[S, E], S] = {}
for _row in ROWS:
    NEXT.setdefault((_row.state, _row.event), _row.to)


def allowed(state: S) -> tuple[E, ...]:
    """The events with a row for ``state``, in the table's order."""
    return tuple(row.event for row in ROWS if row.state is state)


def diagram() -> str:
    """The table as a Mermaid state diagram; events of one arrow are joined."""
    arrows: dict[tuple[S, S], list[str]] = {}
    for row in ROWS:
        arrows.setdefault((row.state, row.to), []).append(row.event.value)
    lines = ["stateDiagram-v2", "    [*] --> INIT"]
    lines += [f"    {a.value} --> {b.value}: {', '.join(events)}" for (a, b), events in arrows.items()]
    return "\n".join(lines) + "\n"


__all__ = [
    "ELASTIC",
    "HOT_SWITCH",
    "NEXT",
    "OPERATIONS",
    "OWN",
    "RECOVERY",
    "ROWS",
    "TransitionRow",
    "allowed",
    "diagram",
]
