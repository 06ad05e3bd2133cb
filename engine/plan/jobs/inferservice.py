"""Inference services: instance sets, workloads and Services, as MindCluster's infer operator makes them.

InferServiceSet → InferServices → one InstanceSet a role → a Deployment or StatefulSet, a Service and (gang) a PodGroup
for every instance. Each level follows from the live objects of the level above, so every pass creates what is missing.
Source: component/infer-operator/pkg/controller.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from engine.gangs.job_status import merge_patch
from engine.model.cluster import Pod
from engine.model.diagnostics import ObjectKey
from engine.model.reasons import ActionReason
from engine.model.times import rfc3339
from engine.plan.jobs.lifecycle import POD_GROUP_API, ExpansionContext, JobObject, part, rows, texts
from engine.plan.jobs.pod_template import GROUP_NAME, containers, min_resources, plain, set_env

API: Final = "mindcluster.huawei.com/v1"
SET, SERVICE, INSTANCES = "InferServiceSet", "InferService", "InstanceSet"
KINDS: Final = (SET, SERVICE, INSTANCES)
_LABEL: Final = "infer.huawei.com/"
MANAGED: Final = _LABEL + "ascend-infer-operator"
SET_NAME: Final = _LABEL + "inferserviceset-name"
SERVICE_NAME: Final = _LABEL + "inferservice-name"
SERVICE_INDEX: Final = _LABEL + "inferservice-index"
INSTANCES_NAME: Final = _LABEL + "instanceset-name"
INSTANCE_INDEX: Final = _LABEL + "instanceset-index"
ROLE: Final = _LABEL + "role-name"
PRIORITY: Final = _LABEL + "priority-scheduling-strategy"
GANG: Final = _LABEL + "gang-schedule"
SERVICE_ID: Final = "inferserviceid"
POD_STATUS: Final = "huawei.com/pod-status"
MAX_SERVICES: Final = 64
MAX_ROLES: Final = 32
MAX_REPLICAS: Final = 256
DEFAULT_PORT: Final = 8080
_APPS: Final = "apps/v1"
_WORKLOADS: Final = frozenset({"Deployment", "StatefulSet"})
_DNS: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_EXTERNAL: Final = frozenset({"external-force", "external-grace"})


def expand(context: ExpansionContext) -> None:
    """Plan the next actions of the snapshot's inference services; none where MindCluster's infer operator runs."""
    if not any((API, kind) in context.kinds for kind in KINDS) or _operator_runs(context):
        return
    for found in context.jobs(API, SET):
        if not found.deleting:
            _set(context, found)
    for found in context.jobs(API, SERVICE):
        if not found.deleting:
            _service(context, found)
    for found in context.jobs(API, INSTANCES):
        if not found.deleting:
            _instances(context, found)


def _operator_runs(context: ExpansionContext) -> bool:
    """Whether MindCluster's infer operator is alive."""
    return any(
        pod.namespace == "mindx-dl" and pod.name.startswith("infer-operator") and pod.phase == "Running"
        for pod in context.scope.observed.pods.values()
    )


def _set(context: ExpansionContext, one: JobObject) -> None:
    spec = part(one.raw, "spec")
    count = _count(spec.get("replicas", 1), MAX_SERVICES)
    if not count:
        context.warn(one, "spec.replicas", f"must be 1 to {MAX_SERVICES}; no service is created")
        return
    template = part(spec, "template")
    body = part(template, "spec") if "roles" not in template else template
    for index in range(count):
        labels = {SET_NAME: one.key.name, SERVICE_INDEX: str(index), MANAGED: "true", **_service_id_label(one)}
        _ensure(context, one, _object(one, SERVICE, f"{one.key.name}-{index}", labels, body))
    _remove_surplus(context, one, SERVICE, count, SERVICE_INDEX)
    ready = sum(_is_ready(raw) for raw in _children(context, one, SERVICE))
    _status(context, one, ready, count, "AllInferServicesReady", "InferServicesNotReady")


def _service(context: ExpansionContext, one: JobObject) -> None:
    spec = part(one.raw, "spec")
    roles = rows(spec, "roles")
    wrong = _invalid_roles(roles)
    if wrong:
        context.warn(one, "spec.roles", f"{wrong}; no instance set is created")
        return
    ordered = part(spec, "schedulingStrategy").get("type") == "Priority"
    labels = {k: v for k, v in one.labels.items() if k in (SET_NAME, SERVICE_INDEX, SERVICE_ID)}
    labels = {SERVICE_INDEX: "0", **labels, SERVICE_NAME: one.key.name, MANAGED: "true"}
    turn = _active_priority(context, one, roles) if ordered else None
    for role in roles:
        priority = role.get("priority")
        if turn is not None and isinstance(priority, int) and priority > turn:
            continue  # waits until every role of higher priority is ready
        own = labels | {ROLE: str(role["name"])} | ({PRIORITY: "true"} if ordered else {})
        _ensure(context, one, _object(one, INSTANCES, f"{one.key.name}-{role['name']}", own, role))
    wanted = {f"{one.key.name}-{role['name']}" for role in roles}
    for key, _ in _owned(context, one, INSTANCES):
        if key.name not in wanted:
            context.delete(one, key, ActionReason.ROLE_REMOVED, f"{one.key} no longer has a role for {key.name}")
    ready = sum(_is_ready(raw) for raw in _children(context, one, INSTANCES))
    _status(context, one, ready, len(roles), "AllInstanceSetsReady", "InstanceSetsNotReady")


def _active_priority(context: ExpansionContext, one: JobObject, roles: list[dict[str, Any]]) -> int | None:
    """The lowest priority number with a role that is not ready; None when all are ready."""
    waiting = []
    for role in roles:
        raw = context.object(API, INSTANCES, one.key.namespace, f"{one.key.name}-{role['name']}")
        if isinstance(role.get("priority"), int) and (raw is None or not _is_ready(raw)):
            waiting.append(int(role["priority"]))
    return min(waiting, default=None)


def _invalid_roles(roles: list[dict[str, Any]]) -> str:
    """The first error of the roles, empty when there is none."""
    if not 1 <= len(roles) <= MAX_ROLES:
        return f"must be 1 to {MAX_ROLES} roles"
    names = [str(role.get("name", "")) for role in roles]
    if len(set(names)) != len(names):
        return "names must be unique"
    for role in roles:
        name = str(role.get("name", ""))
        if not _DNS.fullmatch(name):
            return f"{name!r:.80} is not an RFC 1123 label"
        replicas = role.get("replicas")
        if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
            return f"role {name}: replicas must be a number from 0 to {MAX_REPLICAS}"
        kind = part(role, "workload")
        if (kind.get("apiVersion"), kind.get("kind")) not in {(_APPS, known) for known in _WORKLOADS}:
            return f"role {name}: workload must be an {_APPS} Deployment or StatefulSet"
        gang = texts(part(role, "metadata").get("labels")).get(GANG) == "true"
        parallel = part(role, "spec").get("podManagementPolicy") == "Parallel"
        if gang and kind.get("kind") == "StatefulSet" and not parallel:
            return f"role {name}: a StatefulSet that starts as a gang needs podManagementPolicy Parallel"
    return ""


def _instances(context: ExpansionContext, one: JobObject) -> None:
    spec = part(one.raw, "spec")
    kind = str(part(spec, "workload").get("kind") or "")
    count = _count(spec.get("replicas"), MAX_REPLICAS)
    if kind not in _WORKLOADS or count is None:
        context.warn(one, "spec", "needs replicas and a workload that is a Deployment or StatefulSet")
        return
    gang = texts(part(spec, "metadata").get("labels")).get(GANG) == "true"
    if gang and not context.pod_groups:
        context.warn(
            one, f"metadata.labels[{GANG}]", "ValidateError: the cluster has no PodGroups, so no gang can start"
        )
        return
    for index in range(count):
        key = ObjectKey(_APPS, kind, one.key.namespace, f"{one.key.name}-{index}")
        live = context.scope.observed.objects.get(key)
        if live is not None and _restart_if_unhealthy(context, one, key):
            continue  # deleted as a whole, re-created in a later pass
        for body in _instance(one, spec, kind, index, gang):
            _ensure(context, one, body)
    for body in _services(one, spec):
        _ensure(context, one, body)
    _remove_surplus(context, one, kind, count, INSTANCE_INDEX, _APPS)
    _remove_surplus(context, one, "PodGroup", count, INSTANCE_INDEX, POD_GROUP_API)
    ready = sum(_is_workload_ready(raw) for raw in _children(context, one, kind, _APPS))
    _status(context, one, ready, count, "AllWorkLoadReady", "ReplicasNotReady")


def _instance(one: JobObject, spec: Mapping[str, Any], kind: str, index: int, gang: bool) -> Iterator[dict[str, Any]]:
    """The objects of one instance: its workload, its own Service, and its PodGroup."""
    name = f"{one.key.name}-{index}"
    labels = {k: v for k, v in one.labels.items() if k.startswith(_LABEL) or k == SERVICE_ID}
    labels |= {INSTANCES_NAME: one.key.name, INSTANCE_INDEX: str(index), MANAGED: "true"}
    head = part(spec, "metadata")
    body = copy.deepcopy(part(spec, "spec"))
    template = body.setdefault("template", {})
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**texts(metadata.get("labels")), **labels}
    if gang:
        metadata["annotations"] = {**texts(metadata.get("annotations")), GROUP_NAME: f"pg-{name}"}
        members = body.get("replicas", 1)
        needs = min_resources([(template, members)], members)
        group = {"minMember": members} | ({"minResources": needs} if needs else {})
        yield _object(one, "PodGroup", f"pg-{name}", labels, group, POD_GROUP_API)
    body["selector"] = {"matchLabels": labels}
    if kind == "StatefulSet":
        body["serviceName"] = body.get("serviceName") or f"service-{name}"
    for row in containers(part(template, "spec")):
        set_env(row, [
            plain("INSTANCE_INDEX", index), plain("INSTANCE_ROLE", one.labels.get(ROLE, "")),
            plain("INFER_SERVICE_INDEX", one.labels.get(SERVICE_INDEX, "0")),
            plain("INFER_SERVICE_NAME", one.labels.get(SERVICE_NAME, "")),
        ])  # fmt: skip
    made = _object(one, kind, name, {**texts(head.get("labels")), **labels}, body, _APPS)
    if head.get("annotations"):
        made["metadata"]["annotations"] = texts(head["annotations"])
    yield made
    port = {"name": "infer", "port": DEFAULT_PORT, "targetPort": DEFAULT_PORT, "protocol": "TCP"}
    yield _object(one, "Service", f"service-{name}", labels, {"selector": labels, "ports": [port]}, "v1")


def _services(one: JobObject, spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Services that the role declares; the service's index is added to node ports."""
    offset = int(one.labels.get(SERVICE_INDEX, "0") or 0) if one.labels.get(SERVICE_INDEX, "0").isdecimal() else 0
    selector = {INSTANCES_NAME: one.key.name}
    for row in rows(spec, "services"):
        body = copy.deepcopy(part(row, "spec"))
        body["selector"] = {**texts(body.get("selector")), **selector}
        for port in rows(body, "ports"):
            if isinstance(port.get("nodePort"), int):
                port["nodePort"] += offset
        yield _object(one, "Service", f"{row.get('name')}-{one.key.name}", {**selector, MANAGED: "true"}, body, "v1")


def _restart_if_unhealthy(context: ExpansionContext, one: JobObject, key: ObjectKey) -> bool:
    """Delete an instance that has an unhealthy pod, and say whether; a failed pod costs one retry."""
    memory = context.memory(one)
    for pod in _pods(context, one, key):
        status = pod.annotations.get(POD_STATUS, "")
        if pod.labels.get("fault-scheduling") not in _EXTERNAL or not status.startswith("Unhealthy"):
            continue
        if status.endswith("pod-failed"):
            text = pod.labels.get("fault-retry-times", "")
            if not (text.isascii() and text.isdecimal() and len(text) <= 9):
                continue
            left = memory.restarts.get(key.name, int(text))
            if left <= 0:
                continue
            restarts = {**memory.restarts, key.name: left - 1}
            context.remember(one, msgspec.structs.replace(memory, restarts=dict(sorted(restarts.items()))))
        context.delete(
            one,
            key,
            ActionReason.INSTANCE_UNHEALTHY,
            f"{one.key}: instance {key.name} starts again, {pod.key} is {status}",
        )
        return True
    return False


def _pods(context: ExpansionContext, one: JobObject, key: ObjectKey) -> list[Pod]:
    index = key.name.rpartition("-")[2]
    found = (
        pod for pod in context.scope.observed.pods.values()
        if pod.namespace == key.namespace and pod.labels.get(INSTANCES_NAME) == one.key.name
        and pod.labels.get(INSTANCE_INDEX) == index and pod.deleting is None
    )  # fmt: skip
    return sorted(found, key=lambda pod: pod.name)


def _object(
    one: JobObject, kind: str, name: str, labels: Mapping[str, str], spec: Mapping[str, Any], api: str = API
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": one.key.namespace, "labels": dict(sorted(labels.items()))}
    owners = one.owner_references()
    if owners:
        metadata["ownerReferences"] = owners
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": copy.deepcopy(dict(spec))}


def _ensure(context: ExpansionContext, one: JobObject, body: dict[str, Any]) -> None:
    """Create an object that is missing; patch its declared fields where they differ."""
    name = body["metadata"]["name"]
    live = context.object(body["apiVersion"], body["kind"], one.key.namespace, name)
    what = f"{body['kind']} {name}"
    if live is None:
        context.create_object(one, body, f"{body['kind']}Missing", f"{one.key} wants {what}: creating it")
        return
    if part(live, "metadata").get("deletionTimestamp"):
        return
    spec = body["spec"]
    if body["kind"] == "InstanceSet" or body["kind"] == SERVICE or "replicas" in spec:
        wanted = {k: v for k, v in spec.items() if k != "selector"}
        if not _includes(wanted, part(live, "spec")):
            key = ObjectKey(body["apiVersion"], body["kind"], one.key.namespace, name)
            uid = str(part(live, "metadata").get("uid") or "")
            context.patch(one, key, {"spec": wanted}, f"{body['kind']}Changed", f"{one.key}: {what} changes", uid=uid)


def _includes(wanted: Any, live: Any) -> bool:
    """Whether every wanted field is there; fields that the API server added do not matter."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(_includes(value, live.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(live, list) and len(live) == len(wanted)
        return same and all(_includes(a, b) for a, b in zip(wanted, live, strict=True))
    return bool(wanted == live) or str(wanted) == str(live)


def _owned(
    context: ExpansionContext, one: JobObject, kind: str, api: str = API
) -> Iterator[tuple[ObjectKey, dict[str, Any]]]:
    for key in context.kinds.get((api, kind), ()):
        raw = context.scope.observed.objects[key]
        owners = rows(part(raw, "metadata"), "ownerReferences") if key.namespace == one.key.namespace else []
        if one.uid and any(owner.get("uid") == one.uid for owner in owners):
            yield key, raw


def _children(context: ExpansionContext, one: JobObject, kind: str, api: str = API) -> list[dict[str, Any]]:
    return [raw for _, raw in _owned(context, one, kind, api)]


def _remove_surplus(
    context: ExpansionContext, one: JobObject, kind: str, count: int, label: str, api: str = API
) -> None:
    """Delete children beyond the wanted number."""
    for key, raw in sorted(_owned(context, one, kind, api)):
        index = texts(part(raw, "metadata").get("labels")).get(label, "")
        if index.isdecimal() and int(index) >= count:
            context.delete(one, key, ActionReason.SCALED_DOWN, f"{one.key} no longer asks for {kind} {key.name}")


def _count(value: object, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def _service_id_label(one: JobObject) -> dict[str, str]:
    return {SERVICE_ID: one.labels[SERVICE_ID]} if SERVICE_ID in one.labels else {}


def _is_workload_ready(raw: Mapping[str, Any]) -> bool:
    """Whether a workload has as many ready pods as it asks for."""
    wanted = part(raw, "spec").get("replicas", 1)
    return int(part(raw, "status").get("readyReplicas") or 0) >= int(wanted if isinstance(wanted, int) else 1)


def _is_ready(raw: Mapping[str, Any]) -> bool:
    return any(
        row.get("type") == "Ready" and row.get("status") == "True" for row in rows(part(raw, "status"), "conditions")
    )


def _status(context: ExpansionContext, one: JobObject, ready: int, count: int, good: str, bad: str) -> None:
    """Keep ``status``: the number of ready children and condition ``Ready`` with its transition time."""
    is_ready = ready >= count
    old = one.status
    row = {"type": "Ready", "status": "True" if is_ready else "False", "reason": good if is_ready else bad,
           "message": f"{ready}/{count} ready"}  # fmt: skip
    before = next((c for c in one.conditions if c.get("type") == "Ready"), {})
    stamp = rfc3339(float(int(context.scope.now)))
    row["lastTransitionTime"] = (
        str(before.get("lastTransitionTime") or stamp) if before.get("status") == row["status"] else stamp
    )
    new = {**old, "replicas": count, "readyReplicas": ready, "conditions": [row]}
    if new != old:
        context.patch_status(one, merge_patch(old, new), row["reason"], f"{one.key}: {row['message']}")
