"""Validation of built-in kinds: frequent mistakes of users and controllers, with kube-apiserver's wording.

Not a full copy of pkg/apis/*/validation: fields that Belay and the sandbox do not read are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from belay.engine.sandbox.api.errors import (
    FieldError,
    field_duplicate,
    field_forbidden,
    field_invalid,
    field_required,
    field_too_long,
    field_unsupported,
)
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.metadata import label_errors
from belay.engine.sandbox.api.selectors import structured_selector

MAX_DATA_BYTES = 1024 * 1024
"""Keys and values of one ConfigMap or Secret, bytes (core.MaxSecretSize)."""

MAX_OBJECT_BYTES = 1536 * 1024
"""Largest stored object, bytes: etcd's default request limit of 1.5 MiB."""

_CONFIG_KEY = re.compile(r"^[-._a-zA-Z0-9]{1,253}$")
_CONFIG_KEY_WHY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
    "'KEY_NAME',  or 'key-name', "
    "regex used for validation is '[-._a-zA-Z0-9]+')"
)
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")

Check = Callable[[JSON, JSON | None], list[FieldError]]


def _data(obj: JSON, live: JSON | None) -> list[FieldError]:
    errors: list[FieldError] = []
    size = 0
    for part in ("data", "binaryData"):
        for key, value in (obj.get(part) or {}).items():
            size += len(key) + len(value.encode())
            if not _CONFIG_KEY.match(key):
                errors.append(field_invalid(f"{part}[{key}]", key, _CONFIG_KEY_WHY))
    if size > MAX_DATA_BYTES:
        errors.append(field_too_long("[]", f"must have at most {MAX_DATA_BYTES} bytes"))
    if live is not None and live.get("immutable"):
        if not obj.get("immutable"):
            errors.append(field_forbidden("immutable", "field is immutable when `immutable` is set"))
        for part in ("data", "binaryData"):
            if obj.get(part) != live.get(part):
                errors.append(field_forbidden(part, "field is immutable when `immutable` is set"))
    return errors


def _containers(spec: JSON, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if not spec.get("containers"):
        errors.append(field_required(f"{path}.containers"))
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(group) or ()):
            where = f"{path}.{group}[{i}]"
            name = container.get("name", "")
            if not name:
                errors.append(field_required(f"{where}.name"))
            elif not _DNS_LABEL.match(name):
                errors.append(
                    field_invalid(
                        f"{where}.name",
                        name,
                        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
                        "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
                        "regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
                    )
                )
            elif name in seen:
                errors.append(field_duplicate(f"{where}.name", name))
            seen.add(name)
            if not container.get("image") and path == "spec":
                errors.append(field_required(f"{where}.image"))
            errors.extend(_resources(container.get("resources") or {}, f"{where}.resources"))
    return errors


_QUANTITY = re.compile(r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[numkKMGTPE]i?)?$")


def _resources(resources: JSON, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if not _QUANTITY.match(str(amount)):
                errors.append(
                    field_invalid(
                        f"{path}.{part}[{name}]",
                        amount,
                        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                    )
                )
    for name, amount in requests.items():
        # extended resources such as chips cannot be overcommitted (IsExtendedResourceName)
        if "/" in name and not name.startswith("kubernetes.io/"):
            if name not in limits:
                errors.append(field_required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
            elif limits[name] != amount:
                errors.append(
                    field_invalid(f"{path}.requests", amount, f"must be equal to {name} limit of {limits[name]}")
                )
    return errors


def _pod(obj: JSON, live: JSON | None) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors = _containers(spec, "spec")
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        errors.append(
            field_unsupported("spec.restartPolicy", spec.get("restartPolicy"), ["Always", "OnFailure", "Never"])
        )
    if live is not None and not errors:
        errors.extend(_pod_update(spec, live.get("spec") or {}))
    return errors


_POD_WHY = (
    "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, "
    "`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations) or "
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _pod_update(spec: JSON, live: JSON) -> list[FieldError]:
    def fixed(of: JSON) -> JSON:
        kept = {k: v for k, v in of.items() if k not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")}
        for group in ("containers", "initContainers"):
            if group in kept:
                kept[group] = [{k: v for k, v in c.items() if k != "image"} for c in kept[group]]
        return kept

    if spec == live:
        return []
    added = all(t in (spec.get("tolerations") or ()) for t in live.get("tolerations") or ())
    if fixed(spec) != fixed(live) or not added:
        return [field_forbidden("spec", _POD_WHY)]
    return []


def _workload(obj: JSON, live: JSON | None) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
    selector = spec.get("selector")
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not isinstance(selector, dict):
        errors.append(field_required("spec.selector"))
    elif not selector:
        errors.append(field_invalid("spec.selector", {}, "empty selector is invalid for deployment"))
    elif obj.get("kind") != "ReplicationController" and not structured_selector(selector)(labels):
        errors.append(
            field_invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        )
    if isinstance(replicas := spec.get("replicas"), int) and replicas < 0:
        errors.append(field_invalid("spec.replicas", replicas, "must be greater than or equal to 0"))
    errors.extend(label_errors(labels, "spec.template.metadata.labels"))
    errors.extend(_containers(template.get("spec") or {}, "spec.template.spec"))
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy not in (None, "Always"):
        errors.append(field_unsupported("spec.template.spec.restartPolicy", policy, ["Always"]))
    if live is not None and selector != (live.get("spec") or {}).get("selector"):
        errors.append(field_invalid("spec.selector", selector, "field is immutable"))
    return errors


_STATEFUL_WHY = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)
_STATEFUL_MUTABLE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
    "revisionHistoryLimit",
)


def _statefulset(obj: JSON, live: JSON | None) -> list[FieldError]:
    errors = _workload(obj, None)
    if live is not None:
        old, new = ({k: v for k, v in (o.get("spec") or {}).items() if k not in _STATEFUL_MUTABLE} for o in (live, obj))
        if old != new:
            errors.append(field_forbidden("spec", _STATEFUL_WHY))
    return errors


def _job(obj: JSON, live: JSON | None) -> list[FieldError]:
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    errors = _containers(template.get("spec") or {}, "spec.template.spec")
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy not in ("OnFailure", "Never"):
        errors.append(field_unsupported("spec.template.spec.restartPolicy", policy, ["OnFailure", "Never"]))
    if live is not None:
        for field in ("selector", "template", "completionMode"):
            old, new = (live.get("spec") or {}).get(field), spec.get(field)
            if old != new and not (field == "template" and (live.get("spec") or {}).get("suspend")):
                errors.append(field_invalid(f"spec.{field}", new, "field is immutable"))
    return errors


def _service(obj: JSON, live: JSON | None) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        errors.append(field_required("spec.ports"))
    seen: set[str] = set()
    for i, port in enumerate(ports):
        number = port.get("port")
        if not isinstance(number, int) or not 1 <= number <= 65535:
            errors.append(field_invalid(f"spec.ports[{i}].port", number or 0, "must be between 1 and 65535, inclusive"))
        if len(ports) > 1 and not port.get("name"):
            errors.append(field_required(f"spec.ports[{i}].name"))
        if port.get("name") and port["name"] in seen:
            errors.append(field_duplicate(f"spec.ports[{i}].name", port["name"]))
        seen.add(port.get("name", ""))
    old = (live or {}).get("spec", {})
    if (
        old.get("clusterIP")
        and spec.get("clusterIP") != old["clusterIP"]
        and "ExternalName" not in (old.get("type"), spec.get("type"))
    ):
        errors.append(field_invalid("spec.clusterIP", spec.get("clusterIP") or "", "field is immutable"))
    return errors


def _event(obj: JSON, live: JSON | None) -> list[FieldError]:
    target = (obj.get("involvedObject") or {}).get("namespace") or ""
    namespace = obj["metadata"].get("namespace", "")
    if target != namespace and not (not target and namespace in ("", "default")):
        return [field_invalid("involvedObject.namespace", target, "does not match event.namespace")]
    return []


def _role_binding(obj: JSON, live: JSON | None) -> list[FieldError]:
    if live is not None and obj.get("roleRef") != live.get("roleRef"):
        return [field_invalid("roleRef", obj.get("roleRef"), "cannot change roleRef")]
    return []


def _secret(obj: JSON, live: JSON | None) -> list[FieldError]:
    errors = _data(obj, live)
    if live is not None and obj.get("type") != live.get("type"):
        errors.append(field_invalid("type", obj.get("type"), "field is immutable"))
    return errors


def _lease(obj: JSON, live: JSON | None) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
    duration: Any = spec.get("leaseDurationSeconds")
    if duration is not None and duration <= 0:
        errors.append(field_invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if (spec.get("leaseTransitions") or 0) < 0:
        errors.append(
            field_invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")
        )
    return errors


def _priority_class(obj: JSON, live: JSON | None) -> list[FieldError]:
    if live is not None and obj.get("value") != live.get("value"):
        return [field_forbidden("value", "may not be changed in an update.")]
    return []


_CHECKS: dict[str, Check] = {
    "configmaps": _data,
    "secrets": _secret,
    "pods": _pod,
    "deployments.apps": _workload,
    "replicasets.apps": _workload,
    "daemonsets.apps": _workload,
    "statefulsets.apps": _statefulset,
    "jobs.batch": _job,
    "services": _service,
    "events": _event,
    "leases.coordination.k8s.io": _lease,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "rolebindings.rbac.authorization.k8s.io": _role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_binding,
}


def validate_builtin(resource: ServedResource, obj: JSON, live: JSON | None) -> list[FieldError]:
    """Return the errors of a built-in object; `live` is the version it replaces, None on creation."""
    check = _CHECKS.get(resource.storage)
    return check(obj, live) if check is not None else []
