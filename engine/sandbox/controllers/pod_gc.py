"""Delete pods that no kubelet will finish: those of vanished nodes, those deleted before they were bound, and ended
pods beyond a limit.

Follows kube-controller-manager's pod garbage collector.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write, delete, status

MAX_FINISHED: Final = 12_500
"""Ended pods kept at most (--terminated-pod-gc-threshold)."""
BATCH: Final = 200


def reconcile(
    pods: Sequence[Json], nodes: Collection[str], missing_since: Mapping[str, float], now: float, quarantine: float
) -> Reconciled:
    """One sweep.

    Args:
        nodes: names of the nodes that exist.
        missing_since: node name → when it was first found missing, by this process's clock.
        quarantine: seconds for which a node must be missing, so that a late watch deletes no live pod.
    """
    writes: list[Write] = []
    waits: list[float] = []
    for pod in pods:
        name = str((pod.get("spec") or {}).get("nodeName") or "")
        if not name:
            if o.deleting(pod):
                writes.append(delete(pod, "Pod", 0))
        elif name not in nodes:
            left = missing_since.get(name, now) + quarantine - now
            if left > 0:
                waits.append(left)
            else:
                writes += _orphan(pod, now)
    ended = sorted((p for p in pods if o.finished(p)), key=lambda p: o.time_of(p["metadata"].get("creationTimestamp")))
    writes += [delete(pod, "Pod", 0) for pod in ended[: max(0, len(ended) - MAX_FINISHED)]]
    return Reconciled(tuple(writes[: 2 * BATCH]), 1.0 if len(writes) > 2 * BATCH else min(waits, default=None))


def _orphan(pod: Json, now: float) -> list[Write]:
    """Fail the pod, so that its owner sees it end, then delete it without grace, since no kubelet will."""
    out: list[Write] = []
    if not o.finished(pod):
        message = "PodGC: node no longer exists"
        conditions = o.set_condition(pod, "DisruptionTarget", "True", "DeletionByPodGC", message, now, updated=False)
        if write := status(pod, "Pod", {"phase": "Failed", "conditions": conditions}):
            out.append(write)
    return [*out, delete(pod, "Pod", 0)]
