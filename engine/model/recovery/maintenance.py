"""Operations on a running job: its links moved to partner cards, its chips put under stress. Both pause and continue.

Texts of results are ClusterD's (component/clusterd, link switch and stress test).
"""

from __future__ import annotations

import msgspec

from engine.model.recovery import words
from engine.model.recovery.conversation import IsolateNodes, NotifyOperation, OperationResult, Report, Signal, merged
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Change, Code, Event

NIC = "nic"
FINISHED_NIC = "switch nic finish"
#: Part of a stress test: the processes cannot go on, its results are waited for.
BROKE = "broke"
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
    """Until the links have moved; a fault in between, of which processes tell by the status of a recovery, ends it."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    if _broke(turn) or turn.talk.ranks:
        return _ended(turn, Event.NIC_FAULT, "switch nic failed, report error when switching nic")
    reply = turn.take("reply")
    if reply is None:
        return _ended(turn, turn.report_timeout(), "switch nic failed, report switch nic timeout")
    if reply.code == Code.OK:
        return Event.REPORT
    ready = reply.code != Code.PROCESS_NOT_READY
    text = "switch nic failed" if ready else "job service not ready"
    return _ended(turn, Event.NIC_FAILED, f"switch nic failed, {text}")


def wait_stress(turn: Turn) -> Event | None:
    """Until the test is through; a node whose chip failed it takes no more work."""
    if turn.entering:
        turn.limit(words.STRESS_LIMIT)
    if turn.talk.ranks:
        return _ended(turn, Event.STRESS_FAILED, "recv fault, when stressing test")
    if _broke(turn) and turn.talk.phase != BROKE:
        # chips are still under stress: whoever asked learns of it, recovery begins when the test is over
        _ended(turn, Event.STRESS_FAILED, "recv fault, when stressing test")
        turn.phase(BROKE, words.REPORT_TIMEOUT)
    reply = turn.take("reply")
    if turn.talk.phase == BROKE:
        if reply is None:
            return turn.report_timeout()
        _found(turn, reply)
        return Event.STRESS_FAILED
    if reply is None:
        return _ended(turn, turn.report_timeout(), "stress test failed, report stress test timeout")
    if reply.code == Code.OK:
        _remember_result(turn, f"stress test finish, result:{reply.message}")
        return Event.REPORT
    isolated = _found(turn, reply)
    if isolated:
        nodes = " ".join(isolated)
        return _ended(
            turn, Event.STRESS_FAILED, f"stress test find fault, isolate node:[{nodes}],result:{reply.message}"
        )
    if reply.code == Code.PROCESS_NOT_READY:
        return _ended(turn, Event.STRESS_FAILED, "stress test failed, job service not ready")
    ranks = " ".join(rank.rank for rank in reply.ranks)
    return _ended(turn, Event.STRESS_FAILED, f"stress test timeout fault, faultRank:[{ranks}],result:{reply.message}")


def _broke(turn: Turn) -> bool:
    """Whether the processes report that they cannot go on; what else they report now answers nothing."""
    report = turn.take("status")
    return report is not None and report.code == Code.UNRECOVERABLE_RETRY


def _found(turn: Turn, reply: Report) -> tuple[str, ...]:
    """What the test found are faults, which recovery starts from; the nodes that take no more work."""
    turn.remember(ranks=merged(turn.talk.ranks, reply.ranks))
    nodes = turn.talk.operation.nodes if turn.talk.operation is not None else ()
    if nodes:
        turn.effects.append(IsolateNodes(nodes))
    return nodes


def proceed(turn: Turn) -> Event | None:
    """Let the step loop go on."""
    if turn.entering:
        turn.send(
            Signal(words.CHANGE_STRATEGY, ("change_strategy",), change=Change.CONTINUE.value), Event.CONTINUE_SENT
        )
        return None
    return _sent(turn, UNSENT)


def wait_continue(turn: Turn) -> Event | None:
    """Until it does. The texts of a failure are the same for both operations, as in the original."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    report = turn.take("status")
    if report is None:
        return _ended(turn, turn.report_timeout(), "switch nic failed, continue train timeout")
    if report.code == Code.OK:
        operation = turn.talk.operation
        done = FINISHED_NIC if _nic(turn) else (operation.result if operation is not None else "")
        return _ended(turn, Event.NIC_CONTINUED if _nic(turn) else Event.STRESS_CONTINUED, done)
    if report.code == Code.PROCESS_NOT_READY:
        return _ended(turn, Event.CONTINUE_FAILED, "continue train failed, job service not ready")
    return _ended(turn, Event.CONTINUE_FAILED, "switch nic failed, continue train failed")


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
