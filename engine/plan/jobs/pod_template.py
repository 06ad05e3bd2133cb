"""Pod templates: their requests and volumes, and building a pod from one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.model import quantities
from belay.engine.model.labels import HUAWEI_PREFIX
from belay.engine.model.unstructured import nested_map, string_map
from belay.engine.plan.jobs.lifecycle import JobObject

ASCEND: Final = "ascend"
RANK_TABLE_VOLUME: Final = "ranktable"


def pod_spec(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod spec of a template; empty if it is malformed."""
    return nested_map(template, "spec")


def containers(spec: Mapping[str, Any], kind: str = "containers") -> list[dict[str, Any]]:
    """Return the containers of a pod spec, without malformed ones."""
    found = spec.get(kind)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def container(spec: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The container of that name."""
    return next((row for row in containers(spec) if row.get("name") == name), None)


def requests(row: Mapping[str, Any]) -> dict[str, Any]:
    """A container's requests, defaulted from its limits as Kubernetes does."""
    resources = nested_map(row, "resources")
    return {**nested_map(resources, "limits"), **nested_map(resources, "requests")}


def npu_request(row: Mapping[str, Any] | None) -> tuple[str, int]:
    """The NPU resource that a container requests and its amount; ``("", 0)`` for none."""
    for name, value in sorted(requests(row or {}).items()):
        if name.startswith(HUAWEI_PREFIX):
            return name, quantities.whole(value)
    return "", 0


def npu_of(template: Mapping[str, Any]) -> tuple[str, int]:
    """The NPU resource of a template: the first that a container requests, summed over containers."""
    found = [npu_request(row) for row in containers(pod_spec(template))]
    name = next((name for name, count in found if count), "")
    return name, sum(count for other, count in found if other == name)


def misshapen(template: Mapping[str, Any]) -> str:
    """The first malformed field of a template and what it must be; empty when there is none.

    CRDs of jobs do not check their templates, so the API server stores there what it would refuse in a pod.
    """
    for name in ("metadata", "spec"):
        if template.get(name) is not None and not isinstance(template[name], dict):
            return f"{name} must be a mapping"
    inner = pod_spec(template)
    wrong = _not_lists(inner, ("containers", "initContainers", "volumes", "tolerations"), "spec")
    if wrong:
        return wrong
    for kind in ("containers", "initContainers"):
        for index, row in enumerate(containers(inner, kind)):
            where = f"spec.{kind}[{index}]"
            if row.get("resources") is not None and not isinstance(row["resources"], dict):
                return f"{where}.resources must be a mapping"
            wrong = _not_lists(row, ("env", "ports", "volumeMounts"), where)
            if wrong:
                return wrong
    return ""


def _not_lists(holder: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    for name in names:
        value = holder.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(row, dict) for row in value)):
            return f"{where}.{name} must be a list of mappings"
    return ""


def has_volume(template: Mapping[str, Any], name: str) -> bool:
    """Whether the template mounts a volume of that name."""
    volumes = pod_spec(template).get("volumes")
    return isinstance(volumes, list) and any(isinstance(row, dict) and row.get("name") == name for row in volumes)


def min_resources(templates: Sequence[tuple[Mapping[str, Any], int]], members: int) -> dict[str, str]:
    """Total requests of the first ``members`` pods, filled from the templates in order."""
    parts: dict[str, list[str]] = {}
    left = members
    for template, replicas in templates:
        taken = min(left, replicas)
        left -= taken
        for name, values in _requests(pod_spec(template)).items():
            parts.setdefault(name, []).extend(values * taken)
    return {name: quantities.total(values) for name, values in sorted(parts.items()) if values}


def _requests(spec: Mapping[str, Any]) -> dict[str, list[str]]:
    """What one pod requests: the amounts of its containers, or that of ``spec.resources`` in their place."""
    found: dict[str, list[str]] = {}
    for row in containers(spec):
        for name, value in nested_map(row, "resources", "requests").items():
            found.setdefault(name, []).append(str(value))
    return found | {name: [str(value)] for name, value in nested_map(spec, "resources", "requests").items()}


def pod(
    job: JobObject, template: Mapping[str, Any], name: str, *, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, Any]:
    """Build a pod from a template for the caller to complete; labels and annotations override the template's."""
    metadata = nested_map(template, "metadata")
    head: dict[str, Any] = {
        "name": name,
        "namespace": job.key.namespace,
        "labels": dict(sorted({**string_map(metadata.get("labels")), **labels}.items())),
        "annotations": dict(sorted({**string_map(metadata.get("annotations")), **annotations}.items())),
    }
    owners = job.owner_references()
    if owners:
        head["ownerReferences"] = owners
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": copy.deepcopy(pod_spec(template))}


def set_env(row: dict[str, Any], variables: Sequence[Mapping[str, Any]]) -> None:
    """Set a container's variables; one of the same name is replaced, since server-side apply refuses a second."""
    names = {variable["name"] for variable in variables}
    kept = [entry for entry in row.get("env") or [] if isinstance(entry, dict) and entry.get("name") not in names]
    row["env"] = [*kept, *(dict(variable) for variable in variables)]


def plain(name: str, value: object) -> dict[str, Any]:
    """A variable with a value."""
    return {"name": name, "value": str(value)}


def field_ref(name: str, path: str) -> dict[str, Any]:
    """A variable from the downward API."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
