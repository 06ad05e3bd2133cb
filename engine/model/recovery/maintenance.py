"""Handlers of operations on a running job: link switch and stress test. Both pause training and continue it.

Texts of results are ClusterD's (component/clusterd, link switch and stress test).
"""

from __future__ import annotations

import msgspec

from belay.engine.model.recovery import protocol
from belay.engine.model.recovery.conversation import (
    IsolateNodes,
    NotifyOperation,
    OperationResult,
    Report,
    Signal,
    merged,
)
from belay.engine.model.recovery.protocol import (
    ChangeStrategy,
    Code,
    RecoveryEvent,
    RecoveryPhase,
)
from belay.engine.model.recovery.turn import Turn

NIC = "nic"
FINISHED_NIC = "switch nic finish"
#: Phase of a stress test: the processes cannot continue; its results are awaited.
UNSENT = "om failed, send signal failed"


def pause(turn: Turn) -> RecoveryEvent | None:
    """Pause the step loop; processes stay."""
    if turn.entering:
        turn.remember(uuid=turn.uuid)
        timeout = 0 if _nic(turn) else protocol.STRESS_PAUSE_TIMEOUT
        turn.send(Signal(protocol.STOP_TRAIN, ("pause_train",), timeout=timeout), RecoveryEvent.SENT)
        return None
    return _sent(turn, UNSENT)


def wait_pause(turn: Turn) -> RecoveryEvent | None:
    """Wait until every process pauses."""
    if turn.entering:
        turn.limit(protocol.STRESS_PAUSE_TIMEOUT)
    report = turn.take("stop")
    if report is None:
        return _ended(turn, turn.report_timeout(), "pause train timeout")
    if report.code == Code.OK:
        return RecoveryEvent.NIC_PAUSED if _nic(turn) else RecoveryEvent.STRESS_PAUSED
    ready = report.code != Code.PROCESS_NOT_READY
    text = "om failed, pause train failed" if ready else "pause train failed, job service not ready"
    return _ended(turn, RecoveryEvent.PAUSE_FAILED, text)


def notify(turn: Turn) -> RecoveryEvent | None:
    """Notify the subscribers of the operation and its ranks."""
    if turn.entering:
        operation = turn.conversation.operation
        kind, request = (operation.kind, operation.request) if operation is not None else ("", "")
        turn.notify(NotifyOperation(kind, request), RecoveryEvent.SENT)
        return None
    what = "send switch nic signal failed" if _nic(turn) else "send stress test signal failed"
    return _sent(turn, f"{what}, please check manually")


def wait_nic(turn: Turn) -> RecoveryEvent | None:
    """Wait until the links are switched; a fault that processes report as a recovery status ends the wait."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    if _broke(turn) or turn.conversation.ranks:
        return _ended(turn, RecoveryEvent.NIC_FAULT, "switch nic failed, report error when switching nic")
    reply = turn.take("reply")
    if reply is None:
        return _ended(turn, turn.report_timeout(), "switch nic failed, report switch nic timeout")
    if reply.code == Code.OK:
        return RecoveryEvent.REPORT
    ready = reply.code != Code.PROCESS_NOT_READY
    text = "switch nic failed" if ready else "job service not ready"
    return _ended(turn, RecoveryEvent.NIC_FAILED, f"switch nic failed, {text}")


def wait_stress(turn: Turn) -> RecoveryEvent | None:
    """Wait for the end of the test; a node whose chip failed it takes no more work."""
    if turn.entering:
        turn.limit(protocol.STRESS_LIMIT)
    if turn.conversation.ranks:
        return _ended(turn, RecoveryEvent.STRESS_FAILED, "recv fault, when stressing test")
    if _broke(turn) and turn.conversation.phase != RecoveryPhase.BROKE:
        # chips are still under stress: report that to the requester, and begin recovery after the test
        _ended(turn, RecoveryEvent.STRESS_FAILED, "recv fault, when stressing test")
        turn.phase(RecoveryPhase.BROKE, protocol.REPORT_TIMEOUT)
    reply = turn.take("reply")
    if turn.conversation.phase == RecoveryPhase.BROKE:
        if reply is None:
            return turn.report_timeout()
        _found(turn, reply)
        return RecoveryEvent.STRESS_FAILED
    if reply is None:
        return _ended(turn, turn.report_timeout(), "stress test failed, report stress test timeout")
    if reply.code == Code.OK:
        _remember_result(turn, f"stress test finish, result:{reply.message}")
        return RecoveryEvent.REPORT
    isolated = _found(turn, reply)
    if isolated:
        nodes = " ".join(isolated)
        return _ended(
            turn, RecoveryEvent.STRESS_FAILED, f"stress test find fault, isolate node:[{nodes}],result:{reply.message}"
        )
    if reply.code == Code.PROCESS_NOT_READY:
        return _ended(turn, RecoveryEvent.STRESS_FAILED, "stress test failed, job service not ready")
    ranks = " ".join(rank.rank for rank in reply.ranks)
    return _ended(
        turn, RecoveryEvent.STRESS_FAILED, f"stress test timeout fault, faultRank:[{ranks}],result:{reply.message}"
    )


def _broke(turn: Turn) -> bool:
    """Whether the processes report that they cannot continue; other reports do not matter here."""
    report = turn.take("status")
    return report is not None and report.code == Code.UNRECOVERABLE_RETRY


def _found(turn: Turn, reply: Report) -> tuple[str, ...]:
    """Begin recovery with the faults that the test found, and isolate their nodes."""
    turn.remember(ranks=merged(turn.conversation.ranks, reply.ranks))
    nodes = turn.conversation.operation.nodes if turn.conversation.operation is not None else ()
    if nodes:
        turn.effects.append(IsolateNodes(nodes))
    return nodes


def proceed(turn: Turn) -> RecoveryEvent | None:
    """Signal the step loop to continue."""
    if turn.entering:
        turn.send(
            Signal(protocol.CHANGE_STRATEGY, ("change_strategy",), change=ChangeStrategy.CONTINUE.value),
            RecoveryEvent.CONTINUE_SENT,
        )
        return None
    return _sent(turn, UNSENT)


def wait_continue(turn: Turn) -> RecoveryEvent | None:
    """Wait until it does. Failures have the same texts for both operations, as in ClusterD."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    report = turn.take("status")
    if report is None:
        return _ended(turn, turn.report_timeout(), "switch nic failed, continue train timeout")
    if report.code == Code.OK:
        operation = turn.conversation.operation
        done = FINISHED_NIC if _nic(turn) else (operation.result if operation is not None else "")
        return _ended(turn, RecoveryEvent.NIC_CONTINUED if _nic(turn) else RecoveryEvent.STRESS_CONTINUED, done)
    if report.code == Code.PROCESS_NOT_READY:
        return _ended(turn, RecoveryEvent.CONTINUE_FAILED, "continue train failed, job service not ready")
    return _ended(turn, RecoveryEvent.CONTINUE_FAILED, "switch nic failed, continue train failed")


def _nic(turn: Turn) -> bool:
    return turn.conversation.operation is not None and turn.conversation.operation.kind == NIC


def _sent(turn: Turn, failed: str) -> RecoveryEvent | None:
    event = turn.sent()
    return _ended(turn, event, failed) if event is RecoveryEvent.UNSENT else event


def _remember_result(turn: Turn, text: str) -> None:
    operation = turn.conversation.operation
    if operation is not None:
        turn.remember(operation=msgspec.structs.replace(operation, result=text))


def _ended(turn: Turn, event: RecoveryEvent | None, text: str) -> RecoveryEvent | None:
    if event is not None and turn.conversation.operation is not None:
        turn.effects.append(OperationResult(turn.conversation.operation.kind, text))
    return event


__all__ = ["notify", "pause", "proceed", "wait_continue", "wait_nic", "wait_pause", "wait_stress"]
