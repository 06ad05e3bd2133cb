"""Decoding: convert objects to the schema of their kind, as an API server does before validation."""

from __future__ import annotations

import math
from typing import Any

from belay.engine.sandbox.api.errors import ApiError, bad_request
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.schema import SchemaNode


def decode(node: SchemaNode, obj: JSON, resource: ServedResource) -> list[str]:
    """Convert `obj` to the schema `node` in place, as decoding into typed objects does.

    Unknown fields and nulls are dropped, numbers given as quantities become strings. Returns the dotted paths of
    unknown fields.

    Raises ApiError 400 on a value of the wrong type (built-in kinds; custom kinds are validated against their schema).
    """
    unknown: list[str] = []
    _decode_object(node, obj, "", unknown, resource, not resource.custom)
    return unknown


def _decode(node: SchemaNode, value: Any, path: str, unknown: list[str], resource: ServedResource, strict: bool) -> Any:
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


def _decode_object(
    node: SchemaNode, value: JSON, path: str, unknown: list[str], resource: ServedResource, strict: bool
) -> None:
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
            # metadata is typed for every kind; the schema checks the rest of a custom object
            value[key] = _decode(
                child, item, f"{path}.{key}", unknown, resource, strict or (not path and key == "metadata")
            )
    for key in drop or ():
        del value[key]


def _quantity(value: Any, path: str, resource: ServedResource) -> str:
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


def _wrong_type(node: SchemaNode, value: Any, path: str, resource: ServedResource) -> ApiError:
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
