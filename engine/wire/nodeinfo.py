"""``mindx-dl-nodeinfo-<node>``: NodeD's report on the hardware of a node; absent means healthy.

Format: component/noded/pkg/common/common.go; the CheckCode covers
``{"FaultDevList":…,"NodeStatus":…}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from belay.engine.model.cluster import NodeDevice, NodeReport
from belay.engine.model.labels import CIM_CONSUMER
from belay.engine.model.times import rfc3339
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import check_code, go_json, read_object
from belay.engine.wire.names import NODE_NAMESPACE, NODE_PREFIX

STATUSES = ("Healthy", "PreSeparate", "UnHealthy")


def parse(config_map: Mapping[str, Any]) -> NodeReport:
    """Verify and parse one node-info ConfigMap.

    Raises:
        WireError: bad or missing CheckCode, bad JSON or a field of a wrong type.
    """
    metadata = config_map.get("metadata") or {}
    name = str(metadata.get("name", ""))
    where = f"ConfigMap/{metadata.get('namespace', '')}/{name}"
    if not name.startswith(NODE_PREFIX) or len(name) == len(NODE_PREFIX):
        raise WireError(where, "metadata.name", f"must be {NODE_PREFIX}<node>")
    data = config_map.get("data")
    outer = read_object(where, "data.NodeInfo", data.get("NodeInfo") if isinstance(data, dict) else None)
    inner = outer.get("NodeInfo")
    if not isinstance(inner, dict):
        raise WireError(where, "data.NodeInfo.NodeInfo", "must be a JSON object")
    devices, status = inner.get("FaultDevList"), inner.get("NodeStatus")
    if devices is not None and not isinstance(devices, list):
        raise WireError(where, "data.NodeInfo.NodeInfo.FaultDevList", "must be a list")
    if status not in STATUSES:
        raise WireError(where, "data.NodeInfo.NodeInfo.NodeStatus", f"must be one of {', '.join(STATUSES)}")
    parsed = [_device(where, device) for device in devices or ()]
    claimed = outer.get("CheckCode")
    if not claimed or not isinstance(claimed, str):
        raise WireError(where, "data.NodeInfo.CheckCode", "is missing; the report is ignored")
    if claimed != check_code(
        {"FaultDevList": None if devices is None else [_plain(d) for d in parsed], "NodeStatus": status}
    ):
        raise WireError(where, "data.NodeInfo.CheckCode", "does not match the report's content; the report is ignored")
    return NodeReport(node=name.removeprefix(NODE_PREFIX), devices=tuple(parsed), status=status)


def build(node: str, devices: Sequence[NodeDevice], status: str, now: float) -> dict[str, Any]:
    """The ConfigMap as NodeD writes it."""
    inner = {"FaultDevList": [_plain(device) for device in devices], "NodeStatus": status}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NODE_PREFIX + node, "namespace": NODE_NAMESPACE, "labels": {CIM_CONSUMER: "true"}},
        "data": {
            "NodeInfo": go_json({"NodeInfo": inner, "CheckCode": check_code(inner)}),
            "updateTime": rfc3339(float(int(now))),
        },
    }


def _device(where: str, device: object) -> NodeDevice:
    field = "data.NodeInfo.NodeInfo.FaultDevList"
    if not isinstance(device, dict):
        raise WireError(where, field, "every element must be a JSON object")
    codes, number = device.get("FaultCode") or [], device.get("DeviceId", 0)
    if not isinstance(codes, list) or not all(isinstance(c, str) for c in codes):
        raise WireError(where, f"{field}.FaultCode", "must be a list of text")
    if not isinstance(number, int) or isinstance(number, bool):
        raise WireError(where, f"{field}.DeviceId", "must be an integer")
    return NodeDevice(
        device_type=str(device.get("DeviceType", "")),
        device_id=number,
        codes=tuple(codes),
        level=str(device.get("FaultLevel", "")),
    )


def _plain(device: NodeDevice) -> dict[str, Any]:
    return {
        "DeviceType": device.device_type,
        "DeviceId": device.device_id,
        "FaultCode": list(device.codes),
        "FaultLevel": device.level,
    }
