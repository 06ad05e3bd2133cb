"""CustomResourceDefinitions of Belay's kinds; ``deploy/crds/belay.dev_*.yaml`` hold what :func:`definitions` returns.

They come from the models that read the files, so `kubectl explain` says what the JSON Schemas say. They are laxer than
these: patterns and bounds are left to Belay, whose errors name file, line and column.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import yaml

from belay.engine.documents import KINDS, format_duration
from belay.engine.load.validation_errors import json_schema

_HEADER: Final = (
    "# Made by `belay schema --crds DIR`; do not edit. The cluster holds read-only copies of what Git declares; Belay\n"
    "# itself checks documents more strictly, at file:line:col.\n"
)
_GROUP: Final = "belay.dev"
_ANYTHING: Final = {"x-kubernetes-preserve-unknown-fields": True}
_CONDITIONS: Final = '.status.conditions[?(@.type=="Ready")]'
_Column = tuple[str, str, str]


class _Names(NamedTuple):
    """What kubectl calls a kind, and the columns that `kubectl get` shows: title, type, path."""

    plural: str
    short: tuple[str, ...] = ()
    columns: tuple[_Column, ...] = ()
    singular: str = ""


_NAMES: Final[Mapping[str, _Names]] = {
    "DiagnosisRules": _Names("diagnosisrules", ("dr",), (), "diagnosisrules"),
    "FaultPolicy": _Names("faultpolicies", ("fp",), (("Mode", "string", ".spec.mode"),)),
    "FaultTable": _Names("faulttables", ("ft",), (("Plane", "string", ".spec.plane"),)),
    "Isolation": _Names(
        "isolations", ("iso",), (("Reason", "string", ".spec.reason"), ("Until", "string", ".spec.until"))
    ),
    "KVLink": _Names("kvlinks", ("kvl",), (("Timeout", "string", ".spec.timeout"),)),
    "NodePool": _Names(
        "nodepools",
        ("np", "pools"),
        (
            ("Product", "string", ".spec.product"),
            ("Nodes", "integer", ".status.nodes"),
            ("Healthy", "integer", ".status.healthyNodes"),
            ("Shard", "string", ".spec.shard"),
            ("Suspended", "boolean", ".spec.suspend"),
        ),
    ),
    "NotificationPolicy": _Names("notificationpolicies", ("notify",), (("Suspended", "boolean", ".spec.suspend"),)),
    "Product": _Names(
        "products",
        (),
        (
            ("Title", "string", ".spec.title"),
            ("Resource", "string", ".spec.resource"),
            ("Chips", "integer", ".spec.chipsPerNode"),
        ),
    ),
    "SafetyBudget": _Names("safetybudgets", ("sb",), (("Limits", "string", ".spec.limits[*].actions"),)),
    "SchedulingSettings": _Names(
        "schedulingsettings", ("sched",), (("Schedulers", "string", ".spec.schedulerNames"),), "schedulingsettings"
    ),
    "Source": _Names(
        "sources",
        (),
        (
            ("URL", "string", ".spec.url"),
            ("Branch", "string", ".spec.branch"),
            ("Suspended", "boolean", ".spec.suspend"),
        ),
    ),
    "VNPULayout": _Names(
        "vnpulayouts",
        ("vnpu",),
        (
            ("Pool", "string", ".spec.pool"),
            ("Mode", "string", ".spec.mode"),
            ("When busy", "string", ".spec.whenBusy"),
        ),
    ),
    "VNPUTemplates": _Names("vnputemplates", ("vt",), (("Family", "string", ".spec.family"),), "vnputemplates"),
    "WorkloadKind": _Names(
        "workloadkinds",
        ("wk",),
        (
            ("Group", "string", ".spec.group"),
            ("Kind", "string", ".spec.kind"),
            ("Together", "string", ".spec.together"),
        ),
    ),
}


def definitions() -> dict[str, dict[str, Any]]:
    """CustomResourceDefinition by file name, one per kind."""
    return {f"{_GROUP}_{_NAMES[kind].plural}.yaml": _definition(kind) for kind in sorted(KINDS)}


def definition_text(definition: dict[str, Any]) -> str:
    """A definition as the file holds it."""
    return _HEADER + yaml.safe_dump(definition, sort_keys=False, width=120, allow_unicode=True)


def _definition(kind: str) -> dict[str, Any]:
    names, model = _NAMES[kind], KINDS[kind]
    root = json_schema(model)
    spec = _structural(root, root["properties"]["spec"])
    columns: list[dict[str, Any]] = [
        {"name": title, "type": form, "jsonPath": path} for title, form, path in names.columns
    ]
    columns += [
        {"name": "Ready", "type": "string", "jsonPath": f"{_CONDITIONS}.status"},
        {"name": "Why", "type": "string", "priority": 1, "jsonPath": f"{_CONDITIONS}.message"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    schema: dict[str, Any] = {
        "description": inspect.cleandoc(model.__doc__ or "").replace("``", ""),
        "type": "object",
        **({"required": ["spec"]} if "spec" in root.get("required", ()) else {}),
        "properties": {
            "apiVersion": {"type": "string", "description": root["properties"]["apiVersion"]["description"]},
            "kind": {"type": "string", "description": root["properties"]["kind"]["description"]},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _status(kind),
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.plural}.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": names.plural,
                "singular": names.singular or kind.lower(),
                **({"shortNames": list(names.short)} if names.short else {}),
                "categories": ["belay"],
            },
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _status(kind: str) -> dict[str, Any]:
    """The schema of ``status``, which Belay writes."""
    condition = {
        "type": ("string", "Ready: what this generation says is in force and done. Ignored: it has no effect."),
        "status": ("string", "True, False or Unknown."),
        "reason": ("string", "Why, in one word."),
        "message": ("string", "Why, in a sentence, and what to do."),
        "lastTransitionTime": ("string", "When status last changed."),
        "observedGeneration": ("integer", "The metadata.generation that the condition is about."),
    }
    fields = {"observedGeneration": ("integer", "The metadata.generation that the status is about.")}
    if kind == "NodePool":
        fields |= {
            "nodes": ("integer", "Number of nodes in the pool."),
            "healthyNodes": ("integer", "Number of those that are healthy."),
        }
    rows = {
        "description": "What holds of the object.",
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "required": ["type", "status"], "properties": _plain(condition)},
    }
    return {
        "description": "Written by Belay.",
        "type": "object",
        "properties": {**_plain(fields), "conditions": rows},
    }


def _plain(fields: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    return {name: {"type": form, "description": text} for name, (form, text) in fields.items()}


def _structural(root: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema as Kubernetes takes it: references resolved, one type each, no patterns, bounds or defaults.

    Objects list their fields and keep no unknown ones: API servers publish no fields of objects that do, so that
    `kubectl explain` would show none, and `kubectl apply` could not warn of a mistyped field.
    Defaults are written into the descriptions: as defaults of the CRD they would look like drift from Git.
    """
    found = _one_type(root, _resolved(root, schema))
    text = str(schema.get("description") or found.get("description") or "").replace("``", "").strip()
    default = schema.get("default")
    if default not in (None, "", [], {}) and not isinstance(default, dict | list):
        words = str(default).lower() if isinstance(default, bool) else default
        if isinstance(default, float) and found.get("type") == "string":
            words = format_duration(default)
        text = f"{text} Default: {words}.".strip()
    return {**({"description": text} if text else {}), **{k: v for k, v in found.items() if k != "description"}}


def _one_type(root: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    alternatives = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(alternatives) == 1:
        return _one_type(root, _resolved(root, alternatives[0]))
    if alternatives:
        resolved = [_resolved(root, one) for one in alternatives]
        types = {one.get("type") for one in resolved}
        if types == {"integer", "string"}:
            return {"x-kubernetes-int-or-string": True}
        if types == {"string"} and all("enum" in one or "const" in one for one in resolved):
            return {
                "type": "string",
                "enum": [word for one in resolved for word in one.get("enum", [one.get("const")])],
            }
        return dict(_ANYTHING)
    form = schema.get("type")
    if form == "object":
        return _object(root, schema)
    if form == "array" and isinstance(schema.get("items"), dict):
        return {"type": "array", "items": _structural(root, schema["items"])}
    if form not in ("string", "integer", "number", "boolean"):
        return dict(_ANYTHING)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return {"type": form, **({"enum": list(values)} if values else {})}


def _object(root: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"}
    if schema.get("required"):
        found["required"] = list(schema["required"])
    if schema.get("properties"):
        found["properties"] = {name: _structural(root, field) for name, field in schema["properties"].items()}
        return found
    values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    return (
        {**found, "additionalProperties": _structural(root, values)} if isinstance(values, dict) else found | _ANYTHING
    )


def _resolved(root: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return dict(root["$defs"][str(reference).rpartition("/")[2]]) if reference else dict(schema)
