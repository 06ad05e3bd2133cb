"""``belay-sync``: which revision was tried and which is in force, its conditions, diagnostics and inventory.

The inventory lists the objects Git applied, grouped to stay small:
``{"apiVersion|Kind": {"namespace": ["name", …]}}``. Prune compares with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from engine.model.diagnostics import ObjectKey
from engine.wire.errors import WireError

ATTEMPTED = "attemptedRevision"
APPLIED = "appliedRevision"
INVENTORY = "inventory.json"


def parse_inventory(config_map: Mapping[str, Any]) -> tuple[ObjectKey, ...] | None:
    """The recorded inventory, None when there is none.

    Raises:
        WireError: it cannot be read; nothing is pruned until it can.
    """
    text = (config_map.get("data") or {}).get(INVENTORY)
    if text is None:
        return None
    try:
        groups = msgspec.json.decode(text, type=dict[str, dict[str, list[str]]])
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(
            "ConfigMap/belay-system/belay-sync", f"data.{INVENTORY}", f"is not an inventory: {error}"
        ) from error
    keys = []
    for group, namespaces in groups.items():
        api_version, _, kind = group.partition("|")
        keys += [
            ObjectKey(api_version, kind, namespace, name) for namespace, names in namespaces.items() for name in names
        ]
    return tuple(sorted(keys))


def inventory_text(keys: Iterable[ObjectKey]) -> str:
    """The inventory's JSON."""
    groups: dict[str, dict[str, list[str]]] = {}
    for key in sorted(keys):
        groups.setdefault(f"{key.api_version}|{key.kind}", {}).setdefault(key.namespace, []).append(key.name)
    return msgspec.json.encode(groups, order="deterministic").decode()
