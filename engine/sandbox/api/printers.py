"""Columns of built-in kinds, as pkg/printers/internalversion/printers.go of Kubernetes prints them."""

from __future__ import annotations

from typing import Any

from belay.engine.sandbox.api.kinds import JSON
from belay.engine.sandbox.api.printers_workloads import WORKLOAD_PRINTERS
from belay.engine.sandbox.api.printing import Age, Printer, columns, joined, meta


def _node(obj: JSON, age: Age) -> list[Any]:
    spec, status, metadata = obj.get("spec") or {}, obj.get("status") or {}, meta(obj)
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
        meta(obj)["name"],
        len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
        age(meta(obj).get("creationTimestamp")),
    ]


def _secret(obj: JSON, age: Age) -> list[Any]:
    return [
        meta(obj)["name"],
        obj.get("type", ""),
        len(obj.get("data") or ()),
        age(meta(obj).get("creationTimestamp")),
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
        meta(obj)["name"],
        spec.get("type", ""),
        spec.get("clusterIP") or "<none>",
        "<pending>" if spec.get("type") == "LoadBalancer" else "<none>",
        ports or "<none>",
        age(meta(obj).get("creationTimestamp")),
        joined(spec.get("selector")),
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
        meta(obj)["name"],
    ]


def _namespace(obj: JSON, age: Age) -> list[Any]:
    return [meta(obj)["name"], (obj.get("status") or {}).get("phase", ""), age(meta(obj).get("creationTimestamp"))]


def _lease(obj: JSON, age: Age) -> list[Any]:
    return [
        meta(obj)["name"],
        (obj.get("spec") or {}).get("holderIdentity") or "",
        age(meta(obj).get("creationTimestamp")),
    ]


def _priority_class(obj: JSON, age: Age) -> list[Any]:
    created = age(meta(obj).get("creationTimestamp"))
    return [
        meta(obj)["name"],
        obj.get("value", 0),
        str(bool(obj.get("globalDefault"))).lower(),
        created,
        obj.get("preemptionPolicy", ""),
    ]


def _service_account(obj: JSON, age: Age) -> list[Any]:
    return [meta(obj)["name"], len(obj.get("secrets") or ()), age(meta(obj).get("creationTimestamp"))]


def _endpoints(obj: JSON, age: Age) -> list[Any]:
    shown = [
        f"{a.get('ip')}:{p.get('port')}"
        for subset in obj.get("subsets") or ()
        for a in subset.get("addresses") or ()
        for p in subset.get("ports") or ()
    ]
    text = ",".join(shown[:3]) + (f" + {len(shown) - 3} more..." if len(shown) > 3 else "")
    return [meta(obj)["name"], text or "<none>", age(meta(obj).get("creationTimestamp"))]


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(modes: Any) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in modes or ())


def _volume(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    claim = spec.get("claimRef") or {}
    return [
        meta(obj)["name"],
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        status.get("phase", ""),
        f"{claim.get('namespace')}/{claim.get('name')}" if claim else "",
        spec.get("storageClassName", ""),
        status.get("reason", ""),
        age(meta(obj).get("creationTimestamp")),
    ]


def _claim(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    capacity = (status.get("capacity") or {}).get("storage", "")
    created = age(meta(obj).get("creationTimestamp"))
    return [
        meta(obj)["name"],
        status.get("phase", ""),
        spec.get("volumeName", ""),
        capacity,
        _modes(status.get("accessModes")),
        spec.get("storageClassName", ""),
        created,
    ]


def _named(obj: JSON, age: Age) -> list[Any]:
    return [meta(obj)["name"], meta(obj).get("creationTimestamp", "")]


def _role_binding(obj: JSON, age: Age) -> list[Any]:
    role = obj.get("roleRef") or {}
    return [meta(obj)["name"], f"{role.get('kind')}/{role.get('name')}", age(meta(obj).get("creationTimestamp"))]


def _budget(obj: JSON, age: Age) -> list[Any]:
    spec = obj.get("spec") or {}
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    allowed = (obj.get("status") or {}).get("disruptionsAllowed", 0)
    return [
        meta(obj)["name"],
        "N/A" if least is None else str(least),
        "N/A" if most is None else str(most),
        allowed,
        age(meta(obj).get("creationTimestamp")),
    ]


PRINTERS: dict[str, Printer] = {
    **WORKLOAD_PRINTERS,
    "nodes": Printer(
        columns("Name|Status|Roles|Age|Version|Internal-IP*|External-IP*|OS-Image*|Kernel-Version*|Container-Runtime*"),
        _node,
    ),
    "configmaps": Printer(columns("Name|Data:integer|Age"), _configmap),
    "secrets": Printer(columns("Name|Type|Data:integer|Age"), _secret),
    "services": Printer(columns("Name|Type|Cluster-IP|External-IP|Port(s)|Age|Selector*"), _service),
    "events": Printer(
        columns("Last Seen|Type|Reason|Object|Subobject*|Source*|Message|First Seen*|Count*:integer|Name*"), _event
    ),
    "namespaces": Printer(columns("Name|Status|Age"), _namespace),
    "leases.coordination.k8s.io": Printer(columns("Name|Holder|Age"), _lease),
    "priorityclasses.scheduling.k8s.io": Printer(
        columns("Name|Value:integer|Global-Default:boolean|Age|PreemptionPolicy"), _priority_class
    ),
    "serviceaccounts": Printer(columns("Name|Secrets:integer|Age"), _service_account),
    "endpoints": Printer(columns("Name|Endpoints|Age"), _endpoints),
    "persistentvolumes": Printer(
        columns("Name|Capacity|Access Modes|Reclaim Policy|Status|Claim|StorageClass|Reason|Age"), _volume
    ),
    "persistentvolumeclaims": Printer(columns("Name|Status|Volume|Capacity|Access Modes|StorageClass|Age"), _claim),
    "customresourcedefinitions.apiextensions.k8s.io": Printer(columns("Name|Created At"), _named),
    "roles.rbac.authorization.k8s.io": Printer(columns("Name|Created At"), _named),
    "clusterroles.rbac.authorization.k8s.io": Printer(columns("Name|Created At"), _named),
    "rolebindings.rbac.authorization.k8s.io": Printer(columns("Name|Role|Age"), _role_binding),
    "clusterrolebindings.rbac.authorization.k8s.io": Printer(columns("Name|Role|Age"), _role_binding),
    "poddisruptionbudgets.policy": Printer(
        columns("Name|Min Available|Max Unavailable|Allowed Disruptions:integer|Age"), _budget
    ),
}
"""Printer of each collection."""
