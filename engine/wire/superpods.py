"""``super-pod-<id>`` and ``pingmesh-config`` (cluster-system): which chips of a super pod ping each other, and when.

Sources: component/clusterd/pkg/application/pingmesh/publisher.go, component/ascend-common/api/superpoddevice.go (the
fields and their order); docs/zh/scheduling (pingmesh).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from engine.wire.gojson import go_json

NAMESPACE: Final = "cluster-system"
PREFIX: Final = "super-pod-"
KEY: Final = "superPodDevice"
CONFIG: Final = "pingmesh-config"
LABELS: Final = {"app": "pingmesh"}


class SuperPodServer(NamedTuple):
    """A node of a super pod: its number there, and the super device id of each chip by physical id."""

    place: int
    devices: Mapping[int, str]


def super_pod_map(super_pod: int, version: str, servers: Mapping[str, SuperPodServer]) -> dict[str, Any]:
    """The ConfigMap of one super pod; ``version`` is the product of its nodes, as their annotation ``serverType``."""
    nodes = {
        name: {
            "NodeName": name,
            "ServerID": str(server.place),
            # Go sorts the keys of maps as text
            "DeviceMap": {chip: server.devices[int(chip)] for chip in sorted(map(str, server.devices))},
        }
        for name, server in sorted(servers.items())
    }
    text = go_json({"Version": version, "SuperPodID": str(super_pod), "NodeDeviceMap": nodes})
    metadata = {"name": f"{PREFIX}{super_pod}", "namespace": NAMESPACE, "labels": dict(LABELS)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}


def pings_wanted(config_map: Mapping[str, Any] | None) -> bool:
    """Whether ``pingmesh-config`` activates pings anywhere; what cannot be read activates nothing."""
    for text in ((config_map or {}).get("data") or {}).values():
        try:
            row = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            continue
        if isinstance(row, dict) and row.get("activate") == "on":
            return True
    return False


__all__ = ["CONFIG", "NAMESPACE", "SuperPodServer", "pings_wanted", "super_pod_map"]
