"""``belay-queues-<shard>``: what each queue may have, has, waits for and deserves.

Amounts are in pieces, CPU in milli-cores, memory in bytes. ``share`` is what a queue has of what it deserves, for the
resource of which it has the most; ``wanted`` are the chips that its waiting jobs lack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from belay.engine.documents import Desired
from belay.engine.gangs.grouping import group
from belay.engine.gangs.kueue import is_kueues
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import QueueDemand, QueueState, divide, queues_of
from belay.engine.status.bodies import bounded_list, config_map, text
from belay.engine.wire import names
from belay.engine.wire.names import MAIN_SHARD

_LIST_BYTES: Final = 600 * 1024
_DEFAULT: Final = "default"


@dataclass
class _Usage:
    """What the live jobs of one queue have, ask for in all, and lack in chips; how many of them run and wait."""

    has: dict[str, int] = field(default_factory=dict)
    asks: dict[str, int] = field(default_factory=dict)
    lacks: dict[str, int] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0


def queue_body(
    plan: Plan, observed: Observed, desired: Desired, shard: str = MAIN_SHARD, cache: PlanCache | None = None
) -> dict[str, Any]:
    """The ConfigMap of one shard: its queues, those without jobs included."""
    usage = _usage_by_queue(plan, observed, cache)
    queues = queues_of(desired, observed)
    for name in usage.keys() - queues.keys():
        queues[name] = QueueState(name)
    deserved = _divide(queues, usage, _capacity(plan, observed))

    rows = [_row(queues[name], usage.get(name, _Usage()), deserved[name]) for name in sorted(queues)]
    shown, left = bounded_list(rows, _LIST_BYTES)
    data = {names.QUEUES_KEY: text(shown)}
    if left:
        data["leftOut"] = f"{left} queues are not shown"
    return config_map(names.SYSTEM, names.bounded(f"{names.QUEUES_PREFIX}{shard}"), data, {ABOUT_LABEL: "queues"})


def _usage_by_queue(plan: Plan, observed: Observed, cache: PlanCache | None) -> dict[str, _Usage]:
    usage: dict[str, _Usage] = {}
    pending = {(waiting.namespace, waiting.name) for waiting in plan.pending}
    gangs, _ = group(observed, cache)
    for gang in gangs.values():
        pods = [observed.pods[key] for key in gang.pods]
        live_pods = [pod for pod in pods if not pod.finished and pod.deleting is None]
        if any(pod.count for pod in live_pods):
            of_queue = usage.setdefault(gang.queue or _DEFAULT, _Usage())
            _add_gang(of_queue, live_pods, waits=(gang.namespace, gang.name) in pending)
    return usage


def _add_gang(usage: _Usage, pods: Sequence[Pod], *, waits: bool) -> None:
    for pod in pods:
        _add(usage.asks, pod.requests)
        if pod.node:
            _add(usage.has, pod.requests)
        elif waits and pod.count:
            _add(usage.lacks, {pod.resource: pod.count})

    if waits:
        usage.waiting += 1
    else:
        usage.running += 1


def _capacity(plan: Plan, observed: Observed) -> dict[str, int]:
    """What the shard's nodes have to give."""
    total: dict[str, int] = {}
    for state in plan.nodes:
        if (node := observed.nodes.get(state.node)) is not None:
            _add(total, node.allocatable)
    return total


def _divide(
    queues: Mapping[str, QueueState], usage: Mapping[str, _Usage], capacity: dict[str, int]
) -> dict[str, Mapping[str, float]]:
    """What each queue deserves. Kueue's queues deserve what Kueue has admitted; the others divide the rest."""
    deserved: dict[str, Mapping[str, float]] = {}
    demands = []
    for name, queue in sorted(queues.items()):
        of_queue = usage.get(name, _Usage())
        if is_kueues(name):
            deserved[name] = of_queue.has
            _add(capacity, {resource: -count for resource, count in of_queue.has.items()})
        else:
            demands.append(
                QueueDemand(
                    name=name,
                    weight=queue.weight,
                    request=of_queue.asks,
                    capability=queue.capability,
                    guarantee=queue.guarantee,
                    stated=queue.deserved,
                )
            )
    return {**divide(capacity, demands), **deserved}


def _row(queue: QueueState, usage: _Usage, deserved: Mapping[str, float]) -> dict[str, Any]:
    shares = [usage.has[key] / amount for key, amount in deserved.items() if amount > 0 and usage.has.get(key)]
    return {
        "name": queue.name,
        "weight": queue.weight,
        "state": queue.state,
        "capacity": dict(queue.capability),
        "used": dict(sorted(usage.has.items())),
        "deserved": {key: round(amount, 1) for key, amount in sorted(deserved.items())},
        "waiting": usage.waiting,
        "running": usage.running,
        "share": round(max(shares, default=0.0), 4),
        "priority": queue.priority,
        "declaredBy": _declared_by(queue),
        "wanted": dict(sorted(usage.lacks.items())),
    }


def _declared_by(queue: QueueState) -> str:
    if is_kueues(queue.name):
        return "Kueue"
    return "SchedulingSettings" if queue.declared else "Queue"


def _add(total: dict[str, int], requests: Mapping[str, int]) -> None:
    for resource, count in requests.items():
        total[resource] = total.get(resource, 0) + count
