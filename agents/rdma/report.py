"""``kube-system/dpuinfo-<node>``: the RDMA cards and their faults, as MindCluster's plugin writes them.

Source: component/k8s-rdma-shared-dev-plugin/pkg/fault/{fault_reporter,hca_info}.go,
docs/zh/scheduling/06_api/11_k8s_rdma_shared_dev_plugin.md (tables 6 to 9).
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.rdma.devices import RdmaCard
from belay.agents.rdma.faults import RdmaFault
from belay.engine.model.labels import CLUSTERD_CONSUMER
from belay.engine.wire.names import DEVICE_NAMESPACE, DPU_KEY, DPU_PREFIX

#: A report is written again after so long without a change (s).
AGAIN: Final = 300.0
_SIOCGIFADDR: Final = 0x8915
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_LABEL: Final = {CLUSTERD_CONSUMER: "true"}


class DpuReport:
    """The ConfigMap of a node; remembers since when each fault is there."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._since: dict[tuple[str, str], int] = {}
        self._last: Any = None
        self._at = float("-inf")
        self._next: tuple[Any, float] = (None, self._at)

    def due(
        self, cards: Sequence[RdmaCard], faults: Sequence[RdmaFault], now: float, wall: float
    ) -> dict[str, Any] | None:
        """The ConfigMap to write, or None. ``now``: monotonic seconds; ``wall``: seconds since 1970."""
        active = {(fault.hca, fault.code.code) for fault in faults}
        self._since = {key: self._since.get(key, int(wall * 1000)) for key in active}
        body = {
            "DPUList": [
                {
                    "HcaName": card.hca,
                    "EthName": card.interface,
                    **({"IpAddr": address} if (address := address_of(card.interface)) else {}),
                    "DeviceID": _hexadecimal(card.device_id),
                    "VendorID": _hexadecimal(card.vendor),
                    "FaultList": self._list(faults, card.hca),
                }
                for card in sorted(cards, key=lambda card: card.hca)
            ],
            "NodeEvent": {"NodeName": self._node, "FaultList": self._list(faults, "")},
        }
        if body == self._last and now - self._at < AGAIN:
            return None
        self._next = (body, now)
        text = msgspec.json.encode({"DPUInfo": body, "UpdateTime": int(wall * 1000)}).decode()
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": DEVICE_NAMESPACE, "name": DPU_PREFIX + self._node, "labels": dict(_LABEL)},
            "data": {DPU_KEY: text},
        }

    def written(self) -> None:
        """The ConfigMap that was due is written."""
        self._last, self._at = self._next

    def _list(self, faults: Sequence[RdmaFault], hca: str) -> list[Mapping[str, Any]]:
        return [
            {
                "FaultCode": fault.code.code,
                "Time": self._since[hca, fault.code.code],
                "Description": fault.code.description,
                "FaultLevel": fault.code.level,
            }
            for fault in faults
            if fault.hca == hca
        ]


def address_of(interface: str) -> str:
    """The IPv4 address of an interface, else its first IPv6 address, else nothing."""
    if not interface:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            return socket.inet_ntoa(answer[20:24])
        except OSError:
            pass
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()[:4096]
    except (OSError, UnicodeError):
        return ""
    found = [line.split()[0] for line in lines if line.split()[-1:] == [interface]]
    return str(ipaddress.IPv6Address(bytes.fromhex(found[0]))) if found else ""


def switch_on(interface: str) -> None:
    """Set an interface up. Raises OSError: PermissionError without CAP_NET_ADMIN, another where it is not here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("16sH14x", interface.encode()[:15], 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(asked.fileno(), _SIOCGIFFLAGS, request), 16)
        if not flags & _IFF_UP:
            fcntl.ioctl(asked.fileno(), _SIOCSIFFLAGS, struct.pack("16sH14x", interface.encode()[:15], flags | _IFF_UP))


def _hexadecimal(text: str) -> str:
    return text if not text or text.startswith("0x") else f"0x{text}"
