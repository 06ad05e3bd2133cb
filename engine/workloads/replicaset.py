"""ReplicaSet: keep the declared number of pods of one template."""

from __future__ import annotations

from collections.abc import Sequence

from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write, create, delete, status

BURST = 500
"""Most pods created or deleted in one reconcile, as in kube-controller-manager."""


def reconcile(replica_set: Json, pods: Sequence[Json], now: float) -> Reconciled:
    """One step for ``replica_set``; ``pods`` are those that it controls."""
    wanted = o.replicas_of(replica_set)
    live = [pod for pod in pods if o.active(pod)]
    writes: list[Write] = []
    if not o.deleting(replica_set):
        missing = min(BURST, wanted - len(live))
        writes += [create(_pod(replica_set)) for _ in range(missing)]
        surplus = min(BURST, len(live) - wanted)
        if surplus > 0:
            writes += [delete(pod, "Pod") for pod in o.deletion_order(live)[:surplus]]
    observed, again = _status(replica_set, live, now)
    if write := status(replica_set, "ReplicaSet", observed):
        writes.append(write)
    return Reconciled(tuple(writes), again)


def _pod(replica_set: Json) -> Json:
    pod = o.pod_from_template(replica_set, "ReplicaSet", "apps/v1", replica_set["spec"].get("template") or {})
    pod["metadata"]["generateName"] = f"{replica_set['metadata']['name']}-"
    return pod


def _status(replica_set: Json, live: Sequence[Json], now: float) -> tuple[Json, float | None]:
    min_ready = float(replica_set["spec"].get("minReadySeconds") or 0)
    waits = [o.available_in(pod, min_ready, now) for pod in live]
    labels = ((replica_set["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
    body = {
        "replicas": len(live),
        "fullyLabeledReplicas": sum(labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in live),
        "readyReplicas": sum(wait is not None for wait in waits),
        "availableReplicas": sum(wait == 0.0 for wait in waits),
        "observedGeneration": replica_set["metadata"].get("generation", 1),
    }
    return body, min((wait for wait in waits if wait), default=None)
