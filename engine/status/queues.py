"""``belay-queues-<shard>``: what each queue may have, has, waits for and deserves.

Amounts are in pieces, CPU in milli-cores, memory in bytes. ``share`` is what a queue has of what it deserves, for the
resource of which it has the most; ``wanted`` are the chips that its waiting jobs lack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.documents import Desired
from belay.engine.gangs.grouping import group
from belay.engine.gangs.kueue import is_kueues
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import QueueDemand, divide, queues_of
from belay.engine.status.bodies import bounded_list, config_map, text
from belay.engine.wire import names
from belay.engine.wire.names import MAIN_SHARD

_LIST_BYTES: Final = 600 * 1024
_DEFAULT: Final = "default"


def queue_body(
    plan: Plan, observed: Observed, desired: Desired, shard: str = MAIN_SHARD, cache: PlanCache | None = None
) -> dict[str, Any]:
    """The ConfigMap of one shard: its queues, those without jobs included."""
    queues = queues_of(desired, observed)
    gangs, _ = group(observed, cache)
    has: dict[str, dict[str, int]] = {}
    asks: dict[str, dict[str, int]] = {}
    running: dict[str, int] = {}
    waiting: dict[str, int] = {}
    wanted: dict[str, dict[str, int]] = {}
    pending = {(one.namespace, one.name) for one in plan.pending}
    for gang in gangs.values():
        pods = [pod for key in gang.pods if not (pod := observed.pods[key]).finished and pod.deleting is None]
        if not any(pod.count for pod in pods):
            continue
        queue = gang.queue or _DEFAULT
        for pod in pods:
            _add(asks.setdefault(queue, {}), pod.requests)
            if pod.node:
                _add(has.setdefault(queue, {}), pod.requests)
        held = (gang.namespace, gang.name) in pending
        if held:
            _add_chips(wanted.setdefault(queue, {}), [pod for pod in pods if not pod.node])
        (waiting if held else running)[queue] = (waiting if held else running).get(queue, 0) + 1
    total: dict[str, int] = {}
    for state in plan.nodes:
        if (node := observed.nodes.get(state.node)) is not None:
            _add(total, node.allocatable)
    known = sorted({*queues, *asks})
    demands = [
        QueueDemand(
            name,
            queues[name].weight if name in queues else 1,
            asks.get(name, {}),
            queues[name].capability if name in queues else {},
            queues[name].guarantee if name in queues else {},
            queues[name].deserved if name in queues else {},
        )
        for name in known
        if not is_kueues(name)
    ]
    given = {name: has.get(name, {}) for name in known if is_kueues(name)}
    for amounts in given.values():
        _add(total, {resource: -count for resource, count in amounts.items()})
    deserved: dict[str, Mapping[str, float]] = {**divide(total, demands), **given}
    rows = []
    for name in known:
        queue_state, used = queues.get(name), has.get(name, {})
        shares = [used[key] / amount for key, amount in deserved[name].items() if amount > 0 and used.get(key)]
        rows.append(
            {
                "name": name,
                "weight": queue_state.weight if queue_state else 1,
                "state": queue_state.state if queue_state else "Open",
                "capacity": dict(queue_state.capability) if queue_state and queue_state.capability else {},
                "used": dict(sorted(used.items())),
                "deserved": {key: round(amount, 1) for key, amount in sorted(deserved[name].items())},
                "waiting": waiting.get(name, 0),
                "running": running.get(name, 0),
                "share": round(max(shares, default=0.0), 4),
                "priority": queue_state.priority if queue_state else 0,
                "declaredBy": _declared_by(name, bool(queue_state and queue_state.declared)),
                "wanted": dict(sorted(wanted.get(name, {}).items())),
            }
        )
    shown, left = bounded_list(rows, _LIST_BYTES)
    data = {names.QUEUES_KEY: text(shown)} | ({"leftOut": f"{left} queues are not shown"} if left else {})
    name = names.bounded(f"{names.QUEUES_PREFIX}{shard}")
    return config_map(names.SYSTEM, name, data, {ABOUT_LABEL: "queues"})


def _declared_by(name: str, by_settings: bool) -> str:
    if is_kueues(name):
        return "Kueue"
    return "SchedulingSettings" if by_settings else "Queue"


def _add(total: dict[str, int], requests: Mapping[str, int]) -> None:
    for resource, count in requests.items():
        total[resource] = total.get(resource, 0) + count


def _add_chips(total: dict[str, int], pods: Sequence[Pod]) -> None:
    for pod in pods:
        if pod.count:
            total[pod.resource] = total.get(pod.resource, 0) + pod.count
