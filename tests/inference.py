"""Inference services as users write them, and what MindCluster's infer operator has made of them.

The objects of ``left_by_operator`` are written out by hand from component/infer-operator/pkg (26.1), not derived from
Belay's code.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.jobs import template

API = "mindcluster.huawei.com/v1"
PREFIX = "infer.huawei.com/"
Raw = dict[str, Any]


def role(name: str = "prefill", replicas: int = 1, kind: str = "StatefulSet", **more: Any) -> Raw:
    """A role of instances with two pods of eight chips (``pods``, ``chips``)."""
    gang, pods, chips = more.pop("gang", False), more.pop("pods", 2), more.pop("chips", 8)
    labels, image, notes = more.pop("labels", {}), more.pop("image", "serve:1"), more.pop("annotations", {})
    pod = template(chips, container="serve", image=image, schedulerName="volcano")
    pod["metadata"]["labels"] = {"app": f"test-{name}", **labels}
    spec: Raw = {"replicas": pods, "selector": {"matchLabels": {"app": f"test-{name}"}}, "template": pod}
    if kind == "StatefulSet":
        spec["podManagementPolicy"] = "Parallel"
    meta: Raw = {**({"labels": {PREFIX + "gang-schedule": "true"}} if gang else {}), "annotations": notes}
    return {
        "name": name, "replicas": replicas, "workload": {"apiVersion": "apps/v1", "kind": kind}, "metadata": meta,
        "spec": spec, **more,
    }  # fmt: skip


def body(kind: str, name: str, spec: Raw, *, annotations: dict[str, str] | None = None, **labels: str) -> Raw:
    """An object of the infer operator's group."""
    meta: Raw = {"name": name, "namespace": "vision", "uid": f"u-{name}", "labels": labels, "generation": 1}
    if annotations:
        meta["annotations"] = annotations
    return {"apiVersion": API, "kind": kind, "metadata": meta, "spec": spec}


def service_set(*roles: Raw, replicas: int = 1, annotations: dict[str, str] | None = None, **spec: Any) -> Raw:
    """An InferServiceSet ``llm``."""
    inner = {"replicas": replicas, "template": {"roles": list(roles), **spec}}
    return body("InferServiceSet", "llm", inner, annotations=annotations)


def owner(raw: Raw) -> list[Raw]:
    """The owner reference of a child, as controller-runtime writes it."""
    meta = raw["metadata"]
    return [{
        "apiVersion": raw["apiVersion"], "kind": raw["kind"], "name": meta["name"], "uid": meta["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }]  # fmt: skip


def left_by_operator(root: Raw) -> list[Raw]:
    """The set's service ``llm-0`` with its instances, as the infer operator leaves them behind when it is removed."""
    found = [root]
    roles = root["spec"]["template"]["roles"]
    service = body("InferService", "llm-0", copy.deepcopy(root["spec"]["template"]),
                   **{PREFIX + "inferserviceset-name": "llm", PREFIX + "inferservice-index": "0"})  # fmt: skip
    service["metadata"]["ownerReferences"] = owner(root)
    found.append(service)
    for one in roles:
        head = one.get("metadata") or {}
        labels = {
            **(head.get("labels") or {}), PREFIX + "inferservice-name": "llm-0",
            PREFIX + "instanceset-name": one["name"], PREFIX + "priority-scheduling-strategy": "Parallel",
        }  # fmt: skip
        instances = body("InstanceSet", f"llm-0-{one['name']}", copy.deepcopy(one), **labels)
        instances["metadata"]["annotations"] = dict(head.get("annotations") or {})
        instances["metadata"]["ownerReferences"] = owner(service)
        found.append(instances)
        for index in range(one["replicas"]):
            found.extend(_instance(instances, one, labels, index))
    return found


def _instance(instances: Raw, one: Raw, labels: dict[str, str], index: int) -> list[Raw]:
    kind, name = one["workload"]["kind"], f"llm-0-{one['name']}-{index}"
    marks = {
        PREFIX + "inferservice-name": "llm-0", PREFIX + "instanceset-name": one["name"],
        PREFIX + "instanceset-index": str(index), PREFIX + "ascend-infer-operator": "true",
    }  # fmt: skip
    spec = copy.deepcopy(one["spec"])
    pod = spec["template"]
    pod["metadata"]["labels"] |= marks
    gang = labels.get(PREFIX + "gang-schedule") == "true"
    if gang:
        pod["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": f"pg-{name}"}
    for row in pod["spec"]["containers"]:
        row["env"] = [*row.get("env", []), *(
            {"name": key, "value": value} for key, value in (
                ("INSTANCE_INDEX", str(index)), ("INSTANCE_ROLE", one["name"]), ("INFER_SERVICE_INDEX", "0"),
                ("INFER_SERVICE_NAME", "llm"),
            )
        )]  # fmt: skip
    services = []
    head = {"namespace": "vision", "labels": marks, "ownerReferences": owner(instances)}
    port = {"name": "infer", "port": 8080}
    if kind == "StatefulSet":
        spec["serviceName"] = f"service-{name}"
        services = [{"apiVersion": "v1", "kind": "Service", "metadata": {**head, "name": f"service-{name}"},
                     "spec": {"clusterIP": "None", "selector": marks, "ports": [port]}}]  # fmt: skip
    elif not one.get("services"):
        services = [{"apiVersion": "v1", "kind": "Service", "metadata": {**head, "name": f"service-{name}"},
                     "spec": {"selector": marks, "ports": [{**port, "targetPort": 8080}]}}]  # fmt: skip
    # what the API server adds
    pod["spec"] |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30}
    spec |= {"revisionHistoryLimit": 10}
    size = one["spec"]["replicas"]
    workload = {
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": {"name": name, "namespace": "vision", "uid": f"u-{name}", "generation": 1,
                     "labels": {**labels, **marks}, "ownerReferences": owner(instances)},
        "spec": spec,
        "status": {"observedGeneration": 1, "replicas": size, "readyReplicas": size, "updatedReplicas": size,
                   "availableReplicas": size},
    }  # fmt: skip
    group = [{
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": f"pg-{name}", "namespace": "vision", "labels": {**labels, **marks},
                     "ownerReferences": owner(instances)},
        "spec": {"minMember": size, "minResources": {"huawei.com/Ascend910": str(8 * size)}},
    }] if gang else []  # fmt: skip
    return [*services, workload, *group, *(_pod(workload, n) for n in range(size))]


def _pod(workload: Raw, number: int) -> Raw:
    name = f"{workload['metadata']['name']}-{number}"
    pod = copy.deepcopy(workload["spec"]["template"])
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {**pod["metadata"], "name": name, "namespace": "vision", "uid": f"u-{name}",
                     "ownerReferences": owner(workload)},
        "spec": {**pod["spec"], "nodeName": f"node-{number}"},
        "status": {"phase": "Running", "startTime": "2026-09-01T07:00:00Z",
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip
