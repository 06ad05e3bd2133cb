"""What conversations between process recovery and a job's processes tell, entered in the ledger of training time.

The gRPC services keep an account of each conversation that is over on the job's PodGroup (``model.recovery.account``).
One that the planner had a hand in (its evictions, its choice) lends its steps and its moments to that recovery; one
that took no pod away (a step tried again, processes started again in their pods) is a recovery of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import msgspec

from engine.model.cluster import Pod
from engine.model.costs import Level, Measured, ranked
from engine.model.history import JobMemory, Recovery
from engine.model.jobs import Gang
from engine.model.recovery import account
from engine.model.recovery.account import Account
from engine.plan import costing
from engine.plan.decisions import PROCESS
from engine.plan.gangs import declared_rank
from engine.plan.memo import Memo
from engine.plan.scope import Scope
from engine.plan.tolerance import STRATEGY_KEY

#: Why a recovery without evictions took place.
REASONS: Final = {
    Level.RETRY: "StepRetried", Level.IN_PLACE: "ProcessesRestarted", Level.PROCESS: "ProcessesRecovered",
    Level.SHRINK: "TrainingShrunk", Level.STANDBY: "PodSwitched",
}  # fmt: skip
#: So long after a conversation that did not help (ms) the planner's own recovery may begin and still be about it.
LATER_MS: Final = 600_000
#: Steps are kept of so many of a job's newest recoveries.
MAX_TOLD: Final = 4
#: … and so many of one.
MAX_STEPS: Final = 48
_READ: Final[Memo[tuple[Account, ...]]] = Memo(16384)


def entered(
    scope: Scope, gang: Gang, memory: JobMemory, charge: Callable[[JobMemory, Recovery], JobMemory]
) -> JobMemory:
    """The memory with every account that it does not hold yet; ``charge`` adds what a recovery cost to the sums."""
    text = gang.annotations.get(account.KEY, "")
    if not text:
        return memory
    for one in _READ.of(gang.key, text, lambda: account.read(text)):
        if one.begun <= memory.accounted or one.begun > scope.now_ms:
            continue  # known, or told by a clock that is ahead: its time will come
        met = next((i for i, known in enumerate(memory.recoveries) if _same(known, one)), None)
        if met is not None:
            memory = _lent(memory, met, one, charge)
        elif one.good:
            memory = _added(scope, gang, memory, one, charge)
    return memory


def _same(known: Recovery, one: Account) -> bool:
    """Whether the planner's recovery and the conversation are about the same loss; one that did not help is about what
    the planner does next.
    """
    slack = 0 if one.good else LATER_MS
    return known.at <= one.ended + slack and (not known.back or known.back >= one.begun)


def _lent(memory: JobMemory, index: int, one: Account, charge: Callable[[JobMemory, Recovery], JobMemory]) -> JobMemory:
    """The recovery with the steps of its conversation; one still under way ends when the processes said so."""
    known = memory.recoveries[index]
    codes = tuple(dict.fromkeys((*known.codes, *one.codes)))[: account.MAX_CODES]
    new = msgspec.structs.replace(known, steps=(*known.steps, *_steps(one))[-MAX_STEPS:], codes=codes)
    if not known.back:
        new = msgspec.structs.replace(new, at=min(known.at, one.begun))
        if one.good and one.level != account.SHRINK:
            new = msgspec.structs.replace(new, back=one.ended)
    memory = _put(memory, (*memory.recoveries[:index], new, *memory.recoveries[index + 1 :]), one)
    return charge(memory, new) if new.back and not known.back else memory


def _steps(one: Account) -> tuple[tuple[int, str, str, int], ...]:
    return tuple((note.at, note.event, note.state, note.code) for note in one.steps)


def _added(
    scope: Scope, gang: Gang, memory: JobMemory, one: Account, charge: Callable[[JobMemory, Recovery], JobMemory]
) -> JobMemory:
    """The memory with a recovery that only its processes and the services had a part in."""
    pods = [scope.observed.pods[key] for key in gang.pods]
    hit = [pod for index, pod in enumerate(pods) if _rank(pod, index) in set(one.pods)]
    level = Level(one.level) if one.level in set(Level) else Level.PROCESS
    new = Recovery(
        at=one.begun,
        level=level.value,
        reason=REASONS.get(level, REASONS[Level.PROCESS]),
        codes=one.codes,
        chips=sum(pod.count for pod in pods),
        hit=sum(pod.count for pod in hit),
        estimates=_estimates(scope, gang, memory, one, pods, hit),
        back=one.ended,
        steps=_steps(one),
    )
    rows = sorted((*memory.recoveries, new), key=lambda row: (not row.back, row.at))
    return charge(_put(memory, tuple(rows), one), new)


def _put(memory: JobMemory, rows: tuple[Recovery, ...], one: Account) -> JobMemory:
    silent = sum(bool(row.steps) for row in rows) - MAX_TOLD
    kept = []
    for row in rows:
        if row.steps and silent > 0:
            silent -= 1
            kept.append(msgspec.structs.replace(row, steps=()))
        else:
            kept.append(row)
    return msgspec.structs.replace(memory, recoveries=tuple(kept), accounted=max(memory.accounted, one.begun))


def _estimates(
    scope: Scope, gang: Gang, memory: JobMemory, one: Account, pods: Sequence[Pod], hit: Sequence[Pod]
) -> tuple[tuple[str, int, int], ...]:
    """What each level that the job allows was to be expected to cost when the conversation began, its own first; none
    for a job that does not tell its times.
    """
    known = costing.times(scope, gang, list(pods), list(hit), one.begun / 1000)
    if known is None or not hit:
        return ()
    known = msgspec.structs.replace(known, retry=_retry(memory, known))
    strategies = {word.strip() for word in gang.annotations.get(STRATEGY_KEY, "").split(",")}
    levels = set(costing.allowed(scope, gang, pods, {pod.key: PROCESS for pod in hit}, hit))
    levels |= {Level(one.level)} if one.level in set(Level) else set()
    levels |= {Level.RETRY} if "retry" in strategies and one.level == Level.RETRY else set()
    rows = ranked(
        tuple(level for level in Level if level in levels), known,
        chips=sum(pod.count for pod in pods), hit=sum(pod.count for pod in hit),
    )  # fmt: skip
    rows = tuple(sorted(rows, key=lambda row: row.level != one.level))
    return tuple((row.level.value, round(row.seconds), round(row.cost)) for row in rows)


def _retry(memory: JobMemory, known: Measured) -> float:
    """How long a step took to be tried again in the job's earlier retries (s)."""
    past = [(row.back - row.at) / 1000 - known.step for row in memory.recoveries if row.level == Level.RETRY]
    return max(0.0, median(past)) if past else known.retry


def _rank(pod: Pod, index: int) -> int:
    declared = declared_rank(pod)
    return index if declared is None else declared


__all__ = ["LATER_MS", "MAX_TOLD", "REASONS", "entered"]
