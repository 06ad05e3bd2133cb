"""The recovery of one job as a pure function: `step(conversation, input, facts, now, uuid) -> Step`.

The transition table (`table.py`) says where events lead; handlers (`flow.py`, `decision.py`, `aftermath.py`,
`maintenance.py`, `elastic.py`, `hotswitch.py`) say what a state does and which event ends it. A state that is entered
runs until it waits: for the outcome of an effect, a report, a fact, or its limit. An event without a row resets the
conversation (code 401).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.model.recovery import account, aftermath, decision, elastic, flow, hotswitch, maintenance, steps, words
from engine.model.recovery.choice import usable_retry
from engine.model.recovery.conversation import (
    Annotate,
    Conversation,
    Done,
    Effect,
    Facts,
    Faults,
    Input,
    Offered,
    Rank,
    Release,
    Replied,
    Report,
    Signal,
    Start,
    Step,
    StopComplete,
    SubHealthy,
    merged,
    noted,
)
from engine.model.recovery.table import NEXT
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Code, Event, State

MAX_TRANSITIONS = 32  # of one input; the table has no longer chain without a wait
_FAULT_STATES = (State.INIT, State.SCALE_RUNNING)
#: Events after which training goes on: what came too late to be told is told then.
_GOES_ON = frozenset({
    Event.RECOVERED, Event.SCALED_IN, Event.SCALED_OUT, Event.NIC_CONTINUED, Event.STRESS_CONTINUED, Event.RESTART_OK,
})  # fmt: skip
#: States of a hot switch that is given up while training goes on.
_CALLED_OFF = frozenset({State.HOT_PREPARE, State.HOT_POD_FAILED})
#: States in which the faults are in other hands: pods or the whole job are rescheduled.
_HANDED_OVER = frozenset({
    State.LISTEN_SCHEDULE, State.RESTART_ALL, State.WAIT_RESTART_ALL, State.FAULT_CLEAR, State.FAULT_RETRY,
    State.KILL_JOB, State.HOT_STOP_JOB,
})  # fmt: skip
#: States in which the job's processes have been told something and are to answer.
_ASKING = frozenset({
    State.WAIT_STOP, State.WAIT_STRATEGY, State.WAIT_RETRY, State.WAIT_RECOVER, State.WAIT_DUMP, State.WAIT_PAUSE,
    State.WAIT_CONTINUE, State.WAIT_ISOLATE, State.WAIT_SCALE_IN, State.WAIT_SCALE_OUT, State.HOT_WAIT_PAUSE,
    State.HOT_WAIT_RESTART,
})  # fmt: skip

HANDLERS: dict[State, Callable[[Turn], Event | None]] = {
    State.INIT: flow.idle,
    State.WAIT_FLUSHING: flow.wait_flushing,
    State.STOP_TRAIN: flow.stop_train,
    State.DUMP: flow.dump,
    State.WAIT_STOP: flow.wait_stop,
    State.WAIT_FLUSHED: flow.wait_flushed,
    State.GLOBAL_FAULT: flow.global_fault,
    State.WAIT_STRATEGY: flow.wait_strategy,
    State.DECIDED: decision.decided,
    State.WAIT_RETRY: decision.wait_status,
    State.WAIT_RECOVER: decision.wait_recover,
    State.WAIT_DUMP: decision.wait_status,
    State.CHECK: decision.check,
    State.KILL_PODS: decision.kill_pods,
    State.LISTEN_SCHEDULE: aftermath.listen_schedule,
    State.RESTART_ALL: aftermath.restart_all,
    State.WAIT_RESTART_ALL: aftermath.wait_restart_all,
    State.FAULT_CLEAR: aftermath.fault_clear,
    State.FAULT_RETRY: aftermath.fault_retry,
    State.KILL_JOB: aftermath.kill_job,
    State.PAUSE: maintenance.pause,
    State.WAIT_PAUSE: maintenance.wait_pause,
    State.SWITCH_NIC: maintenance.notify,
    State.WAIT_SWITCH_NIC: maintenance.wait_nic,
    State.STRESS_TEST: maintenance.notify,
    State.WAIT_STRESS_TEST: maintenance.wait_stress,
    State.CONTINUE: maintenance.proceed,
    State.WAIT_CONTINUE: maintenance.wait_continue,
    State.SCALE_IN: elastic.scale_in,
    State.WAIT_ISOLATE: elastic.wait_isolate,
    State.CHECK_ISOLATE: elastic.check_isolate,
    State.WAIT_SCALE_IN: decision.wait_status,
    State.SCALE_RUNNING: elastic.running,
    State.WAIT_SCALE_OUT: decision.wait_status,
    State.HOT_PREPARE: hotswitch.prepare,
    State.HOT_WAIT_POD: hotswitch.wait_pod,
    State.HOT_POD_FAILED: hotswitch.pod_failed,
    State.HOT_POD_RUNNING: hotswitch.pod_running,
    State.HOT_WAIT_PAUSE: hotswitch.wait_pause,
    State.HOT_STOP_JOB: hotswitch.stop_job,
    State.HOT_WAIT_DELETED: hotswitch.wait_deleted,
    State.HOT_RESTART: hotswitch.restart,
    State.HOT_WAIT_RESTART: hotswitch.wait_restart,
}


def step(talk: Conversation, told: Input, facts: Facts, now: int, uuid: str) -> Step:
    """Bring one input to the conversation of a job.

    ``now`` is in milliseconds since 1970; ``uuid`` names a round, should this input begin one. Answers what to remember
    (before the effects are carried out) and what to do, in order.
    """
    turn = Turn(talk, told, facts, now, uuid)
    refused = _hear(turn)
    if refused is not None:
        return refused
    event = _begin(turn) or _run(turn)
    for _ in range(MAX_TRANSITIONS):
        if event is None:
            break
        _enter(turn, event)
        event = _run(turn)
    else:
        turn.remember(**_cleared(turn.talk, now), code=int(Code.INNER))
    if turn.talk.retried not in ((), talk.retried):
        # signals first: nothing waits for what the planner is told
        turn.effects.append(Annotate(steps.REPORTED_KEY, steps.text(turn.talk.retried)))
    if talk.released and not turn.talk.released:
        turn.effects.append(Release(clear=True, answer=False))
    turn.remember(codes=account.codes_of(turn.talk, facts))
    over = account.told(talk, turn.talk, facts)
    if over is not None:
        turn.effects.append(over)
    return Step(turn.talk, tuple(turn.effects))


def reset(talk: Conversation, now: int, code: Code = Code.CANCELLED, *, heard: bool = False) -> Conversation:
    """The conversation from the start: a client subscribed anew (``heard``) or went away; waits end with ``code``.

    Faults over which it was cut off, if they are still there then, begin the next one as soon as somebody listens.
    """
    cut = {rank.rank for rank in talk.ranks} if talk.state not in _HANDED_OVER else set()
    before = set(talk.undone)
    undone = tuple(rank for rank in talk.seen if rank.rank in cut or rank in before)
    if heard and undone:
        talk = msgspec.structs.replace(talk, seen=_without(talk.seen, undone), undone=())
    else:
        talk = msgspec.structs.replace(talk, undone=undone)
    if talk.state is State.INIT and not talk.ranks:
        return msgspec.structs.replace(talk, **_cleared(talk, now))
    story = noted(talk.story, now, "reset", State.INIT, int(code))
    return msgspec.structs.replace(talk, **_cleared(talk, now), story=story, code=int(code))


def _without(ranks: tuple[Rank, ...], gone: tuple[Rank, ...]) -> tuple[Rank, ...]:
    left_out = set(gone)
    return tuple(rank for rank in ranks if rank not in left_out)


def _cleared(talk: Conversation, now: int) -> dict[str, object]:
    fresh = Conversation(job=talk.job)
    kept = ("job", "story", "code", "degraded", "seen", "undone", "paused")
    return {name: getattr(fresh, name) for name in fresh.__struct_fields__ if name not in kept} | {"since": now}


def _hear(turn: Turn) -> Step | None:
    """Put reports into their slots and faults to the others; a taken slot makes the client wait."""
    talk, told = turn.talk, turn.told
    if isinstance(told, StopComplete):
        return _slot(turn, "stop", told.report)
    if isinstance(told, Offered):
        return _slot(turn, "offer", told.report)
    if isinstance(told, Done):
        return _slot(turn, "status", told.report)
    if isinstance(told, Replied):
        if talk.operation is not None and told.nodes:
            turn.remember(operation=msgspec.structs.replace(talk.operation, nodes=told.nodes))
        return _slot(turn, "reply", told.report)
    if isinstance(told, Start) and (talk.state is not State.INIT or talk.operation is not None or talk.ranks):
        return Step(talk, code=int(Code.OPERATION_RUNNING))
    return None


def _slot(turn: Turn, slot: str, report: Report) -> Step | None:
    if getattr(turn.talk, slot) is not None:
        return Step(turn.talk, busy=True)
    turn.remember(**{slot: report})
    if report.ranks and slot == "stop" and turn.talk.ranks:
        turn.remember(ranks=merged(turn.talk.ranks, report.ranks))
    if slot == "stop" or (slot == "offer" and words.Change.RETRY in report.strategies):
        _told_of_retry(turn, turn.talk.ranks)
    return None


def _told_of_retry(turn: Turn, ranks: tuple[Rank, ...]) -> None:
    """The job has answered about faults whose step can be tried again: the planner gives it the time for that."""
    if turn.talk.state is not State.INIT and not turn.talk.normal and usable_retry(turn.facts):
        turn.remember(retried=steps.more(turn.talk.retried, ranks, turn.now))


def _begin(turn: Turn) -> Event | None:
    """The event that an input raises by itself, if the state has a row for it."""
    told, talk = turn.told, turn.talk
    if isinstance(told, Faults):
        return _faults(turn, told)
    if isinstance(told, Start) and talk.state is State.INIT:
        turn.remember(operation=told.operation)
        return Event.START_NIC if told.operation.kind == maintenance.NIC else Event.START_STRESS
    if isinstance(told, SubHealthy) and talk.state is State.INIT and not talk.ranks:
        fits = (
            turn.facts.sub_health == "hotSwitch" and not talk.degraded and not told.rank_zero
            and told.pods <= words.MAX_HOT_PODS and turn.facts.framework in ("pytorch", "mindspore")
        )  # fmt: skip
        if fits:
            turn.remember(hot_pod=told.pod, ranks=told.ranks)
            return Event.HOT_SWITCH
    return None


def _faults(turn: Turn, told: Faults) -> Event | None:
    talk = turn.talk
    here = set(told.ranks)
    seen = set(talk.seen) & here
    if told.software:
        new = told.ranks
        retried = steps.more(talk.retried, told.ranks, turn.now) if usable_retry(turn.facts) else talk.retried
        turn.remember(retried=retried)
    else:
        new = tuple(rank for rank in told.ranks if rank not in seen)
        turn.remember(seen=told.ranks, undone=tuple(rank for rank in talk.undone if rank in here))
    if not new:
        return None
    fresh = not talk.ranks
    late = () if told.software or talk.state in _FAULT_STATES else turn.untold(new)
    ranks = merged(talk.ranks, new)
    turn.remember(ranks=ranks, late=(*talk.late, *late))
    if talk.state not in _FAULT_STATES:
        return None
    retry_only = all(rank.retryable for rank in ranks) and usable_retry(turn.facts)
    if told.software or retry_only or talk.state is State.SCALE_RUNNING:
        return Event.FAULT
    if fresh or talk.pre_exit is None:
        turn.remember(pre_exit=turn.now + words.PRE_EXIT_WAIT * 1000)
    return None


def _run(turn: Turn) -> Event | None:
    event = HANDLERS[turn.talk.state](turn)
    turn.entering = False
    return event


def _enter(turn: Turn, event: Event) -> None:
    talk = turn.talk
    to = NEXT.get((talk.state, event))
    if to is None:
        # an event that nobody foresaw: begin again rather than stand still
        turn.remember(
            **_cleared(talk, turn.now), code=int(Code.ORDER_MIX),
            story=noted(talk.story, turn.now, event, State.INIT, int(Code.ORDER_MIX)),
        )  # fmt: skip
        return
    story = noted(talk.story, turn.now, event, to, talk.code)
    if talk.late and (event in _GOES_ON or (to is State.INIT and talk.state in _CALLED_OFF)):
        gone = set(talk.isolate) if event is Event.SCALED_IN else set()
        late = tuple(rank for rank in talk.late if rank.rank not in gone)
        turn.remember(seen=_without(talk.seen, late), late=())
    if to is State.INIT:
        turn.remember(**_cleared(talk, turn.now), story=story, code=0)
    else:
        turn.remember(
            state=to, phase="", since=turn.now, deadline=None, awaiting="", signal="", pending=None, pre_exit=None,
            story=story, code=0,
        )  # fmt: skip
        if talk.state is State.INIT:
            # what was reported before this round belongs to an earlier one: clients that got no answer say it twice
            turn.remember(stop=None, offer=None, status=None, reply=None)
    turn.entering = True


def resumed(talk: Conversation) -> tuple[Effect, ...]:
    """What a server that takes over must do again: the effect whose outcome nobody heard."""
    return () if talk.pending is None else (talk.pending,)


def unanswered(talk: Conversation, now: int) -> Signal | None:
    """What a server that takes over must say once more when no answer comes: a signal that was handed to a connection
    so shortly before that it may have been lost with the server. None for one that surely arrived, or was answered.
    """
    asked = talk.state in _ASKING and not talk.awaiting and talk.status is None
    return talk.said if asked and now - talk.since <= words.LOST * 1000 else None


def begun(talk: Conversation) -> bool:
    """Whether something is under way: no operation may start then."""
    return talk.state is not State.INIT or talk.operation is not None


__all__ = ["HANDLERS", "begun", "reset", "resumed", "step", "unanswered"]
