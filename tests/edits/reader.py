"""A correct reader of a state repository on its own: PyYAML's base loader and the rules of the formats, none of Belay.

It knows what a text declares, as far as names go, or that the text cannot be used; all values stay text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

_BELAY = "belay.dev/v1alpha1"
#: What may be declared, by apiVersion and kind, and whether it lives in a namespace (Kubernetes, Volcano, MindCluster).
KINDS = {
    ("mindxdl.gitee.com/v1", "AscendJob"): True,
    ("batch.volcano.sh/v1alpha1", "Job"): True,
    ("mindcluster.huawei.com/v1", "InferServiceSet"): True,
    ("mindcluster.huawei.com/v1", "InferService"): True,
    ("mindcluster.huawei.com/v1", "InstanceSet"): True,
    ("apps/v1", "Deployment"): True,
    ("apps/v1", "StatefulSet"): True,
    ("batch/v1", "Job"): True,
    ("v1", "ConfigMap"): True,
    ("v1", "Service"): True,
    ("v1", "Namespace"): False,
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): True,
    ("scheduling.volcano.sh/v1beta1", "Queue"): False,
    ("scheduling.k8s.io/v1", "PriorityClass"): False,
    **{
        (_BELAY, kind): False
        for kind in (
            "NodePool", "VNPULayout", "FaultPolicy", "Isolation", "SafetyBudget", "SchedulingSettings", "KVLink",
            "NotificationPolicy", "Product", "FaultTable", "VNPUTemplates", "DiagnosisRules", "WorkloadKind",
        )
    },
}  # fmt: skip
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class Reading(NamedTuple):
    """What a text declares, ``Kind/namespace/name`` → its value as canonical JSON; None when it cannot be used."""

    declared: dict[str, str] | None


class Unusable(Exception):
    """Some document of the text cannot be used."""


def read(text: bytes) -> Reading:
    """Read one file."""
    found: dict[str, str] = {}
    try:
        for node in yaml.compose_all(text, Loader=yaml.CBaseLoader):
            value = _value(node)
            if value is None:
                continue
            for body in _documents(value):
                name = _identity(body)
                if name in found:
                    raise Unusable(name)
                found[name] = json.dumps(body, sort_keys=True)
    except (yaml.YAMLError, Unusable, UnicodeError, RecursionError, ValueError):
        return Reading(None)
    return Reading(found)


def _value(node: yaml.Node | None) -> Any:
    """A node's value; keys must be text and differ."""
    if isinstance(node, yaml.MappingNode):
        merged: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in merged:
                raise Unusable("key")
            merged[key.value] = _value(value)
        return merged
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value]
    if isinstance(node, yaml.ScalarNode):
        return None if not node.style and node.value in ("", "~", "null") else node.value
    return None


def _documents(value: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(value, dict):
        raise Unusable("document")
    if str(value.get("kind")).endswith("List") and isinstance(value.get("items"), list):
        for item in value["items"]:
            yield from _documents(item)
    else:
        yield value


def _identity(body: dict[str, Any]) -> str:
    kind, metadata = (body.get("apiVersion"), body.get("kind")), body.get("metadata")
    namespaced = KINDS.get(kind)  # type: ignore[arg-type]
    if namespaced is None or not isinstance(metadata, dict):
        raise Unusable("kind")
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > 253:
        raise Unusable("name")
    if namespace is not None and (not isinstance(namespace, str) or not _NAME.fullmatch(namespace)):
        raise Unusable("namespace")
    return f"{kind[1]}/{namespace or 'default'}/{name}" if namespaced else f"{kind[1]}/{name}"
