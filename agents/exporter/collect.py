"""Reading one group on one chip through the driver (component/npu-exporter/collector/metrics).

Every function returns the group's values for a chip; None when the chip did not answer, so that an older sample stays
until it expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from belay.agents.drivers.dcmi.family import A2, A3, A5, P310
from belay.agents.exporter.chips import Chip, Machine
from belay.agents.exporter.samples import FAILED, Value
from belay.agents.exporter.source import Reading, Source
from belay.agents.exporter.table import of_group

MOST_CODES: Final = 128
"""Error codes of one chip that Telegraf gets; Prometheus shows those that `table.py` has rows for, ten."""

MEGABYTE: Final = 1 << 20
NO_NETWORK_MAINBOARDS: Final = frozenset({0x68, 0x6B, 0x6C})
"""Main boards of Ascend 950 cards, which have no network whose health could be asked."""
NETWORK_GOOD: Final = (0, 6)
LAST_LINK: Final = 7
FIRST_LINK: Final[Mapping[int, int]] = {0x18: 1, 0x19: 1, 0x14: 1, 0x1C: 2, 0x1D: 2}
"""First HCCS link by the main board of an A3; on others of its kind 0."""

PCIE_TYPES: Final = (("avgPcieBw", 2), ("minPcieBw", 0), ("maxPcieBw", 1))
MULTI_FAMILIES: Final = (A2, A3, A5)
CONTAINER_MEMORY: Final = (("container_npu_total_memory", "total"), ("container_npu_used_memory", "used"))


class Reader(msgspec.Struct, frozen=True):
    """The source of readings, and for how many milliseconds links are sampled."""

    source: Source
    pcie_ms: int = 200
    hccs_ms: int = 200


Collector = Callable[[Reader, Machine, Chip], Awaitable[list[Value] | None]]


async def utilization(reader: Reader, machine: Machine, chip: Chip) -> list[Value] | None:
    """AI core, vector, cube and overall use."""
    if machine.family in MULTI_FAMILIES:
        (answer,) = await reader.source.read(chip.phy, [("utilisations", chip.phy)])
        rates = answer.value if answer.ok else {}
    else:
        core, vector = await reader.source.read(
            chip.phy, [("utilisation", chip.phy, 2), ("utilisation", chip.phy, 12)]
        )  # fmt: skip
        rates = {key: found.value for key, found in (("core", core), ("vector", vector)) if found.ok}
    return [
        Value(metric.name, rates[metric.key])
        for metric in of_group("utilization")
        if metric.key in rates and (not metric.families or machine.family in metric.families)
    ] or None


async def npu(reader: Reader, machine: Machine, chip: Chip) -> list[Value] | None:
    """Temperature, power, voltage, clock, health, processes, codes and names."""
    phy = chip.phy
    watched = machine.training and (machine.family != A5 or machine.mainboard not in NO_NETWORK_MAINBOARDS)
    wanted: list[tuple[Any, ...]] = [
        ("temperature", phy),
        ("card_power" if machine.family == P310 else "power", phy),
        ("voltage", phy),
        ("frequency", phy, 7),
        ("health", phy),
        ("processes", phy),
        ("codes", phy),
    ]
    if watched:
        wanted.append(("network", phy))
    answers = await reader.source.read(phy, wanted)
    temperature, power, voltage, frequency, health, processes, codes = answers[:7]
    name = "npu_chip_info_"
    values = [
        Value(name + metric, answer.value)
        for metric, answer in (
            ("temperature", temperature), ("power", power), ("voltage", voltage), ("aicore_current_freq", frequency)
        )
        if answer.ok
    ]  # fmt: skip
    values.append(Value(name + "health_status", _good(health, (0,))))
    values.append(Value(name + "name", 1, text=chip.chip_name or " "))
    if watched:
        values.append(Value(name + "network_status", _good(answers[7], NETWORK_GOOD)))
    values += _processes(processes.value if processes.ok else [])
    values.append(Value(name + "serial_number", 1, (chip.serial,), text=chip.serial))
    if chip.product and machine.family == P310:
        values.append(Value(name + "product_type", 1, (chip.product,), text=chip.product))
    for number, code in enumerate(codes.value[:MOST_CODES] if codes.ok else []):
        values.append(Value(name + "error_code", code, suffix=f"_{number}" if number else ""))
    return values


def _good(answer: Reading, good: tuple[int, ...]) -> int:
    return FAILED if not answer.ok else int(answer.value in good)


def _processes(found: list[list[int]]) -> list[Value]:
    name = "npu_chip_info_process_info"
    values = [Value(f"{name}_num", len(found))]
    if not found:
        values.append(Value(name, 0, ("",)))
    for pid, used in found:
        values.append(Value(name, used / MEGABYTE, (str(pid),), suffix=f"_{pid}"))
    return values


async def ddr(reader: Reader, machine: Machine, chip: Chip) -> list[Value] | None:
    """DDR memory; of the container too where there is no HBM."""
    (answer,) = await reader.source.read(chip.phy, [("ddr", chip.phy)])
    if not answer.ok:
        return None
    sizes = {"total": answer.value["total"], "used": answer.value["total"] - answer.value["available"]}
    values = [Value(m.name, sizes[m.key]) for m in of_group("ddr") if m.key in sizes]
    if "910" not in machine.family:
        values += [Value(name, sizes[key]) for name, key in CONTAINER_MEMORY]
    return values


async def hbm(reader: Reader, machine: Machine, chip: Chip) -> list[Value] | None:
    """On-chip memory: size, use, temperature, ECC."""
    phy = chip.phy
    memory, ecc, rate = await reader.source.read(phy, [("hbm", phy), ("ecc", phy, 2), ("utilisation", phy, 6)])
    facts = {**(memory.value if memory.ok else {}), **(ecc.value if ecc.ok else {})}
    values = [Value(m.name, facts[m.key]) for m in of_group("hbm") if m.key in facts]
    if rate.ok:
        values.append(Value("npu_chip_info_hbm_utilization", rate.value))
    if memory.ok:
        values += [Value(name, facts[key]) for name, key in CONTAINER_MEMORY]
    return values or None


async def sio(reader: Reader, machine: Machine, chip: Chip) -> list[Value] | None:
    """Read the CRC errors on the links between the dies (SIO)."""
    (answer,) = await reader.source.read(chip.phy, [("sio", chip.phy)])
    return [Value(m.name, answer.value[m.key]) for m in of_group("sio")] if answer.ok else None


async def hccs(reader: Reader, machine: Machine, chip: Chip) -> list[Value] | None:
    """Counters and bandwidths of the HCCS links; -1 where they could not be read."""
    phy = chip.phy
    counts, rates = await reader.source.read(
        phy, [("hccs", phy), ("hccs_bandwidth", phy, reader.hccs_ms)], extra=reader.hccs_ms / 1000
    )
    name = "npu_chip_info_hccs_"
    values = []
    for link in range(first_link(machine), LAST_LINK + 1):
        for word, key in (("tx_cnt", "tx"), ("rx_cnt", "rx"), ("crc_err_cnt", "crc")):
            values.append(Value(f"{name}statistic_info_{word}_{link}", _listed(counts, key, link)))
        for word in ("tx", "rx"):
            values.append(Value(f"{name}bandwidth_info_{word}_{link}", _listed(rates, word, link)))
    values.append(Value(f"{name}bandwidth_info_profiling_time", reader.hccs_ms))
    for word in ("total_tx", "total_rx"):
        values.append(Value(f"{name}bandwidth_info_{word}", rates.value[word] if rates.ok else FAILED))
    return values


def first_link(machine: Machine) -> int:
    """The number of the first HCCS link that the board uses."""
    return 1 if machine.family == A2 else FIRST_LINK.get(machine.mainboard, 0)


def _listed(answer: Reading, key: str, number: int) -> float:
    return float(answer.value[key][number]) if answer.ok else FAILED


async def pcie(reader: Reader, machine: Machine, chip: Chip) -> list[Value] | None:
    """Bandwidths of the PCIe link: average, least, most."""
    phy = chip.phy
    (answer,) = await reader.source.read(
        phy, [("pcie_bandwidth", phy, reader.pcie_ms)], extra=reader.pcie_ms / 1000
    )  # fmt: skip
    if not answer.ok:
        return None
    return [
        Value(metric.name, answer.value[metric.key][place], (kind,), suffix=f"_{kind}")
        for metric in of_group("pcie")
        for kind, place in PCIE_TYPES
    ]


async def vnpu(reader: Reader, machine: Machine, chip: Chip) -> list[Value] | None:
    """No values: vNPUs come with the chip list, their numbers with the page."""
    return []


COLLECTORS: Final[Mapping[str, Collector]] = {
    "utilization": utilization, "npu": npu, "ddr": ddr, "hbm": hbm, "sio": sio, "hccs": hccs, "pcie": pcie,
    "vnpu": vnpu,
}  # fmt: skip
