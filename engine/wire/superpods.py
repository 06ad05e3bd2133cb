"""``super-pod-<id>`` and ``pingmesh-config`` (cluster-system): which chips of a super pod ping each other, and when.

Sources: component/clusterd/pkg/application/pingmesh/publisher.go, component/ascend-common/api/superpoddevice.go (the
fields and their order); docs/zh/scheduling (pingmesh).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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


def addresses(device: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """The addresses by which one chip of ``baseDeviceInfos`` is pinged: address, level of the network, plane.

    A super device id stands for itself, level and plane -1; those of Ascend950's ``levelList`` have both. What cannot
    be read is left out.
    """
    number = device.get("SuperDeviceID")
    levels = device.get("levelList")
    found = False
    for level in levels if isinstance(levels, list) else ():
        info = level.get("info") if isinstance(level, dict) else None
        for element in info.values() if isinstance(info, dict) else ():
            rows = element.get("rank_addr_list") if isinstance(element, dict) else None
            for row in rows if isinstance(rows, list) else ():
                layer = element.get("net_layer")
                if not isinstance(row, dict) or not isinstance(row.get("addr"), str) or type(layer) is not int:
                    continue
                found, plane = True, str(row.get("plane_id", ""))
                known = plane.isascii() and plane.isdecimal() and len(plane) < 4
                yield row["addr"].lower(), layer, int(plane) if known else -1
    if not found and number not in (None, "", -1, -2, "-1", "-2") and str(number).isdecimal():
        yield str(number), -1, -1


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


__all__ = ["CONFIG", "NAMESPACE", "SuperPodServer", "addresses", "pings_wanted", "super_pod_map"]
