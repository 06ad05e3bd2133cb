"""A manifest as an API server takes it: what people may write loosely made strict, and what it would drop left out.

Kubernetes 1.20 refuses a server-side apply of quantities written as numbers ("expected string") and of ports without a
protocol ("associative list … omits key field"), although people write both and every other verb takes them; measured
on kube-apiserver 1.20.2. Fields that the schema of a CustomResourceDefinition does not know are pruned on every write,
so they can never be as declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

#: Kubernetes' own groups among the kinds that people declare; quantities of other kinds stay as written.
_NATIVE: Final = frozenset({"v1", "apps/v1", "batch/v1"})
_AMOUNTS: Final = frozenset({"requests", "limits", "overhead"})
_AMOUNT: Final = frozenset({"sizeLimit", "divisor"})
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def strict(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with quantities as text and every port with its protocol, for Kubernetes' own kinds."""
    if body.get("apiVersion") not in _NATIVE or not isinstance(body.get("spec"), dict):
        return dict(body)
    return {**body, "spec": _strict(body["spec"])}


def kept(body: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a custom resource that its ``openAPIV3Schema`` keeps; its head is always kept."""
    head = {key: value for key, value in body.items() if key in ("apiVersion", "kind", "metadata")}
    rest = {key: value for key, value in body.items() if key not in head}
    found: dict[str, Any] = _kept(rest, schema)
    return {**head, **found}


def _strict(value: Any) -> Any:
    if isinstance(value, list):
        return [_strict(row) for row in value]
    if not isinstance(value, dict):
        return value
    return {key: _strict_field(key, inner) for key, inner in value.items()}


def _strict_field(key: str, value: Any) -> Any:
    if key in _AMOUNTS and isinstance(value, dict):
        return {name: _text(amount) for name, amount in value.items()}
    if key in _AMOUNT:
        return _text(value)
    if key == "ports" and isinstance(value, list):
        return [{**row, "protocol": row.get("protocol") or "TCP"} if _is_port(row) else row for row in value]
    return _strict(value)


def _is_port(row: Any) -> bool:
    return isinstance(row, dict) and ("containerPort" in row or "port" in row)


def _text(amount: Any) -> Any:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        return amount
    return format(Decimal(repr(amount)), "f").removesuffix(".0")


def _kept(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        return [_kept(row, items) for row in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    known = schema.get("properties")
    others = schema.get("additionalProperties")
    keeps = bool(schema.get(_PRESERVE) or schema.get("x-kubernetes-embedded-resource") or others is True)
    out = {}
    for key, inner in value.items():
        if isinstance(known, dict) and isinstance(known.get(key), dict):
            out[key] = _kept(inner, known[key])
        elif isinstance(others, dict):
            out[key] = _kept(inner, others)
        elif keeps:
            out[key] = inner
    return out
