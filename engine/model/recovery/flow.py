"""Handlers from a fault until the processes have offered their strategies.

A handler is called on entry (``turn.entering``) and for every input afterwards; it answers with the event that ends the
state, or None while it lasts. `decision.py` goes on, `fallback.py` ends it where nothing of it helped.
"""

from __future__ import annotations

from belay.engine.model.labels import PROCESS_CONFIRM_FAULT
from belay.engine.model.quantities import whole_number
from belay.engine.model.recovery import protocol
from belay.engine.model.recovery.choice import all_normal, dump_only, usable_retry
from belay.engine.model.recovery.conversation import Annotate, Faults, FaultyRank, Release, Reset, Signal, merged
from belay.engine.model.recovery.fallback import take_back
from belay.engine.model.recovery.protocol import (
    ChangeStrategy,
    Code,
    RecoveryEvent,
    RecoveryPhase,
    RecoveryStrategy,
)
from belay.engine.model.recovery.turn import Turn


def idle(turn: Turn) -> RecoveryEvent | None:
    """INIT: give the processes of a faulty chip time to report, then signal them to leave, then begin."""
    take_back(turn)
    conversation = turn.conversation
    if conversation.pre_exit is None or turn.now < conversation.pre_exit:
        return None
    if conversation.phase == RecoveryPhase.PRE_EXIT:
        return RecoveryEvent.FAULT
    # whatever broke, these processes are lost: none of them retries a step
    lost = tuple(dict.fromkeys(FaultyRank(rank.rank, protocol.NORMAL) for rank in conversation.ranks))
    nodes = turn.departing_ranks(lost)
    if nodes:
        turn.post(Signal(protocol.PRE_EXIT, ("pre exit process",), lost, nodes=nodes))
    turn.remember(phase=RecoveryPhase.PRE_EXIT, pre_exit=turn.now + protocol.PRE_EXIT_ANSWER * 1000)
    return None


def wait_flushing(turn: Turn) -> RecoveryEvent | None:
    """Read the platform's strategy, then signal the pods that faults are still being collected."""
    facts = turn.facts
    if turn.entering:
        turn.phase(RecoveryPhase.PLATFORM, protocol.PLATFORM_LIMIT)
    if turn.conversation.phase == RecoveryPhase.PLATFORM:
        if facts.platform == "":
            if not turn.expired:
                return None
            turn.fail(Code.PLATFORM_TIMEOUT)
            return RecoveryEvent.PLATFORM_TIMEOUT
        unwell = facts.health == "UnHealthy" or (facts.health == "SubHealthy" and facts.sub_health == "graceExit")
        if dump_only(facts) and unwell:
            return RecoveryEvent.DUMP
        if facts.hot_reset:
            turn.fail(Code.CONFIG_MAP)
            return RecoveryEvent.UNSENT
        turn.phase(RecoveryPhase.FLUSH)
        turn.write(Reset("flush"))
        return None
    return turn.written(RecoveryEvent.FINISH_NOTIFY, RecoveryEvent.UNSENT)


def stop_train(turn: Turn) -> RecoveryEvent | None:
    """Stop the step loop of every process."""
    if turn.entering:
        turn.remember(uuid=turn.uuid)
        turn.send(Signal(protocol.STOP_TRAIN, ("stop_train",), turn.conversation.ranks), RecoveryEvent.SENT)
        return None
    return turn.sent()


def dump(turn: Turn) -> RecoveryEvent | None:
    """Dump-only jobs: write the fault list, save, leave."""
    if turn.entering:
        turn.remember(uuid=turn.uuid, chosen=ChangeStrategy.DUMP.value)
        turn.phase(RecoveryPhase.LIST)
        turn.write(Reset("faults", turn.pod_ranks(turn.conversation.ranks)))
        return None
    if turn.conversation.phase == RecoveryPhase.LIST:
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.CONFIG_MAP)
            return RecoveryEvent.UNSENT
        nodes = turn.node_ranks(turn.conversation.ranks)
        turn.send(Signal(protocol.SAVE_AND_EXIT, ("save_and_exit",), nodes=nodes), RecoveryEvent.SENT)
        return None
    return turn.sent()


def wait_stop(turn: Turn) -> RecoveryEvent | None:
    """Wait until every process has stopped."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    report = turn.take("stop")
    if report is None:
        return turn.report_timeout()
    if report.code == Code.PROCESS_NOT_READY:
        turn.fail(Code.CLIENT_ERROR)
        return RecoveryEvent.NOT_READY
    return RecoveryEvent.REPORT


def wait_flushed(turn: Turn) -> RecoveryEvent | None:
    """Wait until no further fault has come for a fifth of a second, a second at most; not for a step retry."""
    if turn.entering:
        pure = (
            bool(turn.conversation.ranks)
            and not turn.conversation.normal
            and usable_retry(turn.facts)
            and turn.conversation.last == ""
        )
        turn.limit(0 if pure else protocol.FLUSH_QUIET)
    elif isinstance(turn.received, Faults) and not turn.expired:
        rest = turn.conversation.since / 1000 + protocol.FLUSH - turn.now / 1000
        turn.limit(max(0.0, min(protocol.FLUSH_QUIET, rest)))
    return RecoveryEvent.FLUSHED if turn.expired else None


def global_fault(turn: Turn) -> RecoveryEvent | None:
    """Have other nodes release the faulty chips, agree on the faults with the platform, write them, signal them."""
    if turn.entering:
        if all_normal(turn.conversation, turn.facts):
            turn.harden()
        if turn.conversation.normal and turn.facts.super_pod and RecoveryStrategy.RECOVER in turn.facts.configured:
            turn.phase(RecoveryPhase.RELEASE)
            turn.write(Release(turn.pod_ranks(turn.conversation.normal)))
            return None
        return _agree(turn)
    phase = turn.conversation.phase
    if phase == RecoveryPhase.RELEASE:
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            return _agree(turn)  # nothing to release, or no node to do it
        turn.remember(released=True)
        turn.phase(RecoveryPhase.RELEASED, protocol.RELEASE_WAIT)
        return None
    if phase == RecoveryPhase.RELEASED:
        return _agree(turn) if turn.expired else None
    if phase == RecoveryPhase.CONFIRM:
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.CONFIRM_FAULT)
            return RecoveryEvent.CONFIRM_TIMEOUT
        turn.phase(RecoveryPhase.RESULT, protocol.PLATFORM_LIMIT)
        phase = RecoveryPhase.RESULT
    if phase == RecoveryPhase.RESULT:
        if turn.facts.result_fault:
            turn.remember(ranks=merged(turn.conversation.ranks, _parsed(turn.facts.result_fault)))
            return _write_list(turn)
        if turn.expired:
            turn.fail(Code.CONFIRM_FAULT)
            return RecoveryEvent.CONFIRM_TIMEOUT
        return None
    if phase == RecoveryPhase.LIST:
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            turn.fail(Code.CONFIG_MAP)
            return RecoveryEvent.UNSENT
        _send_global(turn)
        return None
    return turn.sent()


def _agree(turn: Turn) -> RecoveryEvent | None:
    if turn.facts.platform is None:
        return _write_list(turn)
    if turn.facts.confirm_fault:
        turn.fail(Code.CONFIRM_FAULT)
        return RecoveryEvent.CONFIRM_TIMEOUT
    text = ",".join(f"{rank.rank}:{rank.kind}" for rank in turn.conversation.ranks)
    turn.phase(RecoveryPhase.CONFIRM)
    turn.write(Annotate(PROCESS_CONFIRM_FAULT, text, answer=True))
    return None


def _write_list(turn: Turn) -> RecoveryEvent | None:
    if not turn.conversation.normal:
        _send_global(turn)
        return None
    if turn.facts.hot_reset:
        turn.fail(Code.CONFIG_MAP)
        return RecoveryEvent.UNSENT
    turn.phase(RecoveryPhase.LIST)
    turn.write(Reset("faults", turn.pod_ranks(turn.conversation.ranks), restart_process=turn.facts.in_place))
    return None


def _send_global(turn: Turn) -> None:
    conversation = turn.conversation
    if conversation.normal:
        nodes: tuple[str, ...] = ()
        if not turn.facts.in_place:  # pods whose processes may restart in place stay
            turn.widen()
            nodes = turn.departing_ranks(turn.conversation.ranks)
            turn.remember(left=nodes)
        turn.send(
            Signal(protocol.GLOBAL_FAULT, ("on_global_rank", "fault_nodes_exit"), turn.conversation.ranks, nodes=nodes),
            RecoveryEvent.SENT,
        )
        return
    network = any(rank.kind == protocol.HCCL for rank in conversation.ranks) and usable_retry(turn.facts)
    timeout = protocol.HCCL_CLIENT_TIMEOUT if network else 0
    turn.send(
        Signal(protocol.GLOBAL_FAULT, ("on_global_rank",), conversation.ranks, timeout=timeout), RecoveryEvent.SENT
    )


def wait_strategy(turn: Turn) -> RecoveryEvent | None:
    """Wait until the processes offer their strategies."""
    if turn.entering:
        turn.limit(protocol.REPORT_TIMEOUT)
    report = turn.take("offer")
    if report is None:
        return turn.report_timeout()
    turn.remember(agent=report.strategies)
    return RecoveryEvent.REPORT


def _parsed(text: str) -> tuple[FaultyRank, ...]:
    """Parse `rank:type,rank:type` of a platform; skips invalid entries."""
    found = []
    for entry in text.split(","):
        rank, colon, kind = entry.strip().partition(":")
        if colon and whole_number(rank) is not None and kind in ("0", "1", "2"):
            found.append(FaultyRank(rank, kind))
    return tuple(found)


__all__ = [
    "dump", "global_fault", "idle", "stop_train", "wait_flushed", "wait_flushing", "wait_stop", "wait_strategy",
]  # fmt: skip
