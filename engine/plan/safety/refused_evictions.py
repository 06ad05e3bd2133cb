"""Evictions that a PodDisruptionBudget refuses: reported, and tried again at a pace.

A pod that was asked to go, neither goes nor terminates in a later pass, and stands under a budget that allows no more
was refused: a pass has seen every write of the one before. It is tried again when the budget allows it, else after 10 s
and twice as long each time, and waits as a deferred action meanwhile. Deletions by force need no leave.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.actions import EvictPod, SignalJob
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import JobMemory
from belay.engine.model.history_lines import HistoryLine, LineKind, read_line, with_line
from belay.engine.model.plan import REFUSING, Deferred
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.preempt.disruption_budgets import DisruptionBudget, DisruptionBudgets

FIRST_WAIT: Final = 10.0
LONGEST_WAIT: Final = 300.0
#: Most warnings of one pass.
MAX_TOLD: Final = 50


def hold(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Defer evictions that were refused and are not due again; say which, why and how to go on."""
    _forget(facts, draft)
    refused = {key for memory in draft.memory.jobs.values() for key in memory.asked}
    if not refused:
        return

    budgets = DisruptionBudgets(facts.observed, ())
    kept, held, told = [], set[str](), 0
    for action in draft.actions:
        pod = facts.observed.pods.get(f"{action.namespace}/{action.pod}") if isinstance(action, EvictPod) else None
        if not isinstance(action, EvictPod) or pod is None or pod.uid not in refused or action.force:
            kept.append(action)
            continue

        protecting = budgets.of(pod)
        if not protecting or budgets.allow([pod]):
            kept.append(action)  # it was lost on its way, or may go by now
            continue

        gang = gangs.of_pod.get(pod.key, "")
        memory = draft.memory.jobs.get(gang, JobMemory())
        tries, last = memory.asked.get(pod.uid, (1, facts.now_ms))
        until = last / 1000 + min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(tries - 1, 10))
        if told < MAX_TOLD:
            draft.diagnostics.append(_diagnostic(pod, protecting, tries, until))
            told += 1
        _record_refusal(facts, draft, gang, memory, pod, protecting)
        if facts.now >= until:
            kept.append(action)
            continue
        held.add(action.budget_unit)
        draft.deferred.append(Deferred(action, f"{REFUSING}{protecting[0].name}", rfc3339(until)))
        draft.evicting.discard(pod.key)

    evicted = {action.budget_unit for action in kept if isinstance(action, EvictPod)}
    idle = held - evicted
    for unit in idle:
        draft.reschedules.pop(unit, None)
    draft.actions = [a for a in kept if not (isinstance(a, SignalJob) and a.budget_unit in idle)]


def record(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Count the evictions that this pass asks for."""
    for action in draft.actions:
        if not isinstance(action, EvictPod) or action.force:
            continue
        pod = facts.observed.pods.get(f"{action.namespace}/{action.pod}")
        gang = gangs.of_pod.get(pod.key, "") if pod is not None else ""
        if pod is None or pod.deleting is not None or gang not in draft.memory.jobs:
            continue
        memory = draft.memory.jobs[gang]
        tries = memory.asked.get(pod.uid, (0, 0))[0] + 1
        asked = {**memory.asked, pod.uid: (tries, facts.now_ms)}
        draft.memory.jobs[gang] = msgspec.structs.replace(memory, asked=dict(sorted(asked.items())))


def _forget(facts: Facts, draft: Draft) -> None:
    """Forget evictions that are under way or done; a job whose last refused one went was rescheduled only now."""
    waiting: set[str] | None = None
    for key, memory in draft.memory.jobs.items():
        if not memory.asked:
            continue
        if waiting is None:
            waiting = {pod.uid for pod in facts.observed.pods.values() if pod.deleting is None and not pod.finished}
        left = {uid: row for uid, row in memory.asked.items() if uid in waiting}
        if len(left) == len(memory.asked):
            continue
        timeline = memory.timeline
        if not left and _refused_last(memory):
            line = HistoryLine(LineKind.RESCHEDULED, "its pods go now, after their eviction was refused")
            timeline = with_line(timeline, facts.now_ms, line.text)
        draft.memory.jobs[key] = msgspec.structs.replace(memory, asked=left, timeline=timeline)


def _record_refusal(
    facts: Facts, draft: Draft, gang: str, memory: JobMemory, pod: Pod, protecting: tuple[DisruptionBudget, ...]
) -> None:
    """Correct the job's history: what was written when the eviction was decided has not come about."""
    if not memory.timeline or _refused_last(memory) or gang not in draft.memory.jobs:
        return

    lines = list(memory.timeline)
    for place in reversed(range(len(lines))):
        at, line = lines[place][0], read_line(lines[place][1])
        if line.kind is LineKind.RESCHEDULED:
            lines[place] = at, line._replace(kind=LineKind.DECIDED).text
            break

    refusal = HistoryLine(LineKind.REFUSED, f"{_why(protecting)} (pod {pod.name})")
    draft.memory.jobs[gang] = msgspec.structs.replace(memory, timeline=with_line(lines, facts.now_ms, refusal.text))


def _refused_last(memory: JobMemory) -> bool:
    """Whether the newest that the job's history has is a refused eviction."""
    return bool(memory.timeline) and read_line(memory.timeline[-1][1]).kind is LineKind.REFUSED


def _why(protecting: tuple[DisruptionBudget, ...]) -> str:
    if len(protecting) > 1:
        names = ", ".join(one.name for one in protecting)
        return f"PodDisruptionBudgets {names} select the same pod, which the API server does not evict"
    budget = protecting[0]
    return f"PodDisruptionBudget {budget.name} allows {counted(budget.allowed, 'more pod')} to be away now"


def _diagnostic(pod: Pod, protecting: tuple[DisruptionBudget, ...], tries: int, until: float) -> Diagnostic:
    times = f"{tries} {'try' if tries == 1 else 'tries'}"
    way = (
        f"raise maxUnavailable or lower minAvailable of {protecting[0].name}, delete the pod by hand, or give the job "
        "fault-scheduling: force, which needs no leave"
    )
    text = (
        f"its eviction is refused after {times}: {_why(protecting)}. It still runs; the next try is at "
        f"{rfc3339(until)}, or when the budget allows it. To go on: {way}"
    )
    return Diagnostic("warning", f"Pod/{pod.key}", "", 0, 0, "", text, PassCode.EVICTION_REFUSED)
