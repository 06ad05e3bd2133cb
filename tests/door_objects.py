"""Objects to try doors on: one of each resource that an account of Belay may write, at every kind of target."""

from __future__ import annotations

import copy
from typing import Any

from belay.engine.wire.names import RECOVERIES
from tests.doors import JOB, OTHER, OTHER_JOB, OWN, PLACES, Cluster, _targets

Json = dict[str, Any]
_CONTAINER: Json = {
    "name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
    "securityContext": {
        "allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 1000, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}  # fmt: skip
_LABELS = {"door": "x"}
_TEMPLATE: Json = {"metadata": {"labels": _LABELS}, "spec": {"containers": [_CONTAINER]}}
_SELECTED: Json = {"selector": {"matchLabels": _LABELS}, "template": _TEMPLATE}
_SIZE: Json = {"storage": "1Gi"}
#: Bodies of Kubernetes' own kinds without apiVersion, kind and metadata.
_BODIES: dict[str, Json] = {
    "configmaps": {"data": {"a": "b"}},
    "secrets": {"type": "Opaque"},
    "services": {"spec": {"ports": [{"port": 1}], "selector": _LABELS}},
    "persistentvolumeclaims": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": _SIZE}}},
    "persistentvolumes": {
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": _SIZE, "hostPath": {"path": "/nowhere"}},
    },
    "deployments": {"spec": _SELECTED},
    "statefulsets": {"spec": {**_SELECTED, "serviceName": "door"}},
    "jobs.batch": {"spec": {"template": {"spec": {"containers": [_CONTAINER], "restartPolicy": "Never"}}}},
    "horizontalpodautoscalers": {
        "spec": {"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "door"}},
    },
    "leases": {"spec": {"holderIdentity": "x"}},
    "namespaces": {},
    "nodes": {},
    "priorityclasses": {"value": 5},
    "resourceclaims": {"spec": {"devices": {}}},
}  # fmt: skip
_WITHOUT_BODY = frozenset({"tokenreviews", "subjectaccessreviews", "validatingwebhookconfigurations"})


def _body(name: str, group: str, namespace: str, own: str) -> Json:
    """The body of an object; a pod is on the node that its name ends with."""
    node = OWN if own.endswith(OWN) else OTHER
    if name == "pods":
        return {"spec": {"containers": [_CONTAINER], "nodeName": node}}
    if name == "resourceslices":
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        return {"spec": {"driver": "npu.huawei.com", "nodeName": node, "pool": pool, "devices": []}}
    if name == "events":
        return {"involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace}, "reason": "Door"}
    return copy.deepcopy(_BODIES.get(f"{name}.{group}", _BODIES.get(name, {})))


def smallest(schema: Json) -> Any:
    """The smallest value that a schema of a definition takes."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            known = schema.get("properties", {})
            return {field: smallest(known.get(field, {})) for field in schema.get("required", ())}
        case "array":
            return [smallest(schema["items"])] * schema.get("minItems", 0)
        case "string":
            return "x" * schema.get("minLength", 1)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
    return {}


async def _definitions(cluster: Cluster) -> dict[tuple[str, str], Json]:
    """The smallest object of each defined kind, by group and resource; and the smallest status, for the cluster."""
    _, found = await cluster.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    bodies = {}
    for definition in found["items"]:
        spec = definition["spec"]
        schema = next(one for one in spec["versions"] if one["storage"])["schema"]["openAPIV3Schema"]
        parts = schema.get("properties", {})
        body = smallest({**parts.get("spec", {}), "type": "object"})
        kind = spec["group"], spec["names"]["plural"]
        bodies[kind] = {"spec": body}
        cluster.statuses[kind] = smallest({**parts.get("status", {}), "type": "object"})
    return bodies


async def make(cluster: Cluster, written: frozenset[tuple[str, str]]) -> None:
    """Make the namespaces of two jobs, and an object of each resource (group and name) in ``written``."""
    for namespace in (JOB, OTHER_JOB, *PLACES, RECOVERIES):
        metadata: Json = {"name": namespace}
        if namespace == "kube-system":  # as API servers from 1.21 on label it themselves
            label = {"metadata": {"labels": {"kubernetes.io/metadata.name": namespace}}}
            await cluster.call("PATCH", f"/api/v1/namespaces/{namespace}", label)
        await cluster.make({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    defined = await _definitions(cluster)
    for resource in cluster.resources:
        if (resource.group, resource.name) not in written or resource.name in _WITHOUT_BODY:
            continue
        for target in _targets(resource, "get"):
            own = defined.get((resource.group, resource.name))
            body = own or _body(resource.name, resource.group, target.namespace, target.name)
            metadata = {"name": target.name, **({"namespace": target.namespace} if resource.namespaced else {})}
            if target.name.startswith("mindx-dl-deviceinfo-"):
                metadata["labels"] = {"mx-consumer-cim": "true"}
            await cluster.make({"apiVersion": resource.version, "kind": resource.kind, "metadata": metadata, **body})
