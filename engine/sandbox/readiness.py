"""Expected and actual readiness of the sandbox's nodes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from belay.engine.sandbox.settings import NODE_KEY
from belay.engine.wire import names


def silenced(config_maps: Iterable[Mapping[str, Any]]) -> set[str]:
    """Nodes that were silenced, perhaps in an earlier run; the start does not wait for them."""
    out = set()
    for item in config_maps:
        name, text = str(item["metadata"]["name"]), str((item.get("data") or {}).get(NODE_KEY) or "{}")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            continue  # invalid after a manual edit: the kubelets warn and let the node run
        if (
            name.startswith(names.SIM_PREFIX)
            and isinstance(said, dict)
            and (said.get("paused") or said.get("ready") is False)
        ):
            out.add(name.removeprefix(names.SIM_PREFIX))
    return out


def settled(nodes: Iterable[Mapping[str, Any]], silent: Collection[str]) -> list[str]:
    """Nodes that are Ready, or that are silent and will not become so."""
    return [
        node["metadata"]["name"]
        for node in nodes
        if node["metadata"]["name"] in silent
        or any(
            c.get("type") == "Ready" and c.get("status") == "True"
            for c in (node.get("status") or {}).get("conditions") or ()
        )
    ]
