"""``super-pod-<id>`` and ``pingmesh-config`` (cluster-system): which chips of a super pod ping each other, and when.

Sources: component/clusterd/pkg/application/pingmesh/publisher.go, component/ascend-common/api/superpoddevice.go (the
fields and their order); docs/zh/scheduling (pingmesh).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.model.labels import APP_LABEL
from belay.engine.model.quantities import whole_number
from belay.engine.wire.gojson import go_json

NAMESPACE: Final = "cluster-system"
PREFIX: Final = "super-pod-"
KEY: Final = "superPodDevice"
LIST_KEY: Final = "pingList"
CONFIG: Final = "pingmesh-config"
LABELS: Final = {APP_LABEL: "pingmesh"}


class SuperPodServer(NamedTuple):
    """A node of a super pod: its number there, and the super device id of each chip by physical id.

    On Ascend950 also its rack (-1 without one) and the kind of super pod (label ``accelerator-type``).
    """

    place: int
    devices: Mapping[int, str]
    rack: int = -1
    kind: str = ""


def super_pod_map(super_pod: int, version: str, servers: Mapping[str, SuperPodServer]) -> dict[str, Any]:
    """The ConfigMap of one super pod; ``version`` is the product of its nodes, as their annotation ``serverType``."""
    nodes = {name: _node(name, server) for name, server in sorted(servers.items())}
    body: dict[str, Any] = {"Version": version, "SuperPodID": str(super_pod), "NodeDeviceMap": nodes}
    if kind := next((server.kind for _, server in sorted(servers.items()) if server.kind), ""):
        body["AcceleratorType"] = kind
    text = go_json(body)
    metadata = {"name": f"{PREFIX}{super_pod}", "namespace": NAMESPACE, "labels": dict(LABELS)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}


def _node(name: str, server: SuperPodServer) -> dict[str, Any]:
    # Go sorts the keys of maps as text, and leaves out what is empty
    body: dict[str, Any] = {
        "NodeName": name,
        "ServerID": str(server.place),
        "DeviceMap": {chip: server.devices[int(chip)] for chip in sorted(map(str, server.devices))},
    }
    if server.rack >= 0:
        body["RackID"] = str(server.rack)
    if server.kind:
        body["AcceleratorType"] = server.kind
    return body


def ping_list_map(super_pod: int, place: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ConfigMap with one server's ping list (Ascend950), for agents without a folder that all share."""
    metadata = {"name": list_name(super_pod, place), "namespace": NAMESPACE, "labels": dict(LABELS)}
    text = go_json([{"pingList": list(rows)}])
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {LIST_KEY: text}}


def list_name(super_pod: int, place: int) -> str:
    """The name of a server's ping list."""
    return f"{PREFIX}{super_pod}-pings-{place}"


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
                found, plane = True, whole_number(str(row.get("plane_id", "")), digits=3)
                yield row["addr"].lower(), layer, plane if plane is not None else -1
    if not found and number not in (None, "", -1, -2, "-1", "-2") and whole_number(str(number), digits=18) is not None:
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


__all__ = [
    "CONFIG", "LIST_KEY", "NAMESPACE", "SuperPodServer", "addresses", "list_name", "ping_list_map", "pings_wanted",
    "super_pod_map",
]  # fmt: skip
