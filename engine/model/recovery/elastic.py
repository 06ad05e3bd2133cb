"""Handlers of elastic training: continue with fewer data-parallel groups, grow back when there is room."""

from __future__ import annotations

from belay.engine.model.recovery import protocol
from belay.engine.model.recovery.conversation import FaultyRank, Signal
from belay.engine.model.recovery.protocol import (
    ChangeStrategy,
    Code,
    RecoveryEvent,
    RecoveryPhase,
)
from belay.engine.model.recovery.turn import Turn


def scale_in(turn: Turn) -> RecoveryEvent | None:
    """Signal the processes to shrink, since no replacement came."""
    if turn.entering:
        turn.remember(chosen=protocol.RecoveryStrategy.ELASTIC.value)
        turn.send(
            Signal(
                protocol.CHANGE_STRATEGY, ("change_strategy",), turn.conversation.ranks,
                change=ChangeStrategy.DOWNGRADE.value,
                nodes=turn.node_ranks(turn.conversation.ranks), extra=protocol.SCALE_IN_PARAMS,
            ),
            RecoveryEvent.SCALE_IN_SENT,
        )  # fmt: skip
        return None
    return turn.sent()


def wait_isolate(turn: Turn) -> RecoveryEvent | None:
    """Wait until the processes name the ranks that leave with the faulty ones."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    if turn.conversation.status is not None:
        return RecoveryEvent.REPORT
    event = turn.report_timeout()
    if event is not None:
        turn.remember(last=ChangeStrategy.DOWNGRADE.value, last_code=int(Code.REPORT_TIMEOUT))
    return event


def check_isolate(turn: Turn) -> RecoveryEvent | None:
    """Signal those nodes to leave."""
    if turn.entering:
        report = turn.take("status")
        code = report.code if report is not None else int(Code.CLIENT_ERROR)
        turn.remember(last=ChangeStrategy.DOWNGRADE.value, last_code=code, code=code)
        if code not in (Code.EXIT_ISOLATE_RANKS, Code.OK) or report is None:
            return RecoveryEvent.UNRECOVERED
        isolate = report.isolate or tuple(rank.rank for rank in turn.conversation.ranks)
        turn.remember(isolate=isolate, code=0)
        nodes = turn.node_ranks(tuple(FaultyRank(rank, protocol.NORMAL) for rank in isolate))
        turn.send(Signal(protocol.NODES_EXIT, ("fault_nodes_exit",), nodes=nodes), RecoveryEvent.NODES_EXIT_SENT)
        return None
    return turn.sent()


def running(turn: Turn) -> RecoveryEvent | None:
    """Train with fewer ranks; grow when the replaced pods run."""
    if turn.entering:
        turn.phase(RecoveryPhase.SMALL, protocol.RUNNING_POLL)
        return None
    if turn.conversation.phase == RecoveryPhase.SMALL:
        if not turn.facts.exists:
            return RecoveryEvent.FINISHED
        if not turn.expired:
            return None
        turn.limit(protocol.RUNNING_POLL)
        if turn.facts.running and turn.facts.replaced:
            turn.remember(chosen=ChangeStrategy.UPGRADE.value, uuid=turn.uuid)
            turn.send(
                Signal(
                    protocol.CHANGE_STRATEGY, ("change_strategy",), turn.conversation.ranks,
                    change=ChangeStrategy.UPGRADE.value,
                    nodes=turn.node_ranks(turn.conversation.ranks), extra=protocol.SCALE_OUT_PARAMS,
                ),
                RecoveryEvent.SCALE_OUT_SENT,
            )  # fmt: skip
        return None
    return turn.sent()


__all__ = ["check_isolate", "running", "scale_in", "wait_isolate"]
