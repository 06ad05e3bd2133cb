"""Find the field of an object that has a wrong type, for the message after reading the object failed.

API servers check these types; cluster files written by hand are unchecked. Source: Kubernetes core/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TEXT_MAP: Final = {"*": str}
_METADATA: Final = {
    "labels": _TEXT_MAP,
    "annotations": _TEXT_MAP,
    "uid": str,
    "resourceVersion": str,
    "creationTimestamp": str,
    "deletionTimestamp": str,
    "deletionGracePeriodSeconds": int,
    "ownerReferences": [{"kind": str, "name": str, "uid": str, "apiVersion": str, "controller": bool}],
}
_CONDITIONS: Final = [{"type": str, "status": str, "reason": str, "lastTransitionTime": str}]
_CONTAINERS: Final = [
    {
        "name": str,
        "resources": {"requests": {}, "limits": {}},
        "env": [{"name": str, "value": str, "valueFrom": {}}],
        "volumeMounts": [{"name": str, "mountPath": str}],
        "ports": [{"name": str, "containerPort": int}],
        "command": [str],
        "args": [str],
    }
]
_STATUSES: Final = [{"name": str, "ready": bool, "restartCount": int, "state": {}, "lastState": {}}]
_FIELD_TYPES: Final[Mapping[str, Any]] = {
    "Node": {
        "spec": {"taints": [{"key": str, "value": str, "effect": str}], "unschedulable": bool},
        "status": {
            "conditions": _CONDITIONS,
            "allocatable": {},
            "capacity": {},
            "addresses": [{"type": str, "address": str}],
            "nodeInfo": {},
        },
    },
    "Pod": {
        "spec": {
            "nodeName": str,
            "schedulerName": str,
            "priority": int,
            "priorityClassName": str,
            "resources": {"requests": {}, "limits": {}},
            "nodeSelector": _TEXT_MAP,
            "containers": _CONTAINERS,
            "initContainers": _CONTAINERS,
            "tolerations": [{}],
            "affinity": {},
            "volumes": [{"name": str}],
            "terminationGracePeriodSeconds": int,
        },
        "status": {
            "phase": str,
            "reason": str,
            "podIP": str,
            "hostIP": str,
            "startTime": str,
            "conditions": _CONDITIONS,
            "containerStatuses": _STATUSES,
            "initContainerStatuses": _STATUSES,
        },
    },
    "ConfigMap": {"data": _TEXT_MAP, "binaryData": _TEXT_MAP},
}
_TYPE_NAMES: Final = {str: "text", int: "a whole number", bool: "true or false", float: "a number"}


def wrong_type(obj: Mapping[str, Any]) -> tuple[str, str]:
    """The path of the first field with a wrong type, and the expected type; both empty if no field is wrong.

    An absent field and null are valid.
    """
    shape = {"metadata": _METADATA, **_FIELD_TYPES.get(str(obj.get("kind")), {})}
    return _wrong_type(obj, shape, "") or ("", "")


def _wrong_type(value: Any, shape: Any, path: str) -> tuple[str, str] | None:
    if value is None:
        return None
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            return path, f"must be a mapping, but is {_type_name(value)}"
        rows = [(key, shape.get(str(key), shape.get("*"))) for key in value]
        found = (_wrong_type(value[key], part, f"{path}.{key}".lstrip(".")) for key, part in rows if part is not None)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return path, f"must be a list, but is {_type_name(value)}"
        found = (_wrong_type(item, shape[0], f"{path}[{index}]") for index, item in enumerate(value))
    elif isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
        return None
    else:
        return path, f"must be {_TYPE_NAMES[shape]}, but is {_type_name(value)}"
    return next((one for one in found if one is not None), None)


def _type_name(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else _TYPE_NAMES.get(type(value), "something else")
