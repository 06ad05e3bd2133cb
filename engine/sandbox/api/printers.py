"""Columns of built-in kinds, as pkg/printers/internalversion/printers.go of Kubernetes prints them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.sandbox.api.durations import human_duration
from engine.sandbox.api.kinds import JSON, Column
from engine.sandbox.api.metadata import parse_time

Age = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns and the function that makes one row's cells."""

    columns: tuple[Column, ...]
    cells: Callable[[JSON, Age], list[Any]]


def _columns(text: str) -> tuple[Column, ...]:
    """`Name|Ready:integer|IP*`: `:` gives the type, `*` means only with -o wide."""
    made: list[Column] = []
    for part in text.split("|"):
        name, _, kind = part.rstrip("*").partition(":")
        made.append(
            Column(name, kind or "string", "name" if name == "Name" else "", "", 1 if part.endswith("*") else 0)
        )
    return tuple(made)


def _meta(obj: JSON) -> JSON:
    found: JSON = obj["metadata"]
    return found


def _map(labels: JSON | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"


def _selector(selector: JSON | None) -> str:
    if not selector:
        return "<none>"
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for e in selector.get("matchExpressions") or ():
        parts.append(f"{e.get('key')} {str(e.get('operator', '')).lower()} ({','.join(e.get('values') or ())})")
    return ",".join(parts) or "<none>"


def _containers(spec: JSON) -> tuple[str, str]:
    containers = spec.get("containers") or ()
    return ",".join(c.get("name", "") for c in containers), ",".join(c.get("image", "") for c in containers)


def _pod(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    containers = spec.get("containers") or ()
    statuses = status.get("containerStatuses") or ()
    restarts = sum(c.get("restartCount", 0) for c in statuses)
    gates = spec.get("readinessGates") or ()
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    ready = sum(bool(c.get("ready")) for c in statuses)
    return [
        _meta(obj)["name"],
        f"{ready}/{len(containers)}",
        _pod_reason(obj, statuses),
        str(restarts),
        age(_meta(obj).get("creationTimestamp")),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{sum(conditions.get(g.get('conditionType')) == 'True' for g in gates)}/{len(gates)}" if gates else "<none>",
    ]


def _pod_reason(obj: JSON, statuses: Any) -> str:
    status = obj.get("status") or {}
    reason: str = status.get("reason") or status.get("phase") or "Unknown"
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions") or ()
    ):
        reason = "SchedulingGated"
    for container in statuses:
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated:
            reason = terminated.get("reason") or f"ExitCode:{terminated.get('exitCode', 0)}"
    if "deletionTimestamp" in obj["metadata"]:
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _node(obj: JSON, age: Age) -> list[Any]:
    spec, status, metadata = obj.get("spec") or {}, obj.get("status") or {}, _meta(obj)
    ready = next((c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    word = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    if spec.get("unschedulable"):
        word += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in metadata.get("labels") or {} if key.startswith(prefix))
    info = status.get("nodeInfo") or {}
    addresses = {a.get("type"): a.get("address") for a in reversed(status.get("addresses") or [])}
    return [
        metadata["name"],
        word,
        ",".join(role for role in roles if role) or "<none>",
        age(metadata.get("creationTimestamp")),
        info.get("kubeletVersion") or "",
        addresses.get("InternalIP") or "<none>",
        addresses.get("ExternalIP") or "<none>",
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _configmap(obj: JSON, age: Age) -> list[Any]:
    return [
        _meta(obj)["name"],
        len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
        age(_meta(obj).get("creationTimestamp")),
    ]


def _secret(obj: JSON, age: Age) -> list[Any]:
    return [
        _meta(obj)["name"],
        obj.get("type", ""),
        len(obj.get("data") or ()),
        age(_meta(obj).get("creationTimestamp")),
    ]


def _service(obj: JSON, age: Age) -> list[Any]:
    spec = obj.get("spec") or {}
    ports = ",".join(
        f"{p.get('port')}:{p['nodePort']}/{p.get('protocol')}"
        if p.get("nodePort")
        else f"{p.get('port')}/{p.get('protocol')}"
        for p in spec.get("ports") or ()
    )
    return [
        _meta(obj)["name"],
        spec.get("type", ""),
        spec.get("clusterIP") or "<none>",
        "<pending>" if spec.get("type") == "LoadBalancer" else "<none>",
        ports or "<none>",
        age(_meta(obj).get("creationTimestamp")),
        _map(spec.get("selector")),
    ]


def _deployment(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = _containers((spec.get("template") or {}).get("spec") or {})
    return [
        _meta(obj)["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age(_meta(obj).get("creationTimestamp")),
        names,
        images,
        _selector(spec.get("selector")),
    ]


def _statefulset(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = _containers((spec.get("template") or {}).get("spec") or {})
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [_meta(obj)["name"], ready, age(_meta(obj).get("creationTimestamp")), names, images]


def _replicaset(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = _containers((spec.get("template") or {}).get("spec") or {})
    counts = [spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [
        _meta(obj)["name"],
        *counts,
        age(_meta(obj).get("creationTimestamp")),
        names,
        images,
        _selector(spec.get("selector")),
    ]


def _daemonset(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    names, images = _containers(template)
    fields = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    counts = [status.get(field, 0) for field in fields]
    created = age(_meta(obj).get("creationTimestamp"))
    return [
        _meta(obj)["name"],
        *counts,
        _map(template.get("nodeSelector")),
        created,
        names,
        images,
        _selector(spec.get("selector")),
    ]


def _job(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = _containers((spec.get("template") or {}).get("spec") or {})
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    word = next(
        (
            word
            for kind, word in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended"))
            if conditions.get(kind) == "True"
        ),
        "Running",
    )
    if "deletionTimestamp" in _meta(obj):
        word = "Terminating"
    wanted = spec.get("completions")
    parallel = spec.get("parallelism", 1)
    total = wanted if wanted is not None else f"1 of {parallel}" if parallel > 1 else 1
    return [
        _meta(obj)["name"],
        word,
        f"{status.get('succeeded', 0)}/{total}",
        age(status.get("startTime")) if status.get("startTime") and not status.get("completionTime") else _span(status),
        age(_meta(obj).get("creationTimestamp")),
        names,
        images,
        _selector(spec.get("selector")),
    ]


def _span(status: JSON) -> str:
    if not status.get("startTime") or not status.get("completionTime"):
        return ""
    return human_duration(parse_time(status["completionTime"]) - parse_time(status["startTime"]))


def _cronjob(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    last = age(status["lastScheduleTime"]) if status.get("lastScheduleTime") else "<none>"
    active = len(status.get("active") or ())
    created = age(_meta(obj).get("creationTimestamp"))
    return [
        _meta(obj)["name"],
        spec.get("schedule", ""),
        spec.get("timeZone") or "<none>",
        str(bool(spec.get("suspend"))),
        active,
        last,
        created,
    ]


def _event(obj: JSON, age: Age) -> list[Any]:
    target = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or {}
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = (obj.get("series") or {}).get("lastObservedTime") or obj.get("lastTimestamp") or first
    where = f"{str(target.get('kind', '')).lower()}/{target.get('name', '')}"
    if target.get("fieldPath"):
        where_path = target["fieldPath"]
    else:
        where_path = ""
    origin = source.get("component") or obj.get("reportingComponent") or ""
    if source.get("host"):
        origin += f", {source['host']}"
    count = (obj.get("series") or {}).get("count") or obj.get("count") or 1
    message = str(obj.get("message", "")).strip()
    return [
        age(last),
        obj.get("type", ""),
        obj.get("reason", ""),
        where,
        where_path,
        origin,
        message,
        age(first),
        count,
        _meta(obj)["name"],
    ]


def _namespace(obj: JSON, age: Age) -> list[Any]:
    return [_meta(obj)["name"], (obj.get("status") or {}).get("phase", ""), age(_meta(obj).get("creationTimestamp"))]


def _lease(obj: JSON, age: Age) -> list[Any]:
    return [
        _meta(obj)["name"],
        (obj.get("spec") or {}).get("holderIdentity") or "",
        age(_meta(obj).get("creationTimestamp")),
    ]


def _priority_class(obj: JSON, age: Age) -> list[Any]:
    created = age(_meta(obj).get("creationTimestamp"))
    return [
        _meta(obj)["name"],
        obj.get("value", 0),
        str(bool(obj.get("globalDefault"))).lower(),
        created,
        obj.get("preemptionPolicy", ""),
    ]


def _service_account(obj: JSON, age: Age) -> list[Any]:
    return [_meta(obj)["name"], len(obj.get("secrets") or ()), age(_meta(obj).get("creationTimestamp"))]


def _endpoints(obj: JSON, age: Age) -> list[Any]:
    shown = [
        f"{a.get('ip')}:{p.get('port')}"
        for subset in obj.get("subsets") or ()
        for a in subset.get("addresses") or ()
        for p in subset.get("ports") or ()
    ]
    text = ",".join(shown[:3]) + (f" + {len(shown) - 3} more..." if len(shown) > 3 else "")
    return [_meta(obj)["name"], text or "<none>", age(_meta(obj).get("creationTimestamp"))]


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(modes: Any) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in modes or ())


def _volume(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    claim = spec.get("claimRef") or {}
    return [
        _meta(obj)["name"],
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        status.get("phase", ""),
        f"{claim.get('namespace')}/{claim.get('name')}" if claim else "",
        spec.get("storageClassName", ""),
        status.get("reason", ""),
        age(_meta(obj).get("creationTimestamp")),
    ]


def _claim(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    capacity = (status.get("capacity") or {}).get("storage", "")
    created = age(_meta(obj).get("creationTimestamp"))
    return [
        _meta(obj)["name"],
        status.get("phase", ""),
        spec.get("volumeName", ""),
        capacity,
        _modes(status.get("accessModes")),
        spec.get("storageClassName", ""),
        created,
    ]


def _named(obj: JSON, age: Age) -> list[Any]:
    return [_meta(obj)["name"], _meta(obj).get("creationTimestamp", "")]


def _role_binding(obj: JSON, age: Age) -> list[Any]:
    role = obj.get("roleRef") or {}
    return [_meta(obj)["name"], f"{role.get('kind')}/{role.get('name')}", age(_meta(obj).get("creationTimestamp"))]


def _budget(obj: JSON, age: Age) -> list[Any]:
    spec = obj.get("spec") or {}
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    allowed = (obj.get("status") or {}).get("disruptionsAllowed", 0)
    return [
        _meta(obj)["name"],
        "N/A" if least is None else str(least),
        "N/A" if most is None else str(most),
        allowed,
        age(_meta(obj).get("creationTimestamp")),
    ]


_WORKLOAD = "Containers*|Images*|Selector*"

PRINTERS: dict[str, Printer] = {
    "pods": Printer(_columns("Name|Ready|Status|Restarts|Age|IP*|Node*|Nominated Node*|Readiness Gates*"), _pod),
    "nodes": Printer(
        _columns(
            "Name|Status|Roles|Age|Version|Internal-IP*|External-IP*|OS-Image*|Kernel-Version*|Container-Runtime*"
        ),
        _node,
    ),
    "configmaps": Printer(_columns("Name|Data:integer|Age"), _configmap),
    "secrets": Printer(_columns("Name|Type|Data:integer|Age"), _secret),
    "services": Printer(_columns("Name|Type|Cluster-IP|External-IP|Port(s)|Age|Selector*"), _service),
    "deployments.apps": Printer(
        _columns(f"Name|Ready|Up-to-date:integer|Available:integer|Age|{_WORKLOAD}"), _deployment
    ),
    "statefulsets.apps": Printer(_columns("Name|Ready|Age|Containers*|Images*"), _statefulset),
    "replicasets.apps": Printer(
        _columns(f"Name|Desired:integer|Current:integer|Ready:integer|Age|{_WORKLOAD}"), _replicaset
    ),
    "replicationcontrollers": Printer(
        _columns(f"Name|Desired:integer|Current:integer|Ready:integer|Age|{_WORKLOAD}"), _replicaset
    ),
    "daemonsets.apps": Printer(
        _columns(
            f"Name|Desired:integer|Current:integer|Ready:integer|Up-to-date:integer|Available:integer|Node "
            f"Selector|Age|{_WORKLOAD}"
        ),
        _daemonset,
    ),
    "jobs.batch": Printer(_columns(f"Name|Status|Completions|Duration|Age|{_WORKLOAD}"), _job),
    "cronjobs.batch": Printer(_columns("Name|Schedule|Timezone|Suspend|Active:integer|Last Schedule|Age"), _cronjob),
    "events": Printer(
        _columns("Last Seen|Type|Reason|Object|Subobject*|Source*|Message|First Seen*|Count*:integer|Name*"), _event
    ),
    "namespaces": Printer(_columns("Name|Status|Age"), _namespace),
    "leases.coordination.k8s.io": Printer(_columns("Name|Holder|Age"), _lease),
    "priorityclasses.scheduling.k8s.io": Printer(
        _columns("Name|Value:integer|Global-Default:boolean|Age|PreemptionPolicy"), _priority_class
    ),
    "serviceaccounts": Printer(_columns("Name|Secrets:integer|Age"), _service_account),
    "endpoints": Printer(_columns("Name|Endpoints|Age"), _endpoints),
    "persistentvolumes": Printer(
        _columns("Name|Capacity|Access Modes|Reclaim Policy|Status|Claim|StorageClass|Reason|Age"), _volume
    ),
    "persistentvolumeclaims": Printer(_columns("Name|Status|Volume|Capacity|Access Modes|StorageClass|Age"), _claim),
    "customresourcedefinitions.apiextensions.k8s.io": Printer(_columns("Name|Created At"), _named),
    "roles.rbac.authorization.k8s.io": Printer(_columns("Name|Created At"), _named),
    "clusterroles.rbac.authorization.k8s.io": Printer(_columns("Name|Created At"), _named),
    "rolebindings.rbac.authorization.k8s.io": Printer(_columns("Name|Role|Age"), _role_binding),
    "clusterrolebindings.rbac.authorization.k8s.io": Printer(_columns("Name|Role|Age"), _role_binding),
    "poddisruptionbudgets.policy": Printer(
        _columns("Name|Min Available|Max Unavailable|Allowed Disruptions:integer|Age"), _budget
    ),
}
"""Printer of each collection."""
