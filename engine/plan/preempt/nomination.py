"""The pods that were evicted for each job, kept in the job's history, so that no other job takes what they free.

The history names the evicted pods by UID; the snapshot shows which of them still exist. Once all are gone and the job
has had its turn, the record is dropped. Kubernetes calls this nomination (``nominatedNodeName``).
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.cluster import Pod
from belay.engine.model.history_lines import HistoryLine, LineKind, read_line, with_line
from belay.engine.model.jobs import Gang
from belay.engine.plan.draft import Displacement, Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.restart_scope import memory_of
from belay.engine.plan.scope import Scope

MAX_NOMINATED: Final = 4096


def nominated_gangs(scope: Scope) -> list[tuple[Gang, list[Pod]]]:
    """The queued gangs for which pods were evicted, in the order of the queue, each with those pods that still
    exist.
    """
    gangs = [gang for key in scope.queue if memory_of(scope.draft, gang := scope.gangs[key]).nominated]
    if not gangs:
        return []
    by_uid = {pod.uid: pod for pod in scope.facts.observed.pods.values() if pod.node and not pod.finished}
    rows = [(gang, memory_of(scope.draft, gang).nominated) for gang in gangs]
    return [(gang, [by_uid[uid] for uid in sorted(evicted) if uid in by_uid]) for gang, evicted in rows]


def clear(draft: Draft, gang: Gang) -> None:
    """Drop the record of pods evicted for the gang."""
    memory = memory_of(draft, gang)
    if memory.nominated:
        draft.memory.jobs[gang.key] = msgspec.structs.replace(memory, nominated={})


def record_evictions(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Record the evictions that safety let pass: in the history of the job they make room for, and of the evicted
    job.
    """
    for unit in sorted(draft.displaced):
        row = draft.displaced[unit]
        gang = gangs[row.preemptor]
        memory = memory_of(draft, gang)
        nominated = dict(memory.nominated)
        for key in row.pods:
            nominated.setdefault(facts.observed.pods[key].uid, facts.now_ms)
        newest = sorted(nominated.items(), key=lambda item: (-item[1], item[0]))[:MAX_NOMINATED]
        draft.memory.jobs[gang.key] = msgspec.structs.replace(memory, uid=gang.uid, nominated=dict(sorted(newest)))
        _record_victim(facts, draft, gangs, row)


def _record_victim(facts: Facts, draft: Draft, gangs: PassGangs, row: Displacement) -> None:
    victim = gangs.get(row.victim)
    if victim is None or not row.counted or victim.kind == "Pod":
        return
    memory = memory_of(draft, victim)
    line = HistoryLine(LineKind.DISPLACED, reason=row.reason, gang=row.preemptor)
    written = {read_line(text) for at, text in memory.timeline if at == facts.now_ms}
    if line not in written:
        draft.memory.jobs[victim.key] = msgspec.structs.replace(
            memory, uid=victim.uid, timeline=with_line(memory.timeline, facts.now_ms, line.text)
        )
