"""The global rank table of an inference service: the instances as MindIE's coordinator and controller see them.

Assembled from the rank tables of the service's jobs (ConfigMaps ``rings-config-*`` with label ``jobID``) and its
management pods. Sources: component/clusterd/pkg/application/config, pkg/domain/job (global rank table);
docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.model.unstructured import nested_list
from belay.engine.wire.gojson import go_json

PREFIX: Final = "rings-config-"
FILE: Final = "hccl.json"
COMPLETED: Final = "completed"
COORDINATOR: Final = "mindie-ms-coordinator"
CONTROLLER: Final = "mindie-ms-controller"
SERVER: Final = "mindie-ms-server"
DEPLOY_KEYS: Final = ("grt-server/deploy-server", "grt-group/deploy-server")
_MAX_BYTES: Final = 8 * 1024 * 1024


class Manager(NamedTuple):
    """A coordinator or controller pod."""

    name: str
    host_ip: str
    pod_ip: str


class Group(NamedTuple):
    """One server job: its name, its rank table, and the value of its deploy label."""

    name: str
    table: Mapping[str, Any]
    deploy_server: str


class GroupError(ValueError):
    """A job cannot join the table; the text names the job and the cause."""


def deploy_server(name: str, labels: Mapping[str, str]) -> str:
    """The value of a server job's deploy label.

    Raises:
        GroupError: the job has none of the labels, or both.
    """
    found = [labels[key] for key in DEPLOY_KEYS if key in labels]
    if len(found) != 1:
        raise GroupError(f"{name}: exactly one of the labels {' and '.join(DEPLOY_KEYS)} is needed")
    return found[0]


def read(text: object) -> dict[str, Any]:
    """A member's rank table; an invalid one counts as empty, so as not completed."""
    if not isinstance(text, str) or len(text) > _MAX_BYTES:
        return {}
    try:
        table = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return table if isinstance(table, dict) else {}


def complete(groups: Sequence[Group]) -> bool:
    """Whether the table can be pushed: at least one server job, and every rank table completed."""
    return bool(groups) and all(group.table.get("status") == COMPLETED for group in groups)


def build(
    groups: Sequence[Group], coordinators: Sequence[Manager] = (), controllers: Sequence[Manager] = ()
) -> dict[str, Any]:
    """The table; ``groups`` in the order of their numbers."""
    first = groups[0].table if groups else {}
    listed = [_managers(number, pods) for number, pods in (("0", coordinators), ("1", controllers)) if pods]
    listed += [_servers(str(2 + index), group) for index, group in enumerate(groups)]
    return {
        "version": str(first.get("version", "")),
        "status": str(first.get("status", "")),
        "server_group_list": listed,
    }


def text(table: Mapping[str, Any]) -> str:
    """The table as JSON text."""
    return go_json(table)


def _managers(number: str, pods: Sequence[Manager]) -> dict[str, Any]:
    servers = [{"server_id": pod.host_ip, "server_ip": pod.pod_ip} for pod in sorted(pods)]
    return {"group_id": number, "server_count": str(len(servers)), "server_list": servers}


def _servers(number: str, group: Group) -> dict[str, Any]:
    rows = nested_list(group.table, "server_list")
    hosts = {str(row.get("server_id", "")): str(row.get("host_ip") or row.get("server_id", "")) for row in rows}
    out: dict[str, Any] = {
        "group_id": number,
        "deploy_server": group.deploy_server,
        "server_count": str(len(rows)),
        "server_list": [_server(row) for row in rows],
    }
    if isinstance(group.table.get("super_pod_list"), list):
        out["super_pod_list"] = [_super_pod(row, hosts) for row in nested_list(group.table, "super_pod_list")]
    return out


def _server(row: Mapping[str, Any]) -> dict[str, Any]:
    devices = []
    for position, chip in enumerate(nested_list(row, "device")):
        device = {"device_id": str(chip.get("device_id", "")), "device_ip": str(chip.get("device_ip", ""))}
        if chip.get("super_device_id"):
            device["super_device_id"] = str(chip["super_device_id"])
        device |= {"device_logical_id": str(position), "rank_id": str(chip.get("rank_id", ""))}
        devices.append(device)
    server = {
        "device": devices,
        "server_id": str(row.get("host_ip") or row.get("server_id", "")),
        "server_ip": str(row.get("container_ip", "")),
    }
    hardware = row.get("hardware_type")
    return {**server, "hardware_type": str(hardware)} if hardware else server


def _super_pod(row: Mapping[str, Any], hosts: Mapping[str, str]) -> dict[str, Any]:
    servers = [
        {**server, "server_id": hosts.get(str(server.get("server_id", "")), str(server.get("server_id", "")))}
        for server in nested_list(row, "server_list")
    ]
    return {**row, "server_list": servers}


__all__ = [
    "COMPLETED", "CONTROLLER", "COORDINATOR", "DEPLOY_KEYS", "FILE", "PREFIX", "SERVER", "Group", "GroupError",
    "Manager", "build", "complete", "deploy_server", "read", "text",
]  # fmt: skip
