"""Times in the memory that a clock running ahead wrote are brought back to now.

Windows, holds and attempts depend on their times. One pass on a machine whose clock ran a year ahead would otherwise
keep chips out, jobs in place and budgets spent for a year. Small differences between machines stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec

from belay.engine.model.history import ChipMemory, CodeMemory, Hold, JobMemory, NodeMemory, PublicFaultMemory
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import FUTURE_TOLERANCE

#: How far the clocks of machines may differ (ms).
AHEAD_MS: Final = round(FUTURE_TOLERANCE * 1000)
_Row = TypeVar("_Row")
#: The newest time in each job's memory, while that is what it is.
_NEWEST: Final = CacheKey("newest times of job memories", Memo[int], limit=32768)


def correct_times(facts: Facts, draft: Draft) -> None:
    """Bring times ahead of now back to it; memory without such times stays the same object."""
    clock, memory, newest = _Clock(facts.now_ms), draft.memory, facts.cache[_NEWEST]
    for name, node in memory.nodes.items():
        memory.nodes[name] = clock.node(node)
    for key, job in memory.jobs.items():
        if newest.of(key, job, partial(_newest_of, job)) > clock.latest:
            memory.jobs[key] = clock.job(job)
    for budget, rows in memory.budgets.items():
        if any(row[0] > clock.latest for row in rows):
            memory.budgets[budget] = tuple(sorted((clock.at(at), unit, count) for at, unit, count in rows))
    if memory.pool_edit is not None:
        memory.pool_edit = msgspec.structs.replace(memory.pool_edit, since=clock.at(memory.pool_edit.since))
    for thing, times in memory.repeats.items():
        memory.repeats[thing] = clock.times(times)
    memory.retemplated = {key: clock.at(changed) for key, changed in memory.retemplated.items()}


class _Clock:
    """Corrects times; ``latest`` is the newest plausible one (Unix ms)."""

    def __init__(self, now_ms: int) -> None:
        self._now, self.latest = now_ms, now_ms + AHEAD_MS

    def at(self, time: int) -> int:
        return time if time <= self.latest else self._now

    def times(self, times: tuple[int, ...]) -> tuple[int, ...]:
        """Shift the times that are ahead so that the newest is now; they keep their distances, so each still counts."""
        ahead = max(times, default=0) - self._now
        if self._now + ahead <= self.latest:
            return times
        return tuple(sorted(time - ahead if time > self.latest else time for time in times))

    def node(self, node: NodeMemory) -> NodeMemory:
        chips = _changed(node.chips, {chip: self.chip(row) for chip, row in node.chips.items()})
        public = _changed(node.public, {key: self.public(seen) for key, seen in node.public.items()})
        partitions = self.times(node.partitions)
        if chips is node.chips and public is node.public and partitions is node.partitions:
            return node
        return msgspec.structs.replace(node, chips=chips, public=public, partitions=partitions)

    def chip(self, row: ChipMemory) -> ChipMemory:
        if _newest(row) <= self.latest:
            return row
        return msgspec.structs.replace(
            row,
            codes={code: self.code(seen) for code, seen in row.codes.items()},
            holds=tuple(self.hold(hold) for hold in row.holds),
            isolated=self.at(row.isolated),
            ordered=self.at(row.ordered),
            recovering=self.at(row.recovering),
            resets=self.times(row.resets),
            hardware={code: self.times(times) for code, times in row.hardware.items()},
        )

    def code(self, seen: CodeMemory) -> CodeMemory:
        return msgspec.structs.replace(
            seen,
            first=self.at(seen.first),
            last=self.at(seen.last),
            recovered=self.at(seen.recovered),
            occurrences=self.times(seen.occurrences),
        )

    def hold(self, hold: Hold) -> Hold:
        """The hold with its full length, from now."""
        if hold.since <= self.latest:
            return hold
        until = self._now + hold.until - hold.since if hold.until else 0
        return msgspec.structs.replace(hold, since=self._now, until=until)

    def public(self, seen: PublicFaultMemory) -> PublicFaultMemory:
        if seen.shown <= self.latest:
            return seen
        until = self._now + seen.until - seen.shown if seen.until else 0
        return msgspec.structs.replace(seen, shown=self._now, until=until)

    def job(self, job: JobMemory) -> JobMemory:
        reschedules = self.times(job.reschedules)
        if reschedules is not job.reschedules:
            job = msgspec.structs.replace(job, reschedules=reschedules)
        # a forced deletion is remembered by the negative of its time
        if any(abs(at) > self.latest for at in job.evicted.values()):
            evicted = {uid: self.at(at) if at > 0 else -self.at(-at) for uid, at in job.evicted.items()}
            job = msgspec.structs.replace(job, evicted=evicted)
        if job.healing is not None and max(job.healing.since, job.healing.at) > self.latest:
            healing = msgspec.structs.replace(job.healing, since=self.at(job.healing.since), at=self.at(job.healing.at))
            job = msgspec.structs.replace(job, healing=healing)
        if any(last > self.latest for _, last in job.asked.values()):
            asked = {uid: (tries, self.at(last)) for uid, (tries, last) in job.asked.items()}
            job = msgspec.structs.replace(job, asked=asked)
        if any(fault.at > self.latest for fault in job.faults):
            faults = tuple(sorted({msgspec.structs.replace(fault, at=self.at(fault.at)) for fault in job.faults}))
            job = msgspec.structs.replace(job, faults=faults)
        return job


def _newest_of(job: JobMemory) -> int:
    """The newest time in a job's memory."""
    times = [*job.reschedules, *map(abs, job.evicted.values()), *(fault.at for fault in job.faults)]
    times += (last for _, last in job.asked.values())
    if job.healing is not None:
        times += job.healing.since, job.healing.at
    return max(times, default=0)


def _newest(row: ChipMemory) -> int:
    """The newest time in a chip's memory, without the ends of holds."""
    newest = max(row.isolated, row.ordered, row.recovering, *row.resets)
    for seen in row.codes.values():
        newest = max(newest, seen.first, seen.last, seen.recovered, *seen.occurrences)
    for times in row.hardware.values():
        newest = max([newest, *times])
    return max([newest, *(hold.since for hold in row.holds)])


def _changed(before: Mapping[_Row, object], after: dict[_Row, object]) -> Mapping[_Row, object]:
    return before if all(after[key] is before[key] for key in before) else after


__all__ = ["AHEAD_MS", "correct_times"]
