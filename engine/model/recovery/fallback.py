"""Handlers after a failed process recovery: pods and jobs are rescheduled, processes restart or end."""

from __future__ import annotations

from belay.engine.model.labels import PROCESS_RECOVER_ENABLE
from belay.engine.model.recovery import protocol
from belay.engine.model.recovery.conversation import Label, Reset, Signal
from belay.engine.model.recovery.protocol import (
    ChangeStrategy,
    Code,
    RecoveryEvent,
    RecoveryPhase,
)
from belay.engine.model.recovery.turn import Turn


def listen_schedule(turn: Turn) -> RecoveryEvent | None:
    """Wait until the replaced pods run; with a platform, that is its task."""
    if turn.entering:
        turn.limit(protocol.EXIT_SCHEDULE_LIMIT)
        if turn.facts.platform is not None:
            return RecoveryEvent.SCHEDULED
        return None
    if (
        turn.now - turn.conversation.since >= protocol.RUNNING_POLL * 1000
        and turn.facts.running
        and turn.facts.replaced
    ):
        return RecoveryEvent.SCHEDULED
    if not turn.expired:
        return None
    if turn.facts.running:
        return RecoveryEvent.SCHEDULED  # continue with the pods that the job has
    turn.fail(Code.SCHEDULE_TIMEOUT)
    return RecoveryEvent.SCHEDULE_TIMEOUT


def restart_all(turn: Turn) -> RecoveryEvent | None:
    """Ask every agent to restart its processes."""
    if turn.entering:
        turn.write(Reset("restart"))
        return None
    return turn.written(RecoveryEvent.SENT, RecoveryEvent.UNSENT)


def wait_restart_all(turn: Turn) -> RecoveryEvent | None:
    """Wait a minute for agents to read that; a platform restarts the job itself."""
    if turn.entering:
        turn.limit(protocol.RESTART_ALL_WAIT if turn.facts.platform is None else 0)
    return RecoveryEvent.RESTARTED if turn.expired else None


def fault_clear(turn: Turn) -> RecoveryEvent | None:
    """Clear the reset ConfigMap, so that no agent waits."""
    if turn.entering:
        turn.write(Reset("clear"))
        return None
    return turn.written(RecoveryEvent.CLEARED, RecoveryEvent.UNCLEARED)


def fault_retry(turn: Turn) -> RecoveryEvent | None:
    """Hand the job to pod- and job-level rescheduling, and take it back when it runs."""
    if turn.entering:
        turn.phase(RecoveryPhase.PAUSE)
        turn.remember(paused=turn.now)
        turn.write(Label(PROCESS_RECOVER_ENABLE, "pause"))
        return None
    phase = turn.conversation.phase
    if phase == RecoveryPhase.PAUSE:
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.POD_GROUP)
            return RecoveryEvent.PAUSE_LABEL
        turn.post(dump_exit(turn))
        turn.phase(RecoveryPhase.RUNNING, protocol.RUNNING_LIMIT)
        turn.remember(since=turn.now)
        return None
    if phase == RecoveryPhase.RUNNING:
        if turn.now - turn.conversation.since >= protocol.RUNNING_POLL * 1000 and turn.facts.running:
            turn.phase(RecoveryPhase.ENABLE)
            turn.write(Label(PROCESS_RECOVER_ENABLE, "on"))
            return None
        if turn.expired:
            turn.fail(Code.SCHEDULE_TIMEOUT)
            return RecoveryEvent.SCHEDULE_TIMEOUT
        return None
    wrote = turn.wrote()
    if wrote is None:
        return None
    if not wrote:
        turn.fail(Code.POD_GROUP)
        return RecoveryEvent.ENABLE_LABEL
    turn.remember(paused=None)
    return RecoveryEvent.FINISHED


def take_back(turn: Turn) -> None:
    """Take back a job when it runs that was killed, or handed to rescheduling while its clients left.

    With its label at ``pause``, every later fault would cost the whole job.
    """
    paused = turn.conversation.paused
    if paused is None or turn.now - paused < protocol.RUNNING_POLL * 1000:
        return
    if not turn.facts.paused:
        turn.remember(paused=None)
    elif turn.facts.running:
        turn.effects.append(Label(PROCESS_RECOVER_ENABLE, "on"))
        turn.remember(paused=turn.now)


def kill_job(turn: Turn) -> RecoveryEvent | None:
    """Last resort: every process exits, the whole job restarts."""
    if turn.entering:
        turn.send(Signal(protocol.KILL_MASTER), RecoveryEvent.FINISHED)
        turn.limit(protocol.KILL_ENQUEUE)
        return None
    if turn.sent() is not None or turn.expired:
        turn.remember(awaiting="", signal="", pending=None)
        return RecoveryEvent.FINISHED
    return None


def dump_exit(turn: Turn) -> Signal:
    """Signal the faulty pods to exit, by their numbers, without ranks (`sendDumpExit` of ClusterD's controller)."""
    nodes = turn.node_ranks(turn.conversation.ranks)
    return Signal(
        protocol.CHANGE_STRATEGY,
        ("change_strategy",),
        change=ChangeStrategy.EXIT.value,
        nodes=nodes,
        extra=protocol.DUMP_EXIT_PARAMS,
    )


__all__ = [
    "dump_exit", "fault_clear", "fault_retry", "kill_job", "listen_schedule", "restart_all", "take_back",
    "wait_restart_all",
]  # fmt: skip
