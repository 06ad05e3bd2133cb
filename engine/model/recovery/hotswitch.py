"""Hot switch: a pod on a sub-healthy chip gets a running backup before it goes, so that training hardly pauses.

Annotations are those of MindCluster (ClusterD hot switch, ascend-operator, Volcano plugin).
"""

from __future__ import annotations

from engine.model.recovery import words
from engine.model.recovery.conversation import Degrade, MarkPods, Signal
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Change, Code, Event

IN_FLOW, OPERATOR, SCHEDULER = "inHotSwitchFlow", "needOperatorOpe", "needVolcanoOpe"
SUB_HEALTH_FAULT = {"fault-type": "SubHealth"}


def prepare(turn: Turn) -> Event | None:
    """Tell the processes; the backup is asked for when they know."""
    if turn.entering:
        turn.remember(uuid=turn.uuid)
        turn.widen()  # the whole pod moves
        turn.send(Signal(words.HOT_SWITCH, ("hot switch",), turn.talk.ranks), Event.SENT)
        return None
    return turn.sent()


def wait_pod(turn: Turn) -> Event | None:
    """Until the backup runs."""
    if turn.entering:
        turn.limit(words.HOT_POD_LIMIT)
        turn.effects.append(MarkPods(pod=turn.talk.hot_pod, annotations={IN_FLOW: "true", OPERATOR: "create"}))
    if turn.facts.backup_running:
        return Event.POD_RUNNING
    return Event.POD_TIMEOUT if turn.expired else None


def pod_running(turn: Turn) -> Event | None:
    """Tell the processes that it runs."""
    if turn.entering:
        turn.send(Signal(words.HOT_SWITCH, ("new pod running",), turn.talk.ranks), Event.SENT)
        return None
    return turn.sent()


def pod_failed(turn: Turn) -> Event | None:
    """It never ran: call it off, and try no more with this job."""
    if turn.entering:
        turn.send(Signal(words.HOT_SWITCH, ("stop switch",), turn.talk.ranks), Event.SENT)
        return None
    return _given_up(turn, turn.sent())


def wait_pause(turn: Turn) -> Event | None:
    """Until the processes are ready to move."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    report = turn.take("offer")
    if report is None:
        return turn.report_timeout()
    if Change.MIGRATION not in report.strategies:
        return Event.HOT_EXIT
    turn.effects.append(MarkPods(pod=turn.talk.hot_pod, labels=SUB_HEALTH_FAULT, annotations={SCHEDULER: "delete"}))
    return Event.MIGRATE


def wait_deleted(turn: Turn) -> Event | None:
    """Until the old pod is gone."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    return Event.OLD_POD_GONE if turn.facts.old_pod_gone else turn.report_timeout()


def restart(turn: Turn) -> Event | None:
    """Let training go on with the new pod."""
    if turn.entering:
        turn.send(
            Signal(words.CHANGE_STRATEGY, ("change_strategy",), turn.talk.ranks, change=Change.MIGRATION.value),
            Event.SENT,
        )
        return None
    return turn.sent()


def wait_restart(turn: Turn) -> Event | None:
    """Until it does."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    report = turn.take("status")
    if report is None:
        return turn.report_timeout()
    if report.code == Code.OK:
        ranks = tuple(rank.rank for rank in turn.talk.ranks)
        turn.effects.append(MarkPods(ranks, annotations={IN_FLOW: ""}))  # the backup is the pod of these ranks now
        return Event.RESTART_OK
    turn.remember(code=report.code)
    return Event.RESTART_FAILED


def stop_job(turn: Turn) -> Event | None:
    """It went wrong half-way: the whole job is rescheduled."""
    if turn.entering:
        turn.effects.append(MarkPods(("0",), labels=SUB_HEALTH_FAULT, annotations={SCHEDULER: "delete"}))
        turn.send(Signal(words.HOT_SWITCH, ("stop switch",), turn.talk.ranks), Event.SENT)
        return None
    return _given_up(turn, turn.sent())


def _given_up(turn: Turn, event: Event | None) -> Event | None:
    if event is not None:
        turn.effects.append(Degrade(turn.talk.hot_pod))
        turn.remember(degraded=True)
    return event


__all__ = [
    "pod_failed", "pod_running", "prepare", "restart", "stop_job", "wait_deleted", "wait_pause", "wait_pod",
    "wait_restart",
]  # fmt: skip
