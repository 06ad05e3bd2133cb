"""Fields of raw Kubernetes objects, whose content anyone may have written: a value of another type counts as absent.

The names are those of Kubernetes' apimachinery (``unstructured.NestedMap`` and so on).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def nested_map(raw: Mapping[str, Any], name: str, *deeper: str) -> dict[str, Any]:
    """Return the object at a path of fields; an empty one where a field is absent or holds another type."""
    value = raw.get(name)
    for field in deeper:
        value = value.get(field) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def nested_list(raw: Mapping[str, Any], name: str, *deeper: str) -> list[dict[str, Any]]:
    """Return the objects in the list at a path of fields; elements of other types are dropped."""
    value = raw.get(name)
    for field in deeper:
        value = value.get(field) if isinstance(value, dict) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def string_map(value: object) -> dict[str, str]:
    """Return labels or annotations as text; empty where ``value`` is not an object."""
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}
