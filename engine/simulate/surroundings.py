"""Faults around the chips of a simulated server, by code: board alarms, switch faults, public faults.

They simulate NodeD, the device plugin's switch reports, and the senders of public faults. Levels come
from the tables in force. Sources: component/noded/pkg/monitoring, docs/zh/scheduling/06_api/04_clusterd,
component/ascend-device-plugin/pkg/device/deviceswitch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from belay.engine.model.cluster import NodeDevice
from belay.engine.model.levels import NODE_LEVELS, SWITCH_LEVELS, SWITCH_WORDS, node_rank
from belay.engine.simulate.server import SimulatedServer
from belay.engine.simulate.world import World
from belay.engine.wire import publicinfo

#: Public faults of the shared-storage clients: (client, part) → code; senders are ``dpcStorage`` and ``dtfsStorage``.
STORAGE_CODES: Final = {
    ("dpc", "process"): "110001020", ("dpc", "memory"): "110001021",
    ("dtfs", "process"): "110001022", ("dtfs", "memory"): "110001023",
}  # fmt: skip
#: Seconds after which a memory error of a storage client, or a hang, is reported.
STORAGE_MEMORY_S: Final = 600.0
HANG_S: Final = 300.0
HANG_CODE: Final = "200001002"
PING_CODE: Final = "220001001"
PING_SENDER: Final = "pingmesh"
DROP_CODE: Final = "40F84E00"
#: A chip code with level SubHealthFault and no further effect.
SUB_HEALTH_CODE: Final = "80818C06"
_TYPES: Final = {"0": "NPU", "1": "Node", "2": "Network", "3": "Storage"}
_NAMESPACE: Final = "cluster-system"


def alarm(world: World, server: SimulatedServer, code: str, device: str, number: int, *, gone: bool) -> None:
    """The board controller raises or clears an alarm; codes that are not in the node table are ignored."""
    row = (device, number, code.upper())
    server.alarms = [other for other in server.alarms if other != row] + ([] if gone else [row])
    table = world.desired.tables.get("node")
    devices: dict[tuple[str, int], tuple[list[str], str]] = {}
    for kind, place, name in server.alarms:
        level = table.level_of(name) if table is not None else None
        if level is None:
            continue
        codes, worst = devices.setdefault((kind, place), ([], NODE_LEVELS[0]))
        codes.append(name)
        devices[kind, place] = codes, max(worst, level, key=node_rank)
    found = [NodeDevice(kind, place, tuple(codes), worst) for (kind, place), (codes, worst) in sorted(devices.items())]
    world.board(server, found)


def switch(world: World, server: SimulatedServer, code: str, chip: int, port: int, *, gone: bool) -> None:
    """A fault of the node's switch occurs or recovers; codes that are not in the switch table are not reported."""
    row = (code, chip, port)
    server.switch_faults = [other for other in server.switch_faults if other != row] + ([] if gone else [row])
    table = world.desired.tables.get("switch")
    graded = {c: level for c, _, _ in server.switch_faults if table and (level := table.level_of(c)) is not None}
    levels = [SWITCH_WORDS.get(level, level) for level in graded.values()]
    server.switch = max(levels, key=SWITCH_LEVELS.index) if levels else ""
    server.switch_codes = tuple(sorted(graded))
    world.report(server)


def public(
    world: World,
    server: SimulatedServer,
    code: str,
    assertion: str,
    *,
    sender: str,
    fault_id: str = "",
    chips: Sequence[int],
) -> None:
    """A component reports a fault on chips of the node; a recovery replaces the message of its fault."""
    now_ms = int(world.now * 1000)
    body = message(server.name, code, assertion, now_ms, sender=sender, fault_id=fault_id, chips=chips)
    name = f"inject-{_digest(body['faults'][0]['faultId'])[:20]}"
    world.put(publicinfo.build(_NAMESPACE, name, body))


def message(
    node: str, code: str, assertion: str, now_ms: int, *, sender: str, fault_id: str = "", chips: Sequence[int]
) -> dict[str, Any]:
    """A public fault as its sender writes it; missing ids are derived from its content."""
    about = f"{node}/{sender}/{code}/{tuple(chips)}"
    row = {
        "faultId": fault_id or _digest(about)[:32],
        "faultType": _TYPES.get(code[0], "NPU"),
        "faultCode": code,
        "faultTime": now_ms,
        "assertion": assertion,
        "influence": [{"nodeName": node, "deviceIds": list(chips)}],
    }
    identifier = _digest(f"{about}/{now_ms}")[:32]
    return {"id": identifier, "timestamp": now_ms, "version": "1.0", "resource": sender, "faults": [row]}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
