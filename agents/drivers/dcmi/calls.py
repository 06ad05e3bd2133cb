"""The driver's calls as Python functions, over either generation of the interface. Everything here blocks.

A chip is found by a `Place`: v1 libraries name it by card and device, v2 libraries by one id and have no cards.
"""

from __future__ import annotations

import ctypes
import ipaddress
from collections.abc import Callable
from ctypes import byref, c_int, c_uint32
from typing import Any, Final, NamedTuple

from agents.drivers.base import DriverError
from agents.drivers.dcmi import prototypes, structs
from agents.drivers.dcmi.errors import NOT_READY, DcmiError
from agents.drivers.dcmi.library import Library

MAX_CARDS, MAX_CHIPS, MAX_CODES, MAX_PROCESSES, MAX_VDEVS = 64, 256, 128, 32, 32
NPU_TYPE: Final = 0
ANY_ID: Final = 0xFFFFFFFF
UNKNOWN: Final = 0xFFFFFFFF
IN_BAND, OUT_OF_BAND = 1, 0
READINGS: Final = frozenset({
    "chip_info", "board", "mainboard", "product", "version", "serial", "die", "pcie", "codes", "health", "network",
    "processes", "temperature", "power", "card_power", "voltage", "frequency", "utilisation", "utilisations", "hbm",
    "ddr", "ecc", "hccs", "hccs_bandwidth", "pcie_bandwidth", "sio", "ub_port", "vnpus",
})  # fmt: skip
"""Calls that only look, and may be asked many at once."""


class Place(NamedTuple):
    """Where one chip is: physical and logic id, card and device; card is -1 where the interface has none."""

    phy: int
    logic: int
    card: int
    device: int


class Calls:
    """One initialised library. Raises DriverError when it answers neither generation."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.v2 = False
        self._callback: Any = None
        self._unsupported: set[tuple[str, int]] = set()
        try:
            library.call("dcmi_init")
        except DcmiError as first:
            try:
                library.call("dcmiv2_init")
            except DcmiError as second:
                raise DriverError(f"the driver does not answer: {first}; {second}") from second
            self.v2 = True
        self.places = self._places()

    # -- who is there

    def _places(self) -> tuple[Place, ...]:
        found = list(self._places_v2() if self.v2 else self._places_v1())
        if not found:
            raise DriverError("the driver lists no NPU")
        return tuple(sorted(found))

    def _places_v1(self) -> list[Place]:
        count, cards = c_int(), (c_int * MAX_CARDS)()
        self.library.call("dcmi_get_card_list", byref(count), cards, MAX_CARDS)
        if not 0 <= count.value <= MAX_CARDS:
            raise DriverError(f"dcmi_get_card_list: {count.value} cards, at most {MAX_CARDS} are possible")
        places = []
        for card in cards[: count.value]:
            number = c_int()
            self.library.call("dcmi_get_device_num_in_card", card, byref(number))
            if not 0 <= number.value <= 8:
                raise DriverError(f"card {card}: {number.value} devices are not possible")
            for device in range(number.value):
                kind, logic, phy = c_int(), c_int(), c_uint32()
                self.library.call("dcmi_get_device_type", card, device, byref(kind))
                if kind.value != NPU_TYPE:
                    continue
                self.library.call("dcmi_get_device_logic_id", byref(logic), card, device)
                self.library.call("dcmi_get_device_phyid_from_logicid", logic.value, byref(phy))
                places.append(self._checked(phy.value, logic.value, card, device))
        return places

    def _places_v2(self) -> list[Place]:
        ids, count = (c_int * MAX_CHIPS)(), c_int()
        self.library.call("dcmiv2_get_device_list", ids, byref(count), MAX_CHIPS)
        places = []
        for device in ids[: max(0, min(count.value, MAX_CHIPS))]:
            phy = c_uint32()
            self.library.call("dcmiv2_get_chip_phy_id_by_dev_id", device, byref(phy))
            places.append(self._checked(phy.value, device, -1, device))
        return places

    @staticmethod
    def _checked(phy: int, logic: int, card: int, device: int) -> Place:
        if not 0 <= phy < MAX_CHIPS or not 0 <= logic < MAX_CHIPS:
            raise DriverError(f"card {card} device {device}: logic id {logic} or physical id {phy} is beyond 255")
        return Place(phy, logic, card, device)

    def place(self, phy: int) -> Place:
        """Where a physical id is. Raises DriverError when there is none."""
        for place in self.places:
            if place.phy == phy:
                return place
        raise DriverError(f"no chip {phy}")

    def _chip(self, name: str, place: Place, *arguments: Any, v2: str = "") -> None:
        """Call ``dcmi_NAME(card, device, …)`` or ``dcmiv2_NAME(device, …)``."""
        if self.v2:
            self.library.call(f"dcmiv2_{v2 or name}", place.device, *arguments)
        else:
            self.library.call(f"dcmi_{name}", place.card, place.device, *arguments)

    def _number(self, name: str, phy: int, kind: type[Any] = c_uint32, *before: Any) -> int:
        value = kind()
        self._chip(name, self.place(phy), *before, byref(value))
        return int(value.value)

    # -- what it is

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
        """The processors near a chip, as the kernel writes lists."""
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
        """Where the chip sits in its super pod; -1 for what the driver does not know."""
        info = structs.SuperPod()
        self._info(phy, 12, 1, info)
        fields = ("sdid", "scale_type", "super_pod_id", "server_id", "chassis_id", "super_pod_type")
        return {name: -1 if getattr(info, name) == UNKNOWN else getattr(info, name) for name in fields}

    def brother(self, phy: int) -> int:
        """The card that shares optical ports with this chip's (A3)."""
        return self._number("get_netdev_brother_device", phy, c_int)

    def _info(self, phy: int, main: int, sub: int, buffer: ctypes.Structure) -> None:
        size = c_uint32(ctypes.sizeof(buffer))
        self._chip("get_device_info", self.place(phy), main, sub, byref(buffer), byref(size))

    # -- how it is

    def codes(self, phy: int) -> list[int]:
        """Every present fault code; a chip that cannot be reached raises DcmiError with NOT_READY."""
        place = self.place(phy)
        count, found = c_int(), (c_uint32 * MAX_CODES)()
        self._chip("get_device_errorcode_v2", place, byref(count), found, MAX_CODES, v2="get_device_error_code_list")
        return sorted(set(found[: max(0, min(count.value, MAX_CODES))]))

    def health(self, phy: int) -> int:
        """0 healthy; NOT_READY when the chip dropped off the bus."""
        try:
            return self._number("get_device_health", phy)
        except DcmiError as error:
            if error.code == NOT_READY:
                return NOT_READY
            raise

    def network(self, phy: int) -> int:
        """The network's health: 0 good, 6 still starting, anything else not."""
        return self._number("get_device_network_health", phy, c_int)

    def processes(self, phy: int) -> list[tuple[int, int]]:
        """(process, bytes of device memory) of every process on the chip."""
        found, count = (structs.ProcessMemory * MAX_PROCESSES)(), c_int(MAX_PROCESSES)
        self._chip("get_device_resource_info", self.place(phy), found, byref(count), v2="get_device_proc_mem_info")
        return [(p.proc_id, p.proc_mem_usage) for p in found[: max(0, min(count.value, MAX_PROCESSES))]]

    def boot(self, phy: int) -> int:
        """How far the start has come; 16 is finished."""
        return self._number("get_device_boot_status", phy, c_int)

    def temperature(self, phy: int) -> int:
        """Degrees Celsius."""
        return self._number("get_device_temperature", phy, c_int)

    def power(self, phy: int) -> float:
        """Watts of the chip."""
        return self._number("get_device_power_info", phy, c_int) / 10

    def card_power(self, phy: int) -> float:
        """Watts of the whole card (310P)."""
        value = c_int()
        self.library.call("dcmi_mcu_get_power_info", self.place(phy).card, byref(value))
        return value.value / 10

    def voltage(self, phy: int) -> float:
        """Volts."""
        return self._number("get_device_voltage", phy) / 100

    def frequency(self, phy: int, kind: int) -> int:
        """MHz; 1 DDR, 2 control CPU, 6 HBM, 7 AI core now, 9 AI core at most, 12 vector."""
        return self._number("get_device_frequency", phy, c_uint32, kind)

    def utilisation(self, phy: int, kind: int) -> int:
        """Per cent; 2 AI core, 6 HBM, 12 vector, 13 overall, 14 cube."""
        return self._number("get_device_utilization_rate", phy, c_uint32, kind)

    def utilisations(self, phy: int) -> dict[str, int]:
        """cube, vector, core and overall in per cent, by the best call that the library has."""
        place, info = self.place(phy), structs.MultiUtilization()
        for name, rest in (
            ("get_device_multi_utilization_rate_period", (1,)),
            ("get_device_multi_utilization_rate", ()),
        ):
            if (name, phy) in self._unsupported:
                continue
            try:
                self._chip(name, place, byref(info), *rest)
                return {
                    "cube": info.aic_util, "vector": info.aiv_util, "core": info.aicore_util, "overall": info.npu_util,
                }  # fmt: skip
            except DcmiError as error:
                if error.supported:
                    raise
                self._unsupported.add((name, phy))
        return self._each(
            {"core": 2, "vector": 12, "overall": 13, "cube": 14}, lambda kind: self.utilisation(phy, kind)
        )

    def _each(self, kinds: dict[str, int], call: Callable[[int], int]) -> dict[str, int]:
        found = {}
        for name, kind in kinds.items():
            try:
                found[name] = call(kind)
            except DcmiError as error:
                if error.supported:
                    raise
        return found

    def hbm(self, phy: int) -> dict[str, int]:
        """MB in all and used, MHz, degrees Celsius, bandwidth in per cent."""
        info = structs.HbmInfo()
        self._chip("get_device_hbm_info", self.place(phy), byref(info))
        return {
            "total": info.memory_size, "used": info.memory_usage, "frequency": info.freq, "temperature": info.temp,
            "bandwidth": info.bandwith_util_rate,
        }  # fmt: skip

    def ddr(self, phy: int) -> dict[str, int]:
        """MB in all and available, MHz, per cent; not on A2, A3 and A5."""
        place, info = self.place(phy), structs.MemoryInfoV3()
        try:
            self._chip("get_device_memory_info_v3", place, byref(info))
            return {
                "total": info.memory_size, "available": info.memory_available, "frequency": info.freq,
                "utilisation": info.utiliza,
            }  # fmt: skip
        except DcmiError as error:
            if error.supported:
                raise
        older = structs.MemoryInfo()
        self._chip("get_memory_info", place, byref(older))
        free = older.memory_size * (100 - min(older.utiliza, 100)) // 100
        return {
            "total": older.memory_size, "available": free, "frequency": older.freq, "utilisation": older.utiliza,
        }  # fmt: skip

    def ecc(self, phy: int, kind: int) -> dict[str, int]:
        """Error counts of one memory: 0 DDR, 1 SRAM, 2 HBM, 3 NPU."""
        info = structs.EccInfo()
        self._chip("get_device_ecc_info", self.place(phy), kind, byref(info))
        return {name: int(getattr(info, name)) for name, *_ in structs.EccInfo._fields_}

    def hccs(self, phy: int) -> dict[str, list[int]]:
        """Counters of the HCCS ports: sent, received, CRC errors, retries."""
        wide = structs.HccsStatisticU64()
        try:
            self._info(phy, 16, 5, wide)
            return _ports(wide)
        except DcmiError as error:
            if error.supported:
                raise
        narrow = structs.HccsStatistic()
        self._info(phy, 16, 3, narrow)
        return _ports(narrow)

    def hccs_bandwidth(self, phy: int, milliseconds: int) -> dict[str, Any]:
        """Bandwidths of the HCCS ports over a time; blocks that long."""
        info = structs.HccsBandwidth()
        info.profiling_time = milliseconds
        self._chip("get_hccs_link_bandwidth_info", self.place(phy), byref(info))
        return {
            "total_tx": info.total_txbw, "total_rx": info.total_rxbw, "tx": list(info.tx_bandwidth),
            "rx": list(info.rx_bandwidth),
        }  # fmt: skip

    def pcie_bandwidth(self, phy: int, milliseconds: int) -> dict[str, list[int]]:
        """Bandwidths of the PCIe link over a time (minimum, maximum, average each); blocks that long."""
        info = structs.PcieBandwidth()
        info.profiling_time = milliseconds
        self._chip("get_pcie_link_bandwidth_info", self.place(phy), byref(info))
        return {name: list(getattr(info, name)) for name, *_ in structs.PcieBandwidth._fields_[1:]}

    def sio(self, phy: int) -> dict[str, int]:
        """CRC errors between the dies: sent and received."""
        info = structs.SioCrc()
        self._info(phy, 56, 0, info)
        return {"tx": info.tx_error_count, "rx": info.rx_error_count}

    def ub_port(self, phy: int, die: int, port: int) -> dict[str, Any]:
        """Packet counters of one UB port (v2 libraries); mode 1 is UBOE."""
        info, where = structs.PortPackets(), structs.UbPort(die, port)
        self._chip("get_port_pkt_stats_info", self.place(phy), byref(where), byref(info))
        return {"mode": info.port_mode, "counters": list(info.counters)}

    def die_policy(self) -> int:
        """How the dies of a chip are given out: 0 together, 1 each alone."""
        value = c_int()
        self.library.call("dcmi_get_multi_die_policy", byref(value))
        return value.value

    def spod_status(self, phy: int, sdid: int) -> int:
        """Whether a node of the super pod takes part: 0 normal, 1 abnormal."""
        return self._number("get_spod_node_status", phy, c_uint32, sdid)

    def set_spod_status(self, phy: int, sdid: int, status: int) -> None:
        """Tell the super pod about a node."""
        self._chip("set_spod_node_status", self.place(phy), sdid, status)

    def several(self, requests: list[list[Any]]) -> list[dict[str, Any]]:
        """Many readings in one turn: ``[name, argument…]`` each; answers ``{"value": …}`` or ``{"error", "code"}``.

        Only readings are asked this way; the deadline is that of the whole turn.
        """
        answers: list[dict[str, Any]] = []
        for name, *arguments in requests:
            if name not in READINGS:
                raise DriverError(f"{name[:64]!r} is no reading")
            try:
                answers.append({"value": getattr(self, name)(*arguments)})
            except DcmiError as error:
                answers.append({"error": str(error), "code": error.code, "function": error.function})
            except DriverError as error:
                answers.append({"error": str(error)[:500]})
        return answers

    # -- pings between chips

    def ping_start(self, phy: int, task: int, addresses: list[str], shape: dict[str, int]) -> None:
        """Begin to ping: task 0 within the node, 1 beyond it; ``shape``: size, count, interval, timeout, period."""
        operate = structs.HccsPingOperate()
        joined = ",".join(addresses).encode()
        if len(joined) > 1023:
            raise DriverError(f"{len(addresses)} addresses are longer than 1023 bytes")
        operate.dst_addr_list, operate.task_id = joined, task
        operate.pkt_size, operate.pkt_send_num = shape["size"], shape["count"]
        operate.pkt_interval, operate.timeout = shape["interval"], shape["timeout"]
        operate.task_interval = shape["period"]
        place = self.place(phy)
        self.library.call("dcmi_start_hccsping_mesh", place.card, place.device, 0, byref(operate))

    def ping_stop(self, phy: int, task: int) -> None:
        """End a task."""
        place = self.place(phy)
        self.library.call("dcmi_stop_hccsping_mesh", place.card, place.device, 0, task)

    def ping_state(self, phy: int, task: int) -> int:
        """Whether a task runs: 0 stopped."""
        place, value = self.place(phy), c_uint32()
        self.library.call("dcmi_get_hccsping_mesh_state", place.card, place.device, 0, task, byref(value))
        return value.value

    def ping_results(self, phy: int, task: int) -> list[dict[str, Any]]:
        """The newest results of a task, one for each destination; none when it is stopped."""
        place, info = self.place(phy), structs.HccsPingInfo()
        self.library.call("dcmi_get_hccsping_mesh_info", place.card, place.device, 0, task, byref(info))
        return [
            {
                "target": text(info.dst_addr[n]), "ok": info.suc_pkt_num[n], "lost": info.fail_pkt_num[n],
                "max": info.max_time[n], "min": info.min_time[n], "average": info.avg_time[n],
                "tp95": info.tp95_time[n], "replies": info.reply_stat_num[n], "total": info.ping_total_num[n],
            }
            for n in range(max(0, min(info.dest_num, 48)))
        ]  # fmt: skip

    # -- vNPUs

    def vnpus(self, phy: int) -> list[dict[str, Any]]:
        """The vNPUs of a chip: id, template, whether a container uses it, AI-core per cent and MB used."""
        total = structs.SocTotal()
        self._info(phy, 52, 1, total)
        found = []
        for number in total.vdev_id[: min(total.vdev_num, MAX_VDEVS)]:
            query = structs.VdevQuery()
            query.vdev_id = number
            try:
                self._info(phy, 52, 5, query)
            except DcmiError as error:
                if error.supported:
                    raise
                self._info(phy, 52, 0, query)
            info = query.query_info
            found.append({
                "id": number, "template": bytes(info.name).decode("ascii", "replace"),
                "used": bool(info.is_container_used), "aicore": float(info.computing.aic),
                "core_used": info.computing.vdev_aicore_utilization, "memory_total": info.computing.vdev_memory_total,
                "memory_free": info.computing.vdev_memory_free,
            })  # fmt: skip
        return found

    def create_vnpu(self, phy: int, template: str) -> int:
        """Cut one vNPU; answers its id."""
        if len(template.encode()) > 31:
            raise DriverError(f"template {template[:64]!r} is longer than 31 bytes")
        wanted, made = structs.CreateVdev(), structs.CreatedVdev()
        wanted.vdev_id = wanted.vfg_id = ANY_ID
        wanted.template_name = template.encode()
        place = self.place(phy)
        self.library.call("dcmi_create_vdevice", place.card, place.device, byref(wanted), byref(made))
        return int(made.vdev_id)

    def destroy_vnpu(self, phy: int, vdev: int) -> None:
        """Give a vNPU back."""
        place = self.place(phy)
        self.library.call("dcmi_set_destroy_vdevice", place.card, place.device, vdev)

    # -- reset

    def reset(self, phy: int, channel: int = IN_BAND) -> None:
        """Begin a reset; what resets with the chip goes along."""
        self._chip("set_device_reset", self.place(phy), channel, v2="reset_device")

    def outband(self, phy: int) -> bool:
        """Whether the out-of-band channel may be used."""
        return self._number("get_device_outband_channel_state", phy, c_int) == 1

    def pre_reset(self, phy: int) -> None:
        """Prepare an out-of-band reset."""
        self._chip("pre_reset_soc", self.place(phy), v2="pre_reset_device")

    def rescan(self, phy: int) -> None:
        """Find a chip again after an out-of-band reset."""
        self._chip("rescan_soc", self.place(phy), v2="rescan_device")

    # -- events

    def subscribe(self, heard: Callable[[dict[str, Any]], None]) -> None:
        """Call ``heard`` from a thread of the driver for every fault event of every chip.

        ``chip`` in it is the logic id that the driver gives; the driver's own raise time is not passed on.
        """

        def callback(pointer: Any) -> None:
            event = pointer.contents
            if event.type != 0:
                return
            dms = event.dms
            heard({
                "chip": int(dms.deviceid), "code": int(dms.event_id), "severity": int(dms.severity),
                "assertion": int(dms.assertion), "serial": int(dms.event_serial_num),
                "module": [dms.node_type, dms.node_id, dms.sub_node_type, dms.sub_node_id],
            })  # fmt: skip

        # the driver keeps the pointer: the object must live as long as the process
        self._callback = prototypes.FAULT_CALLBACK(callback)
        if self.v2:
            self.library.call("dcmiv2_subscribe_fault_event", -1, structs.EventFilter(), self._callback)
        else:
            self.library.call("dcmi_subscribe_fault_event", -1, -1, structs.EventFilter(), self._callback)


def text(array: Any) -> str:
    """A zero-ended array of bytes as text."""
    return bytes(array).split(b"\0", 1)[0].decode("utf-8", "replace").strip()


def _chip_info(info: Any) -> dict[str, Any]:
    return {
        "type": text(info.chip_type), "name": text(info.chip_name), "version": text(info.chip_ver),
        "aicores": int(info.aicore_cnt),
    }  # fmt: skip


def _ports(info: Any) -> dict[str, list[int]]:
    return {
        "tx": list(info.tx_cnt),
        "rx": list(info.rx_cnt),
        "crc": list(info.crc_err_cnt),
        "retry": list(info.retry_cnt),
    }


def _address(raw: bytes, ip_type: int) -> str:
    if ip_type == 0:
        return str(ipaddress.IPv4Address(raw[:4])) if any(raw[:4]) else ""
    return str(ipaddress.IPv6Address(raw)) if any(raw) else ""


__all__ = ["Calls", "IN_BAND", "OUT_OF_BAND", "Place", "text"]
