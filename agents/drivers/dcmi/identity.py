"""A chip's identity: type, board, serial number, addresses, location in the super pod."""

from __future__ import annotations

import ctypes
import ipaddress
from ctypes import byref, c_int, c_uint32
from typing import Any, Final

from belay.agents.drivers.dcmi import structs
from belay.agents.drivers.dcmi.errors import DcmiError
from belay.agents.drivers.dcmi.interface import Interface, text

UNKNOWN: Final = 0xFFFFFFFF
MAX_URMA: Final = 32
MAX_EIDS: Final = 32


class Identity(Interface):
    """Readings that change only with the hardware."""

    def chip_info(self, phy: int) -> dict[str, Any]:
        """Type, name, version, AI cores."""
        place = self.place(phy)
        newer = structs.ChipInfoV2()
        try:
            self._chip("get_device_chip_info_v2", place, byref(newer), v2="get_device_chip_info")
            return _chip_info(newer) | {"npu_name": text(newer.npu_name)}
        except DcmiError as error:
            if self.v2 or error.supported:
                raise
        older = structs.ChipInfo()
        self._chip("get_device_chip_info", place, byref(older))
        return _chip_info(older) | {"npu_name": ""}

    def board(self, phy: int) -> dict[str, int]:
        """Board, PCB, BOM and slot ids."""
        info = structs.BoardInfo()
        self._chip("get_device_board_info", self.place(phy), byref(info))
        return {"board": info.board_id, "pcb": info.pcb_id, "bom": info.bom_id, "slot": info.slot_id}

    def mainboard(self, phy: int) -> int:
        """The main-board id."""
        return self._number("get_mainboard_id", phy)

    def product(self, phy: int) -> str:
        """The product type as text, for example "Atlas 300I Duo"; empty with a v2 library."""
        if self.v2:
            return ""
        place = self.place(phy)
        buffer = ctypes.create_string_buffer(64)
        self.library.call("dcmi_get_product_type", place.card, place.device, buffer, 64)
        return buffer.value.decode("utf-8", "replace")

    def version(self) -> str:
        """The driver's version."""
        buffer = ctypes.create_string_buffer(32)
        self.library.call("dcmiv2_get_dcmi_version" if self.v2 else "dcmi_get_dcmi_version", buffer, 32)
        return buffer.value.decode("utf-8", "replace")

    def serial(self, phy: int) -> str:
        """The card's serial number."""
        place, info = self.place(phy), structs.ElabelInfo()
        if self.v2:
            self.library.call("dcmiv2_get_device_elabel_info", place.device, byref(info))
        else:
            self.library.call("dcmi_get_card_elabel_v2", place.card, byref(info))
        return bytes(info.serial_number).decode("utf-8", "replace").strip()

    def die(self, phy: int, kind: int) -> str:
        """A die id as five words of upper-case hex; kind 0 NDIE, 1 VDIE, 2 DDIE."""
        info = structs.DieId()
        self._chip("get_device_die_v2", self.place(phy), kind, byref(info), v2="get_device_die_id")
        return "-".join(f"{word:08X}" for word in info.soc_die)

    def pcie(self, phy: int) -> str:
        """The bus address, `DDDD:BB:DD.F`."""
        info = structs.PcieInfo()
        self._chip("get_device_pcie_info_v2", self.place(phy), byref(info), v2="get_device_pcie_info")
        return f"{info.domain & 0xFFFF:04X}:{info.bdf_busid:02X}:{info.bdf_deviceid:02X}.{info.bdf_funcid:X}"

    def affinity(self, phy: int) -> str:
        """The processors near a chip, in the kernel's list format."""
        buffer, length = ctypes.create_string_buffer(32), c_int(32)
        self._chip(
            "get_affinity_cpu_info_by_device_id", self.place(phy), buffer, byref(length),
            v2="get_affinity_cpu_info_by_dev_id",
        )  # fmt: skip
        return buffer.value.decode("ascii", "replace")

    def ip(self, phy: int, port_type: int = 1) -> str:
        """The address of a port (0 vNIC, 1 RoCE): IPv4 first, then IPv6. Empty where there is none."""
        if self.v2:
            return ""
        place = self.place(phy)
        for ip_type in (0, 1):
            address, mask = structs.IpAddress(), structs.IpAddress()
            address.ip_type = ip_type
            try:
                self.library.call(
                    "dcmi_get_device_ip", place.card, place.device, port_type, 0, byref(address), byref(mask)
                )
            except DcmiError:
                continue
            if found := _address(bytes(address.address), ip_type):
                return found
        return ""

    def super_pod(self, phy: int) -> dict[str, int]:
        """The chip's location in its super pod; -1 for values that the driver does not have."""
        info = structs.SuperPod()
        self._info(phy, 12, 1, info)
        fields = ("sdid", "scale_type", "super_pod_id", "server_id", "chassis_id", "super_pod_type")
        return {name: -1 if getattr(info, name) == UNKNOWN else getattr(info, name) for name in fields}

    def urma(self, phy: int) -> list[list[str]]:
        """The EIDs of each URMA device, as 32 hex digits (Ascend950)."""
        place, count = self.place(phy), c_uint32()
        self._chip("get_urma_device_cnt", place, byref(count))
        found = []
        for index in range(min(count.value, MAX_URMA)):
            rows, length = (structs.UrmaEid * MAX_EIDS)(), c_uint32(MAX_EIDS)
            self._chip("get_eid_list_by_urma_dev_index", place, index, rows, byref(length))
            found.append([bytes(row.eid).hex() for row in rows[: min(length.value, MAX_EIDS)]])
        return found

    def brother(self, phy: int) -> int:
        """The card that shares optical ports with this chip's (A3)."""
        return self._number("get_netdev_brother_device", phy, c_int)


def _chip_info(info: Any) -> dict[str, Any]:
    return {
        "type": text(info.chip_type), "name": text(info.chip_name), "version": text(info.chip_ver),
        "aicores": int(info.aicore_cnt),
    }  # fmt: skip


def _address(raw: bytes, ip_type: int) -> str:
    if ip_type == 0:
        return str(ipaddress.IPv4Address(raw[:4])) if any(raw[:4]) else ""
    return str(ipaddress.IPv6Address(raw)) if any(raw) else ""
