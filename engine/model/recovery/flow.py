"""What each state of the recovery path does on entry and with what it is told.

A handler is called on entry (``turn.entering``) and for every input afterwards; it answers with the event that ends the
state, or None while it lasts.
"""

from __future__ import annotations

from engine.model.recovery import words
from engine.model.recovery.choice import all_normal, choose, dump_only, may_shrink, usable_retry, waits_for_resources
from engine.model.recovery.conversation import Annotate, Label, MarkPods, Rank, Reset, Signal
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Change, Code, Event, Strategy

STATUS_ANNOTATION = "ProcessRecoverStatus"
CONFIRM_ANNOTATION = "ProcessConfirmFault"
ENABLE_LABEL = "process-recover-enable"
_CHANGED = {
    Strategy.RETRY: (Change.RETRY, Event.RETRY_SENT),
    Strategy.RECOVER: (Change.RECOVER, Event.RECOVER_SENT),
    Strategy.ELASTIC: (Change.DOWNGRADE, Event.SCALE_IN_SENT),
    Strategy.DUMP: (Change.DUMP, Event.DUMP_SENT),
    Strategy.EXIT: (Change.EXIT, Event.EXIT_SENT),
}


def idle(turn: Turn) -> Event | None:
    """INIT: give the processes of a broken chip time to speak for themselves, then ask them to leave, then act."""
    talk = turn.talk
    if talk.pre_exit is None or turn.now < talk.pre_exit:
        return None
    if talk.phase == "pre-exit":
        return Event.FAULT
    turn.tell(Signal(words.PRE_EXIT, ("pre exit process",), nodes=turn.node_ranks(talk.ranks)))
    turn.remember(phase="pre-exit", pre_exit=turn.now + words.PRE_EXIT_ANSWER * 1000)
    return None


def wait_flushing(turn: Turn) -> Event | None:
    """Learn what the platform wants, then tell the pods that faults are still being gathered."""
    facts = turn.facts
    if turn.entering:
        turn.phase("platform", words.PLATFORM_LIMIT)
    if turn.talk.phase == "platform":
        if facts.platform == "":
            if not turn.expired:
                return None
            turn.fail(Code.PLATFORM_TIMEOUT)
            return Event.PLATFORM_TIMEOUT
        unwell = facts.health == "UnHealthy" or (facts.health == "SubHealthy" and facts.sub_health == "graceExit")
        if dump_only(facts) and unwell:
            return Event.DUMP
        if facts.hot_reset:
            turn.fail(Code.CONFIG_MAP)
            return Event.UNSENT
        turn.phase("flush")
        turn.write(Reset("flush"))
        return None
    return _written(turn, Event.FINISH_NOTIFY, Event.UNSENT)


def stop_train(turn: Turn) -> Event | None:
    """Stop the step loop of every process."""
    if turn.entering:
        turn.remember(uuid=turn.uuid)
        turn.send(Signal(words.STOP_TRAIN, ("stop_train",), turn.talk.ranks), Event.SENT)
        return None
    return turn.sent()


def dump(turn: Turn) -> Event | None:
    """Dump-only jobs: write the fault list, save, leave."""
    if turn.entering:
        turn.remember(uuid=turn.uuid, chosen=Change.DUMP.value)
        turn.phase("list")
        turn.write(Reset("faults", turn.pod_ranks(turn.talk.ranks)))
        return None
    if turn.talk.phase == "list":
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.CONFIG_MAP)
            return Event.UNSENT
        nodes = turn.node_ranks(turn.talk.ranks)
        turn.send(Signal(words.SAVE_AND_EXIT, ("save_and_exit",), nodes=nodes), Event.SENT)
        return None
    return turn.sent()


def wait_stop(turn: Turn) -> Event | None:
    """Until every process stands."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    report = turn.take("stop")
    if report is None:
        return _report_timeout(turn)
    if report.code == Code.PROCESS_NOT_READY:
        turn.fail(Code.CLIENT_ERROR)
        return Event.NOT_READY
    return Event.REPORT


def wait_flushed(turn: Turn) -> Event | None:
    """A second for the last faults; nothing to wait for when a step is simply tried again."""
    if turn.entering:
        pure = bool(turn.talk.ranks) and not turn.talk.normal and usable_retry(turn.facts) and turn.talk.last == ""
        turn.limit(0 if pure else words.FLUSH)
    return Event.FLUSHED if turn.expired else None


def global_fault(turn: Turn) -> Event | None:
    """Agree on the faults with the platform, write them down, tell every process."""
    if turn.entering:
        if all_normal(turn.talk, turn.facts):
            turn.harden()
        if turn.facts.platform is None:
            return _write_list(turn)
        if turn.facts.confirm_fault:
            turn.fail(Code.CONFIRM_FAULT)
            return Event.CONFIRM_TIMEOUT
        text = ",".join(f"{rank.rank}:{rank.kind}" for rank in turn.talk.ranks)
        turn.phase("confirm")
        turn.write(Annotate(CONFIRM_ANNOTATION, text, answer=True))
        return None
    phase = turn.talk.phase
    if phase == "confirm":
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.CONFIRM_FAULT)
            return Event.CONFIRM_TIMEOUT
        turn.phase("result", words.PLATFORM_LIMIT)
        phase = "result"
    if phase == "result":
        if turn.facts.result_fault:
            turn.remember(ranks=_parsed(turn.facts.result_fault) or turn.talk.ranks)
            return _write_list(turn)
        if turn.expired:
            turn.fail(Code.CONFIRM_FAULT)
            return Event.CONFIRM_TIMEOUT
        return None
    if phase == "list":
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.CONFIG_MAP)
            return Event.UNSENT
        _send_global(turn)
        return None
    return turn.sent()


def _write_list(turn: Turn) -> Event | None:
    if not turn.talk.normal:
        _send_global(turn)
        return None
    if turn.facts.hot_reset:
        turn.fail(Code.CONFIG_MAP)
        return Event.UNSENT
    turn.phase("list")
    turn.write(Reset("faults", turn.pod_ranks(turn.talk.ranks), restart_process=turn.facts.in_place))
    return None


def _send_global(turn: Turn) -> None:
    talk = turn.talk
    if talk.normal:
        nodes = turn.node_ranks(talk.ranks)
        turn.send(
            Signal(words.GLOBAL_FAULT, ("on_global_rank", "fault_nodes_exit"), talk.ranks, nodes=nodes), Event.SENT
        )
        return
    network = any(rank.kind == words.HCCL for rank in talk.ranks) and usable_retry(turn.facts)
    timeout = words.HCCL_CLIENT_TIMEOUT if network else 0
    turn.send(Signal(words.GLOBAL_FAULT, ("on_global_rank",), talk.ranks, timeout=timeout), Event.SENT)


def wait_strategy(turn: Turn) -> Event | None:
    """Until the processes say what they can do."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    report = turn.take("offer")
    if report is None:
        return _report_timeout(turn)
    turn.remember(agent=report.strategies)
    return Event.REPORT


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
    if choice.strategy is not Strategy.RETRY and turn.talk.normal and turn.facts.in_place:
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
    nodes: tuple[str, ...] = ()
    extra = ""
    if talk.in_place:
        actions, nodes, extra = (*actions, "fault_nodes_restart"), turn.node_ranks(talk.ranks), words.IN_PLACE_PARAMS
    elif change is Change.DOWNGRADE:
        extra = words.SCALE_IN_PARAMS
    if not talk.in_place and talk.normal and change in (Change.RECOVER, Change.DUMP, Change.EXIT):
        actions, nodes = (*actions, "fault_nodes_exit"), turn.node_ranks(talk.ranks)
    turn.send(Signal(words.CHANGE_STRATEGY, actions, talk.ranks, change=change.value, nodes=nodes, extra=extra), event)


def wait_status(turn: Turn) -> Event | None:
    """Until the processes say how a retry, a dump or a scaling went."""
    if turn.entering:
        turn.limit(words.REPORT_TIMEOUT)
    report = turn.talk.status
    if report is None:
        return _report_timeout(turn)
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
        if talk.in_place or (facts.running and facts.replaced) or talk.status is not None:
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
    return _report_timeout(turn)


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
        turn.tell(_dump_exit(turn))
        return Event.CHECKED
    _told(turn, "exit-completed")
    return Event.CHECKED


def kill_pods(turn: Turn) -> Event | None:
    """A retry failed for good: the pods of its ranks are replaced."""
    if turn.entering:
        turn.harden()
        ranks = turn.pod_ranks(turn.talk.ranks)
        turn.effects.append(MarkPods(ranks, labels={"fault-type": "retry-fault"}))
        turn.write(Reset("faults", ranks))
        return None
    return None if turn.wrote() is None else Event.PODS_KILLED


def listen_schedule(turn: Turn) -> Event | None:
    """Until the replaced pods run; a platform sees to that itself."""
    if turn.entering:
        turn.limit(words.EXIT_SCHEDULE_LIMIT)
        if turn.facts.platform is not None:
            return Event.SCHEDULED
        return None
    if turn.now - turn.talk.since >= words.RUNNING_POLL * 1000 and turn.facts.running:
        return Event.SCHEDULED
    if turn.expired:
        turn.fail(Code.SCHEDULE_TIMEOUT)
        return Event.SCHEDULE_TIMEOUT
    return None


def restart_all(turn: Turn) -> Event | None:
    """Let every agent start its processes anew."""
    if turn.entering:
        turn.write(Reset("restart"))
        return None
    return _written(turn, Event.SENT, Event.UNSENT)


def wait_restart_all(turn: Turn) -> Event | None:
    """A minute in which agents read that."""
    if turn.entering:
        turn.limit(words.RESTART_ALL_WAIT)
    return Event.RESTARTED if turn.expired else None


def fault_clear(turn: Turn) -> Event | None:
    """Clear the reset ConfigMap, so that no agent waits."""
    if turn.entering:
        turn.write(Reset("clear"))
        return None
    return _written(turn, Event.CLEARED, Event.UNCLEARED)


def fault_retry(turn: Turn) -> Event | None:
    """Hand the job to pod- and job-level rescheduling, and take it back when it runs."""
    if turn.entering:
        turn.phase("pause")
        turn.write(Label(ENABLE_LABEL, "pause"))
        return None
    phase = turn.talk.phase
    if phase == "pause":
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.POD_GROUP)
            return Event.PAUSE_LABEL
        turn.tell(_dump_exit(turn))
        turn.phase("running", words.RUNNING_LIMIT)
        turn.remember(since=turn.now)
        return None
    if phase == "running":
        if turn.now - turn.talk.since >= words.RUNNING_POLL * 1000 and turn.facts.running:
            turn.phase("enable")
            turn.write(Label(ENABLE_LABEL, "on"))
            return None
        if turn.expired:
            turn.fail(Code.SCHEDULE_TIMEOUT)
            return Event.SCHEDULE_TIMEOUT
        return None
    wrote = turn.wrote()
    if wrote is None:
        return None
    if not wrote:
        turn.fail(Code.POD_GROUP)
        return Event.ENABLE_LABEL
    return Event.FINISHED


def kill_job(turn: Turn) -> Event | None:
    """Last resort: every process leaves, the whole job starts anew."""
    if turn.entering:
        turn.send(Signal(words.KILL_MASTER), Event.FINISHED)
        turn.limit(words.KILL_ENQUEUE)
        return None
    if turn.sent() is not None or turn.expired:
        turn.remember(awaiting="", signal="", pending=None)
        return Event.FINISHED
    return None


def _dump_exit(turn: Turn) -> Signal:
    return Signal(
        words.CHANGE_STRATEGY, ("change_strategy",), turn.talk.ranks, change=Change.EXIT.value,
        extra=words.DUMP_EXIT_PARAMS,
    )  # fmt: skip


def _told(turn: Turn, status: str) -> None:
    turn.effects.append(Annotate(STATUS_ANNOTATION, status))


def _written(turn: Turn, good: Event, bad: Event) -> Event | None:
    wrote = turn.wrote()
    if wrote is None:
        return None
    if not wrote:
        turn.fail(Code.CONFIG_MAP)
    return good if wrote else bad


def _report_timeout(turn: Turn) -> Event | None:
    if not turn.expired:
        return None
    turn.fail(Code.REPORT_TIMEOUT)
    return Event.TIMEOUT


def _parsed(text: str) -> tuple[Rank, ...]:
    """`rank:type,rank:type` of a platform; entries that are no such pair are passed over."""
    found = []
    for entry in text.split(","):
        rank, colon, kind = entry.strip().partition(":")
        if colon and rank.isascii() and rank.isdigit() and kind in ("0", "1", "2"):
            found.append(Rank(rank, kind))
    return tuple(found)


report_timeout = _report_timeout

__all__ = [
    "check", "decided", "dump", "fault_clear", "fault_retry", "global_fault", "idle", "kill_job", "kill_pods",
    "listen_schedule", "report_timeout", "restart_all", "stop_train", "wait_flushed", "wait_flushing",
    "wait_recover", "wait_restart_all", "wait_status", "wait_stop", "wait_strategy",
]  # fmt: skip
