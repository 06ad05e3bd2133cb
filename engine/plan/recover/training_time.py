"""Records of training time: each recovery of a job with its estimate and, once training resumes, its cost.

A recovery begins when safety admits its evictions. It ends when all of the job's pods run again, or when its processes
report that training resumed (annotation ``belay.dev/training-time``, or their report to the recovery services, see
``recovery_costs``). Costs are chip-seconds without progress, summed per fault code.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.actions import EvictPod
from belay.engine.model.cluster import Pod
from belay.engine.model.costs import RecoveryLevel, cost
from belay.engine.model.history import JobMemory, Recovery
from belay.engine.model.history_lines import bounded
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import TRAINING_TIME
from belay.engine.plan import restart_scope
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.recover import recovery_costs
from belay.engine.plan.recover.decisions import PROCESS, REASONS
from belay.engine.plan.recover.outcome import RecoveryOutcome

#: Maximum recoveries recorded per job, fault codes in its sums, codes per recovery.
MAX_RECOVERIES: Final = 10
MAX_CODES: Final = 50
CODES: Final = 8
_FROM_CHECKPOINT: Final = frozenset({RecoveryLevel.POD, RecoveryLevel.JOB, RecoveryLevel.WAIT})


def record_recoveries(
    facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, recovery: RecoveryOutcome
) -> None:
    """Open the recoveries that this pass decided, and close those that ended."""
    reported = (key for key, gang in gangs.items() if gang.options.recovery_summaries is not None)
    known = (key for key, memory in draft.memory.jobs.items() if memory.records or memory.recoveries)
    for key in sorted({*known, *recovery.choices, *reported}):
        memory, gang = draft.memory.jobs.get(key, JobMemory()), gangs.get(key)
        if gang is None:
            continue
        memory = _with_summaries(facts, draft, nodes, gang, memory)
        choice = recovery.choices.get(key)
        starts = choice is not None and choice.chosen.level is RecoveryLevel.IN_PLACE
        if starts and not (memory.recoveries and not memory.recoveries[-1].back):
            draft.memory.jobs[key] = _opened(facts, draft, gangs, recovery, gang, restart_scope.memory_of(draft, gang))
        elif memory.records and memory.records[0].time == facts.now_ms:
            draft.memory.jobs[key] = _opened(facts, draft, gangs, recovery, gang, memory)
        elif memory.recoveries and not memory.recoveries[-1].back:
            draft.memory.jobs[key] = _closed(facts, draft, recovery, gang, memory)


def _with_summaries(facts: Facts, draft: Draft, nodes: PassNodes, gang: Gang, memory: JobMemory) -> JobMemory:
    after = recovery_costs.with_summaries(facts, draft, nodes, gang, memory, _with_costs)
    if after is not memory:
        after = msgspec.structs.replace(after, recoveries=after.recoveries[-MAX_RECOVERIES:])
        draft.memory.jobs[gang.key] = after
    return after


def _opened(
    facts: Facts, draft: Draft, gangs: PassGangs, recovery: RecoveryOutcome, gang: Gang, memory: JobMemory
) -> JobMemory:
    """The memory with the recovery that begins; an open one is extended instead."""
    evictions = [
        action for action in draft.actions
        if isinstance(action, EvictPod) and action.owner is not None
        and gangs.of_pod.get(f"{action.namespace}/{action.pod}") == gang.key
    ]  # fmt: skip
    whole = any(action.budget_unit == gang.key for action in evictions)
    pods = [facts.observed.pods[key] for key in gang.pods]
    choice = recovery.choices.get(gang.key)
    level = _level(gang, whole) if choice is None else choice.chosen.level
    if whole and level not in (RecoveryLevel.JOB, RecoveryLevel.WAIT):
        level = RecoveryLevel.JOB  # the restart was widened
    names = {task[1] for task in memory.records[0].tasks} if memory.records else set()
    new = Recovery(
        at=facts.now_ms,
        level=str(level),
        reason=next((action.reason for action in evictions), REASONS[PROCESS]),
        codes=(choice.codes if choice else _codes(evictions))[:CODES],
        chips=sum(pod.count for pod in pods),
        hit=sum(pod.count for pod in pods if pod.name in names),
        redone=_redone(level, choice.known.checkpoint, choice.known.scale) if choice is not None else 0,
        estimates=tuple((str(e.level), round(e.seconds), round(e.cost)) for e in choice.weighed) if choice else (),
    )
    seen, isolated = _first_seen(draft, {pod.node for pod in pods}, new.codes)
    new = msgspec.structs.replace(new, seen=seen, isolated=isolated)
    past = memory.recoveries
    if past and not past[-1].back:
        # training has not resumed in between: one loss since the first beginning
        codes = tuple(dict.fromkeys((*past[-1].codes, *new.codes)))[:CODES]
        new = msgspec.structs.replace(
            new, at=past[-1].at, codes=codes, redone=max(past[-1].redone, new.redone), steps=past[-1].steps,
            seen=past[-1].seen or new.seen, isolated=past[-1].isolated or new.isolated,
        )  # fmt: skip
        past = past[:-1]
    return msgspec.structs.replace(memory, recoveries=(*past, new)[-MAX_RECOVERIES:])


def _first_seen(draft: Draft, nodes: set[str], codes: tuple[str, ...]) -> tuple[int, int]:
    """When the first of these codes that are present was seen on a chip of the nodes, and when the first such chip was
    isolated (Unix ms, 0: none is)."""
    seen, isolated = [], []
    for node in nodes:
        memory = draft.memory.nodes.get(node)
        for chip in memory.chips.values() if memory is not None else ():
            present = [known.first for code in codes if (known := chip.codes.get(code)) is not None and known.present]
            if present:
                seen += present
                isolated += [chip.isolated] if chip.isolated else []
    return min(seen, default=0), min(isolated, default=0)


def _codes(evictions: list[EvictPod]) -> tuple[str, ...]:
    return tuple(sorted({code for action in evictions for code in action.evidence.codes}))


def _redone(level: RecoveryLevel, checkpoint: float, scale: float) -> int:
    """Seconds of work lost since the checkpoint, or spent on rebuilding the process groups twice."""
    if level is RecoveryLevel.SHRINK:
        return round(2 * scale)
    return round(checkpoint) if level in _FROM_CHECKPOINT else 0


def _level(gang: Gang, whole: bool) -> RecoveryLevel:
    """The level of a job without a choice by cost, by its evicted pods."""
    if whole:
        return RecoveryLevel.JOB
    return RecoveryLevel.PROCESS if gang.options.recovers_processes else RecoveryLevel.POD


def _closed(facts: Facts, draft: Draft, recovery: RecoveryOutcome, gang: Gang, memory: JobMemory) -> JobMemory:
    """The memory with the recovery closed once training resumed; before, with the time from which its pods run."""
    one = memory.recoveries[-1]
    pods = [facts.observed.pods[key] for key in gang.pods]
    old = any(pod.uid in memory.evicted for pod in pods)
    running = len(pods) >= max(gang.min_available, 1) and all(pod.phase == "Running" for pod in pods)
    if one.level == RecoveryLevel.IN_PLACE and gang.key in recovery.choices:
        return memory
    if old or not running or len(pods) < gang.replicas or any(pod.key in draft.evicting for pod in pods):
        return memory
    made = [round(pod.started * 1000) for pod in pods if pod.started is not None and pod.created * 1000 >= one.at]
    if made and not one.running:
        placed = min(max(made), facts.now_ms)
        one = msgspec.structs.replace(one, placed=placed, running=max(placed, facts.now_ms))
        memory = msgspec.structs.replace(memory, recoveries=(*memory.recoveries[:-1], one))
    back = _training_resumed(pods, one.at, facts.now_ms)
    if back is None:
        return memory
    # processes may report earlier than a pass sees their pods run
    done = msgspec.structs.replace(one, back=back, placed=min(one.placed, back), running=min(one.running, back))
    return _with_costs(msgspec.structs.replace(memory, recoveries=(*memory.recoveries[:-1], done)), done)


def _with_costs(memory: JobMemory, done: Recovery) -> JobMemory:
    """The memory with the cost of a closed recovery in its sums and its timeline."""
    price = cost(done)
    spent = dict(memory.spent)
    for code in done.codes or (done.reason,):
        times, before = spent.get(code, (0, 0))
        spent[code] = (times + 1, before + price // max(1, len(done.codes)))
    kept = sorted(spent, key=lambda code: (-spent[code][1], code))[:MAX_CODES]
    text = f"recovered at level {done.level}: {(done.back - done.at) // 1000} s, {price / 3600:.2f} chip-hours lost"
    return msgspec.structs.replace(
        memory,
        spent={code: spent[code] for code in sorted(kept)},
        timeline=bounded(sorted((*memory.timeline, (done.back, text)), key=lambda row: row[0])),
    )


def _training_resumed(pods: list[Pod], since: int, now: int) -> int | None:
    """When training resumed (Unix ms): as the processes report, else now, since all pods run.

    None while processes that report have not yet.
    """
    reported = [_unix_ms(pod.annotations.get(TRAINING_TIME, "")) for pod in pods if TRAINING_TIME in pod.annotations]
    if not reported:
        return now
    newest = max(reported)
    return min(newest, now) if newest > since else None


def _unix_ms(text: str) -> int:
    """Unix milliseconds of a text in seconds; 0 when it is not a number."""
    try:
        seconds = float(text) if len(text) <= 32 else 0.0
    except ValueError:
        return 0
    return round(seconds * 1000) if 0 < seconds < 1e11 else 0


__all__ = ["MAX_RECOVERIES", "record_recoveries"]
