"""Whose turn it is: queues by how far they are below what they deserve, jobs within a queue by priority.

Jobs of a queue: priority, then jobs that run at most their minimum ("fragile"), fewer dequeues, the smaller dominant
share, age, key. Queues: priority, then the smaller share, then the name, asked again after every job. Pods that request
nothing at all come last (backfill): they take nothing from anybody. Sources:
component/ascend-for-volcano/plugin/factory.go (JobOrder); Volcano's priority, gang, drf and proportion plugins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cmp_to_key
from typing import Final, NamedTuple

from engine.model.jobs import Gang
from engine.plan.gangs import counts_as_started, pod_group_of
from engine.plan.owners import annotations_of
from engine.plan.queue.lines import Line, Quota, sums_of
from engine.plan.queue.share import share
from engine.plan.scope import Scope

DEQUEUES_KEY: Final = "huawei.com/schedule_dequeue_frequency"


class Rank(NamedTuple):
    """A job's place within its queue, smallest first; ``dequeues`` is None where the count cannot be read."""

    backfill: bool
    priority: int
    sated: bool
    dequeues: int | None
    share: float
    created: float
    key: str


def rank(scope: Scope, gang: Gang, quota: Quota) -> Rank:
    """The place of a waiting job."""
    pods = [scope.observed.pods[key] for key in gang.pods]
    ready = sum(map(counts_as_started, pods))
    text = annotations_of(pod_group_of(scope.observed, gang)).get(DEQUEUES_KEY, "0")
    dequeues = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
    own = 0.0
    if any(pod.node for pod in pods):
        has, _ = sums_of(scope, gang)
        own = share(has, {name: float(amount) for name, amount in quota.shares.total.items()})
    wishes = any(amount for pod in pods if not pod.node for amount in pod.requests.values())
    return Rank(not wishes, -gang.priority, ready > gang.min_available, dequeues, own, gang.created, gang.key)


def in_order(entries: Iterable[tuple[int, Rank]]) -> list[str]:
    """The keys of jobs, those of queues with the smallest number first, each queue's in the order of their ranks.

    A job whose dequeues cannot be read is neither before nor after others by that count; what comes next decides.
    """
    rows = list(entries)
    if all(row.dequeues is not None for _, row in rows):
        return [row.key for _, row in sorted(rows)]
    rows.sort(key=lambda entry: (entry[0], entry[1]._replace(dequeues=0)))
    return [row.key for _, row in sorted(rows, key=cmp_to_key(_compare))]


def _compare(one: tuple[int, Rank], other: tuple[int, Rank]) -> int:
    if one[1].dequeues is None or other[1].dequeues is None:
        one, other = ((queue, row._replace(dequeues=0)) for queue, row in (one, other))
    return (one > other) - (one < other)


def turns(scope: Scope, quota: Quota, keys: list[str]) -> Iterator[str]:
    """The jobs of ``keys`` (each queue's in order) one by one; shares follow what was placed since the last one."""
    rows: dict[str, deque[str]] = {}
    last: list[str] = []
    for key in keys:
        if _asks(scope, key):
            rows.setdefault(scope.gangs[key].queue, deque()).append(key)
        else:
            last.append(key)
    while len(rows) > 1:
        name = min(rows, key=lambda queue: (-_line(quota, queue).priority, quota.shares.of(queue), queue))
        yield rows[name].popleft()
        if not rows[name]:
            del rows[name]
    for row in rows.values():
        yield from row
    yield from last


def _asks(scope: Scope, key: str) -> bool:
    pods = map(scope.observed.pods.__getitem__, scope.gangs[key].pods)
    return any(amount for pod in pods if not pod.node for amount in pod.requests.values())


def _line(quota: Quota, queue: str) -> Line:
    return quota.lines.get(queue) or Line(queue)
