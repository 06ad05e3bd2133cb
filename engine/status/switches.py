"""``tor-share-cm``: how running jobs share each leaf switch, as MindCluster's scheduler shows it under NSLB 2.0.

Format: key ``global-tor-info`` with ``{"<switch ip>": {"IsHealthy", "IsSharedTor", "nodes": [{"NodeIp", "NodeName",
"JobName": []}]}}``; docs/zh/scheduling (switch affinity 2.0) and component/ascend-for-volcano/plugin/tor.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import GROUP_NAME, IS_HEALTHY_TOR, IS_SHARED_TOR, MANAGED_BY
from belay.engine.model.plan import Plan
from belay.engine.status.bodies import config_map
from belay.engine.wire import switches as wire
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import go_json

NAMESPACE: Final = "volcano-system"
NAME: Final = "tor-share-cm"
KEY: Final = "global-tor-info"
IMPORTED: Final = ObjectKey("v1", "ConfigMap", wire.NAMESPACE, wire.NAME)
SHOWN: Final = ObjectKey("v1", "ConfigMap", NAMESPACE, NAME)


def share_bodies(plan: Plan, observed: Observed) -> list[dict[str, Any]]:
    """The ConfigMap, once pods carry the kind of their switch; none where another component owns it."""
    imported, shown = observed.objects.get(IMPORTED), observed.objects.get(SHOWN)
    if imported is None or (shown is not None and not _own(shown)):
        return []
    marked = _marked_pods(plan, observed)
    if not marked and shown is None:
        return []
    try:
        switches = wire.parse(imported)
    except WireError:
        return []  # the plan's diagnostics report it; the ConfigMap stays as it is
    by_address = {node.internal_ip: name for name, node in sorted(observed.nodes.items(), reverse=True)}
    body: dict[str, Any] = {}
    for switch in switches.switches:
        names = [(server.address, by_address.get(server.address, "")) for server in switch.servers]
        kind, unhealthy = wire.state(notes for _, name in names for _, notes in marked.get(name, ()))
        jobs = {name: sorted({job for job, _ in marked.get(name, ())}) for _, name in names}
        body[switch.address] = {
            "IsHealthy": int(unhealthy),
            "IsSharedTor": kind,
            "nodes": [{"NodeIp": ip, "NodeName": name, "JobName": jobs[name]} for ip, name in names],
        }
    return [config_map(NAMESPACE, NAME, {KEY: go_json(dict(sorted(body.items())))})]


def _marked_pods(plan: Plan, observed: Observed) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """(job, annotations) of each node's pods that carry the kind of their switch, including the plan's bindings."""
    found: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for pod in observed.pods.values():
        if pod.holds_chips and IS_SHARED_TOR in pod.annotations:
            found.setdefault(pod.node, []).append((_job(pod), _notes(pod.annotations)))
    for action in plan.actions:
        if isinstance(action, BindPod) and IS_SHARED_TOR in action.annotations:
            bound = observed.pods.get(f"{action.namespace}/{action.pod}")
            if bound is not None and not bound.node:
                found.setdefault(action.node, []).append((_job(bound), _notes(action.annotations)))
    return found


def _notes(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: annotations.get(key, "") for key in (IS_SHARED_TOR, IS_HEALTHY_TOR)}


def _job(pod: Pod) -> str:
    group = pod.annotations.get(GROUP_NAME, "")
    return f"{pod.namespace}/{pod.owner_name or group or pod.name}"


def _own(raw: Mapping[str, Any]) -> bool:
    labels = (raw.get("metadata") or {}).get("labels") or {}
    return labels.get(MANAGED_BY) == "belay"
