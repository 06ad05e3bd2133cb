"""Where process recovery did not help: pods and jobs are rescheduled, processes start again or are told to end."""

from __future__ import annotations

from engine.model.recovery import words
from engine.model.recovery.conversation import Label, Reset, Signal
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Change, Code, Event

ENABLE_LABEL = "process-recover-enable"


def listen_schedule(turn: Turn) -> Event | None:
    """Until the replaced pods run; a platform sees to that itself."""
    if turn.entering:
        turn.limit(words.EXIT_SCHEDULE_LIMIT)
        if turn.facts.platform is not None:
            return Event.SCHEDULED
        return None
    if turn.now - turn.talk.since >= words.RUNNING_POLL * 1000 and turn.facts.running and turn.facts.replaced:
        return Event.SCHEDULED
    if not turn.expired:
        return None
    if turn.facts.running:
        return Event.SCHEDULED  # with the pods that it has
    turn.fail(Code.SCHEDULE_TIMEOUT)
    return Event.SCHEDULE_TIMEOUT


def restart_all(turn: Turn) -> Event | None:
    """Let every agent start its processes anew."""
    if turn.entering:
        turn.write(Reset("restart"))
        return None
    return turn.written(Event.SENT, Event.UNSENT)


def wait_restart_all(turn: Turn) -> Event | None:
    """A minute in which agents read that; a platform restarts the job itself."""
    if turn.entering:
        turn.limit(words.RESTART_ALL_WAIT if turn.facts.platform is None else 0)
    return Event.RESTARTED if turn.expired else None


def fault_clear(turn: Turn) -> Event | None:
    """Clear the reset ConfigMap, so that no agent waits."""
    if turn.entering:
        turn.write(Reset("clear"))
        return None
    return turn.written(Event.CLEARED, Event.UNCLEARED)


def fault_retry(turn: Turn) -> Event | None:
    """Hand the job to pod- and job-level rescheduling, and take it back when it runs."""
    if turn.entering:
        turn.phase("pause")
        turn.remember(paused=turn.now)
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
        turn.tell(dump_exit(turn))
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
    turn.remember(paused=None)
    return Event.FINISHED


def take_back(turn: Turn) -> None:
    """A job that was handed to rescheduling while its clients left, or that was killed, is taken back when it runs:
    with its label at ``pause`` every later fault would cost the whole job.
    """
    paused = turn.talk.paused
    if paused is None or turn.now - paused < words.RUNNING_POLL * 1000:
        return
    if not turn.facts.paused:
        turn.remember(paused=None)
    elif turn.facts.running:
        turn.effects.append(Label(ENABLE_LABEL, "on"))
        turn.remember(paused=turn.now)


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


def dump_exit(turn: Turn) -> Signal:
    """The pods of the faults leave: told by their numbers, without ranks (`sendDumpExit` of ClusterD's controller)."""
    nodes = turn.node_ranks(turn.talk.ranks)
    return Signal(
        words.CHANGE_STRATEGY, ("change_strategy",), change=Change.EXIT.value, nodes=nodes, extra=words.DUMP_EXIT_PARAMS
    )


__all__ = [
    "dump_exit", "fault_clear", "fault_retry", "kill_job", "listen_schedule", "restart_all", "take_back",
    "wait_restart_all",
]  # fmt: skip
