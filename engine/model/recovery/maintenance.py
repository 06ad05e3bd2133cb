"""Operations on a running job: its links moved to partner cards, its chips put under stress. Both pause and continue.

Texts of results are ClusterD's (component/clusterd, link switch and stress test).
"""

from __future__ import annotations

import msgspec

from engine.model.recovery import words
from engine.model.recovery.conversation import IsolateNodes, NotifyOperation, OperationResult, Signal, merged
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Change, Code, Event

NIC = "nic"
FINISHED_NIC = "switch nic finish"
UNSENT = "om failed, send signal failed"


def pause(turn: Turn) -> Event | None:
    """Pause the step loop; processes stay."""
    if turn.entering:
        turn.remember(uuid=turn.uuid)
        timeout = 0 if _nic(turn) else words.STRESS_PAUSE_TIMEOUT
        turn.send(Signal(words.STOP_TRAIN, ("pause_train",), timeout=timeout), Event.SENT)
        return None
    return _sent(turn, UNSENT)


def wait_pause(turn: Turn) -> Event | None:
    """Until every process pauses."""
    if turn.entering:
        turn.limit(words.STRESS_PAUSE_TIMEOUT)
    report = turn.take("stop")
    if report is None:
        return _ended(turn, turn.report_timeout(), "pause train timeout")
    if report.code == Code.OK:
        return Event.NIC_PAUSED if _nic(turn) else Event.STRESS_PAUSED
    ready = report.code != Code.PROCESS_NOT_READY
    text = "om failed, pause train failed" if ready else "pause train failed, job service not ready"
    return _ended(turn, Event.PAUSE_FAILED, text)


def notify(turn: Turn) -> Event | None:
    """Tell the subscribers which ranks do what."""
    if turn.entering:
        operation = turn.talk.operation
        kind, request = (operation.kind, operation.request) if operation is not None else ("", "")
        turn.notify(NotifyOperation(kind, request), Event.SENT)
        return None
    what = "send switch nic signal failed" if _nic(turn) else "send stress test signal failed"
    return _sent(turn, f"{what}, please check manually")


def wait_nic(turn: Turn) -> Event | None:
    """Until the links have moved; a fault in between ends it."""
    if turn.entering:
        turn.limit(words.NIC_LIMIT)
    if turn.talk.ranks:
        return _ended(turn, Event.NIC_FAULT, "switch nic failed, switch nic failed")
    reply = turn.take("reply")
    if reply is None:
        return _ended(turn, turn.report_timeout(), "switch nic failed, report switch nic timeout")
    if reply.code == Code.OK:
        return Event.REPORT
    ready = reply.code != Code.PROCESS_NOT_READY
    text = "report error when switching nic" if ready else "job service not ready"
    return _ended(turn, Event.NIC_FAILED, f"switch nic failed, {text}")


def wait_stress(turn: Turn) -> Event | None:
    """Until the test is through; a node whose chip failed it takes no more work."""
    if turn.entering:
        turn.limit(words.STRESS_LIMIT)
    if turn.talk.ranks:
        return _ended(turn, Event.STRESS_FAILED, "recv fault, when stressing test")
    reply = turn.take("reply")
    if reply is None:
        return _ended(turn, turn.report_timeout(), "stress test failed, report stress test timeout")
    if reply.code == Code.OK:
        _remember_result(turn, f"stress test finish, result:{reply.message}")
        return Event.REPORT
    # what the test found are faults, which recovery starts from
    turn.remember(ranks=merged(turn.talk.ranks, reply.ranks))
    operation = turn.talk.operation
    if operation is not None and operation.nodes:
        turn.effects.append(IsolateNodes(operation.nodes))
        nodes = " ".join(operation.nodes)
        return _ended(
            turn, Event.STRESS_FAILED, f"stress test find fault, isolate node:[{nodes}],result:{reply.message}"
        )
    if reply.code == Code.PROCESS_NOT_READY:
        return _ended(turn, Event.STRESS_FAILED, "stress test failed, job service not ready")
    ranks = " ".join(rank.rank for rank in reply.ranks)
    return _ended(turn, Event.STRESS_FAILED, f"stress test timeout fault, faultRank:[{ranks}],result:{reply.message}")


def proceed(turn: Turn) -> Event | None:
    """Let the step loop go on."""
    if turn.entering:
        turn.send(
            Signal(words.CHANGE_STRATEGY, ("change_strategy",), change=Change.CONTINUE.value), Event.CONTINUE_SENT
        )
        return None
    return _sent(turn, UNSENT)


def wait_continue(turn: Turn) -> Event | None:
    """Until it does."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    report = turn.take("status")
    what = "switch nic failed" if _nic(turn) else "stress test failed"
    if report is None:
        return _ended(turn, turn.report_timeout(), f"{what}, continue train timeout")
    if report.code == Code.OK:
        operation = turn.talk.operation
        done = FINISHED_NIC if _nic(turn) else (operation.result if operation is not None else "")
        return _ended(turn, Event.NIC_CONTINUED if _nic(turn) else Event.STRESS_CONTINUED, done)
    if report.code == Code.PROCESS_NOT_READY:
        return _ended(turn, Event.CONTINUE_FAILED, "continue train failed, job service not ready")
    return _ended(turn, Event.CONTINUE_FAILED, f"{what}, continue train failed")


def _nic(turn: Turn) -> bool:
    return turn.talk.operation is not None and turn.talk.operation.kind == NIC


def _sent(turn: Turn, failed: str) -> Event | None:
    event = turn.sent()
    return _ended(turn, event, failed) if event is Event.UNSENT else event


def _remember_result(turn: Turn, text: str) -> None:
    operation = turn.talk.operation
    if operation is not None:
        turn.remember(operation=msgspec.structs.replace(operation, result=text))


def _ended(turn: Turn, event: Event | None, text: str) -> Event | None:
    if event is not None and turn.talk.operation is not None:
        turn.effects.append(OperationResult(turn.talk.operation.kind, text))
    return event


__all__ = ["notify", "pause", "proceed", "wait_continue", "wait_nic", "wait_pause", "wait_stress"]
