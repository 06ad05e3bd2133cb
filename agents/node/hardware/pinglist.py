"""The pings in a super pod: configuration, addresses, destinations; pure.

Formats: docs/zh/scheduling (pingmesh), component/noded/pkg/pingmesh, component/ascend-common/api/slownet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

#: Destinations of one task; the driver takes no more.
MAX_TARGETS: Final = 48
MAX_SOURCES: Final = 32
INTERNAL, EXTERNAL = 0, 1
GLOBAL: Final = "global"
ROCE: Final = "roce"
INTERVALS: Final = range(1, 61)
MAX_NODES: Final = 4096
MAX_CHIPS: Final = 64


class PingError(ValueError):
    """A configuration or list that cannot be used; the previous one stays in force."""


class Config(NamedTuple):
    """Whether to ping, and every how many seconds."""

    active: bool
    interval: int


class Target(NamedTuple):
    """One line of a ping list: kinds and addresses of source and destination, as they are written in results."""

    src_type: int
    src: str
    dst_type: int
    dst: str


Tasks = dict[int, dict[int, tuple[Target, ...]]]
"""Chip → task → destinations."""


def config(data: Mapping[str, Any], super_pod: int) -> Config | None:
    """The configuration for a super pod, else the global one; None when there is neither. Raises PingError."""
    return _config(data, str(super_pod) if str(super_pod) in data else GLOBAL)


def roce_config(data: Mapping[str, Any]) -> Config | None:
    """The configuration of pings between super pods over network cards; None when there is none. Raises PingError."""
    return _config(data, ROCE)


def _config(data: Mapping[str, Any], key: str) -> Config | None:
    if key not in data:
        return None
    body = _object(data[key], f"pingmesh-config, key {key}")
    active, interval = body.get("activate"), body.get("task_interval")
    if active not in ("on", "off"):
        raise PingError(f"pingmesh-config, key {key}: activate must be on or off")
    if not isinstance(interval, int) or isinstance(interval, bool) or interval not in INTERVALS:
        raise PingError(f"pingmesh-config, key {key}: task_interval must be 1 to 60 seconds")
    return Config(active == "on", interval)


def members(data: Mapping[str, Any], node: str, super_pod: int) -> dict[str, dict[int, str]]:
    """The chips of a super pod: node → chip → super device id. Raises PingError when it is not this node's."""
    body = _object(data.get("superPodDevice"), "superPodDevice")
    if str(body.get("SuperPodID")) != str(super_pod):
        raise PingError(f"superPodDevice is of super pod {str(body.get('SuperPodID'))[:40]!r}, not {super_pod}")
    nodes = body.get("NodeDeviceMap")
    if not isinstance(nodes, dict) or node not in nodes:
        raise PingError(f"superPodDevice does not name node {node}")
    if len(nodes) > MAX_NODES:
        raise PingError(f"superPodDevice names {len(nodes)} nodes, at most {MAX_NODES} are possible")
    found: dict[str, dict[int, str]] = {}
    for name, entry in sorted(nodes.items()):
        devices = entry.get("DeviceMap") if isinstance(entry, dict) else None
        if not isinstance(devices, dict) or len(devices) > MAX_CHIPS:
            raise PingError(f"superPodDevice: node {name[:64]} has no usable DeviceMap")
        chips: dict[int, str] = {}
        for chip, number in devices.items():
            if not chip.isdecimal() or not isinstance(number, str):
                raise PingError(f"superPodDevice: node {name[:64]}: DeviceMap must map chips to super device ids")
            chips[int(chip)] = number
        found[name] = chips
    return found


def address(number: str) -> str:
    """The address of a super device id; anything that is not a number is already an address."""
    if not number.isdecimal() or len(number) > 10:
        return number
    sdid = int(number)
    return f"192.{sdid >> 22 & 0x3FF}.{2 + (sdid >> 16 & 3)}.{199 - (sdid & 0xFFFF)}"


def full_mesh(node: str, nodes: Mapping[str, Mapping[int, str]]) -> Tasks:
    """Every chip pings the others of its node (task 0) and its counterparts on other nodes (task 1), the first 48
    each."""
    tasks: Tasks = {}
    for chip, own in sorted(nodes[node].items()):
        inside = [Target(0, own, 0, other) for name, other in nodes[node].items() if name != chip]
        beyond = [Target(0, own, 0, chips[chip]) for name, chips in nodes.items() if name != node and chip in chips]
        tasks[chip] = {
            task: found
            for task, found in ((INTERNAL, _first(inside)), (EXTERNAL, _first(beyond)))
            if found
        }  # fmt: skip
    return {chip: task for chip, task in tasks.items() if task}


def listed(text: bytes | str, *, per_source: bool = False) -> Tasks:
    """The destinations of a ping list file: one task, number 0, for each chip. Raises PingError.

    With ``per_source`` the most destinations are counted for each source, of which a chip has 32 at most.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PingError("the ping list is not JSON") from error
    if not isinstance(body, list) or len(body) != 1 or not isinstance(body[0], dict):
        raise PingError("the ping list must be a JSON list with one element")
    rows = body[0].get("pingList")
    if not isinstance(rows, list):
        raise PingError("the ping list has no pingList")
    grouped: dict[int, list[Target]] = {}
    for at, row in enumerate(rows):
        try:
            chip = int(row["srcCardPhyId"])
            target = Target(int(row["srcType"]), str(row["srcAddr"]), int(row["dstType"]), str(row["dstAddr"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PingError(f"pingList[{at}] lacks srcCardPhyId, srcType, srcAddr, dstType or dstAddr") from error
        grouped.setdefault(chip, []).append(target)
    if not per_source:
        return {chip: {INTERNAL: _first(targets)} for chip, targets in sorted(grouped.items())}
    tasks: Tasks = {}
    for chip, targets in sorted(grouped.items()):
        sources = sorted({target.src for target in targets})[:MAX_SOURCES]
        kept = [_first([target for target in targets if target.src == source]) for source in sources]
        tasks[chip] = {INTERNAL: tuple(target for part in kept for target in part)}
    return tasks


def by_source(targets: Sequence[Target]) -> dict[str, list[str]]:
    """Source → destinations, as EIDs are spelled in answers: in lower case."""
    found: dict[str, list[str]] = {}
    for target in targets:
        found.setdefault(target.src.lower(), []).append(target.dst.lower())
    return found


def uid(nodes: Mapping[str, Mapping[int, str]], chosen: Config, list_hash: str) -> str:
    """The identity of an assignment: an equal one is not restarted."""
    addresses = json.dumps(
        {name: {str(c): n for c, n in chips.items()} for name, chips in nodes.items()}, sort_keys=True
    )
    body = json.dumps({"activate": "on" if chosen.active else "off", "task_interval": chosen.interval})
    return hashlib.sha256((addresses + body + list_hash).encode()).hexdigest()


def _first(targets: list[Target]) -> tuple[Target, ...]:
    return tuple(sorted(set(targets), key=lambda target: (address(target.dst), target))[:MAX_TARGETS])


def _object(text: object, where: str) -> dict[str, Any]:
    try:
        body = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise PingError(f"{where} must be a JSON object")
    return body
