"""Whose turn it is: queues by how far they are below what they deserve, jobs within a queue by priority.

Jobs of a queue: priority, then jobs that run at most their minimum ("fragile"), fewer dequeues, the smaller dominant
share, age, key. Queues: priority, then the smaller share, then the name, asked again after every job. Pods that request
nothing at all come last (backfill): they take nothing from anybody. Sources:
component/ascend-for-volcano/plugin/factory.go (JobOrder); Volcano's priority, gang, drf and proportion plugins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from engine.model.jobs import Gang
from engine.plan.gangs import pod_group_of
from engine.plan.owners import annotations_of
from engine.plan.queue.lines import Line, Quota, sums_of
from engine.plan.queue.share import share
from engine.plan.scope import Scope

DEQUEUES_KEY: Final = "huawei.com/schedule_dequeue_frequency"


class Rank(NamedTuple):
    """A job's place within its queue, smallest first."""

    backfill: bool
    priority: int
    sated: bool
    dequeues: int
    share: float
    created: float
    key: str


def rank(scope: Scope, gang: Gang, quota: Quota) -> Rank:
    """The place of a waiting job."""
    pods = [scope.observed.pods[key] for key in gang.pods]
    running = sum(1 for pod in pods if pod.node)
    text = annotations_of(pod_group_of(scope.observed, gang)).get(DEQUEUES_KEY, "")
    dequeues = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    own = 0.0
    if running:
        has, _ = sums_of(scope, gang)
        own = share(has, {name: float(amount) for name, amount in quota.shares.total.items()})
    wishes = any(amount for pod in pods if not pod.node for amount in pod.requests.values())
    return Rank(not wishes, -gang.priority, running > gang.min_available, dequeues, own, gang.created, gang.key)


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
