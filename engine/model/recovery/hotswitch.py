"""Handlers of the hot switch: a backup of a pod on a sub-healthy chip runs before the pod is deleted.

Annotations are those of MindCluster (ClusterD hot switch, ascend-operator, Volcano plugin).
"""

from __future__ import annotations

from belay.engine.model.labels import FAULT_TYPE, IN_HOT_SWITCH_FLOW, NEED_OPERATOR, NEED_VOLCANO
from belay.engine.model.recovery import protocol
from belay.engine.model.recovery.conversation import Degrade, MarkPods, Signal
from belay.engine.model.recovery.protocol import ChangeStrategy, Code, RecoveryEvent
from belay.engine.model.recovery.turn import Turn

SUB_HEALTH_FAULT = {FAULT_TYPE: "SubHealth"}


def prepare(turn: Turn) -> RecoveryEvent | None:
    """Signal the processes; request the backup after that."""
    if turn.entering:
        turn.remember(uuid=turn.uuid)
        turn.widen()  # the whole pod moves
        turn.send(Signal(protocol.HOT_SWITCH, ("hot switch",), turn.conversation.ranks), RecoveryEvent.SENT)
        return None
    return turn.sent()


def wait_pod(turn: Turn) -> RecoveryEvent | None:
    """Wait until the backup runs."""
    if turn.entering:
        turn.limit(protocol.HOT_POD_LIMIT)
        turn.effects.append(
            MarkPods(pod=turn.conversation.hot_pod, annotations={IN_HOT_SWITCH_FLOW: "true", NEED_OPERATOR: "create"})
        )
    if turn.facts.backup_running:
        return RecoveryEvent.POD_RUNNING
    return RecoveryEvent.POD_TIMEOUT if turn.expired else None


def pod_running(turn: Turn) -> RecoveryEvent | None:
    """Signal the processes that the backup runs."""
    if turn.entering:
        turn.send(Signal(protocol.HOT_SWITCH, ("new pod running",), turn.conversation.ranks), RecoveryEvent.SENT)
        return None
    return turn.sent()


def pod_failed(turn: Turn) -> RecoveryEvent | None:
    """Cancel the switch, since the backup never ran; the job gets no further hot switch."""
    if turn.entering:
        turn.send(Signal(protocol.HOT_SWITCH, ("stop switch",), turn.conversation.ranks), RecoveryEvent.SENT)
        return None
    return _given_up(turn, turn.sent())


def wait_pause(turn: Turn) -> RecoveryEvent | None:
    """Wait until the processes are ready to move."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    report = turn.take("offer")
    if report is None:
        return turn.report_timeout()
    if ChangeStrategy.MIGRATION not in report.strategies:
        return RecoveryEvent.HOT_EXIT
    turn.effects.append(
        MarkPods(pod=turn.conversation.hot_pod, labels=SUB_HEALTH_FAULT, annotations={NEED_VOLCANO: "delete"})
    )
    return RecoveryEvent.MIGRATE


def wait_deleted(turn: Turn) -> RecoveryEvent | None:
    """Wait until the old pod is gone."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    return RecoveryEvent.OLD_POD_GONE if turn.facts.old_pod_gone else turn.report_timeout()


def restart(turn: Turn) -> RecoveryEvent | None:
    """Signal the processes to continue with the new pod."""
    if turn.entering:
        turn.send(
            Signal(
                protocol.CHANGE_STRATEGY,
                ("change_strategy",),
                turn.conversation.ranks,
                change=ChangeStrategy.MIGRATION.value,
            ),
            RecoveryEvent.SENT,
        )
        return None
    return turn.sent()


def wait_restart(turn: Turn) -> RecoveryEvent | None:
    """Wait until training continues."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    report = turn.take("status")
    if report is None:
        return turn.report_timeout()
    if report.code == Code.OK:
        ranks = tuple(rank.rank for rank in turn.conversation.ranks)
        turn.effects.append(
            MarkPods(ranks, annotations={IN_HOT_SWITCH_FLOW: ""})
        )  # the backup is the pod of these ranks now
        return RecoveryEvent.RESTART_OK
    turn.remember(code=report.code)
    return RecoveryEvent.RESTART_FAILED


def stop_job(turn: Turn) -> RecoveryEvent | None:
    """Reschedule the whole job, since the switch failed half-way."""
    if turn.entering:
        turn.effects.append(MarkPods(("0",), labels=SUB_HEALTH_FAULT, annotations={NEED_VOLCANO: "delete"}))
        turn.send(Signal(protocol.HOT_SWITCH, ("stop switch",), turn.conversation.ranks), RecoveryEvent.SENT)
        return None
    return _given_up(turn, turn.sent())


def _given_up(turn: Turn, event: RecoveryEvent | None) -> RecoveryEvent | None:
    if event is not None:
        turn.effects.append(Degrade(turn.conversation.hot_pod))
        turn.remember(degraded=True)
    return event


__all__ = [
    "pod_failed", "pod_running", "prepare", "restart", "stop_job", "wait_deleted", "wait_pause", "wait_pod",
    "wait_restart",
]  # fmt: skip
