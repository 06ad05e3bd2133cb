"""Handlers of the decision and its result: choose and signal a strategy, wait for the processes' reports."""

from __future__ import annotations

from belay.engine.model.labels import FAULT_TYPE, PROCESS_RECOVER_STATUS, STEP_RETRIED
from belay.engine.model.recovery import protocol
from belay.engine.model.recovery.choice import choose, may_shrink, waits_for_resources
from belay.engine.model.recovery.conversation import Annotate, MarkPods, Reset, Signal
from belay.engine.model.recovery.fallback import dump_exit
from belay.engine.model.recovery.protocol import (
    ChangeStrategy,
    Code,
    RecoveryEvent,
    RecoveryPhase,
    RecoveryStrategy,
)
from belay.engine.model.recovery.turn import Turn

_CHANGED = {
    RecoveryStrategy.RETRY: (ChangeStrategy.RETRY, RecoveryEvent.RETRY_SENT),
    RecoveryStrategy.RECOVER: (ChangeStrategy.RECOVER, RecoveryEvent.RECOVER_SENT),
    RecoveryStrategy.ELASTIC: (ChangeStrategy.DOWNGRADE, RecoveryEvent.SCALE_IN_SENT),
    RecoveryStrategy.DUMP: (ChangeStrategy.DUMP, RecoveryEvent.DUMP_SENT),
    RecoveryStrategy.EXIT: (ChangeStrategy.EXIT, RecoveryEvent.EXIT_SENT),
}
_OTHER_NAMES = {
    RecoveryStrategy.IN_PLACE.value: ChangeStrategy.RECOVER.value,
    RecoveryStrategy.ELASTIC.value: ChangeStrategy.DOWNGRADE.value,
}
_WITH_RESULT = frozenset({
    ChangeStrategy.RETRY.value, ChangeStrategy.RECOVER.value, ChangeStrategy.DOWNGRADE.value,
    ChangeStrategy.UPGRADE.value, ChangeStrategy.DUMP.value, ChangeStrategy.EXIT.value,
})  # fmt: skip


def decided(turn: Turn) -> RecoveryEvent | None:
    """Choose a strategy, wait for what it needs, signal it."""
    if turn.entering:
        return _begin(turn)
    phase = turn.conversation.phase
    if phase == RecoveryPhase.RESOURCES:
        return _decide(turn) if turn.expired or (turn.facts.running and turn.facts.replaced) else None
    if phase == RecoveryPhase.RANK_TABLE:
        ready = turn.facts.rank_table_ready
        if ready == "true":
            _change(turn)
            return None
        if ready is not None:
            # the platform could not create the new rank table: fall back to a dump
            turn.remember(last=ChangeStrategy.RECOVER.value, in_place=False)
            turn.remember(chosen=choose(turn.conversation, turn.facts).strategy.value)
            _change(turn)
            return None
        if turn.expired:
            turn.fail(Code.PLATFORM_TIMEOUT)
            return RecoveryEvent.RANK_TABLE_TIMEOUT
        return None
    if phase == RecoveryPhase.IN_PLACE:
        if turn.facts.in_place_clear:
            _change(turn)
        elif turn.expired:
            turn.remember(in_place=False, in_place_failed=True)
            return _begin(turn)
        return None
    if phase == RecoveryPhase.ROUTE:
        if turn.facts.route_failed:
            turn.fail(Code.ROUTE_CONVERGENCE)
            return RecoveryEvent.ROUTE_FAILED
        if turn.expired:
            _change(turn)
        return None
    return turn.sent()


def _begin(turn: Turn) -> RecoveryEvent | None:
    wait = waits_for_resources(turn.conversation, turn.facts)
    if wait > 0 and not (turn.facts.running and turn.facts.replaced):
        turn.phase(RecoveryPhase.RESOURCES, wait)
        return None
    return _decide(turn)


def _decide(turn: Turn) -> RecoveryEvent | None:
    choice = choose(turn.conversation, turn.facts)
    turn.remember(chosen=choice.strategy.value, in_place=choice.in_place)
    if choice.strategy is RecoveryStrategy.RETRY and any(
        rank.kind == protocol.HCCL for rank in turn.conversation.ranks
    ):
        turn.phase(RecoveryPhase.ROUTE, protocol.ROUTE_WAIT)
        return None
    if choice.in_place:
        turn.phase(RecoveryPhase.IN_PLACE, protocol.IN_PLACE_LIMIT)
        if turn.facts.in_place_clear:
            _change(turn)
        return None
    if choice.strategy is not RecoveryStrategy.RETRY and turn.conversation.normal:
        turn.widen()
    if choice.strategy is RecoveryStrategy.RECOVER and turn.facts.platform is not None:
        turn.phase(RecoveryPhase.RANK_TABLE, protocol.PLATFORM_LIMIT)
        if turn.facts.rank_table_ready is None:
            return None
        if turn.facts.rank_table_ready != "true":
            turn.remember(last=ChangeStrategy.RECOVER.value)
            turn.remember(chosen=choose(turn.conversation, turn.facts).strategy.value)
    _change(turn)
    return None


def _change(turn: Turn) -> None:
    conversation = turn.conversation
    change, event = _CHANGED[RecoveryStrategy(conversation.chosen)]
    actions: tuple[str, ...] = ("change_strategy",)
    nodes = turn.node_ranks(conversation.ranks)
    extra = ""
    if conversation.in_place:
        actions, extra = (*actions, "fault_nodes_restart"), protocol.IN_PLACE_PARAMS
    elif change is ChangeStrategy.DOWNGRADE:
        extra = protocol.SCALE_IN_PARAMS
    if not conversation.in_place and change is not ChangeStrategy.RETRY:
        departing = turn.departing_ranks(conversation.ranks)
        if conversation.normal and not set(departing) <= set(conversation.left):
            # the processes were to restart in place, so nothing has signalled them to leave yet
            actions = (*actions, "fault_nodes_exit")
            turn.remember(left=(*conversation.left, *departing))
        if change is ChangeStrategy.RECOVER or "fault_nodes_exit" in actions:
            nodes = departing
    turn.send(
        Signal(protocol.CHANGE_STRATEGY, actions, conversation.ranks, change=change.value, nodes=nodes, extra=extra),
        event,
    )


def wait_status(turn: Turn) -> RecoveryEvent | None:
    """Wait until the processes report the result of a retry, a dump or a scaling."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    report = turn.conversation.status
    if report is None:
        return turn.report_timeout()
    return RecoveryEvent.REPORT


def wait_recover(turn: Turn) -> RecoveryEvent | None:
    """Wait until the faulty pods are replaced and the processes report that training goes on."""
    low, high = protocol.RESCHEDULE_RANGE
    if turn.entering:
        turn.phase(RecoveryPhase.SCHEDULE, min(max(turn.facts.wait_reschedule, low), high))
    conversation, facts = turn.conversation, turn.facts
    if conversation.phase == RecoveryPhase.SCHEDULE:
        if conversation.status is not None and conversation.status.code != Code.OK:
            return RecoveryEvent.REPORT
        read = (
            conversation.in_place and turn.now - conversation.since >= protocol.IN_PLACE_READ * 1000
        )  # agents have read what to restart
        if read or (not conversation.in_place and facts.running and facts.replaced) or conversation.status is not None:
            turn.phase(RecoveryPhase.CLEAR)
            turn.write(Reset("clear"))
            return None
        if turn.expired:
            turn.fail(Code.SCHEDULE_TIMEOUT)
            return RecoveryEvent.TRY_SCALE_IN if may_shrink(conversation, facts) else RecoveryEvent.SCHEDULE_TIMEOUT
        return None
    if conversation.phase == RecoveryPhase.CLEAR:
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.CONFIG_MAP)
            return RecoveryEvent.UNCLEARED
        turn.phase(RecoveryPhase.STATUS, max(0.0, protocol.REPORT_TIMEOUT - (turn.now - conversation.since) / 1000))
    if turn.conversation.status is not None:
        return RecoveryEvent.REPORT
    return turn.report_timeout()


def check(turn: Turn) -> RecoveryEvent | None:
    """Choose the next state from the reported result of the strategy."""
    conversation = turn.conversation
    report = turn.take("status")
    code = report.code if report is not None else 0
    # the decided strategy counts when the client names none that has a result
    strategy = _reported(report.strategy if report is not None else "")
    if strategy not in _WITH_RESULT or conversation.chosen in (RecoveryStrategy.EXIT, RecoveryStrategy.DUMP):
        strategy = _reported(conversation.chosen)
    turn.remember(last=strategy, last_code=code, code=code)
    ok = code == Code.OK
    if strategy == ChangeStrategy.RETRY:
        _annotate_status(turn, "retry-success" if ok else "retry-failed")
        if ok:
            turn.effects.append(Annotate(STEP_RETRIED, str(turn.now)))
            return RecoveryEvent.RECOVERED
        if code == Code.RECOVERABLE_RETRY:
            return RecoveryEvent.RETRY_AGAIN
        lost = {ChangeStrategy.RECOVER.value} | ({ChangeStrategy.DUMP.value} if code == Code.CLIENT_ERROR else set())
        turn.remember(agent=tuple(name for name in conversation.agent if name not in lost))
        return RecoveryEvent.RETRY_LOST
    if strategy == ChangeStrategy.RECOVER:
        _annotate_status(turn, "recover-success" if ok else "recover-failed")
        return RecoveryEvent.RECOVERED if ok else RecoveryEvent.UNRECOVERED
    if strategy == ChangeStrategy.DOWNGRADE:
        return RecoveryEvent.SCALED_IN if ok else RecoveryEvent.UNRECOVERED
    if strategy == ChangeStrategy.UPGRADE:
        return RecoveryEvent.SCALED_OUT if ok else RecoveryEvent.UNRECOVERED
    if strategy == ChangeStrategy.DUMP:
        _annotate_status(turn, "dump-success" if ok else "dump-failed")
        turn.post(dump_exit(turn))
        return RecoveryEvent.CHECKED
    _annotate_status(turn, "exit-completed")
    return RecoveryEvent.CHECKED


def _reported(strategy: str) -> str:
    """The name under which the result of a strategy is evaluated: some are known by two names."""
    return _OTHER_NAMES.get(strategy, strategy)


def kill_pods(turn: Turn) -> RecoveryEvent | None:
    """Replace the pods of the ranks whose retry failed irrecoverably."""
    if turn.entering:
        turn.harden()
        turn.widen()
        ranks = turn.pod_ranks(turn.conversation.ranks)
        turn.remember(left=turn.node_ranks(turn.conversation.ranks))
        turn.effects.append(MarkPods(ranks, labels={FAULT_TYPE: "retry-fault"}))
        turn.write(Reset("faults", ranks))
        return None
    return None if turn.wrote() is None else RecoveryEvent.PODS_KILLED


def _annotate_status(turn: Turn, status: str) -> None:
    turn.effects.append(Annotate(PROCESS_RECOVER_STATUS, status))


__all__ = ["check", "decided", "kill_pods", "wait_recover", "wait_status"]
