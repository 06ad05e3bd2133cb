"""Elastic training: go on with fewer data-parallel groups, and take the lost ones back when there is room."""

from __future__ import annotations

from engine.model.recovery import words
from engine.model.recovery.conversation import Rank, Signal
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Change, Code, Event


def scale_in(turn: Turn) -> Event | None:
    """No replacement came: tell the processes to shrink."""
    if turn.entering:
        turn.remember(chosen=words.Strategy.ELASTIC.value)
        turn.send(
            Signal(
                words.CHANGE_STRATEGY, ("change_strategy",), turn.talk.ranks, change=Change.DOWNGRADE.value,
                nodes=turn.node_ranks(turn.talk.ranks), extra=words.SCALE_IN_PARAMS,
            ),
            Event.SCALE_IN_SENT,
        )  # fmt: skip
        return None
    return turn.sent()


def wait_isolate(turn: Turn) -> Event | None:
    """Until the processes name the ranks that leave with the faulty ones."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    if turn.talk.status is not None:
        return Event.REPORT
    event = turn.report_timeout()
    if event is not None:
        turn.remember(last=Change.DOWNGRADE.value, last_code=int(Code.REPORT_TIMEOUT))
    return event


def check_isolate(turn: Turn) -> Event | None:
    """Tell those nodes to leave."""
    if turn.entering:
        report = turn.take("status")
        code = report.code if report is not None else int(Code.CLIENT_ERROR)
        turn.remember(last=Change.DOWNGRADE.value, last_code=code, code=code)
        if code not in (Code.EXIT_ISOLATE_RANKS, Code.OK) or report is None:
            return Event.UNRECOVERED
        isolate = report.isolate or tuple(rank.rank for rank in turn.talk.ranks)
        turn.remember(isolate=isolate, code=0)
        nodes = turn.node_ranks(tuple(Rank(rank, words.NORMAL) for rank in isolate))
        turn.send(Signal(words.NODES_EXIT, ("fault_nodes_exit",), nodes=nodes), Event.NODES_EXIT_SENT)
        return None
    return turn.sent()


def running(turn: Turn) -> Event | None:
    """Smaller, but training; grow again when the replaced pods run."""
    if turn.entering:
        turn.phase("small", words.RUNNING_POLL)
        return None
    if turn.talk.phase == "small":
        if not turn.facts.exists:
            return Event.FINISHED
        if not turn.expired:
            return None
        turn.limit(words.RUNNING_POLL)
        if turn.facts.running and turn.facts.replaced:
            turn.remember(chosen=Change.UPGRADE.value, uuid=turn.uuid)
            turn.send(
                Signal(
                    words.CHANGE_STRATEGY, ("change_strategy",), turn.talk.ranks, change=Change.UPGRADE.value,
                    nodes=turn.node_ranks(turn.talk.ranks), extra=words.SCALE_OUT_PARAMS,
                ),
                Event.SCALE_OUT_SENT,
            )  # fmt: skip
        return None
    return turn.sent()


__all__ = ["check_isolate", "running", "scale_in", "wait_isolate"]
