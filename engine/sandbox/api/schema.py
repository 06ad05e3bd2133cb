"""The shape of objects as one kind of tree, whether it comes from Kubernetes' own types or from a
CustomResourceDefinition.

Decoding (unknown fields, wrong types), strategic merge and server-side apply all walk the same `Node`s.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from engine.sandbox.api.builtin import model_of
from engine.sandbox.api.errors import ApiError, bad_request
from engine.sandbox.api.kinds import JSON, Resource

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


class Node:
    """The shape of one value.

    `type`: object (named fields), map (free keys), list, string, integer, number, boolean, quantity or any. `keys` are
    the merge keys of a list of objects, `is_set` marks lists merged as sets, `atomic` values that are replaced whole.
    `preserve` keeps unknown fields.
    """

    __slots__ = ("_fields", "_model", "atomic", "embedded", "is_set", "items", "keys", "name", "preserve", "type")

    def __init__(self, type_: str, *, name: str = "", items: Node | None = None, model: str = "") -> None:
        self.type = type_
        self.name = name
        self.items = items
        self.keys: tuple[str, ...] = ()
        self.is_set = False
        self.atomic = False
        self.preserve = False
        self.embedded = False
        self._model = model
        self._fields: dict[str, Node] | None = None

    @property
    def fields(self) -> dict[str, Node]:
        """Named fields; those of built-in types are made when first asked for, since types are recursive."""
        if self._fields is None:
            self._fields = _builtin_fields(self._model) if self._model else {}
        return self._fields

    @fields.setter
    def fields(self, fields: dict[str, Node]) -> None:
        self._fields = fields

    def child(self, key: str) -> Node:
        """Return the shape under `key`; ANY where nothing is known."""
        if self.type == "object":
            return self.fields.get(key, ANY)
        if self.type == "map" and self.items is not None:
            return self.items
        return ANY

    def element(self) -> Node:
        """Return the shape of list items."""
        return self.items if self.items is not None else ANY


ANY = Node("any")


@cache
def builtin_models() -> dict[str, dict[str, tuple[str, str]]]:
    """Return {type: {field: (type, description)}} of Kubernetes' own kinds."""
    loaded: dict[str, dict[str, tuple[str, str]]] = orjson.loads(Path(__file__).with_name("schemas.json").read_bytes())
    return loaded


@cache
def _model_node(model: str) -> Node:
    return Node("object", name=model.removeprefix("V1"), model=model)


def _builtin_fields(model: str) -> dict[str, Node]:
    return {name: _field_node(model, name, described[0]) for name, described in builtin_models().get(model, {}).items()}


def _field_node(model: str, field: str, text: str) -> Node:
    if field in _QUANTITIES and text in ("str", "Dict[str, str]"):
        quantity = Node("quantity")
        return quantity if text == "str" else Node("map", items=quantity)
    if text.startswith("List["):
        node = Node("list", items=_field_node("", "", text[5:-1]))
        node.keys = _MERGE_KEYS.get((model, field), ("type",) if field == "conditions" else ())
        node.is_set = (model, field) in _SETS
        node.atomic = not node.keys and not node.is_set
        return node
    if text.startswith("Dict["):
        return Node("map", items=_field_node("", "", text[5:-1].split(", ", 1)[1]))
    if text in _SCALARS:
        return Node(_SCALARS[text])
    if text in ("V1JSONSchemaProps", "V1LabelSelector", "V1ObjectReference", "V1NodeSelector"):
        node = Node("object", name=text.removeprefix("V1"), model=text)
        node.atomic = text != "V1JSONSchemaProps"
        return node
    return _model_node(text)


def builtin_node(resource: Resource) -> Node | None:
    """Return the shape of a built-in kind, None for a kind that the client's models do not know."""
    model = model_of(resource)
    return _model_node(model) if model in builtin_models() else None


def custom_node(schema: JSON) -> Node:
    """Return the shape of a custom kind from its structural OpenAPI v3 schema; metadata is Kubernetes' own."""
    node = _from_openapi(schema)
    if node.type == "any":
        node = Node("object")
        node.preserve = True
    node.fields = {
        **node.fields,
        "apiVersion": Node("string"),
        "kind": Node("string"),
        "metadata": _model_node("V1ObjectMeta"),
    }
    return node


def _from_openapi(schema: JSON) -> Node:
    kind = schema.get("type", "")
    preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if schema.get("x-kubernetes-int-or-string"):
        return Node("any")
    if kind == "object":
        node = _object_from_openapi(schema, preserve)
        node.atomic = schema.get("x-kubernetes-map-type") == "atomic"
        return node
    if kind == "array":
        node = Node("list", items=_from_openapi(schema.get("items") or {}))
        list_type = schema.get("x-kubernetes-list-type", "atomic")
        node.keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if list_type == "map" else ()
        node.is_set = list_type == "set"
        node.atomic = list_type == "atomic"
        return node
    return Node(kind if kind in ("string", "integer", "number", "boolean") else "any")


def _object_from_openapi(schema: JSON, preserve: bool) -> Node:
    embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    if not properties and (extra or (not preserve and not embedded and "additionalProperties" in schema)):
        return Node("map", items=_from_openapi(extra) if isinstance(extra, dict) else ANY)
    node = Node("object")
    node.fields = {name: _from_openapi(child) for name, child in properties.items()}
    node.preserve = preserve
    node.embedded = embedded
    if embedded:
        node.fields = {
            **node.fields,
            "apiVersion": Node("string"),
            "kind": Node("string"),
            "metadata": _model_node("V1ObjectMeta"),
        }
    return node


def decode(node: Node, obj: JSON, resource: Resource) -> list[str]:
    """Bring `obj` into the shape of `node` in place, as decoding into typed objects does.

    Unknown fields and nulls are dropped, numbers given as quantities become strings. Returns the dotted paths of
    unknown fields; raises
    ApiError 400 on a value of the wrong type (built-in kinds; custom kinds are validated against their schema instead).
    """
    unknown: list[str] = []
    _decode_object(node, obj, "", unknown, resource, not resource.custom)
    return unknown


def _decode(node: Node, value: Any, path: str, unknown: list[str], resource: Resource, strict: bool) -> Any:
    kind = node.type
    if kind == "any":
        return value
    if kind == "object":
        if isinstance(value, dict):
            _decode_object(node, value, path, unknown, resource, strict)
            return value
    elif kind == "map":
        if isinstance(value, dict):
            element = node.element()
            for key, item in value.items():
                value[key] = _decode(element, item, f"{path}.{key}", unknown, resource, strict)
            return value
    elif kind == "list":
        if isinstance(value, list):
            element = node.element()
            if element.type != "any":
                value[:] = [
                    _decode(element, item, f"{path}[{i}]", unknown, resource, strict) for i, item in enumerate(value)
                ]
            return value
    elif kind == "quantity":
        return _quantity(value, path, resource)
    elif kind == "string":
        if isinstance(value, str):
            return value
        if value is None and strict:
            return ""
    elif kind == "boolean":
        if isinstance(value, bool):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if kind == "number" or isinstance(value, int):
            return value
        if value.is_integer():
            return int(value)
    if not strict:
        return value
    raise _wrong_type(node, value, path, resource)


def _decode_object(node: Node, value: JSON, path: str, unknown: list[str], resource: Resource, strict: bool) -> None:
    fields = node.fields
    drop = None
    for key, item in value.items():
        child = fields.get(key)
        if child is None:
            if not node.preserve and (fields or resource.custom):
                unknown.append(f"{path}.{key}".lstrip("."))
                drop = [key] if drop is None else [*drop, key]
        elif item is None:
            if strict:
                drop = [key] if drop is None else [*drop, key]
        elif child.type in ("map", "list") and not item and strict and isinstance(item, dict | list):
            # empty maps and lists of built-in types are left out when serialised (omitempty)
            drop = [key] if drop is None else [*drop, key]
        elif child.type != "any":
            # metadata is typed for every kind; the rest of a custom object is left to its schema
            value[key] = _decode(
                child, item, f"{path}.{key}", unknown, resource, strict or (not path and key == "metadata")
            )
    for key in drop or ():
        del value[key]


def _quantity(value: Any, path: str, resource: Resource) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    if isinstance(value, float) and not value.is_integer():
        return f"{math.ceil(value * 1000)}m"
    return str(int(value))


def _wrong_type(node: Node, value: Any, path: str, resource: Resource) -> ApiError:
    found = {bool: "bool", str: "string", int: "number", float: "number", list: "array", dict: "object"}.get(
        type(value), "null"
    )
    wanted = {
        "integer": "int32",
        "boolean": "bool",
        "map": "map[string]string",
        "list": "[]" + (node.items.name if node.items else ""),
    }
    text = wanted.get(node.type, node.name or node.type)
    where = _unindexed(path)
    return bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
        f"json: cannot unmarshal {found} into Go struct field {where.lstrip('.')} of type {text}"
    )


def _unindexed(path: str) -> str:
    parts = [part.split("[", 1)[0] for part in path.split(".") if part]
    return f"{parts[-2].capitalize()}.{'.'.join(parts)}" if len(parts) > 1 else ".".join(parts)
