"""Derives reports from the readings of a node's surroundings; no clock and no waiting here.

Sources: component/noded/pkg (monitoring, control, pingmesh), component/ascend-device-plugin/pkg/device/deviceswitch and
pkg/device/hangdetection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.agents.drivers.surroundings import Alarm, Client, Ping, SwitchFault, Use
from belay.engine.model.cluster import NodeDevice
from belay.engine.model.levels import (
    NODE_LEVELS,
    SWITCH_LEVELS,
    SWITCH_WORDS,
    SwitchLevel,
    node_rank,
    node_status,
    switch_status,
)
from belay.engine.wire.gojson import go_json

MAX_SWITCH_FAULTS: Final = 128
#: All ports of a switch chip towards the second level: without them the chip is cut off.
UPLINKS: Final = 16
LINK_DOWN: Final = "[0x08520003,na,l2,na]"
#: A storage client must be short of memory for this long before it is reported (ms).
MEMORY_MS: Final = 600_000
#: An active fault is sent again after this (ms).
RESEND_MS: Final = 60_000
HANG_CODE: Final = "200001002"
HANG_CHECKS: Final = 5
PING_CODE: Final = "220001001"

_PEERS: Final = {"cpu": 0, "npu": 1, "l2": 2}
STORAGE: Final = {
    "dpc": ("dpcStorage", "110001020", "110001021"),
    "dtfs": ("dtfsStorage", "110001022", "110001023"),
}
"""Storage client → sender, code of its process, code of its memory (DTFS: of its link)."""
_FAULT_NAMES: Final = {
    "110001020": "DPC_PROCESS", "110001021": "DPC_MEMORY", "110001022": "DTFS_PROCESS", "110001023": "DTFS_LINK",
}  # fmt: skip
"""What NodeD makes ids of storage faults of (component/noded/pkg/common/constants.go)."""


class ActiveFault(NamedTuple):
    """An active public fault: sender, its own id, code, and the chips it concerns."""

    sender: str
    id: str
    code: str
    chips: tuple[int, ...]


def hardware(alarms: Sequence[Alarm], table: Mapping[str, str]) -> tuple[list[NodeDevice], str]:
    """NodeD's device list and node status: codes that the table does not name are dropped, and devices without any.

    Everything is sorted, so that a changed order of alarms is not a change.
    """
    grouped: dict[tuple[str, int], set[str]] = {}
    for alarm in alarms:
        if alarm.code.upper() in table:
            grouped.setdefault((alarm.device_type, alarm.device_id), set()).add(alarm.code.upper())
    devices = [
        NodeDevice(kind, number, tuple(sorted(codes)), max((table[code] for code in codes), key=node_rank))
        for (kind, number), codes in sorted(grouped.items())
    ]
    worst = max((device.level for device in devices), key=node_rank, default=NODE_LEVELS[0])
    return devices, node_status(worst) if devices else "Healthy"


def switch_info(
    faults: Sequence[SwitchFault], table: Mapping[str, str], now_s: int, *, resetting: bool = False
) -> dict[str, Any]:
    """``SwitchInfoCfg``; ``table`` maps codes in lower case to levels, others are not reported. A switch chip that has
    lost all its uplinks separates the node, while each link keeps its own level. While chips are being reset the switch
    is reported healthy, because the reset takes its links down."""
    kept = sorted((f for f in faults if f.code.lower() in table), key=lambda f: (-f.time_ms, f))[:MAX_SWITCH_FAULTS]
    kept.sort()
    cut = _cut_off(kept)
    levels: dict[str, dict[str, Any]] = {}
    for fault in kept:
        word = SWITCH_WORDS[table[fault.code.lower()]]
        levels[f"{fault.code}_{fault.chip}_{fault.port}"] = {"fault_time": fault.time_ms, "fault_level": word}
    worst = max((row["fault_level"] for row in levels.values()), key=SWITCH_LEVELS.index, default="")
    if resetting:
        worst = SwitchLevel.NOT_HANDLE
    elif cut:
        worst = SwitchLevel.SEPARATE
    return {
        "FaultCode": [go_json(_event(fault)) for fault in kept],
        "FaultLevel": worst,
        "UpdateTime": now_s,
        "NodeStatus": switch_status(SwitchLevel(worst or SwitchLevel.NOT_HANDLE)),
        "FaultTimeAndLevelMap": dict(sorted(levels.items())),
    }


def _cut_off(faults: Sequence[SwitchFault]) -> set[int]:
    ports: dict[int, set[int]] = {}
    for fault in faults:
        if fault.code.lower() == LINK_DOWN:
            ports.setdefault(fault.chip, set()).add(fault.port)
    return {chip for chip, down in ports.items() if len(down) >= UPLINKS}


def _event(fault: SwitchFault) -> dict[str, Any]:
    alarm, _, peer, _ = (*fault.code.strip("[]").split(","), "", "", "", "")[:4]
    return {
        "EventType": int(alarm, 16) if alarm.startswith("0x") else 0,
        "AssembledFaultCode": fault.code,
        "PeerPortDevice": _PEERS.get(peer.lower(), 0),
        "PeerPortId": fault.peer_port,
        "SwitchChipId": fault.chip,
        "SwitchPortId": fault.port,
        "Severity": fault.severity,
        "Assertion": 1,
        "AlarmRaisedTime": fault.time_ms,
    }


class StorageWatch:
    """Reports of storage clients. A process and a link are reported at once; memory of a DPC client when one of its
    instances was short of it for ten minutes, and no longer when all of them were well for ten minutes."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._last_short: int | None = None
        self._short = False

    def update(self, node: str, clients: Mapping[str, Client], chips: int, now_ms: int) -> list[ActiveFault]:
        """Return the active faults of the storage clients in these states."""
        found = []
        for name, (sender, process, other) in STORAGE.items():
            client = clients.get(name, Client())
            second = self._memory(client, now_ms) if name == "dpc" else client.memory
            codes = ([process] if client.process else []) + ([other] if second else [])
            found += [_storage_fault(node, sender, code, chips) for code in codes]
        return found

    def _memory(self, client: Client, now_ms: int) -> bool:
        short = (client.short or ("",)) if client.memory else ()
        self._since = {instance: self._since.get(instance, now_ms) for instance in short}
        if short:
            self._last_short = now_ms
        if any(now_ms - since >= MEMORY_MS for since in self._since.values()):
            self._short = True
        elif self._last_short is None or now_ms - self._last_short >= MEMORY_MS:
            self._short = False
        return self._short


def storage_faults(node: str, sender: str, chips: int) -> list[ActiveFault]:
    """Every fault that a storage client's sender can report for this node."""
    return [
        _storage_fault(node, sender, code, chips) for one, *codes in STORAGE.values() for code in codes if one == sender
    ]


def _storage_fault(node: str, sender: str, code: str, chips: int) -> ActiveFault:
    return ActiveFault(sender, fault_id(node, _FAULT_NAMES[code]), code, tuple(range(chips)) or (0,))


def ping_faulty(results: Sequence[Ping]) -> bool | None:
    """Whether a card is faulty: no destination answered; None when it is unknown."""
    if not results or any(ping.replies == 0 for ping in results):
        return None
    return not any(ping.ok for ping in results)


def fault_id(node: str, what: object) -> str:
    """The id of a fault of this node that stays the same over restarts (component/noded)."""
    return hashlib.sha256(f"{node}/{what}".encode()).hexdigest()


class HangLimits(NamedTuple):
    """The limits below which a chip is idle in a minute: AI cores below (percent), HBM grown by at most, packets
    below, CPU seconds below; so many checks in a row make a hang (hangDetectionConfig.json of MindCluster's device
    plugin)."""

    cores: float = 5
    memory: float = 0
    packets: float = 100
    cpu_seconds: float = 5
    checks: int = HANG_CHECKS


class HangWatch:
    """Chips whose processes were idle for five checks, a minute apart."""

    def __init__(self, limits: HangLimits | None = None) -> None:
        self._limits = limits or HangLimits()
        self._last: dict[int, Use] = {}
        self._idle: dict[int, int] = {}

    def update(self, now: Mapping[int, Use]) -> set[int]:
        """Run one more check and return the chips that hang; work or another set of processes restarts the count."""
        for chip in [chip for chip in self._last if chip not in now]:
            del self._last[chip]
            self._idle.pop(chip, None)
        for chip, use in now.items():
            last = self._last.get(chip)
            still = (
                last is not None
                and last.processes == use.processes
                and bool(use.processes)
                and use.cores < self._limits.cores
                and use.memory - last.memory <= self._limits.memory
                and use.packets - last.packets < self._limits.packets
                and use.cpu_seconds - last.cpu_seconds < self._limits.cpu_seconds
            )
            self._idle[chip] = self._idle.get(chip, 0) + 1 if still else 0
            self._last[chip] = use
        return {chip for chip, checks in self._idle.items() if checks >= self._limits.checks}


def message(node: str, sender: str, faults: Sequence[tuple[ActiveFault, str, int]], now_ms: int) -> dict[str, Any]:
    """The public fault message for these faults: (fault, occur or recover, when it occurred)."""
    digest = hashlib.sha256(f"{node}/{sender}/{now_ms}".encode()).hexdigest()
    return {
        "id": digest,
        "timestamp": now_ms,
        "version": "1.0",
        "resource": sender,
        "faults": [
            {
                "faultId": fault.id,
                "faultType": "NPU" if fault.code == PING_CODE else "Node",
                "faultCode": fault.code,
                "faultTime": since,
                "assertion": assertion,
                "influence": [{"nodeName": node, "deviceIds": list(fault.chips)}],
            }
            for fault, assertion, since in sorted(faults)
        ],
    }
