"""The objects of one instance, as MindCluster's infer operator makes them: workload, Services, PodGroup.

Source: component/infer-operator/pkg/controller/workload.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from belay.engine.model.labels import (
    FAULT_SCHEDULING,
    GROUP_NAME,
    INFERENCE_INSTANCE_INDEX,
    INFERENCE_MANAGED,
    INFERENCE_ROLE,
    INFERENCE_SERVICE,
    INFERENCE_SERVICE_ID,
    INSTANCE_TEMPLATE,
    SURGE_INSTANCE,
)
from belay.engine.model.quantities import whole_number
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.plan.jobs.inference import labels as names
from belay.engine.plan.jobs.inference import snapshots
from belay.engine.plan.jobs.inference.serving import ServingRole, annotations_of, digest_of, size
from belay.engine.plan.jobs.lifecycle import POD_GROUP_API, JobObject
from belay.engine.plan.jobs.pod_template import containers, min_resources, plain, set_env

_PROTOCOL: Final = "TCP"


def workload(role: ServingRole, index: int, *, surge: bool = False) -> dict[str, Any]:
    """The Deployment or StatefulSet of an instance, made from the declared template."""
    marks, name = marks_of(role, index), role.instance_name(index)
    body = copy.deepcopy(nested_map(role.spec, "spec"))
    template = body["template"] = nested_map(body, "template")
    metadata = template["metadata"] = nested_map(template, "metadata")
    given = string_map(metadata.get("labels"))
    service_id = role.job.labels.get(INFERENCE_SERVICE_ID)
    metadata["labels"] = {**({INFERENCE_SERVICE_ID: service_id} if service_id else {}), **given, **marks}
    if role.gang:
        metadata["annotations"] = {**string_map(metadata.get("annotations")), GROUP_NAME: f"pg-{name}"}
    # the user's selector alone would be that of every instance of the role
    selector = {
        k: v for k, v in string_map(nested_map(body, "selector").get("matchLabels")).items() if given.get(k) == v
    }
    body["selector"] = {"matchLabels": {**selector, **marks}}
    body["replicas"] = size(body)
    if role.kind == "StatefulSet":
        body["serviceName"] = service_name(role, index)
    for row in containers(nested_map(template, "spec")):
        set_env(row, _variables(role, index))
    snapshots.prepare(role, index, template)
    pinned = {**role.job.labels, **string_map(nested_map(role.spec, "metadata").get("labels")), **marks}
    if FAULT_SCHEDULING in given:
        pinned[FAULT_SCHEDULING] = given[FAULT_SCHEDULING]
    notes = {**annotations_of(role.job), INSTANCE_TEMPLATE: role.template}
    if surge:
        notes[SURGE_INSTANCE] = "true"
    return child(role.job, names.APPS, role.kind, name, pinned, _strict(body), notes)


def marks_of(role: ServingRole, index: int) -> dict[str, str]:
    """The labels by which an instance's objects and pods are found."""
    return {
        INFERENCE_SERVICE: role.service, INFERENCE_ROLE: role.name, INFERENCE_INSTANCE_INDEX: str(index),
        INFERENCE_MANAGED: "true",
    }  # fmt: skip


def service_name(role: ServingRole, index: int) -> str:
    """The headless Service of a StatefulSet's pods: the user's, else one for each instance."""
    return str(nested_map(role.spec, "spec").get("serviceName") or f"service-{role.instance_name(index)}")


def pod_group(role: ServingRole, index: int) -> dict[str, Any]:
    """The PodGroup of an instance that starts as a whole."""
    body = nested_map(role.spec, "spec")
    members = size(body)
    needs = min_resources([(_with_requests(nested_map(body, "template")), members)], members)
    labels = {k: v for k, v in role.job.labels.items() if k != INFERENCE_SERVICE_ID} | marks_of(role, index)
    spec = {"minMember": members} | ({"minResources": needs} if needs else {})
    name = f"pg-{role.instance_name(index)}"
    return child(role.job, POD_GROUP_API, "PodGroup", name, labels, spec, role.job.annotations)


def instance_services(role: ServingRole, index: int) -> Iterator[dict[str, Any]]:
    """The Services of an instance.

    For a StatefulSet a headless one, so that its pods have DNS names, and the user's ``serviceName``; for a Deployment
    one with an address, unless the role declares its own.
    """
    marks = marks_of(role, index)
    name, port = f"service-{role.instance_name(index)}", names.DEFAULT_PORT
    if role.kind == "StatefulSet":
        ports = [{"name": "infer", "port": port, "protocol": _PROTOCOL}]
        selector = {**marks, **snapshots.active(role)}
        spec = {"clusterIP": "None", "selector": selector, "ports": ports}
        yield child(role.job, "v1", "Service", name, marks, spec, role.job.annotations)
        given = service_name(role, index)
        if given != name and not any(row.get("name") == given for row in nested_list(role.spec, "services")):
            shared = string_map(nested_map(role.spec, "spec", "selector").get("matchLabels"))
            shared = shared or {INFERENCE_MANAGED: "true", INFERENCE_ROLE: role.name}
            labels = {k: v for k, v in marks.items() if k != INFERENCE_INSTANCE_INDEX}
            yield child(role.job, "v1", "Service", given, labels, {**spec, "selector": shared})
    elif not nested_list(role.spec, "services"):
        ports = [{"name": "infer", "port": port, "targetPort": port, "protocol": _PROTOCOL}]
        yield child(role.job, "v1", "Service", name, marks, {"selector": marks, "ports": ports}, role.job.annotations)


def role_services(role: ServingRole) -> Iterator[dict[str, Any]]:
    """The Services that the role declares, one for all instances; node ports move by the index of the service.

    A selector is kept to the pods of its own inference service.
    """
    labels = {**role.job.labels, INFERENCE_SERVICE: role.service, INFERENCE_ROLE: role.name, INFERENCE_MANAGED: "true"}
    offset = _number_at_end(role.service)
    for row in nested_list(role.spec, "services"):
        body = copy.deepcopy(nested_map(row, "spec"))
        if body.get("type") != "ExternalName":
            selector = string_map(body.get("selector")) or {INFERENCE_ROLE: role.name}
            body["selector"] = {**selector, **snapshots.active(role), INFERENCE_SERVICE: role.service}
        for port in nested_list(body, "ports"):
            if body.get("type") == "NodePort" and isinstance(port.get("nodePort"), int):
                port["nodePort"] += offset
        own = nested_map(row, "metadata")
        notes = {**role.job.annotations, **string_map(own.get("annotations")), INSTANCE_TEMPLATE: digest_of(body)}
        name = f"{row.get('name')}-{role.service}-{role.name}"
        marked = {**string_map(own.get("labels")), **labels}
        yield child(role.job, "v1", "Service", name, marked, _strict(body), notes)


def child(
    one: JobObject,
    api: str,
    kind: str,
    name: str,
    labels: Mapping[str, str],
    spec: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """An object that belongs to ``one``."""
    metadata: dict[str, Any] = {"name": name, "namespace": one.key.namespace, "labels": dict(sorted(labels.items()))}
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    owners = one.owner_references()
    if owners:
        metadata["ownerReferences"] = owners
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": copy.deepcopy(dict(spec))}


def _variables(role: ServingRole, index: int) -> list[dict[str, Any]]:
    """Variables of every container; service name and index only where the name ends in an index."""
    found = [plain("INSTANCE_INDEX", index), plain("INSTANCE_ROLE", role.name)]
    head, dash, tail = role.service.rpartition("-")
    return [*found, plain("INFER_SERVICE_INDEX", tail), plain("INFER_SERVICE_NAME", head)] if dash else found


def _number_at_end(name: str) -> int:
    return whole_number(name.rpartition("-")[2], digits=5) or 0


def _with_requests(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with requests defaulted from limits, as the infer operator counts them."""
    found = copy.deepcopy(dict(template))
    for row in containers(nested_map(found, "spec")):
        resources = nested_map(row, "resources")
        row["resources"] = {
            **resources,
            "requests": {**nested_map(resources, "limits"), **nested_map(resources, "requests")},
        }
    return found


def _strict(value: Any) -> Any:
    """Quantities as text and a protocol on every port: server-side apply refuses looser notations (kube 1.20)."""
    if isinstance(value, list):
        return [_strict(row) for row in value]
    if not isinstance(value, dict):
        return value
    found = {key: _strict(inner) for key, inner in value.items()}
    for key in ("requests", "limits"):
        if isinstance(found.get(key), dict):
            found[key] = {name: _amount(amount) for name, amount in found[key].items()}
    if isinstance(found.get("ports"), list):
        found["ports"] = [
            {**row, "protocol": row.get("protocol") or _PROTOCOL} if isinstance(row, dict) else row
            for row in found["ports"]
        ]
    return found


def _amount(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return format(Decimal(repr(value)), "f").removesuffix(".0")
