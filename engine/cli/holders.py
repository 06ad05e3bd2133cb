"""Who holds a chip: pods through the device plugin, and resource claims.

Two of them hold one chip only where two schedulers gave it in the same second; then the later one cannot start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belay.engine.model.cluster import Observed
from belay.engine.model.unstructured import nested_list
from belay.engine.wire.dra import DRIVER


def holders_of(observed: Observed, node: str, chip: str) -> list[str]:
    """The pods (``namespace/name``) and the claims (``ResourceClaim namespace/name``) that hold a chip of a node."""
    pods = {pod.key for pod in observed.pods.values() if pod.node == node and pod.holds_chips and chip in pod.chips}
    claims = {
        f"ResourceClaim {key.namespace}/{key.name}"
        for key, raw in observed.objects.items()
        if key.kind == "ResourceClaim" and _gives(raw, node, chip.lower())
    }
    return sorted(pods) + sorted(claims)


def _gives(claim: Mapping[str, Any], node: str, device: str) -> bool:
    """Whether a claim has a chip, or a part of it: the driver's devices are named after chips, in lower case."""
    for row in nested_list(claim, "status", "allocation", "devices", "results"):
        own = row.get("driver") == DRIVER and row.get("pool") == node and row.get("adminAccess") is not True
        name = str(row.get("device"))
        if own and (name == device or name.startswith(f"{device}-vnpu-")):
            return True
    return False


__all__ = ["holders_of"]
