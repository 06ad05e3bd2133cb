"""For whom pods were told to go: remembered in the job's history, so that nobody else takes what becomes free.

The history names the evicted pods by UID; which of them are still there is observed. Once all are gone and the job has
had its turn, nothing is remembered any more.
"""

from __future__ import annotations

from typing import Final

import msgspec

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan.scope import Displacement, Scope
from engine.plan.victims import memory_of

MAX_NOMINATED: Final = 4096
TIMELINE: Final = 20


def waiting(scope: Scope) -> list[tuple[Gang, list[Pod]]]:
    """The queued gangs for which pods were evicted, in the order of the queue, each with those that are still there."""
    gangs = [gang for key in scope.queue if memory_of(scope, gang := scope.gangs[key]).nominated]
    if not gangs:
        return []
    by_uid = {pod.uid: pod for pod in scope.observed.pods.values() if pod.node and not pod.finished}
    rows = [(gang, memory_of(scope, gang).nominated) for gang in gangs]
    return [(gang, [by_uid[uid] for uid in sorted(told) if uid in by_uid]) for gang, told in rows]


def clear(scope: Scope, gang: Gang) -> None:
    """Nothing is owed to the gang any more."""
    memory = memory_of(scope, gang)
    if memory.nominated:
        scope.memory.jobs[gang.key] = msgspec.structs.replace(memory, nominated={})


def passed(scope: Scope) -> None:
    """Remembers the evictions that safety let pass: at the job they make room for, and in the story of the evicted."""
    for unit in sorted(scope.displaced):
        row = scope.displaced[unit]
        gang = scope.gangs[row.preemptor]
        memory = memory_of(scope, gang)
        told = dict(memory.nominated)
        for key in row.pods:
            told.setdefault(scope.observed.pods[key].uid, scope.now_ms)
        newest = sorted(told.items(), key=lambda item: (-item[1], item[0]))[:MAX_NOMINATED]
        scope.memory.jobs[gang.key] = msgspec.structs.replace(memory, uid=gang.uid, nominated=dict(sorted(newest)))
        _story(scope, row)


def _story(scope: Scope, row: Displacement) -> None:
    victim = scope.gangs.get(row.victim)
    if victim is None or not row.counted or victim.kind == "Pod":
        return
    memory = memory_of(scope, victim)
    line = (scope.now_ms, f"{row.reason.lower()} for {row.preemptor}")
    if line not in memory.timeline:
        scope.memory.jobs[victim.key] = msgspec.structs.replace(
            memory, uid=victim.uid, timeline=(*memory.timeline, line)[-TIMELINE:]
        )
