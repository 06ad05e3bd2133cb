"""A manifest as an API server accepts it: loose notations made strict, unknown fields dropped.

Kubernetes 1.20 refuses a server-side apply of quantities written as numbers ("expected string") and of ports without a
protocol ("associative list … omits key field"), although people write both and every other verb accepts them (measured
on kube-apiserver 1.20.2). Fields unknown to the schema of a CustomResourceDefinition are pruned on every write, so they
never match the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

#: Kubernetes' own API versions among the accepted kinds; quantities of other kinds stay as written.
_NATIVE: Final = frozenset({"v1", "apps/v1", "batch/v1"})
_AMOUNTS: Final = frozenset({"requests", "limits", "overhead"})
_AMOUNT: Final = frozenset({"sizeLimit", "divisor"})
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def normalized(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with quantities as text and a protocol on every port, for Kubernetes' own kinds."""
    if body.get("apiVersion") not in _NATIVE or not isinstance(body.get("spec"), dict):
        return dict(body)
    return {**body, "spec": _normalized(body["spec"])}


def without_unknown_fields(body: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A custom resource without fields that its ``openAPIV3Schema`` does not know."""
    head = {key: value for key, value in body.items() if key in ("apiVersion", "kind", "metadata")}
    rest = {key: value for key, value in body.items() if key not in head}
    found: dict[str, Any] = _known_fields(rest, schema)
    return {**head, **found}


def _normalized(value: Any) -> Any:
    if isinstance(value, list):
        return [_normalized(row) for row in value]
    if not isinstance(value, dict):
        return value
    return {key: _normalized_field(key, inner) for key, inner in value.items()}


def _normalized_field(key: str, value: Any) -> Any:
    if key in _AMOUNTS and isinstance(value, dict):
        return {name: _text(amount) for name, amount in value.items()}
    if key in _AMOUNT:
        return _text(value)
    if key == "ports" and isinstance(value, list):
        return [{**row, "protocol": row.get("protocol") or "TCP"} if _is_port(row) else row for row in value]
    return _normalized(value)


def _is_port(row: Any) -> bool:
    return isinstance(row, dict) and ("containerPort" in row or "port" in row)


def _text(amount: Any) -> Any:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        return amount
    return format(Decimal(repr(amount)), "f").removesuffix(".0")


def _known_fields(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        return [_known_fields(row, items) for row in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    known = schema.get("properties")
    others = schema.get("additionalProperties")
    keeps = bool(schema.get(_PRESERVE) or schema.get("x-kubernetes-embedded-resource") or others is True)
    out = {}
    for key, inner in value.items():
        if isinstance(known, dict) and isinstance(known.get(key), dict):
            out[key] = _known_fields(inner, known[key])
        elif isinstance(others, dict):
            out[key] = _known_fields(inner, others)
        elif keeps:
            out[key] = inner
    return out
