"""Whose turn it is: queues by how far they are below their deserved share, jobs within a queue by priority.

Jobs of a queue: priority, then jobs that run at most their minimum ("fragile"), fewer dequeues, the smaller dominant
share, age, key. Queues: priority, then the smaller share, then the name, evaluated again after every job. Pods that
request nothing come last (backfill): they take nothing from others. Sources:
component/ascend-for-volcano/plugin/factory.go (JobOrder); Volcano's priority, gang, drf and proportion plugins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cmp_to_key
from typing import NamedTuple

from belay.engine.gangs.forming import counts_as_started, pod_group_of
from belay.engine.gangs.owners import annotations_of
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import DEQUEUE_FREQUENCY
from belay.engine.model.quantities import whole_number
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.queue.queues import Queues, QueueState, sums_of
from belay.engine.plan.queue.share import share


class JobRank(NamedTuple):
    """A job's place within its queue, smallest first; ``dequeues`` is None where the count cannot be read."""

    backfill: bool
    priority: int
    above_minimum: bool
    dequeues: int | None
    share: float
    created: float
    key: str


def rank(facts: Facts, gang: Gang, queues: Queues) -> JobRank:
    """The place of a waiting job."""
    pods = [facts.observed.pods[key] for key in gang.pods]
    ready = sum(map(counts_as_started, pods))
    dequeues = whole_number(annotations_of(pod_group_of(facts.observed, gang)).get(DEQUEUE_FREQUENCY, "0"))
    own = 0.0
    if any(pod.node for pod in pods):
        has, _ = sums_of(facts, gang)
        own = share(has, {name: float(amount) for name, amount in queues.shares.total.items()})
    requests = any(amount for pod in pods if not pod.node for amount in pod.requests.values())
    return JobRank(not requests, -gang.priority, ready > gang.min_available, dequeues, own, gang.created, gang.key)


def in_order(entries: Iterable[tuple[int, JobRank]]) -> list[str]:
    """The keys of jobs: queues with the smallest number first, the jobs of each queue by rank.

    A job whose dequeues cannot be read is compared without that count.
    """
    rows = list(entries)
    if all(row.dequeues is not None for _, row in rows):
        return [row.key for _, row in sorted(rows)]
    rows.sort(key=lambda entry: (entry[0], entry[1]._replace(dequeues=0)))
    return [row.key for _, row in sorted(rows, key=cmp_to_key(_compare))]


def _compare(one: tuple[int, JobRank], other: tuple[int, JobRank]) -> int:
    if one[1].dequeues is None or other[1].dequeues is None:
        one, other = ((queue, row._replace(dequeues=0)) for queue, row in (one, other))
    return (one > other) - (one < other)


def turns(facts: Facts, gangs: PassGangs, queues: Queues, keys: list[str]) -> Iterator[str]:
    """The jobs of ``keys`` (each queue's in order) one by one; shares follow what was placed since the last one."""
    rows: dict[str, deque[str]] = {}
    last: list[str] = []
    for key in keys:
        if _asks(facts, gangs, key):
            rows.setdefault(gangs[key].queue, deque()).append(key)
        else:
            last.append(key)
    while len(rows) > 1:
        name = min(rows, key=lambda queue: (-_queue_state(queues, queue).priority, queues.shares.of(queue), queue))
        yield rows[name].popleft()
        if not rows[name]:
            del rows[name]
    for row in rows.values():
        yield from row
    yield from last


def _asks(facts: Facts, gangs: PassGangs, key: str) -> bool:
    pods = map(facts.observed.pods.__getitem__, gangs[key].pods)
    return any(amount for pod in pods if not pod.node for amount in pod.requests.values())


def _queue_state(queues: Queues, queue: str) -> QueueState:
    return queues.by_name.get(queue) or QueueState(queue)
