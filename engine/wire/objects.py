"""Convert Kubernetes nodes and pods to the model's structs.

Only fields that the planner needs are read. A field of a wrong type raises an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.cluster import (
    JUDGED_OTHERWISE,
    MAINTENANCE_CONDITIONS,
    Container,
    ExtendedRequest,
    Node,
    NodeCondition,
    Pod,
    Taint,
)
from belay.engine.model.labels import ASCEND_REAL, BASE_DEVICES, GROUP_NAME, HUAWEI_PREFIX
from belay.engine.model.quantities import whole_number
from belay.engine.model.taints import departure
from belay.engine.model.times import parse_rfc3339
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.wire import pod_field_types, pod_requests
from belay.engine.wire.dra import EXTENDED_CLAIM_NAME
from belay.engine.wire.errors import WireError

VOLCANO_JOBS = "batch.volcano.sh/"
TASK_INDEX = "VC_TASK_INDEX"
POD_SCHEDULED = "PodScheduled"
"""Type of the condition by which a scheduler says whether a pod has its node (Kubernetes, "Pod Lifecycle")."""
UNSCHEDULABLE = "Unschedulable"
"""Reason of that condition while the pod waits."""


def node(obj: Mapping[str, Any]) -> Node:
    """A Kubernetes Node.

    An invalid annotation ``baseDeviceInfos`` counts as absent, so that the node stays in the plan; ``check_devices``
    reports it.

    Raises:
        WireError: a quantity or time cannot be read.
    """
    metadata, spec, status = nested_map(obj, "metadata"), nested_map(obj, "spec"), nested_map(obj, "status")
    where = f"Node/{metadata.get('name', '')}"
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    annotations = _text_map(metadata.get("annotations"))
    try:
        devices = _base_devices(where, annotations.get(BASE_DEVICES))
    except WireError:
        devices = {}
    taints = tuple(
        Taint(str(t.get("key", "")), str(t.get("value") or ""), str(t.get("effect", "")))
        for t in spec.get("taints") or ()
    )
    base = 0
    for name in devices:
        number = whole_number(name.rpartition("-")[2], digits=4)
        if number is not None:
            base |= 1 << number
    return Node(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        labels=_text_map(metadata.get("labels")),
        annotations=annotations,
        created=_time(where, "metadata.creationTimestamp", metadata.get("creationTimestamp")) or 0.0,
        ready=ready.get("status") == "True",
        ready_changed=_time(where, "status.conditions", ready.get("lastTransitionTime")) or 0.0,
        unschedulable=bool(spec.get("unschedulable")),
        taints=taints,
        capacity=pod_requests.amounts(where, "status.capacity", status.get("capacity")),
        allocatable=pod_requests.amounts(where, "status.allocatable", status.get("allocatable")),
        internal_ip=next(
            (str(a.get("address", "")) for a in status.get("addresses") or () if a.get("type") == "InternalIP"), ""
        ),
        base_chips=base,
        base_devices=devices,
        maintenance=_maintenance(status.get("conditions") or ()),
        server=str(nested_map(status, "nodeInfo").get("systemUUID") or "").lower()[:MAX_UUID],
        conditions=_conditions(where, status.get("conditions") or ()),
        departure=departure(taints, metadata.get("deletionTimestamp") is not None),
    )


MAX_LAST_WORDS: Final = 2048
"""Characters kept of what a failed container said last; kubelet keeps as many of a log."""
MAX_REASON: Final = 128
MAX_UUID: Final = 64
#: Most conditions of a node that are kept.
MAX_CONDITIONS: Final = 64


def _maintenance(conditions: Iterable[Mapping[str, Any]]) -> str:
    """The first of the conditions (KEP-5683, alpha in Kubernetes 1.37) that is true under which pods go.

    ``MaintenancePlanned`` is none: the node still works.
    """
    true = {str(one.get("type", "")) for one in conditions if one.get("status") == "True"}
    return next((kind for kind in MAINTENANCE_CONDITIONS if kind in true), "")


def _conditions(where: str, conditions: Iterable[Mapping[str, Any]]) -> tuple[NodeCondition, ...]:
    """What others say of the node beside what Belay judges itself, by type."""
    found = [
        NodeCondition(
            type=str(one.get("type", "")),
            status=str(one.get("status", "")),
            reason=str(one.get("reason") or "")[:MAX_REASON],
            since=_time(where, "status.conditions", one.get("lastTransitionTime")) or 0.0,
        )
        for one in conditions
        if one.get("type") not in JUDGED_OTHERWISE
    ]
    return tuple(sorted(found, key=lambda one: one.type)[:MAX_CONDITIONS])


def check_devices(node: Node) -> None:
    """Check a node's annotation ``baseDeviceInfos``, which ``node`` ignores when it is invalid.

    Raises:
        WireError: the annotation is not a map of devices.
    """
    if not node.base_devices:
        _base_devices(f"Node/{node.name}", node.annotations.get(BASE_DEVICES))


def pod(obj: Mapping[str, Any]) -> Pod:
    """A Kubernetes Pod.

    Raises:
        WireError: a quantity or time cannot be read.
    """
    metadata, spec, status = nested_map(obj, "metadata"), nested_map(obj, "spec"), nested_map(obj, "status")
    namespace, name = _text(metadata, "namespace", "default"), str(metadata.get("name", ""))
    where = f"Pod/{namespace}/{name}"
    pod_field_types.check(where, spec)

    annotations = _text_map(metadata.get("annotations"))
    owner = _controller(metadata.get("ownerReferences"))
    claimed = nested_map(status, "extendedResourceClaimStatus")
    requests = pod_requests.of(where, spec, status)
    for row in nested_list(claimed, "requestMappings"):
        # its devices are those of a claim
        requests.pop(str(row.get("resourceName")), None)
    resource = _npu_resource(requests)

    return Pod(
        namespace=namespace,
        name=name,
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        labels=_text_map(metadata.get("labels")),
        annotations=annotations,
        owner_api=str(owner.get("apiVersion", "")),
        owner_kind=str(owner.get("kind", "")),
        owner_name=str(owner.get("name", "")),
        owner_uid=str(owner.get("uid", "")),
        node=_text(spec, "nodeName"),
        phase=_text(status, "phase", "Pending"),
        deleting=_time(where, "metadata.deletionTimestamp", metadata.get("deletionTimestamp")),
        grace_seconds=_grace_seconds(metadata, spec),
        created=_time(where, "metadata.creationTimestamp", metadata.get("creationTimestamp")) or 0.0,
        started=_time(where, "status.startTime", status.get("startTime")),
        scheduler=_text(spec, "schedulerName", "default-scheduler"),
        priority=spec.get("priority") or 0,
        priority_class=_text(spec, "priorityClassName"),
        requests=requests,
        resource=resource,
        count=requests.get(resource, 0),
        chips=held_chips(annotations, resource),
        node_selector=_text_map(spec.get("nodeSelector")),
        affinity=nested_map(spec, "affinity"),
        tolerations=tuple(spec.get("tolerations") or ()),
        gates=tuple([_text(gate, "name") for gate in nested_list(spec, "schedulingGates")]),
        pod_ip=_text(status, "podIP"),
        host_ip=_text(status, "hostIP"),
        host_network=bool(spec.get("hostNetwork")),
        containers=_containers(status.get("containerStatuses")),
        volumes=tuple([str(volume.get("name", "")) for volume in spec.get("volumes") or ()]),
        reason=_text(status, "reason"),
        host_ports=_host_ports(spec),
        spread=tuple(spec.get("topologySpreadConstraints") or ()),
        claims=_claims(name, spec),
        resource_claims=_resource_claims(spec, status),
        restart_policy=_text(spec, "restartPolicy"),
        task_index=_task_index(spec) if _is_volcano_pod(annotations, owner) else None,
        unscheduled=_unscheduled(status.get("conditions")),
        extended=_extended(where, spec, claimed),
        scheduling_group=_text(nested_map(spec, "schedulingGroup"), "podGroupName"),
    )


def _text(fields: Mapping[str, Any], key: str, otherwise: str = "") -> str:
    """A field as text; one that is absent, null or empty counts as ``otherwise``."""
    return str(fields.get(key) or otherwise)


def _controller(owners: Iterable[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    """The owner that controls the pod; empty without one."""
    for owner in owners or ():
        if owner.get("controller"):
            return owner
    return {}


def _npu_resource(requests: Mapping[str, int]) -> str:
    """The resource of whose chips the pod asks for some, the first by name; empty if it asks for none."""
    asked = [key for key, count in requests.items() if key.startswith(HUAWEI_PREFIX) and count > 0]
    return min(asked, default="")


def _grace_seconds(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> int:
    """The seconds a pod gets to end: those of its deletion, else those it asks for."""
    grace = metadata.get("deletionGracePeriodSeconds")
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds")
    return grace if isinstance(grace, int) else 30


def _unscheduled(conditions: object) -> str:
    """The message by which a scheduler last said why the pod waits; empty without one."""
    for row in conditions if isinstance(conditions, list) else ():
        if isinstance(row, dict) and row.get("type") == POD_SCHEDULED:
            waits = row.get("status") == "False" and row.get("reason") == UNSCHEDULABLE
            return str(row.get("message") or "") if waits else ""
    return ""


def chips_only(obj: Mapping[str, Any]) -> Pod | None:
    """A pod that `pod` rejects, with the chips from its annotations and without requests, so that its chips stay
    occupied. None if the pod is not bound or has ended."""
    metadata, spec, phase = nested_map(obj, "metadata"), nested_map(obj, "spec"), nested_map(obj, "status").get("phase")
    node, scheduler = spec.get("nodeName"), spec.get("schedulerName")
    if not isinstance(node, str) or not node or phase in ("Succeeded", "Failed"):
        return None
    known = ("namespace", "name", "uid", "resourceVersion", "labels", "annotations")
    owners = metadata.get("ownerReferences")
    readable = isinstance(owners, list) and all(isinstance(owner, dict) for owner in owners)
    return pod({
        "metadata": {key: metadata[key] for key in known if key in metadata}
        | {"ownerReferences": owners if readable else []},
        "spec": {"nodeName": node, "schedulerName": scheduler},
        "status": {"phase": phase},
    })  # fmt: skip


def held_chips(annotations: Mapping[str, str], resource: str) -> tuple[str, ...]:
    """Device names from a pod's annotations: ``huawei.com/AscendReal``, else the resource annotation."""
    text = annotations.get(ASCEND_REAL) or (annotations.get(resource) if resource else "") or ""
    if not text and not resource:
        text = next((v for k, v in sorted(annotations.items()) if k in _RESOURCE_ANNOTATIONS), "")
    return tuple(token.strip() for token in text.split(",") if token.strip())


_RESOURCE_ANNOTATIONS = frozenset(f"{HUAWEI_PREFIX}{kind}" for kind in ("Ascend910", "Ascend310P", "Ascend310", "npu"))


def _extended(where: str, spec: Mapping[str, Any], claimed: Mapping[str, Any]) -> tuple[ExtendedRequest, ...]:
    """What containers ask for of extended resources, those of init containers last; nothing once they are given."""
    if spec.get("nodeName") or claimed:
        return ()

    found = []
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    alone = len(spec.get("containers") or ())
    for place, container in enumerate(containers):
        before = place >= alone and container.get("restartPolicy") != "Always"
        name = str(container.get("name", ""))
        asked = sorted(pod_requests.of_container(where, container).items())
        found += [ExtendedRequest(name, key, number, before) for key, number in asked if "/" in key and number > 0]
    return tuple(sorted(found, key=lambda row: row.before))


def _containers(statuses: Iterable[Mapping[str, Any]] | None) -> tuple[Container, ...]:
    return tuple(
        Container(
            name=str(s.get("name", "")),
            ready=bool(s.get("ready")),
            exit_code=_exit_code(s.get("state")),
            last_exit_code=_exit_code(s.get("lastState")),
            restarts=s.get("restartCount") or 0,
            reason=_last_word(s, "reason", MAX_REASON),
            message=_last_word(s, "message", MAX_LAST_WORDS),
        )
        for s in statuses or ()
    )


def _is_volcano_pod(annotations: Mapping[str, str], owner: Mapping[str, Any]) -> bool:
    """Whether a Volcano Job owns the pod, or it belongs to a PodGroup (its owner may be gone)."""
    return GROUP_NAME in annotations or str(owner.get("apiVersion", "")).startswith(VOLCANO_JOBS)


def _task_index(spec: Mapping[str, Any]) -> int | None:
    """The pod's number within its task, which Volcano's env plugin sets in every container.

    Source: Volcano pkg/controllers/job/plugins/env (VC_TASK_INDEX).
    """
    for container in spec.get("containers") or ():
        for entry in container.get("env") or ():
            if isinstance(entry, Mapping) and entry.get("name") == TASK_INDEX:
                return whole_number(str(entry.get("value") or ""))
    return None


def _host_ports(spec: Mapping[str, Any]) -> tuple[tuple[str, str, int], ...]:
    """Host ports that the pod occupies: those of containers and sidecars with ``hostPort``."""
    sidecars = [one for one in spec.get("initContainers") or () if pod_requests.stays(one)]
    return tuple(
        (str(port.get("hostIP") or "0.0.0.0"), str(port.get("protocol") or "TCP"), port["hostPort"])
        for container in [*(spec.get("containers") or ()), *sidecars]
        for port in container.get("ports") or ()
        if isinstance(port.get("hostPort"), int) and port["hostPort"] > 0
    )


def _claims(pod: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the pod's PersistentVolumeClaims; that of a generic ephemeral volume is ``<pod>-<volume>``."""
    found = []
    for volume in spec.get("volumes") or ():
        name = nested_map(volume, "persistentVolumeClaim").get("claimName")
        if name:
            found.append(str(name))
        elif volume.get("ephemeral"):
            found.append(f"{pod}-{volume.get('name', '')}")
    return tuple(found)


def _resource_claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The pod's claims of dynamic resource allocation; that of a template is named in the pod's status."""
    rows = [row for row in spec.get("resourceClaims") or () if isinstance(row, Mapping)]
    for_extended = nested_map(status, "extendedResourceClaimStatus").get("resourceClaimName")
    extended = ((EXTENDED_CLAIM_NAME, str(for_extended)),) if for_extended else ()
    if not rows:
        return extended
    made = {str(row.get("name")): row for row in status.get("resourceClaimStatuses") or () if isinstance(row, Mapping)}
    named = ((str(row.get("name")), row.get("resourceClaimName")) for row in rows)
    found = ((name, str(own or made.get(name, {}).get("resourceClaimName") or "")) for name, own in named)
    return (*found, *extended)


def _last_word(status: Mapping[str, Any], field: str, most: int) -> str:
    """The end of a text about the newest end of a container, if that failed; empty while it has not."""
    for key in ("state", "lastState"):
        terminated = (status.get(key) or {}).get("terminated")
        if isinstance(terminated, dict) and terminated.get("exitCode"):
            return str(terminated.get(field) or "")[-most:]
    return ""


def _exit_code(state: Mapping[str, Any] | None) -> int | None:
    terminated = (state or {}).get("terminated")
    code = terminated.get("exitCode") if isinstance(terminated, dict) else None
    return code if isinstance(code, int) else None


def _base_devices(where: str, text: str | None) -> dict[str, dict[str, Any]]:
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise WireError(where, f"metadata.annotations[{BASE_DEVICES}]", f"is not a map of devices: {error}") from error


def _text_map(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    for key, text in value.items():
        if type(key) is not str or type(text) is not str:
            return {str(key): str(text) for key, text in value.items() if text is not None}
    return value


def _time(where: str, field: str, value: object) -> float | None:
    if not value:
        return None
    try:
        return parse_rfc3339(str(value))
    except ValueError as error:
        raise WireError(where, field, f"is not an RFC 3339 time: {error}") from error
