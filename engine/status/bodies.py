"""One ConfigMap body, and the limits every body obeys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.labels import MANAGED_BY

#: Most bytes of a ConfigMap's data, well under the 1 MiB that Kubernetes allows.
MAX_BYTES: Final = 800 * 1024


def config_map(
    namespace: str, name: str, data: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A ConfigMap that Belay owns."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY: "belay", **(labels or {})}},
        "data": dict(data),
    }


def text(value: object) -> str:
    """Compact JSON with a fixed key order."""
    return msgspec.json.encode(value, order="deterministic").decode()


def bounded_list(items: list[Any], limit: int) -> tuple[list[Any], int]:
    """The first items whose JSON fits into ``limit`` bytes, and how many were left out."""
    used = 2
    for index, item in enumerate(items):
        used += len(msgspec.json.encode(item)) + 1
        if used > limit:
            return items[:index], len(items) - index
    return items, 0
