"""The recovery of one job as a pure function: `step(conversation, input, facts, now, uuid) -> Step`.

The transition table (`table.py`) says where events lead; handlers (`flow.py`, `decision.py`, `fallback.py`,
`maintenance.py`, `elastic.py`, `hotswitch.py`) say what a state does and which event ends it. A state that is entered
runs until it waits: for the outcome of an effect, a report, a fact, or its limit. An event without a row resets the
conversation (code 401).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from belay.engine.model.labels import STEP_RETRY
from belay.engine.model.recovery import (
    decision,
    elastic,
    fallback,
    flow,
    hotswitch,
    maintenance,
    protocol,
    steps,
    summary,
)
from belay.engine.model.recovery.choice import usable_retry
from belay.engine.model.recovery.conversation import (
    Annotate,
    Conversation,
    Done,
    Effect,
    Faults,
    FaultyRank,
    Input,
    JobFacts,
    Offered,
    Release,
    Replied,
    Report,
    Signal,
    Start,
    StopComplete,
    SubHealthy,
    Transition,
    merged,
    with_step,
)
from belay.engine.model.recovery.protocol import Code, RecoveryEvent, State
from belay.engine.model.recovery.table import NEXT
from belay.engine.model.recovery.turn import Turn

MAX_TRANSITIONS = 32  # of one input; the table has no longer chain without a wait
_FAULT_STATES = (State.INIT, State.SCALE_RUNNING)
#: Events after which training goes on; late faults are handled then.
_GOES_ON = frozenset({
    RecoveryEvent.RECOVERED, RecoveryEvent.SCALED_IN, RecoveryEvent.SCALED_OUT, RecoveryEvent.NIC_CONTINUED,
    RecoveryEvent.STRESS_CONTINUED, RecoveryEvent.RESTART_OK,
})  # fmt: skip
#: States of a hot switch that is cancelled while training goes on.
_CALLED_OFF = frozenset({State.HOT_PREPARE, State.HOT_POD_FAILED})
#: States in which pods or the whole job are rescheduled, so that the faults are handled there.
_HANDED_OVER = frozenset({
    State.LISTEN_SCHEDULE, State.RESTART_ALL, State.WAIT_RESTART_ALL, State.FAULT_CLEAR, State.FAULT_RETRY,
    State.KILL_JOB, State.HOT_STOP_JOB,
})  # fmt: skip
#: States that wait for an answer of the job's processes.
_ASKING = frozenset({
    State.WAIT_STOP, State.WAIT_STRATEGY, State.WAIT_RETRY, State.WAIT_RECOVER, State.WAIT_DUMP, State.WAIT_PAUSE,
    State.WAIT_CONTINUE, State.WAIT_ISOLATE, State.WAIT_SCALE_IN, State.WAIT_SCALE_OUT, State.HOT_WAIT_PAUSE,
    State.HOT_WAIT_RESTART,
})  # fmt: skip

HANDLERS: dict[State, Callable[[Turn], RecoveryEvent | None]] = {
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
    State.LISTEN_SCHEDULE: fallback.listen_schedule,
    State.RESTART_ALL: fallback.restart_all,
    State.WAIT_RESTART_ALL: fallback.wait_restart_all,
    State.FAULT_CLEAR: fallback.fault_clear,
    State.FAULT_RETRY: fallback.fault_retry,
    State.KILL_JOB: fallback.kill_job,
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


def step(conversation: Conversation, received: Input, facts: JobFacts, now: int, uuid: str) -> Transition:
    """Apply one input to the conversation of a job.

    ``now`` is in milliseconds since 1970; ``uuid`` names a round, should this input begin one. Answers what to remember
    (before the effects are carried out) and what to do, in order.
    """
    turn = Turn(conversation, received, facts, now, uuid)
    refused = _receive(turn)
    if refused is not None:
        return refused
    event = _begin(turn) or _run(turn)
    for _ in range(MAX_TRANSITIONS):
        if event is None:
            break
        _enter(turn, event)
        event = _run(turn)
    else:
        turn.remember(**_cleared(turn.conversation, now), code=int(Code.INNER))
    if turn.conversation.retried not in ((), conversation.retried):
        # signals first: nothing waits for the planner's annotation
        turn.effects.append(Annotate(STEP_RETRY, steps.text(turn.conversation.retried)))
    if conversation.released and not turn.conversation.released:
        turn.effects.append(Release(clear=True, answer=False))
    turn.remember(codes=summary.codes_of(turn.conversation, facts))
    over = summary.summary_write(conversation, turn.conversation, facts)
    if over is not None:
        turn.effects.append(over)
    return Transition(turn.conversation, tuple(turn.effects))


def reset(conversation: Conversation, now: int, code: Code = Code.CANCELLED, *, heard: bool = False) -> Conversation:
    """Reset the conversation, because a client subscribed again (``heard``) or left; waits end with ``code``.

    Faults that were not handled and still exist begin the next conversation as soon as a client subscribes.
    """
    cut = {rank.rank for rank in conversation.ranks} if conversation.state not in _HANDED_OVER else set()
    before = set(conversation.undone)
    undone = tuple(rank for rank in conversation.seen if rank.rank in cut or rank in before)
    if heard and undone:
        conversation = msgspec.structs.replace(conversation, seen=_without(conversation.seen, undone), undone=())
    else:
        conversation = msgspec.structs.replace(conversation, undone=undone)
    if conversation.state is State.INIT and not conversation.ranks:
        return msgspec.structs.replace(conversation, **_cleared(conversation, now))
    story = with_step(conversation.story, now, "reset", State.INIT, int(code))
    return msgspec.structs.replace(conversation, **_cleared(conversation, now), story=story, code=int(code))


def _without(ranks: tuple[FaultyRank, ...], gone: tuple[FaultyRank, ...]) -> tuple[FaultyRank, ...]:
    left_out = set(gone)
    return tuple(rank for rank in ranks if rank not in left_out)


def _cleared(conversation: Conversation, now: int) -> dict[str, object]:
    fresh = Conversation(job=conversation.job)
    kept = ("job", "story", "code", "degraded", "seen", "undone", "paused")
    return {name: getattr(fresh, name) for name in fresh.__struct_fields__ if name not in kept} | {"since": now}


def _receive(turn: Turn) -> Transition | None:
    """Put reports into their slots; when a slot is taken, the client must wait."""
    conversation, received = turn.conversation, turn.received
    if isinstance(received, StopComplete):
        return _slot(turn, "stop", received.report)
    if isinstance(received, Offered):
        return _slot(turn, "offer", received.report)
    if isinstance(received, Done):
        return _slot(turn, "status", received.report)
    if isinstance(received, Replied):
        if conversation.operation is not None and received.nodes:
            turn.remember(operation=msgspec.structs.replace(conversation.operation, nodes=received.nodes))
        return _slot(turn, "reply", received.report)
    if isinstance(received, Start) and (
        conversation.state is not State.INIT or conversation.operation is not None or conversation.ranks
    ):
        return Transition(conversation, code=int(Code.OPERATION_RUNNING))
    return None


def _slot(turn: Turn, slot: str, report: Report) -> Transition | None:
    if getattr(turn.conversation, slot) is not None:
        return Transition(turn.conversation, busy=True)
    turn.remember(**{slot: report})
    if report.ranks and slot == "stop" and turn.conversation.ranks:
        turn.remember(ranks=merged(turn.conversation.ranks, report.ranks))
    if slot == "stop" or (slot == "offer" and protocol.ChangeStrategy.RETRY in report.strategies):
        _add_retries(turn, turn.conversation.ranks)
    return None


def _add_retries(turn: Turn, ranks: tuple[FaultyRank, ...]) -> None:
    """Record step retries of a job that answered about retryable faults, so that the planner allows time for them."""
    if turn.conversation.state is not State.INIT and not turn.conversation.normal and usable_retry(turn.facts):
        turn.remember(retried=steps.more(turn.conversation.retried, ranks, turn.now))


def _begin(turn: Turn) -> RecoveryEvent | None:
    """The event that an input raises in this state; None without one."""
    received, conversation = turn.received, turn.conversation
    if isinstance(received, Faults):
        return _faults(turn, received)
    if isinstance(received, Start) and conversation.state is State.INIT:
        turn.remember(operation=received.operation)
        return RecoveryEvent.START_NIC if received.operation.kind == maintenance.NIC else RecoveryEvent.START_STRESS
    if isinstance(received, SubHealthy) and conversation.state is State.INIT and not conversation.ranks:
        fits = (
            turn.facts.sub_health == "hotSwitch" and not conversation.degraded and not received.rank_zero
            and received.pods <= protocol.MAX_HOT_PODS and turn.facts.framework in ("pytorch", "mindspore")
        )  # fmt: skip
        if fits:
            turn.remember(hot_pod=received.pod, ranks=received.ranks)
            return RecoveryEvent.HOT_SWITCH
    return None


def _faults(turn: Turn, received: Faults) -> RecoveryEvent | None:
    conversation = turn.conversation
    here = set(received.ranks)
    seen = set(conversation.seen) & here
    if received.software:
        new = received.ranks
        retried = (
            steps.more(conversation.retried, received.ranks, turn.now)
            if usable_retry(turn.facts)
            else conversation.retried
        )
        turn.remember(retried=retried)
    else:
        new = tuple(rank for rank in received.ranks if rank not in seen)
        turn.remember(seen=received.ranks, undone=tuple(rank for rank in conversation.undone if rank in here))
    if not new:
        return None
    fresh = not conversation.ranks
    late = () if received.software or conversation.state in _FAULT_STATES else turn.unhandled(new)
    ranks = merged(conversation.ranks, new)
    turn.remember(ranks=ranks, late=(*conversation.late, *late))
    if conversation.state not in _FAULT_STATES:
        return None
    retry_only = all(rank.retryable for rank in ranks) and usable_retry(turn.facts)
    if received.software or retry_only or conversation.state is State.SCALE_RUNNING:
        return RecoveryEvent.FAULT
    if fresh or conversation.pre_exit is None:
        turn.remember(pre_exit=turn.now + protocol.PRE_EXIT_WAIT * 1000)
    return None


def _run(turn: Turn) -> RecoveryEvent | None:
    event = HANDLERS[turn.conversation.state](turn)
    turn.entering = False
    return event


def _enter(turn: Turn, event: RecoveryEvent) -> None:
    conversation = turn.conversation
    to = NEXT.get((conversation.state, event))
    if to is None:
        # no row for this event: reset rather than stop
        turn.remember(
            **_cleared(conversation, turn.now), code=int(Code.ORDER_MIX),
            story=with_step(conversation.story, turn.now, event, State.INIT, int(Code.ORDER_MIX)),
        )  # fmt: skip
        return
    story = with_step(conversation.story, turn.now, event, to, conversation.code)
    if conversation.late and (event in _GOES_ON or (to is State.INIT and conversation.state in _CALLED_OFF)):
        gone = set(conversation.isolate) if event is RecoveryEvent.SCALED_IN else set()
        late = tuple(rank for rank in conversation.late if rank.rank not in gone)
        turn.remember(seen=_without(conversation.seen, late), late=())
    if to is State.INIT:
        turn.remember(**_cleared(conversation, turn.now), story=story, code=0)
    else:
        turn.remember(
            state=to, phase="", since=turn.now, deadline=None, awaiting="", signal="", pending=None, pre_exit=None,
            story=story, code=0,
        )  # fmt: skip
        if conversation.state is State.INIT:
            # earlier reports belong to an earlier round: clients without an answer send them again
            turn.remember(stop=None, offer=None, status=None, reply=None)
    turn.entering = True


def resumed(conversation: Conversation) -> tuple[Effect, ...]:
    """Effects that a server that takes over must repeat: the one without an outcome."""
    return () if conversation.pending is None else (conversation.pending,)


def unanswered(conversation: Conversation, now: int) -> Signal | None:
    """The signal that a server that takes over must send again when no answer comes.

    It was sent so shortly before that it may be lost. None for one that surely arrived, or was answered.
    """
    asked = conversation.state in _ASKING and not conversation.awaiting and conversation.status is None
    return conversation.said if asked and now - conversation.since <= protocol.LOST * 1000 else None


def begun(conversation: Conversation) -> bool:
    """Whether a recovery or operation is under way, so that no other operation may start."""
    return conversation.state is not State.INIT or conversation.operation is not None


__all__ = ["HANDLERS", "begun", "reset", "resumed", "step", "unanswered"]
