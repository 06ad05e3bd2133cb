"""Costs of process recoveries: summaries of conversations, entered among the recoveries of their job.

The gRPC services write a summary of each ended conversation to the job's PodGroup (``model.recovery.summary``). When
the planner took part (its evictions, its choice), its recovery gets the steps and times of the summary. A conversation
that evicted no pod (step retry, in-place restart) becomes a recovery of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import msgspec

from belay.engine.gangs.forming import declared_rank
from belay.engine.model.cluster import Pod
from belay.engine.model.costs import MeasuredTimes, RecoveryLevel, ranked
from belay.engine.model.history import JobMemory, Recovery
from belay.engine.model.jobs import Gang
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.model.recovery import summary
from belay.engine.model.recovery.summary import RecoverySummary
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.recover import costing
from belay.engine.plan.recover.decisions import PROCESS

#: Reason of a recovery without evictions, by level.
REASONS: Final = {
    RecoveryLevel.RETRY: "StepRetried", RecoveryLevel.IN_PLACE: "ProcessesRestarted",
    RecoveryLevel.PROCESS: "ProcessesRecovered",
    RecoveryLevel.SHRINK: "TrainingShrunk", RecoveryLevel.STANDBY: "PodSwitched",
}  # fmt: skip
#: How long after a failed conversation (ms) the planner's recovery may begin and still count as the same loss.
LATER_MS: Final = 600_000
#: Number of a job's newest recoveries that keep their steps …
MAX_REPORTED: Final = 4
#: … and maximum steps of one recovery.
MAX_STEPS: Final = 48
_READ: Final = CacheKey("accounts of process recovery", Memo[tuple[RecoverySummary, ...]], limit=16384)


def with_summaries(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gang: Gang,
    memory: JobMemory,
    charge: Callable[[JobMemory, Recovery], JobMemory],
) -> JobMemory:
    """The memory with every summary that it lacks; ``charge`` adds the cost of a recovery to the sums."""
    text = gang.options.recovery_summaries
    if not text:
        return memory
    for one in facts.cache[_READ].of(gang.key, text, lambda: summary.read(text)):
        if one.begun <= memory.accounted or one.begun > facts.now_ms:
            continue  # known, or written by a clock that is ahead: a later pass enters it
        met = next((i for i, known in enumerate(memory.recoveries) if _same_loss(known, one)), None)
        if met is not None:
            memory = _with_steps(memory, met, one, charge)
        elif one.good:
            memory = _with_recovery(facts, draft, nodes, gang, memory, one, charge)
    return memory


def _same_loss(known: Recovery, one: RecoverySummary) -> bool:
    """Whether the planner's recovery and the conversation are about the same loss.

    A failed conversation belongs to the recovery that the planner starts next.
    """
    slack = 0 if one.good else LATER_MS
    return known.at <= one.ended + slack and (not known.back or known.back >= one.begun)


def _with_steps(
    memory: JobMemory, index: int, one: RecoverySummary, charge: Callable[[JobMemory, Recovery], JobMemory]
) -> JobMemory:
    """The memory with the conversation's steps in its recovery; an open one ends when the processes reported it."""
    known = memory.recoveries[index]
    codes = tuple(dict.fromkeys((*known.codes, *one.codes)))[: summary.MAX_CODES]
    new = msgspec.structs.replace(known, steps=(*known.steps, *_steps(one))[-MAX_STEPS:], codes=codes)
    if not known.back:
        new = msgspec.structs.replace(new, at=min(known.at, one.begun))
        if one.good and one.level != summary.SHRINK:
            new = msgspec.structs.replace(new, back=one.ended)
    memory = _replaced(memory, (*memory.recoveries[:index], new, *memory.recoveries[index + 1 :]), one)
    return charge(memory, new) if new.back and not known.back else memory


def _steps(one: RecoverySummary) -> tuple[tuple[int, str, str, int], ...]:
    return tuple((note.at, note.event, note.state, note.code) for note in one.steps)


def _with_recovery(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gang: Gang,
    memory: JobMemory,
    one: RecoverySummary,
    charge: Callable[[JobMemory, Recovery], JobMemory],
) -> JobMemory:
    """The memory with a recovery in which the planner took no part."""
    pods = [facts.observed.pods[key] for key in gang.pods]
    hit = [pod for index, pod in enumerate(pods) if _rank(pod, index) in set(one.pods)]
    level = RecoveryLevel(one.level) if one.level in set(RecoveryLevel) else RecoveryLevel.PROCESS
    new = Recovery(
        at=one.begun,
        level=level.value,
        reason=REASONS.get(level, REASONS[RecoveryLevel.PROCESS]),
        codes=one.codes,
        chips=sum(pod.count for pod in pods),
        hit=sum(pod.count for pod in hit),
        estimates=_estimates(facts, draft, nodes, gang, memory, one, pods, hit),
        back=one.ended,
        steps=_steps(one),
    )
    rows = sorted((*memory.recoveries, new), key=lambda row: (not row.back, row.at))
    return charge(_replaced(memory, tuple(rows), one), new)


def _replaced(memory: JobMemory, rows: tuple[Recovery, ...], one: RecoverySummary) -> JobMemory:
    silent = sum(bool(row.steps) for row in rows) - MAX_REPORTED
    kept = []
    for row in rows:
        if row.steps and silent > 0:
            silent -= 1
            kept.append(msgspec.structs.replace(row, steps=()))
        else:
            kept.append(row)
    return msgspec.structs.replace(memory, recoveries=tuple(kept), accounted=max(memory.accounted, one.begun))


def _estimates(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gang: Gang,
    memory: JobMemory,
    one: RecoverySummary,
    pods: Sequence[Pod],
    hit: Sequence[Pod],
) -> tuple[tuple[str, int, int], ...]:
    """Estimates of the levels that the job allows, as of the conversation's beginning, its own level first.

    Empty for a job that does not report its times.
    """
    known = costing.measured_times(draft, nodes, gang, list(pods), list(hit), one.begun / 1000)
    if known is None or not hit:
        return ()
    known = msgspec.structs.replace(known, retry=_retry(memory, known))
    levels = set(costing.allowed_levels(facts, draft, gang, pods, {pod.key: PROCESS for pod in hit}, hit))
    levels |= {RecoveryLevel(one.level)} if one.level in set(RecoveryLevel) else set()
    retried = one.level == RecoveryLevel.RETRY and "retry" in gang.options.recover_strategies
    levels |= {RecoveryLevel.RETRY} if retried else set()
    rows = ranked(
        tuple(level for level in RecoveryLevel if level in levels), known,
        chips=sum(pod.count for pod in pods), hit=sum(pod.count for pod in hit),
    )  # fmt: skip
    rows = tuple(sorted(rows, key=lambda row: row.level != one.level))
    return tuple((row.level.value, round(row.seconds), round(row.cost)) for row in rows)


def _retry(memory: JobMemory, known: MeasuredTimes) -> float:
    """Median seconds of the job's earlier step retries."""
    past = [(row.back - row.at) / 1000 - known.step for row in memory.recoveries if row.level == RecoveryLevel.RETRY]
    return max(0.0, median(past)) if past else known.retry


def _rank(pod: Pod, index: int) -> int:
    declared = declared_rank(pod)
    return index if declared is None else declared


__all__ = ["LATER_MS", "MAX_REPORTED", "REASONS", "with_summaries"]
