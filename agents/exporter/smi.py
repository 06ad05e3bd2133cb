"""Readings through npu-smi, for nodes where the driver's library cannot be used: fewer readings, each of which
starts a program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.tools.driver import SmiDriver
from belay.agents.drivers.tools.npu_smi import Facts
from belay.agents.exporter.source import Place, Reading

_MEGABYTE: Final = 1 << 20


class SmiSource:
    """See `belay.agents.exporter.source.Source`. One turn asks each command once."""

    def __init__(self, driver: SmiDriver) -> None:
        self._driver = driver

    async def places(self) -> Sequence[Place]:
        """Return every chip that npu-smi lists."""
        return [(place.phy, place.logic, place.card, place.chip) for place in await self._driver.smi.places()]

    async def read(self, phy: int, requests: Sequence[Sequence[Any]], *, extra: float = 0.0) -> list[Reading]:
        """Read these values of one chip; each command runs once."""
        turn = _Turn(self._driver, phy)
        answers = []
        for name, *arguments in requests:
            reading = READINGS.get(name)
            try:
                if reading is None:
                    raise DriverError(f"npu-smi does not show {name}")
                answers.append(Reading(await reading(turn, arguments)))
            except (DriverError, ValueError) as error:
                answers.append(Reading(None, str(error)))
        return answers


class _Turn:
    """The answers already read for one chip."""

    def __init__(self, driver: SmiDriver, phy: int) -> None:
        self.driver, self.phy = driver, phy
        self._facts: dict[str, Facts] = {}

    async def facts(self, what: str) -> Facts:
        if what not in self._facts:
            place = await self.driver.place(self.phy)
            if what == "board":
                self._facts[what] = await self.driver.smi.board(place.card)
            else:
                self._facts[what] = await self.driver.smi.about(what, place.card, place.chip)
        return self._facts[what]


async def _chip_info(turn: _Turn, arguments: Sequence[Any]) -> dict[str, Any]:
    place = await turn.driver.place(turn.phy)
    return {"name": place.name, "type": "Ascend", "version": (await turn.facts("board")).text("Chip Version") or "V1"}


async def _board(turn: _Turn, arguments: Sequence[Any]) -> dict[str, int]:
    return {"board": int((await turn.facts("board")).text("Board ID") or "0", 16)}


async def _version(turn: _Turn, arguments: Sequence[Any]) -> str:
    return (await turn.facts("board")).text("Software Version")


async def _serial(turn: _Turn, arguments: Sequence[Any]) -> str:
    return (await turn.facts("board")).text("Serial Number")


async def _pcie(turn: _Turn, arguments: Sequence[Any]) -> str:
    return (await turn.facts("board")).text("PCIe Bus Info")


async def _product(turn: _Turn, arguments: Sequence[Any]) -> str:
    return (await turn.facts("board")).text("Product Name")


async def _temperature(turn: _Turn, arguments: Sequence[Any]) -> float:
    return (await turn.facts("common")).number("Temperature", "NPU Temperature")


async def _power(turn: _Turn, arguments: Sequence[Any]) -> float:
    return (await turn.facts("common")).number("NPU Real-time Power", "Power Dissipation", "Real-time Power")


async def _frequency(turn: _Turn, arguments: Sequence[Any]) -> float:
    return (await turn.facts("common")).number("Aicore curFreq", "Aicore Freq")


async def _health(turn: _Turn, arguments: Sequence[Any]) -> int:
    said = (await turn.facts("health")).text("Health", "Health Status")
    if not said:
        raise DriverError("npu-smi does not show the chip's health")
    return int(said.upper() not in ("OK", "HEALTHY", "NORMAL"))


async def _codes(turn: _Turn, arguments: Sequence[Any]) -> list[int]:
    place = await turn.driver.place(turn.phy)
    return [int(code, 16) for code in await turn.driver.smi.codes(place.card, place.chip)]


async def _processes(turn: _Turn, arguments: Sequence[Any]) -> list[list[int]]:
    place = await turn.driver.place(turn.phy)
    listed = await turn.driver.smi.processes()
    return [[pid, used * _MEGABYTE] for pid, used in listed.get((place.card, place.chip), ())]


async def _hbm(turn: _Turn, arguments: Sequence[Any]) -> dict[str, float]:
    facts = await turn.facts("usages")
    total = facts.number("HBM Capacity")
    found = {"total": total, "used": round(total * facts.number("HBM Usage Rate") / 100)}
    for key, name in (("bandwidth", "HBM Bandwidth Usage Rate"), ("temperature", "HBM Temperature")):
        if facts.text(name):
            found[key] = facts.number(name)
    return found


async def _ddr(turn: _Turn, arguments: Sequence[Any]) -> dict[str, float]:
    facts = await turn.facts("usages")
    total = facts.number("DDR Capacity")
    return {"total": total, "available": total - round(total * facts.number("DDR Usage Rate") / 100)}


_RATES: Final = {
    2: ("Aicore Usage Rate",), 6: ("HBM Usage Rate",), 12: ("Aivector Usage Rate", "Vector Usage Rate"),
    13: ("NPU Utilization", "Overall Usage Rate"),
}  # fmt: skip


async def _utilisation(turn: _Turn, arguments: Sequence[Any]) -> float:
    return (await turn.facts("usages")).number(*_RATES[int(arguments[-1])])


async def _utilisations(turn: _Turn, arguments: Sequence[Any]) -> dict[str, float]:
    facts = await turn.facts("usages")
    found = {"core": facts.number(*_RATES[2])}
    for key, kind in (("vector", 12), ("overall", 13)):
        if facts.text(*_RATES[kind]):
            found[key] = facts.number(*_RATES[kind])
    return found


_ECC: Final = {
    "single_bit_error_cnt": ("HBM Single Bit Error Count",),
    "double_bit_error_cnt": ("HBM Double Bit Error Count",),
    "total_single_bit_error_cnt": ("HBM Single Bit Aggregate Total Err Cnt",),
    "total_double_bit_error_cnt": ("HBM Double Bit Aggregate Total Err Cnt",),
    "single_bit_isolated_pages": ("HBM Single Bit Isolated Pages Count",),
    "double_bit_isolated_pages": ("HBM Double Bit Isolated Pages Count",),
}


async def _ecc(turn: _Turn, arguments: Sequence[Any]) -> dict[str, float]:
    facts = await turn.facts("ecc")
    found = {key: facts.number(*names) for key, names in _ECC.items() if facts.text(*names)}
    if not found:
        raise DriverError("npu-smi shows no memory errors")
    return found


async def _vnpus(turn: _Turn, arguments: Sequence[Any]) -> list[dict[str, Any]]:
    # what a vNPU uses is not reported; without it there is nothing to show
    raise DriverError("npu-smi does not show the usage of vNPUs")


READINGS: Final[dict[str, Callable[[_Turn, Sequence[Any]], Awaitable[Any]]]] = {
    "chip_info": _chip_info, "board": _board, "version": _version, "serial": _serial, "pcie": _pcie,
    "product": _product, "temperature": _temperature, "power": _power, "card_power": _power, "frequency": _frequency,
    "health": _health, "codes": _codes, "processes": _processes, "hbm": _hbm, "ddr": _ddr,
    "utilisation": _utilisation, "utilisations": _utilisations, "ecc": _ecc, "vnpus": _vnpus,
}  # fmt: skip
