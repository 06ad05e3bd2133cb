"""Readings of a chip's state: health, codes, processes, temperatures, use, memory, traffic."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_int, c_uint32
from typing import Any, Final

from belay.agents.drivers.dcmi import structs
from belay.agents.drivers.dcmi.errors import NOT_READY, DcmiError
from belay.agents.drivers.dcmi.interface import Interface
from belay.agents.drivers.dcmi.library import Library

MAX_CODES: Final = 128
MAX_PROCESSES: Final = 32


class Gauges(Interface):
    """Readings that change while a chip runs."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._unsupported: set[tuple[str, int]] = set()

    def codes(self, phy: int) -> list[int]:
        """Return every present fault code; a chip that cannot be reached raises DcmiError with NOT_READY."""
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
        """The network's health: 0 good, 6 still starting, any other value bad."""
        return self._number("get_device_network_health", phy, c_int)

    def processes(self, phy: int) -> list[tuple[int, int]]:
        """(process, bytes of device memory) of every process on the chip."""
        found, count = (structs.ProcessMemory * MAX_PROCESSES)(), c_int(MAX_PROCESSES)
        self._chip("get_device_resource_info", self.place(phy), found, byref(count), v2="get_device_proc_mem_info")
        return [(p.proc_id, p.proc_mem_usage) for p in found[: max(0, min(count.value, MAX_PROCESSES))]]

    def boot(self, phy: int) -> int:
        """Return the boot status; 16 is finished."""
        return self._number("get_device_boot_status", phy, c_int)

    def temperature(self, phy: int) -> int:
        """Return the chip's temperature in degrees Celsius."""
        return self._number("get_device_temperature", phy, c_int)

    def power(self, phy: int) -> float:
        """Return the chip's power in watts."""
        return self._number("get_device_power_info", phy, c_int) / 10

    def card_power(self, phy: int) -> float:
        """Watts of the whole card (310P)."""
        value = c_int()
        self.library.call("dcmi_mcu_get_power_info", self.place(phy).card, byref(value))
        return value.value / 10

    def voltage(self, phy: int) -> float:
        """Return the chip's voltage in volts."""
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
        """Measure the bandwidths of the HCCS ports over a time; blocks that long."""
        info = structs.HccsBandwidth()
        info.profiling_time = milliseconds
        self._chip("get_hccs_link_bandwidth_info", self.place(phy), byref(info))
        return {
            "total_tx": info.total_txbw, "total_rx": info.total_rxbw, "tx": list(info.tx_bandwidth),
            "rx": list(info.rx_bandwidth),
        }  # fmt: skip

    def pcie_bandwidth(self, phy: int, milliseconds: int) -> dict[str, list[int]]:
        """Measure the bandwidths of the PCIe link over a time (minimum, maximum, average each); blocks that long."""
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


def _ports(info: Any) -> dict[str, list[int]]:
    return {
        "tx": list(info.tx_cnt),
        "rx": list(info.rx_cnt),
        "crc": list(info.crc_err_cnt),
        "retry": list(info.retry_cnt),
    }
