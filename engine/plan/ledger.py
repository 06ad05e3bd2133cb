"""The ledger of training time: each recovery of a job with its estimate, and once training goes on, what it cost.

A recovery begins when its evictions pass the budgets, and ends when all of the job's pods run again, or when its
processes say that training went on (annotation ``belay.dev/training-time``, or their report to the recovery services:
`accounts.py`). Costs are chip-seconds without progress, summed per fault code.
"""

from __future__ import annotations

from typing import Final

import msgspec

from engine.model.actions import EvictPod
from engine.model.cluster import Pod
from engine.model.costs import TRAINING_KEY, Level
from engine.model.history import JobMemory, Recovery
from engine.model.jobs import Gang
from engine.model.recovery import account
from engine.plan import accounts, victims
from engine.plan.decisions import PROCESS, REASONS
from engine.plan.scope import Scope

#: Recoveries told of per job, fault codes kept in its sums, codes per recovery.
MAX_RECOVERIES: Final = 10
MAX_CODES: Final = 50
CODES: Final = 8
_FROM_CHECKPOINT: Final = frozenset({Level.POD, Level.JOB, Level.WAIT})


def run(scope: Scope) -> None:
    """Opens the recoveries that this pass decided and closes those that are over."""
    told = (key for key, gang in scope.gangs.items() if account.KEY in gang.annotations)
    known = (key for key, memory in scope.memory.jobs.items() if memory.records or memory.recoveries)
    for key in sorted({*known, *scope.choices, *told}):
        memory, gang = scope.memory.jobs.get(key, JobMemory()), scope.gangs.get(key)
        if gang is None:
            continue
        memory = _entered(scope, gang, memory)
        choice = scope.choices.get(key)
        starts = choice is not None and choice.chosen.level is Level.IN_PLACE
        if starts and not (memory.recoveries and not memory.recoveries[-1].back):
            scope.memory.jobs[key] = _opened(scope, gang, victims.memory_of(scope, gang))
        elif memory.records and memory.records[0].time == scope.now_ms:
            scope.memory.jobs[key] = _opened(scope, gang, memory)
        elif memory.recoveries and not memory.recoveries[-1].back:
            scope.memory.jobs[key] = _closed(scope, gang, memory)


def _entered(scope: Scope, gang: Gang, memory: JobMemory) -> JobMemory:
    after = accounts.entered(scope, gang, memory, _charged)
    if after is not memory:
        after = msgspec.structs.replace(after, recoveries=after.recoveries[-MAX_RECOVERIES:])
        scope.memory.jobs[gang.key] = after
    return after


def cost(one: Recovery) -> int:
    """Chip-seconds without progress that a recovery cost; 0 while it is under way."""
    if not one.back:
        return 0
    seconds = (one.back - one.at) // 1000
    if one.level == Level.SHRINK:
        # training went on without the part that was hit
        return one.hit * seconds + one.chips * one.redone
    return one.chips * (seconds + one.redone)


def _opened(scope: Scope, gang: Gang, memory: JobMemory) -> JobMemory:
    """The memory with the recovery that begins; one still under way goes on, with what it now takes."""
    evictions = [
        action for action in scope.actions
        if isinstance(action, EvictPod) and action.owner is not None
        and scope.gang_of.get(f"{action.namespace}/{action.pod}") == gang.key
    ]  # fmt: skip
    whole = any(action.budget_unit == gang.key for action in evictions)
    pods = [scope.observed.pods[key] for key in gang.pods]
    choice = scope.choices.get(gang.key)
    level = _level(gang, whole) if choice is None else choice.chosen.level
    if whole and level not in (Level.JOB, Level.WAIT):
        level = Level.JOB  # the ladder widened it
    names = {task[1] for task in memory.records[0].tasks} if memory.records else set()
    new = Recovery(
        at=scope.now_ms,
        level=str(level),
        reason=next((action.reason for action in evictions), REASONS[PROCESS]),
        codes=(choice.codes if choice else _codes(evictions))[:CODES],
        chips=sum(pod.count for pod in pods),
        hit=sum(pod.count for pod in pods if pod.name in names),
        redone=_redone(level, choice.known.checkpoint, choice.known.scale) if choice is not None else 0,
        estimates=tuple((str(e.level), round(e.seconds), round(e.cost)) for e in choice.weighed) if choice else (),
    )
    past = memory.recoveries
    if past and not past[-1].back:
        # training has not gone on since: it is one loss, from its beginning
        codes = tuple(dict.fromkeys((*past[-1].codes, *new.codes)))[:CODES]
        new = msgspec.structs.replace(
            new, at=past[-1].at, codes=codes, redone=max(past[-1].redone, new.redone), steps=past[-1].steps
        )
        past = past[:-1]
    return msgspec.structs.replace(memory, recoveries=(*past, new)[-MAX_RECOVERIES:])


def _codes(evictions: list[EvictPod]) -> tuple[str, ...]:
    return tuple(sorted({code for action in evictions for code in action.evidence.codes}))


def _redone(level: Level, checkpoint: float, scale: float) -> int:
    """Seconds of work that are done again, or spent on rebuilding the groups twice."""
    if level is Level.SHRINK:
        return round(2 * scale)
    return round(checkpoint) if level in _FROM_CHECKPOINT else 0


def _level(gang: Gang, whole: bool) -> Level:
    """The level of a job that goes the ladder, by the pods that went."""
    if whole:
        return Level.JOB
    return Level.PROCESS if gang.labels.get("process-recover-enable") == "on" else Level.POD


def _closed(scope: Scope, gang: Gang, memory: JobMemory) -> JobMemory:
    """The memory once training goes on again; itself while it does not."""
    one = memory.recoveries[-1]
    pods = [scope.observed.pods[key] for key in gang.pods]
    old = any(pod.uid in memory.evicted for pod in pods)
    running = len(pods) >= max(gang.min_available, 1) and all(pod.phase == "Running" for pod in pods)
    if one.level == Level.IN_PLACE and gang.key in scope.choices:
        return memory
    if old or not running or len(pods) < gang.replicas or any(pod.key in scope.evicting for pod in pods):
        return memory
    back = _training(pods, one.at, scope.now_ms)
    if back is None:
        return memory
    done = msgspec.structs.replace(one, back=back)
    return _charged(msgspec.structs.replace(memory, recoveries=(*memory.recoveries[:-1], done)), done)


def _charged(memory: JobMemory, done: Recovery) -> JobMemory:
    """The memory with what a recovery that is over cost in its sums and its timeline."""
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
        timeline=tuple(sorted((*memory.timeline, (done.back, text)), key=lambda row: row[0]))[-20:],
    )


def _training(pods: list[Pod], since: int, now: int) -> int | None:
    """When training went on: as the processes tell, else now that all pods run. None while those that used to tell
    have not yet.
    """
    told = [_moment(pod.annotations.get(TRAINING_KEY, "")) for pod in pods if TRAINING_KEY in pod.annotations]
    if not told:
        return now
    newest = max(told)
    return min(newest, now) if newest > since else None


def _moment(text: str) -> int:
    """Unix milliseconds, 0 for what is no number."""
    try:
        seconds = float(text) if len(text) <= 32 else 0.0
    except ValueError:
        return 0
    return round(seconds * 1000) if 0 < seconds < 1e11 else 0


__all__ = ["MAX_RECOVERIES", "cost", "run"]
