"""Rank tables (``hccl.json``) in the three versions that HCCL reads.

Built from pods' configuration annotations. Sources:
component/ascend-operator/pkg/ranktable/{common,v1dot2,v2dot0} and its factory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from belay.engine.model.labels import ACCELERATOR_TYPE, NPU, SCHEDULE_POLICY, SP_BLOCK
from belay.engine.model.quantities import whole_number
from belay.engine.wire.podannotations import Configuration, Device

Version = Literal["1.0", "1.2", "2.0"]

INITIALIZING: Final[dict[str, Any]] = {"status": "initializing"}
_V12_POLICIES: Final = frozenset({"chip2-node16-sp", "chip2-node8-sp", "multilevel"})
_V12_ACCELERATORS: Final = frozenset({"module-a3-16-super-pod", "module-a3-8-super-pod"})
#: Scale-out port types in the order of preference, and the types each label value admits.
_PORT_TYPES: Final = ("ROCE", "UBOE", "UBG")
_LABEL_TYPES: Final[dict[str, tuple[str, ...]]] = {"ROCE": ("ROCE",), "UBOE": ("UBOE", "UBG")}
_LEVEL_TYPES: Final[dict[int, tuple[str, ...]]] = {2: ("UBOE", "UBG"), 3: ("ROCE",)}


class RankTablePod(msgspec.Struct, frozen=True):
    """One allocated pod with chips; it becomes a server entry.

    ``super_pod_rank`` and ``super_pod_id`` are the pod's annotations of that name, ``hardware_type`` is set for
    inference jobs only.
    """

    pod: str
    node: str
    pod_ip: str
    rank: int
    configuration: Configuration
    super_pod_rank: str = ""
    super_pod_id: str = ""
    hardware_type: str = ""


class TableError(ValueError):
    """A pod is not ready for a rank table; the text names pod and field."""


def version_of(
    *, resources: Sequence[str], annotations: Mapping[str, str], node_selectors: Sequence[Mapping[str, str]]
) -> Version:
    """The rank table version for a job's requested resources, annotations and node selectors."""
    if NPU in resources:
        return "2.0"
    policy = annotations.get(SCHEDULE_POLICY)
    if policy is not None:
        return "1.2" if policy in _V12_POLICIES else "1.0"
    if SP_BLOCK in annotations:
        return "1.2"
    if any(selector.get(ACCELERATOR_TYPE) in _V12_ACCELERATORS for selector in node_selectors):
        return "1.2"
    return "1.0"


def build(
    version: Version,
    members: Sequence[RankTablePod],
    *,
    sp_block: int = 0,
    scaleout: str = "",
    soft: bool = False,
    inference: bool = False,
) -> dict[str, Any]:
    """The completed table.

    Args:
        sp_block: chips per logical super pod, 0 for none.
        scaleout: the job's label ``scaleout-type``, upper case, empty when unset.
        soft: label ``super-pod-affinity=soft``: the scheduler decides the logical super pods.
        inference: labels ``jobID`` and ``app`` are set: real super pod ids, hardware type.

    Raises:
        TableError: a pod has no IP, a chip has no usable address, or the scale-out label is unknown.
    """
    ordered = sorted(members, key=lambda member: (_first_rank(member), member.rank, member.pod))
    for member in ordered:
        if not member.pod_ip:
            raise TableError(f"pod {member.pod} has no IP yet")
    if version == "2.0":
        return _version_2(ordered, scaleout)
    if _ip_required(version, ordered, sp_block):
        _check_ips(ordered)
    table = _version_1(ordered, version)
    if version == "1.2":
        table["super_pod_list"] = _super_pods(ordered, table["server_list"], sp_block, soft=soft, inference=inference)
    return table


def logical_super_pod(position: int, sp_block: int, chips: int) -> int:
    """Index of the logical super pod of the server (or pod rank) at ``position``; 0 without blocks."""
    if sp_block <= 0 or chips <= 0:
        return 0
    return position // max(1, sp_block // chips)


def _version_1(members: Sequence[RankTablePod], version: Version) -> dict[str, Any]:
    alone = len({member.node for member in members}) == len(members)
    servers = [_server(member, version, alone=alone) for member in members]
    return {"status": "completed", "server_list": servers, "server_count": str(len(servers)), "version": version}


def _first_rank(member: RankTablePod) -> int:
    """The rank of a pod's first chip."""
    return member.rank * len(member.configuration.devices)


def _server(member: RankTablePod, version: Version, *, alone: bool) -> dict[str, Any]:
    own = member.configuration
    first = _first_rank(member)
    server: dict[str, Any] = {"device": [_device(chip, first + i, version) for i, chip in enumerate(own.devices)]}
    if member.hardware_type:
        server["hardware_type"] = member.hardware_type
    # Where no two pods share a node, the address is enough to name a server.
    server["server_id"] = own.host_ip if alone else own.server_id
    server["host_ip"] = own.host_ip
    server["container_ip"] = member.pod_ip
    return server


def _device(chip: Device, rank: int, version: Version) -> dict[str, str]:
    out = {"device_id": chip.device_id, "device_ip": chip.device_ip, "rank_id": str(rank)}
    if version == "1.2":
        out["super_device_id"] = chip.super_device_id
    return out


def _ip_required(version: Version, members: Sequence[RankTablePod], sp_block: int) -> bool:
    """Whether every chip needs a device IP: on A1 and A2 always, on A3 for more than one logical super pod."""
    if version == "1.0":
        return True
    chips = sum(len(member.configuration.devices) for member in members)
    return sp_block > 0 and chips // sp_block > 1


def _check_ips(members: Sequence[RankTablePod]) -> None:
    for member in members:
        for chip in member.configuration.devices:
            if chip.device_ip == "-1":
                raise TableError(f"pod {member.pod}: chip {chip.device_id} has no device IP (-1)")


def _super_pods(
    members: Sequence[RankTablePod], servers: Sequence[Mapping[str, Any]], sp_block: int, *, soft: bool, inference: bool
) -> list[dict[str, Any]]:
    chips = len(members[0].configuration.devices) if members else 0
    groups: dict[str, list[dict[str, str]]] = {}
    for position, (member, server) in enumerate(zip(members, servers, strict=True)):
        if inference:
            name = member.super_pod_id
        elif soft:
            name = member.super_pod_rank
        else:
            name = str(logical_super_pod(position, sp_block, chips))
        groups.setdefault(name, []).append({"server_id": server["server_id"]})
    return [{"super_pod_id": name, "server_list": groups[name]} for name in sorted(groups, key=_by_number)]


def _by_number(name: str) -> tuple[bool, int, str]:
    number = whole_number(name, digits=18)
    return number is None, number or 0, name


def _version_2(members: Sequence[RankTablePod], scaleout: str) -> dict[str, Any]:
    kind = _port_type(members, scaleout)
    ranks = []
    for member in members:
        devices = member.configuration.devices
        for i, chip in enumerate(devices):
            number = whole_number(chip.device_id)
            if number is None:
                raise TableError(f"pod {member.pod}: device id {chip.device_id!r:.40} is not a number")
            ranks.append(
                {
                    "rank_id": _first_rank(member) + i,
                    "local_id": number,
                    "device_id": number,
                    "level_list": _levels(chip, kind, scaleout),
                }
            )
    return {"status": "completed", "version": "2.0", "rank_list": ranks, "rank_count": len(ranks)}


def _port_type(members: Sequence[RankTablePod], scaleout: str) -> str:
    """The port type for level 2 or 3: the label's, else the most preferred one present."""
    if scaleout and scaleout not in _LABEL_TYPES:
        raise TableError("the value of label scaleout-type is invalid, which should be ROCE or UBOE")
    present = {
        kind
        for member in members
        for chip in member.configuration.devices
        for level in chip.level_list
        for kind in level.get("info") or {}
    }
    wanted = _LABEL_TYPES[scaleout] if scaleout else _PORT_TYPES
    return next((kind for kind in wanted if kind in present), "")


def _levels(chip: Device, kind: str, scaleout: str) -> list[dict[str, Any]]:
    by_level: dict[int, Mapping[str, Any]] = {row.get("level", -1): row.get("info") or {} for row in chip.level_list}
    out = []
    for number in (0, 1):
        info = by_level.get(number) or {}
        if info:
            out.append(dict(info[min(info)]))
    for number, kinds in _LEVEL_TYPES.items():
        if (kind or scaleout) in kinds:
            element = by_level.get(number, {}).get(kind)
            out.append(dict(element) if element else _empty_level(number))
    return out


def _empty_level(number: int) -> dict[str, Any]:
    return {
        "net_layer": number,
        "net_instance_id": "CLUSTER1",
        "net_type": "CLOS",
        "net_attr": "",
        "rank_addr_list": [],
    }
