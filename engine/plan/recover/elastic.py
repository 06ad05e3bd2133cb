"""Elastic training: a job without room for its lost pods trains with fewer, and grows when they run again.

Process recovery shrinks and grows the training (``belay.engine.model.recovery.elastic``, in ClusterD's place); the
planner leaves the healthy pods where they are, seeks room for all missing ones together, and records the changes. A job
opts in by ``fault-scheduling`` and strategy ``elastic-training``. It shrinks only while rank 0 is healthy: after
``wait-reschedule-timeout`` when it may also recover by moving its pods, else at once. Source:
docs/zh/scheduling/04_usage (elastic training).
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from belay.engine.gangs.forming import declared_rank
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.costs import RecoveryLevel
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import JobMemory
from belay.engine.model.history_lines import with_line
from belay.engine.model.jobs import Gang
from belay.engine.plan import restart_scope
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs

ELASTIC: Final = "elastic-training"
#: Seconds that a job waits for its replaced pods: minimum and maximum; the maximum is the default.
WAIT_RANGE: Final = (30, 270)
_RANKS: Final = 16


def record_sizes(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Record which jobs train with fewer pods or are whole again, and add that to their pending entries."""
    for key in sorted(gangs):
        gang = gangs[key]
        memory = draft.memory.jobs.get(key)
        if memory is None or not (memory.small or memory.records) or not configured(gang):
            continue
        pods = [facts.observed.pods[pod] for pod in gang.pods]
        training = [pod for pod in pods if pod.phase == "Running" and not _is_leaving(draft, pod)]
        if memory.small and len(training) >= gang.replicas:
            seconds = (facts.now_ms - memory.small) // 1000
            text = f"scaled out: all {gang.replicas} pods train again after {seconds} s"
            draft.memory.jobs[key] = _with_timeline(memory, facts.now_ms, text, small=0)
        elif trains_smaller(gang, restart_scope.memory_of(draft, gang), training, facts.now_ms):
            _record_smaller(facts, draft, gang, memory, training)


def configured(gang: Gang) -> bool:
    """Whether a job may train with fewer pods than it asks for."""
    options = gang.options
    enabled = options.recovers_processes and options.fault_scheduling != "off"
    return gang.kind == "AscendJob" and enabled and ELASTIC in options.recover_strategies


def wait_seconds(gang: Gang) -> int:
    """Seconds that the job waits for replaced pods before it trains without them."""
    options = gang.options
    if not {"recover", "recover-in-place"}.intersection(options.recover_strategies):
        return 0

    seconds = options.wait_reschedule
    return seconds if seconds is not None and WAIT_RANGE[0] <= seconds <= WAIT_RANGE[1] else WAIT_RANGE[1]


def trains_smaller(gang: Gang, memory: JobMemory, training: list[Pod], now_ms: int) -> bool:
    """Whether a job trains without its missing pods now."""
    if not memory.records or not training or len(training) >= gang.replicas:
        return False
    if not any(declared_rank(pod) == 0 for pod in training):
        return False
    return now_ms - memory.records[0].time >= wait_seconds(gang) * 1000


def _is_leaving(draft: Draft, pod: Pod) -> bool:
    return pod.deleting is not None or pod.key in draft.evicting


def _record_smaller(facts: Facts, draft: Draft, gang: Gang, memory: JobMemory, training: list[Pod]) -> None:
    ranks = {rank for pod in training if (rank := declared_rank(pod)) is not None}
    missing = gang.replicas - sum(1 for rank in ranks if rank < gang.replicas)
    # an author may write any number of replicas: only those that are shown are gone through
    first = islice((str(rank) for rank in range(gang.replicas) if rank not in ranks), _RANKS)
    shown = ", ".join(first) + (f" and {missing - _RANKS} more" if missing > _RANKS else "")
    text = f"training goes on with {len(training)} of {gang.replicas} pods, without pod ranks {shown} ({ELASTIC})"
    if not memory.small:
        memory = _with_timeline(memory, facts.now_ms, f"scaled in: {text}", small=facts.now_ms)
        if memory.recoveries and not memory.recoveries[-1].back:
            # from now on it loses the missing part only, so the recovery counts as level SHRINK
            last = msgspec.structs.replace(memory.recoveries[-1], level=RecoveryLevel.SHRINK.value)
            memory = msgspec.structs.replace(memory, recoveries=(*memory.recoveries[:-1], last))
        draft.memory.jobs[gang.key] = memory
    about = f"{gang.kind}/{gang.namespace}/{gang.name}"
    draft.diagnostics.append(Diagnostic("info", about, "", 0, 0, "", text, PassCode.RUNS_SMALLER))
    for position, entry in enumerate(draft.pending):
        if (entry.namespace, entry.kind, entry.name) == (gang.namespace, gang.kind, gang.name):
            message = f"{text}, until there is room for the others: {entry.message}"
            draft.pending[position] = msgspec.structs.replace(entry, message=message)


def _with_timeline(memory: JobMemory, now_ms: int, text: str, *, small: int) -> JobMemory:
    return msgspec.structs.replace(memory, small=small, timeline=with_line(memory.timeline, now_ms, text))
