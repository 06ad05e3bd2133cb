"""The schema of objects as one tree type, for Kubernetes' own types and for CustomResourceDefinitions.

Decoding (unknown fields, wrong types), strategic merge and server-side apply all use the same `SchemaNode`s.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import orjson

JSON: TypeAlias = dict[str, Any]

# patchMergeKey and, where server-side apply uses more than one key, listMapKeys of k8s.io/api types: {(type,
# field): keys}
_MERGE_KEYS: dict[tuple[str, str], tuple[str, ...]] = {
    ("V1PodSpec", "containers"): ("name",),
    ("V1PodSpec", "initContainers"): ("name",),
    ("V1PodSpec", "ephemeralContainers"): ("name",),
    ("V1PodSpec", "volumes"): ("name",),
    ("V1PodSpec", "imagePullSecrets"): ("name",),
    ("V1PodSpec", "hostAliases"): ("ip",),
    ("V1PodSpec", "topologySpreadConstraints"): ("topologyKey", "whenUnsatisfiable"),
    ("V1PodSpec", "schedulingGates"): ("name",),
    ("V1PodSpec", "resourceClaims"): ("name",),
    ("V1Container", "env"): ("name",),
    ("V1Container", "ports"): ("containerPort", "protocol"),
    ("V1Container", "volumeMounts"): ("mountPath",),
    ("V1Container", "volumeDevices"): ("devicePath",),
    ("V1EphemeralContainer", "env"): ("name",),
    ("V1EphemeralContainer", "volumeMounts"): ("mountPath",),
    ("V1ServiceSpec", "ports"): ("port", "protocol"),
    ("V1ServiceAccount", "secrets"): ("name",),
    ("V1ObjectMeta", "ownerReferences"): ("uid",),
    ("V1NodeStatus", "addresses"): ("type",),
    ("V1PodStatus", "podIPs"): ("ip",),
}
_SETS = {("V1ObjectMeta", "finalizers"), ("V1NodeSpec", "podCIDRs"), ("V1ServiceSpec", "finalizers")}
_QUANTITIES = {
    "limits", "requests", "capacity", "allocatable", "hard", "used", "overhead", "allocatedResources", "sizeLimit",
    "default", "defaultRequest", "max", "min", "maxLimitRequestRatio", "divisor",
}  # fmt: skip
_SCALARS = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "datetime": "string",
    "bytes": "string",
    "object": "any",
}
KEY_DEFAULTS = {"protocol": "TCP"}
"""Defaults of fields that identify list items: a container port without protocol is the TCP one."""


class SchemaNode:
    """The schema of one value.

    `type`: object (named fields), map (free keys), list, string, integer, number, boolean, quantity or any. `keys` are
    the merge keys of a list of objects, `is_set` marks lists merged as sets, `atomic` values that are replaced whole.
    `preserve` keeps unknown fields.
    """

    __slots__ = ("_fields", "_model", "atomic", "embedded", "is_set", "items", "keys", "name", "preserve", "type")

    def __init__(self, type_: str, *, name: str = "", items: SchemaNode | None = None, model: str = "") -> None:
        self.type = type_
        self.name = name
        self.items = items
        self.keys: tuple[str, ...] = ()
        self.is_set = False
        self.atomic = False
        self.preserve = False
        self.embedded = False
        self._model = model
        self._fields: dict[str, SchemaNode] | None = None

    @property
    def fields(self) -> dict[str, SchemaNode]:
        """Named fields; those of built-in types are created on first use, since types are recursive."""
        if self._fields is None:
            self._fields = _builtin_fields(self._model) if self._model else {}
        return self._fields

    @fields.setter
    def fields(self, fields: dict[str, SchemaNode]) -> None:
        self._fields = fields

    def child(self, key: str) -> SchemaNode:
        """Return the schema of `key`; ANY when it is unknown."""
        if self.type == "object":
            return self.fields.get(key, ANY)
        if self.type == "map" and self.items is not None:
            return self.items
        return ANY

    def element(self) -> SchemaNode:
        """Return the schema of list items."""
        return self.items if self.items is not None else ANY


ANY = SchemaNode("any")


@cache
def builtin_models() -> dict[str, dict[str, tuple[str, str]]]:
    """Return {type: {field: (type, description)}} of Kubernetes' own kinds."""
    loaded: dict[str, dict[str, tuple[str, str]]] = orjson.loads(Path(__file__).with_name("schemas.json").read_bytes())
    return loaded


@cache
def _model_node(model: str) -> SchemaNode:
    return SchemaNode("object", name=model.removeprefix("V1"), model=model)


def _builtin_fields(model: str) -> dict[str, SchemaNode]:
    return {name: _field_node(model, name, described[0]) for name, described in builtin_models().get(model, {}).items()}


def _field_node(model: str, field: str, text: str) -> SchemaNode:
    if field in _QUANTITIES and text in ("str", "Dict[str, str]"):
        quantity = SchemaNode("quantity")
        return quantity if text == "str" else SchemaNode("map", items=quantity)
    if text.startswith("List["):
        node = SchemaNode("list", items=_field_node("", "", text[5:-1]))
        node.keys = _MERGE_KEYS.get((model, field), ("type",) if field == "conditions" else ())
        node.is_set = (model, field) in _SETS
        node.atomic = not node.keys and not node.is_set
        return node
    if text.startswith("Dict["):
        return SchemaNode("map", items=_field_node("", "", text[5:-1].split(", ", 1)[1]))
    if text in _SCALARS:
        return SchemaNode(_SCALARS[text])
    if text in ("V1JSONSchemaProps", "V1LabelSelector", "V1ObjectReference", "V1NodeSelector"):
        node = SchemaNode("object", name=text.removeprefix("V1"), model=text)
        node.atomic = text != "V1JSONSchemaProps"
        return node
    return _model_node(text)


def builtin_node(model: str) -> SchemaNode | None:
    """Return the schema of a built-in type such as ``V1Pod``; None for a type that is not in the client's models."""
    return _model_node(model) if model in builtin_models() else None


def custom_node(schema: JSON) -> SchemaNode:
    """Return the schema of a custom kind from its structural OpenAPI v3 schema; metadata is Kubernetes' own."""
    node = _from_openapi(schema)
    if node.type == "any":
        node = SchemaNode("object")
        node.preserve = True
    node.fields = {
        **node.fields,
        "apiVersion": SchemaNode("string"),
        "kind": SchemaNode("string"),
        "metadata": _model_node("V1ObjectMeta"),
    }
    return node


def _from_openapi(schema: JSON) -> SchemaNode:
    kind = schema.get("type", "")
    preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if schema.get("x-kubernetes-int-or-string"):
        return SchemaNode("any")
    if kind == "object":
        node = _object_from_openapi(schema, preserve)
        node.atomic = schema.get("x-kubernetes-map-type") == "atomic"
        return node
    if kind == "array":
        node = SchemaNode("list", items=_from_openapi(schema.get("items") or {}))
        list_type = schema.get("x-kubernetes-list-type", "atomic")
        node.keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if list_type == "map" else ()
        node.is_set = list_type == "set"
        node.atomic = list_type == "atomic"
        return node
    return SchemaNode(kind if kind in ("string", "integer", "number", "boolean") else "any")


def _object_from_openapi(schema: JSON, preserve: bool) -> SchemaNode:
    embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    if not properties and (extra or (not preserve and not embedded and "additionalProperties" in schema)):
        return SchemaNode("map", items=_from_openapi(extra) if isinstance(extra, dict) else ANY)
    node = SchemaNode("object")
    node.fields = {name: _from_openapi(child) for name, child in properties.items()}
    node.preserve = preserve
    node.embedded = embedded
    if embedded:
        node.fields = {
            **node.fields,
            "apiVersion": SchemaNode("string"),
            "kind": SchemaNode("string"),
            "metadata": _model_node("V1ObjectMeta"),
        }
    return node
