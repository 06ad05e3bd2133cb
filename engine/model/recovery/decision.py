"""The decision and its result: which strategy is told, what it waits for, how the processes say it went."""

from __future__ import annotations

from engine.model.recovery import steps, words
from engine.model.recovery.aftermath import dump_exit
from engine.model.recovery.choice import choose, may_shrink, waits_for_resources
from engine.model.recovery.conversation import Annotate, MarkPods, Reset, Signal
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Change, Code, Event, Strategy

STATUS_ANNOTATION = "ProcessRecoverStatus"
_CHANGED = {
    Strategy.RETRY: (Change.RETRY, Event.RETRY_SENT),
    Strategy.RECOVER: (Change.RECOVER, Event.RECOVER_SENT),
    Strategy.ELASTIC: (Change.DOWNGRADE, Event.SCALE_IN_SENT),
    Strategy.DUMP: (Change.DUMP, Event.DUMP_SENT),
    Strategy.EXIT: (Change.EXIT, Event.EXIT_SENT),
}


def decided(turn: Turn) -> Event | None:
    """Choose, wait for what the choice needs, tell."""
    if turn.entering:
        wait = waits_for_resources(turn.talk, turn.facts)
        if wait > 0 and not (turn.facts.running and turn.facts.replaced):
            turn.phase("resources", wait)
            return None
        return _decide(turn)
    phase = turn.talk.phase
    if phase == "resources":
        return _decide(turn) if turn.expired or (turn.facts.running and turn.facts.replaced) else None
    if phase == "rank-table":
        ready = turn.facts.rank_table_ready
        if ready == "true":
            _change(turn)
            return None
        if ready is not None:
            # the platform could not make the new rank table: save what can be saved
            turn.remember(last=Change.RECOVER.value, in_place=False)
            turn.remember(chosen=choose(turn.talk, turn.facts).strategy.value)
            _change(turn)
            return None
        if turn.expired:
            turn.fail(Code.PLATFORM_TIMEOUT)
            return Event.RANK_TABLE_TIMEOUT
        return None
    if phase == "in-place":
        if turn.facts.in_place_clear:
            _change(turn)
        elif turn.expired:
            turn.remember(in_place=False)
            turn.widen()
            _change(turn)
        return None
    if phase == "route":
        if turn.facts.route_failed:
            turn.fail(Code.ROUTE_CONVERGENCE)
            return Event.ROUTE_FAILED
        if turn.expired:
            _change(turn)
        return None
    return turn.sent()


def _decide(turn: Turn) -> Event | None:
    choice = choose(turn.talk, turn.facts)
    turn.remember(chosen=choice.strategy.value, in_place=choice.in_place)
    if choice.strategy is Strategy.RETRY and any(rank.kind == words.HCCL for rank in turn.talk.ranks):
        turn.phase("route", words.ROUTE_WAIT)
        return None
    if choice.in_place:
        turn.phase("in-place", words.IN_PLACE_LIMIT)
        if turn.facts.in_place_clear:
            _change(turn)
        return None
    if choice.strategy is not Strategy.RETRY and turn.talk.normal:
        turn.widen()
    if choice.strategy is Strategy.RECOVER and turn.facts.platform is not None:
        turn.phase("rank-table", words.PLATFORM_LIMIT)
        if turn.facts.rank_table_ready is None:
            return None
        if turn.facts.rank_table_ready != "true":
            turn.remember(last=Change.RECOVER.value)
            turn.remember(chosen=choose(turn.talk, turn.facts).strategy.value)
    _change(turn)
    return None


def _change(turn: Turn) -> None:
    talk = turn.talk
    change, event = _CHANGED[Strategy(talk.chosen)]
    actions: tuple[str, ...] = ("change_strategy",)
    nodes = turn.node_ranks(talk.ranks)
    extra = ""
    if talk.in_place:
        actions, extra = (*actions, "fault_nodes_restart"), words.IN_PLACE_PARAMS
    elif change is Change.DOWNGRADE:
        extra = words.SCALE_IN_PARAMS
    if not talk.in_place and change is not Change.RETRY:
        leaving = turn.leaving(talk.ranks)
        if talk.normal and not set(leaving) <= set(talk.left):
            # their processes were to start again where they are, so the faults came without asking them to leave
            actions = (*actions, "fault_nodes_exit")
            turn.remember(left=(*talk.left, *leaving))
        if change is Change.RECOVER or "fault_nodes_exit" in actions:
            nodes = leaving
    turn.send(Signal(words.CHANGE_STRATEGY, actions, talk.ranks, change=change.value, nodes=nodes, extra=extra), event)


def wait_status(turn: Turn) -> Event | None:
    """Until the processes say how a retry, a dump or a scaling went."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    report = turn.talk.status
    if report is None:
        return turn.report_timeout()
    return Event.REPORT


def wait_recover(turn: Turn) -> Event | None:
    """Until the faulty pods are replaced and the processes say that training goes on."""
    low, high = words.RESCHEDULE_RANGE
    if turn.entering:
        turn.phase("schedule", min(max(turn.facts.wait_reschedule, low), high))
    talk, facts = turn.talk, turn.facts
    if talk.phase == "schedule":
        if talk.status is not None and talk.status.code != Code.OK:
            return Event.REPORT
        read = talk.in_place and turn.now - talk.since >= words.IN_PLACE_READ * 1000  # agents know what to restart
        if read or (not talk.in_place and facts.running and facts.replaced) or talk.status is not None:
            turn.phase("clear")
            turn.write(Reset("clear"))
            return None
        if turn.expired:
            turn.fail(Code.SCHEDULE_TIMEOUT)
            return Event.TRY_SCALE_IN if may_shrink(talk, facts) else Event.SCHEDULE_TIMEOUT
        return None
    if talk.phase == "clear":
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.CONFIG_MAP)
            return Event.UNCLEARED
        turn.phase("status", max(0.0, words.REPORT_TIMEOUT - (turn.now - talk.since) / 1000))
    if turn.talk.status is not None:
        return Event.REPORT
    return turn.report_timeout()


def check(turn: Turn) -> Event | None:
    """Judge the result."""
    talk = turn.talk
    report = turn.take("status")
    code = report.code if report is not None else 0
    # recover in place is reported as recover; what was decided counts where the client names nothing
    strategy = (report.strategy if report is not None else "") or talk.chosen
    if talk.chosen in (Strategy.EXIT, Strategy.DUMP):
        strategy = talk.chosen
    strategy = {Strategy.ELASTIC.value: Change.DOWNGRADE.value}.get(strategy, strategy)
    turn.remember(last=strategy, last_code=code, code=code)
    ok = code == Code.OK
    if strategy == Change.RETRY:
        _told(turn, "retry-success" if ok else "retry-failed")
        if ok:
            turn.effects.append(Annotate(steps.DONE_KEY, str(turn.now)))
            return Event.RECOVERED
        if code == Code.RECOVERABLE_RETRY:
            return Event.RETRY_AGAIN
        lost = {Change.RECOVER.value} | ({Change.DUMP.value} if code == Code.CLIENT_ERROR else set())
        turn.remember(agent=tuple(name for name in talk.agent if name not in lost))
        return Event.RETRY_LOST
    if strategy == Change.RECOVER:
        _told(turn, "recover-success" if ok else "recover-failed")
        return Event.RECOVERED if ok else Event.UNRECOVERED
    if strategy == Change.DOWNGRADE:
        return Event.SCALED_IN if ok else Event.UNRECOVERED
    if strategy == Change.UPGRADE:
        return Event.SCALED_OUT if ok else Event.UNRECOVERED
    if strategy == Change.DUMP:
        _told(turn, "dump-success" if ok else "dump-failed")
        turn.tell(dump_exit(turn))
        return Event.CHECKED
    _told(turn, "exit-completed")
    return Event.CHECKED


def kill_pods(turn: Turn) -> Event | None:
    """A retry failed for good: the pods of its ranks are replaced."""
    if turn.entering:
        turn.harden()
        turn.widen()
        ranks = turn.pod_ranks(turn.talk.ranks)
        turn.remember(left=turn.node_ranks(turn.talk.ranks))
        turn.effects.append(MarkPods(ranks, labels={"fault-type": "retry-fault"}))
        turn.write(Reset("faults", ranks))
        return None
    return None if turn.wrote() is None else Event.PODS_KILLED


def _told(turn: Turn, status: str) -> None:
    turn.effects.append(Annotate(STATUS_ANNOTATION, status))


__all__ = ["check", "decided", "kill_pods", "wait_recover", "wait_status"]
