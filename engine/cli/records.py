"""Answers of `belay get` about queues, recoveries and accepted revisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from belay.engine.cli.selection import Answer
from belay.engine.cli.status_records import recovery_rows, revision_rows
from belay.engine.documents import Desired
from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import HUAWEI_PREFIX
from belay.engine.model.plan import Plan
from belay.engine.plan import QueueState, queues_of
from belay.engine.status.status_reader import read_status
from belay.engine.wire import names

_SYNC: Final = ObjectKey("v1", "ConfigMap", names.SYSTEM, names.SYNC)


def queues(plan: Plan, observed: Observed, desired: Desired) -> Answer:
    """Every queue of the cluster, of the settings, or of a job, with what is in force: the settings come before the
    Queue object. Its chips per resource, and the jobs that run and wait."""
    rows = {name: _queue(one) for name, one in queues_of(desired, observed).items()}
    gangs, _ = group(observed)
    waiting = pending_by_gang(plan.pending, gangs)
    for key, gang in gangs.items():
        row = rows.setdefault(gang.queue, _queue(QueueState(gang.queue)))
        pods = [observed.pods[name] for name in gang.pods if name in observed.pods and observed.pods[name].count]
        holding = [pod for pod in pods if pod.holds_chips]
        _add(row["used"], holding)
        row["running"] += bool(holding)
        if key in waiting:
            row["waiting"] += 1
            _add(row["wanted"], [pod for pod in pods if not pod.node and not pod.finished])
    columns = ("queue", "state", "weight", "capability", "used", "running", "waiting", "wanted")
    return Answer(columns, [rows[name] for name in sorted(rows)], ("priority", "declaredBy"))


def _add(total: dict[str, int], pods: Sequence[Pod]) -> None:
    for pod in pods:
        total[pod.resource] = total.get(pod.resource, 0) + pod.count


def recoveries(plan: Plan, _: Observed, __: Desired) -> Answer:
    """The newest recoveries of every job, newest first: cause, level, duration and loss; of one under way, so far."""
    return recovery_rows(plan.history.jobs, plan.now)


def revisions(_: Plan, observed: Observed, __: Desired) -> Answer:
    """The accepted revisions of every shard's repository, newest first, as ``belay-revisions`` keeps them."""
    published = read_status([observed.objects.get(_SYNC) or {}])
    logs = {
        key.name: raw
        for key, raw in observed.objects.items()
        if (key.kind, key.namespace) == ("ConfigMap", names.SYSTEM) and key.name.split(".")[0] == names.REVISIONS
    }
    return revision_rows(logs, published, observed.applied_revision)


RECORDS: Final[dict[str, Callable[[Plan, Observed, Desired], Answer]]] = {
    "queues": queues,
    "recoveries": recoveries,
    "revisions": revisions,
}


def _queue(one: QueueState) -> dict[str, Any]:
    return {
        "queue": one.name,
        "state": one.state,
        "weight": one.weight,
        "priority": one.priority,
        "declaredBy": "SchedulingSettings" if one.declared else "Queue",
        "capability": {name: most for name, most in one.capability.items() if name.startswith(HUAWEI_PREFIX)},
        "used": {},
        "running": 0,
        "waiting": 0,
        "wanted": {},
    }
