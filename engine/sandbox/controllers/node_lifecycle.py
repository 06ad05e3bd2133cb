"""Silent nodes: set their Ready condition to Unknown, taint them, mark their pods not ready, and finally evict them.

Follows kube-controller-manager's node life-cycle and taint-eviction controllers. Times are unscaled here; the caller
passes the grace it wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from belay.engine.model.labels import NODE_NOT_READY, NODE_UNREACHABLE
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write, delete, patch, status

DEFAULT_TOLERATION_S: Final = 300.0
"""How long a pod without tolerations of its own stays on a node that is not ready (admission plugin
DefaultTolerationSeconds)."""


def reconcile(
    node: Json, lease_moved: float | None, pods: Sequence[Json], now: float, grace: float, toleration_scale: float = 1.0
) -> Reconciled:
    """One step for ``node``.

    Args:
        lease_moved: when its Lease last moved, by this process's clock (None: never seen).
        pods: those on the node.
        grace: silence in seconds after which the node counts as gone.
        toleration_scale: multiplies toleration seconds.
    """
    silent = lease_moved is not None and now - lease_moved >= grace
    ready = _ready_condition(node)
    writes: list[Write] = []
    if silent and ready.get("status") != "Unknown":
        writes += _mark_unknown(node, now)
        ready = {"status": "Unknown", "lastTransitionTime": o.stamp(now)}
    state = str(ready.get("status") or "True")
    writes += _taint(node, state, now)
    again = grace if lease_moved is None else max(0.1, lease_moved + grace - now) if not silent else None
    if state != "True":
        writes += [write for pod in pods if (write := _mark_pod(pod, now))]
        evictions, wait = _evict(node, state, ready, pods, now, toleration_scale)
        writes += evictions
        again = min((w for w in (again, wait) if w is not None), default=None)
    return Reconciled(tuple(writes), again)


def _ready_condition(node: Json) -> Json:
    return o.condition(node, "Ready") or {}


def _mark_unknown(node: Json, now: float) -> list[Write]:
    """Set every condition that the node reports to Unknown."""
    known = {c.get("type"): c for c in (node.get("status") or {}).get("conditions") or ()}
    kinds = [
        kind for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready") if kind in known or kind == "Ready"
    ]
    conditions = [dict(c) for c in known.values()]
    holder: Json = {"status": {"conditions": conditions}}
    for kind in kinds:
        holder["status"]["conditions"] = o.set_condition(
            holder, kind, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now, updated=False
        )
    write = status(node, "Node", {"conditions": [_as_node_condition(c) for c in holder["status"]["conditions"]]})
    return [write] if write else []


def _as_node_condition(condition: Json) -> Json:
    """Node conditions have a heartbeat instead of a probe time."""
    out = {k: v for k, v in condition.items() if k != "lastProbeTime"}
    out.setdefault("lastHeartbeatTime", condition.get("lastProbeTime") or condition.get("lastTransitionTime"))
    return out


def _taint(node: Json, state: str, now: float) -> list[Write]:
    """Set the taints that match the Ready condition and remove others."""
    key = {"True": "", "False": NODE_NOT_READY}.get(state, NODE_UNREACHABLE)
    old: list[Json] = list((node.get("spec") or {}).get("taints") or ())
    ours = [t for t in old if t.get("key") in (NODE_UNREACHABLE, NODE_NOT_READY)]
    if {(t.get("key"), t.get("effect")) for t in ours} == ({(key, "NoSchedule"), (key, "NoExecute")} if key else set()):
        return []
    taints = [t for t in old if t not in ours]
    if key:
        taints += [{"key": key, "effect": "NoSchedule"}, {"key": key, "effect": "NoExecute", "timeAdded": o.stamp(now)}]
    return [
        patch(
            node,
            "Node",
            {"metadata": {"resourceVersion": node["metadata"].get("resourceVersion")}, "spec": {"taints": taints}},
        )
    ]


def _mark_pod(pod: Json, now: float) -> Write | None:
    """Mark a pod on a silent node not ready."""
    found = o.condition(pod, "Ready")
    if o.finished(pod) or found is None or found.get("status") != "True":
        return None
    conditions = o.set_condition(pod, "Ready", "False", "NodeNotReady", "Node is not ready", now, updated=False)
    return status(pod, "Pod", {"conditions": conditions})


def _evict(
    node: Json, state: str, ready: Json, pods: Sequence[Json], now: float, scale: float
) -> tuple[list[Write], float | None]:
    """Delete pods whose toleration of the NoExecute taint has run out."""
    key = NODE_NOT_READY if state == "False" else NODE_UNREACHABLE
    taints = (node.get("spec") or {}).get("taints") or ()
    added = next((t.get("timeAdded") for t in taints if t.get("key") == key and t.get("effect") == "NoExecute"), None)
    since = o.time_of(added or ready.get("lastTransitionTime")) or now
    writes, waits = [], []
    for pod in pods:
        seconds = tolerated(pod, key)
        if seconds is None or o.deleting(pod):
            continue
        left = since + seconds * scale - now
        if left <= 0:
            writes.append(delete(pod, "Pod"))
        else:
            waits.append(left)
    return writes, min(waits, default=None)


def tolerated(pod: Json, key: str) -> float | None:
    """Seconds for which the pod tolerates the NoExecute taint ``key``; None: without limit."""
    bearing: list[Any] = [
        t.get("tolerationSeconds")
        for t in (pod.get("spec") or {}).get("tolerations") or ()
        if t.get("effect", "NoExecute") in ("NoExecute", "")
        and (t.get("key") == key or (not t.get("key") and t.get("operator") == "Exists"))
    ]
    if not bearing:
        return DEFAULT_TOLERATION_S
    return None if None in bearing else min(float(seconds) for seconds in bearing)
