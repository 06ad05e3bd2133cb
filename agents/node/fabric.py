"""The addresses of Ascend950 chips on each level of the network: ``levelList`` of node and pod annotations.

A chip has URMA devices, each with EIDs: addresses of 16 bytes that contain die, function entity and port. Level 0 is
the mesh of a server or rack, 1 the super pod, 2 the cluster over UB or Ethernet, 3 RoCE through the host's cards.
Source: component/ascend-device-plugin/pkg/server/{eid,npu_base_v2,manager_v2}.go, component/ascend-common/api.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import re
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from belay.agents.common.log import Log
from belay.agents.drivers.base import Chip, Machine

NIC_FILE: Final = Path("/user/mindx-dl/npu/npu-nic-mapping.json")
MAX_NIC_FILE: Final = 1 << 20
NPUS_PER_NODE: Final = 8
#: NPUs per node of other main boards (GetMaxNpuCountPerNode in component/ascend-common/devmanager/common/utils_v2.go).
NPUS_BY_BOARD: Final[Mapping[int, int]] = {0x44: 16, 0x46: 4, 0x48: 4}
CLUSTER: Final = "CLUSTER1"
UB, UBOE, ROCE = "UB", "UBOE", "ROCE"
#: Types of super pods that consist of racks (1D, 2D); the others consist of servers.
RACKED: Final = (1, 2)
#: Servers of 16 and 32 chips: their super pod is the server itself.
WHOLE: Final = (3, 4)
CARD, CARDS = "300I-Atlas350", "300I-Atlas350-4p"
GROUP_PORT: Final = 0x3F
LINK_LOCAL: Final = 0xFE
CARD_PORTS: Final = 8
HOST_PORT: Final = "d2h"
#: The uplink of a server over UBOE.
UBOE_PORT: Final = "1/8"
#: Ports of the bigger of the two groups by which a rack's chip reaches the super pod: number 0 on every chip.
_PLANE_PORTS: Final = 6
_RACK_BOARDS: Final = (0x03, 0x07)
_SERVER_BOARDS: Final = (0x25, 0x27)
#: (die, function entity) → ports into the super pod, by main board: of servers, and of the halves of a rack's server.
_SERVER_PORTS: Final = {(0, 3): (1, 2, 3, 4, 5, 6, 7, 8)}
_LOWER_PORTS: Final = {(0, 2): (1, 2), (1, 2): (0, 1, 2, 3, 5, 6)}
_UPPER_PORTS: Final = {(1, 2): (1, 2), (0, 2): (0, 1, 2, 3, 4, 5)}
_EID: Final = re.compile(r"[0-9a-f]{32}")
_SIOCGIFADDR: Final = 0x8915
#: The kernel's list of IPv6 addresses: 32 hex digits, index, prefix, scope, flags, card.
IPV6_TABLE: Final = Path("/proc/net/if_inet6")
MAX_ADDRESSES: Final = 4096
_PHYSICAL: Final = range(145)
_LOGICAL: Final = range(181, 213)
_log = Log("fabric")
Level = Mapping[str, Any]


class Eid(NamedTuple):
    """The content of an EID. ``ip`` is the IPv4 address of a UBOE one, empty for others and for link-local ones."""

    text: str
    die: int
    entity: int
    port: int
    ethernet: bool
    ip: str


def parse_eid(text: str) -> Eid:
    """Decode 32 lower-case hex digits. Raises ValueError."""
    if not _EID.fullmatch(text):
        raise ValueError(f"{text[:64]!r} is not an EID: 32 lower-case hex digits")
    raw = bytes.fromhex(text)
    ethernet = raw[7] >> 4 & 0xC == 0xC
    # the first byte of the address is stored apart from the others
    parts = (raw[6], *raw[12:15])
    ip = str(ipaddress.IPv4Address(bytes(parts))) if ethernet and parts[0] != LINK_LOCAL else ""
    return Eid(text, raw[5] >> 6, raw[6] & 0x7F, raw[5] & GROUP_PORT, ethernet, ip)


def level_lists(
    machine: Machine, chips: Sequence[Chip], node_ip: str, nics: Mapping[int, Sequence[str]]
) -> dict[int, tuple[Level, ...]]:
    """Chip → its levels, ascending; empty for other products. ``nics``: NPU of the node → addresses of its RoCE card.

    A level without addresses is left out, as a chip without any.
    """
    if not machine.generation.unified_bus:
        return {}
    found = {}
    for chip in chips:
        devices = _devices(chip)
        levels = tuple(
            _level(machine, node_ip, number, kind, rows)
            for number, kind in _kinds(machine).items()
            if (rows := _addresses(machine, chip, devices, number, nics))
        )
        if levels:
            found[chip.id] = levels
    return found


def _devices(chip: Chip) -> list[list[Eid]]:
    out = []
    for texts in chip.urma:
        try:
            eids = [parse_eid(text) for text in texts]
        except ValueError as error:
            _log.warning("a URMA device is left out", chip=chip.id, error=error)
            continue
        if eids:
            out.append(eids)
    return out


def _kinds(machine: Machine) -> dict[int, str]:
    """Level → kind of its network."""
    if machine.card_type == CARD:
        return {3: ROCE}
    if machine.card_type == CARDS:
        return {0: UB, 3: ROCE}
    if machine.super_pod_type in RACKED:
        return {0: UB, 1: UB, 2: "UBG", 3: ROCE}
    return {0: UB, 1: UB, 2: UBOE, 3: ROCE} if _super_server(machine) else {0: UB, 2: UBOE, 3: ROCE}


def _super_server(machine: Machine) -> bool:
    return machine.super_pod_type not in (*RACKED, *WHOLE) and machine.super_pod_id >= 0


def _level(machine: Machine, node_ip: str, number: int, kind: str, rows: Sequence[Level]) -> Level:
    element = {
        "net_layer": number,
        "net_instance_id": _instance(machine, node_ip, number),
        "net_type": "TOPO_FILE_DESC" if number == 0 else "CLOS",
        "net_attr": "",
        "rank_addr_list": list(rows),
    }
    return {"level": number, "info": {kind: element}}


def _instance(machine: Machine, node_ip: str, number: int) -> str:
    """The scope of a level: a server or rack, a super pod, the cluster."""
    if number >= 2:
        return CLUSTER
    if number == 1:
        return str(machine.super_pod_id)
    if machine.card_type:
        return node_ip
    if machine.super_pod_type in RACKED:
        return f"{machine.super_pod_id}_{machine.server_index}"
    return f"{machine.super_pod_id}_{machine.server_index}" if _super_server(machine) else node_ip


def _addresses(
    machine: Machine, chip: Chip, devices: Sequence[Sequence[Eid]], number: int, nics: Mapping[int, Sequence[str]]
) -> list[Level]:
    if number == 3:
        return [_host_row(ip) for ip in nics.get(chip.id % npus_per_node(machine), ())]
    if machine.card_type == CARDS:
        return _card_mesh(devices)
    racked, upper = machine.super_pod_type in RACKED, _is_upper(machine, chip)
    if number == 0:
        # a server's mesh hangs on die 1, a rack's on the die of the chip's half
        other = 0 if not racked or upper else 1
        return _mesh(devices, lambda die: die != other)
    if number == 1:
        return _groups(devices, _ports(machine, upper), racked=racked)
    return [] if racked else _ethernet(devices)


def _mesh(devices: Sequence[Sequence[Eid]], keep: Callable[[int], bool]) -> list[Level]:
    """The single ports of the device with the highest function entity."""
    meshes = [eids for eids in devices if not eids[0].ethernet and keep(eids[0].die)]
    best = max(meshes, key=lambda eids: eids[0].entity, default=[])
    return [_row("EID", e.text, (f"{e.die}/{e.port}",), e.die) for e in best if e.port != GROUP_PORT]


def _card_mesh(devices: Sequence[Sequence[Eid]]) -> list[Level]:
    """Of four cards in a mesh: function entity 0, from device to device. Die and port stand in the last two bytes."""
    rows = []
    for eid in (eid for eids in devices for eid in eids):
        raw = bytes.fromhex(eid.text)
        # cards have their function entity elsewhere than servers
        entity = (raw[6] << 8 | raw[7]) >> 5 & 0x1F
        die, port, to_host = raw[14] >> 2 & 1, (raw[15] & 0x7F) >> 3, raw[14] >> 3 & 1
        if entity == 0 and not to_host and port <= CARD_PORTS:
            rows.append(_row("EID", eid.text, (f"{die}/{port}",), _card_plane(raw[15])))
    return rows


def _card_plane(last: int) -> int:
    """The plane of an address between cards, by its last byte: nine physical ports a die, or two logical ones."""
    if last <= _PHYSICAL[-1]:
        return (last - 1) // 9 % 2 if last else 0
    return (last - _LOGICAL[0]) // 2 % 2 if last in _LOGICAL else 0


def _groups(
    devices: Sequence[Sequence[Eid]], ports: Mapping[tuple[int, int], Sequence[int]], *, racked: bool
) -> list[Level]:
    """The port groups into the super pod, the one with more ports first."""
    rows = []
    for eids in devices:
        group = [eid for eid in eids if eid.port == GROUP_PORT]
        members = ports.get((eids[0].die, eids[0].entity), ())
        if group and members and (racked or not eids[0].ethernet):
            plane = int(len(members) != _PLANE_PORTS) if racked else eids[0].die
            rows.append(_row("EID", group[-1].text, [f"{eids[0].die}/{port}" for port in members], plane))
    return sorted(rows, key=lambda row: -len(row["ports"]))


def _ports(machine: Machine, upper: bool) -> Mapping[tuple[int, int], Sequence[int]]:
    if machine.super_pod_type in RACKED:
        return (_UPPER_PORTS if upper else _LOWER_PORTS) if machine.mainboard in _RACK_BOARDS else {}
    return _SERVER_PORTS if machine.mainboard in _SERVER_BOARDS else {}


def _ethernet(devices: Sequence[Sequence[Eid]]) -> list[Level]:
    for eids in devices:
        ip = next((eid.ip for eid in eids if eid.ip), "")
        if eids[0].ethernet and ip:
            return [_row("IPV4", ip, (UBOE_PORT,), 0)]
    return []


def npus_per_node(machine: Machine) -> int:
    """How many NPUs a node of the machine's main board has."""
    return NPUS_BY_BOARD.get(machine.mainboard, NPUS_PER_NODE)


def rack_of(machine: Machine) -> int | None:
    """The rack's number on machines of racks; None on others, whose driver may give one as well."""
    racked = machine.super_pod_type in (-1, *RACKED)
    return machine.rack_id if racked and machine.rack_id is not None and machine.rack_id >= 0 else None


def _is_upper(machine: Machine, chip: Chip) -> bool:
    npus = npus_per_node(machine)
    return chip.id % npus >= npus // 2


def _host_row(ip: str) -> Level:
    return _row("IPV6" if ":" in ip else "IPV4", ip, (HOST_PORT,), 0)


def _row(kind: str, address: str, ports: Sequence[str], plane: int) -> Level:
    return {"addr_type": kind, "addr": address, "ports": list(ports), "plane_id": str(plane)}


class Nics:
    """The host's network card of each NPU; the file is read once, at start."""

    def __init__(self, file: Path = NIC_FILE, address: Callable[[str], str] | None = None) -> None:
        self._file, self._address = file, address or _address_of
        self._found: dict[int, list[str]] | None = None

    def addresses(self) -> Mapping[int, Sequence[str]]:
        """NPU of the node → address of its first card that has one."""
        if self._found is None:
            self._found = {}
            try:
                for npu, names in _nics(self._file).items():
                    if ip := next(filter(None, map(self._address, names)), ""):
                        self._found[npu] = [ip]
            except FileNotFoundError:
                pass  # nodes without such cards have no such file
            except (OSError, ValueError) as error:
                _log.warning("the map of NPUs and network cards cannot be used", file=self._file, error=error)
        return self._found


def _nics(file: Path) -> dict[int, list[str]]:
    with file.open("rb") as source:
        data = source.read(MAX_NIC_FILE + 1)
    if len(data) > MAX_NIC_FILE:
        raise ValueError(f"longer than {MAX_NIC_FILE} bytes")
    try:
        body = json.loads(data)
    except RecursionError as error:
        raise ValueError("nests too deeply") from error
    rows = body.get("npuNics") if isinstance(body, dict) else None
    if not isinstance(rows, list):
        raise ValueError('want {"npuNics": [{"npuId": N, "nicNames": [NAME…]}…]}')
    found = {}
    for row in rows:
        npu, names = (row.get("npuId"), row.get("nicNames")) if isinstance(row, dict) else (None, None)
        if not isinstance(npu, int) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise ValueError(f"an entry of npuNics is not {{npuId, nicNames}}: {str(row)[:80]}")
        found[npu] = names
    return found


def _address_of(name: str) -> str:
    """The first address of a network card, IPv4 before IPv6 as the kernel lists them; empty if it has none."""
    return _ipv4(name) or _ipv6(name)


def _ipv6(name: str, table: Path = IPV6_TABLE) -> str:
    """The first IPv6 address of a card that other hosts can reach."""
    with contextlib.suppress(OSError, ValueError):
        for line in table.read_text(encoding="ascii").splitlines()[:MAX_ADDRESSES]:
            digits, *_, card = line.split()
            ip = ipaddress.IPv6Address(bytes.fromhex(digits))
            if card == name and not (ip.is_loopback or ip.is_unspecified or ip.is_link_local or ip.is_multicast):
                return str(ip)
    return ""


def _ipv4(name: str) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("256s", name.encode()[:15])
        ip = ipaddress.IPv4Address(fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)[20:24])
        return "" if ip.is_loopback or ip.is_unspecified or ip.is_link_local else str(ip)
    return ""
