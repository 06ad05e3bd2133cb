"""Which field of an object has a wrong type: asked when reading it failed, so that the person learns the field.

API servers check these shapes themselves; files written by hand do not. Shapes: Kubernetes core/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TEXTS: Final = {"*": str}
_METADATA: Final = {
    "labels": _TEXTS,
    "annotations": _TEXTS,
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
_SHAPES: Final[Mapping[str, Any]] = {
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
            "nodeSelector": _TEXTS,
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
    "ConfigMap": {"data": _TEXTS, "binaryData": _TEXTS},
}
_WORDS: Final = {str: "text", int: "a whole number", bool: "true or false", float: "a number"}


def misfit(obj: Mapping[str, Any]) -> tuple[str, str]:
    """The first field of a wrong type, as a path, and what it should be; both empty when none is known to be wrong.

    An absent field, or null, fits.
    """
    shape = {"metadata": _METADATA, **_SHAPES.get(str(obj.get("kind")), {})}
    return _misfit(obj, shape, "") or ("", "")


def _misfit(value: Any, shape: Any, path: str) -> tuple[str, str] | None:
    if value is None:
        return None
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            return path, f"must be a mapping, but is {_word(value)}"
        rows = [(key, shape.get(str(key), shape.get("*"))) for key in value]
        found = (_misfit(value[key], part, f"{path}.{key}".lstrip(".")) for key, part in rows if part is not None)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return path, f"must be a list, but is {_word(value)}"
        found = (_misfit(item, shape[0], f"{path}[{index}]") for index, item in enumerate(value))
    elif isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
        return None
    else:
        return path, f"must be {_WORDS[shape]}, but is {_word(value)}"
    return next((one for one in found if one is not None), None)


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else _WORDS.get(type(value), "something else")
