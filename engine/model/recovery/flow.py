"""From a fault until the processes have said what they can do: what each state does on entry and with what it is told.

A handler is called on entry (``turn.entering``) and for every input afterwards; it answers with the event that ends the
state, or None while it lasts. `decision.py` goes on, `aftermath.py` ends it where nothing of it helped.
"""

from __future__ import annotations

from engine.model.recovery import words
from engine.model.recovery.aftermath import take_back
from engine.model.recovery.choice import all_normal, dump_only, usable_retry
from engine.model.recovery.conversation import Annotate, Rank, Release, Reset, Signal, merged
from engine.model.recovery.turn import Turn
from engine.model.recovery.words import Change, Code, Event, Strategy

CONFIRM_ANNOTATION = "ProcessConfirmFault"


def idle(turn: Turn) -> Event | None:
    """INIT: give the processes of a broken chip time to speak for themselves, then ask them to leave, then act."""
    take_back(turn)
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
    return turn.written(Event.FINISH_NOTIFY, Event.UNSENT)


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
        return turn.report_timeout()
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
    """Have the other nodes let go of the faulty chips, agree on the faults with the platform, write them down, tell
    every process.
    """
    if turn.entering:
        if all_normal(turn.talk, turn.facts):
            turn.harden()
        if turn.talk.normal and turn.facts.super_pod and Strategy.RECOVER in turn.facts.configured:
            turn.phase("release")
            turn.write(Release(turn.pod_ranks(turn.talk.normal)))
            return None
        return _agree(turn)
    phase = turn.talk.phase
    if phase == "release":
        wrote = turn.wrote()
        if wrote is None:
            return None
        if not wrote:
            return _agree(turn)  # there was nothing to let go of, or nobody who would
        turn.remember(released=True)
        turn.phase("released", words.RELEASE_WAIT)
        return None
    if phase == "released":
        return _agree(turn) if turn.expired else None
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
            turn.remember(ranks=merged(turn.talk.ranks, _parsed(turn.facts.result_fault)))
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


def _agree(turn: Turn) -> Event | None:
    if turn.facts.platform is None:
        return _write_list(turn)
    if turn.facts.confirm_fault:
        turn.fail(Code.CONFIRM_FAULT)
        return Event.CONFIRM_TIMEOUT
    text = ",".join(f"{rank.rank}:{rank.kind}" for rank in turn.talk.ranks)
    turn.phase("confirm")
    turn.write(Annotate(CONFIRM_ANNOTATION, text, answer=True))
    return None


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
        nodes: tuple[str, ...] = ()
        if not turn.facts.in_place:  # pods whose processes may start again in them stay
            turn.widen()
            nodes = turn.leaving(turn.talk.ranks)
            turn.remember(left=nodes)
        turn.send(
            Signal(words.GLOBAL_FAULT, ("on_global_rank", "fault_nodes_exit"), turn.talk.ranks, nodes=nodes), Event.SENT
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
        return turn.report_timeout()
    turn.remember(agent=report.strategies)
    return Event.REPORT


def _parsed(text: str) -> tuple[Rank, ...]:
    """`rank:type,rank:type` of a platform; entries that are no such pair are passed over."""
    found = []
    for entry in text.split(","):
        rank, colon, kind = entry.strip().partition(":")
        if colon and rank.isascii() and rank.isdecimal() and len(rank) <= 9 and kind in ("0", "1", "2"):
            found.append(Rank(rank, kind))
    return tuple(found)


__all__ = [
    "dump", "global_fault", "idle", "stop_train", "wait_flushed", "wait_flushing", "wait_stop", "wait_strategy",
]  # fmt: skip
