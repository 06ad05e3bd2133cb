"""A machine for the exporter's tests: answers by the name of the reading, a tool with recorded output, a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from belay.agents.drivers.base import DriverError
from belay.agents.exporter.chips import Chip, Machine
from belay.agents.exporter.entries import Container
from belay.agents.exporter.source import Place, Reading

TIME_MS = 1_700_000_000_000


class Recorded:
    """Readings that a test wrote down: by name, or by (name, physical id); what is not there fails."""

    def __init__(self, answers: Mapping[Any, Any], places: Sequence[Place] = ((0, 0, 0, 0),)) -> None:
        self.answers, self._places = dict(answers), places
        self.asked: list[tuple[Any, ...]] = []

    async def places(self) -> Sequence[Place]:
        return self._places

    async def read(self, phy: int, requests: Sequence[Sequence[Any]], *, extra: float = 0.0) -> list[Reading]:
        return [self._one(phy, tuple(request)) for request in requests]

    def _one(self, phy: int, request: tuple[Any, ...]) -> Reading:
        self.asked.append(request)
        for key in ((request[0], phy), (request[0], *request[2:]), request[0]):
            if key in self.answers:
                return Reading(self.answers[key])
        return Reading(None, f"{request[0]}: no answer")


class Tool:
    """hccn_tool with recorded output, by its arguments as one text."""

    def __init__(self, outputs: Mapping[str, str]) -> None:
        self.outputs = dict(outputs)
        self.asked: list[str] = []

    async def run(self, arguments: list[str]) -> str:
        line = " ".join(arguments)
        self.asked.append(line)
        if line not in self.outputs:
            raise DriverError(f"hccn_tool {line}: exit code 1")
        return self.outputs[line]


class Now:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def chip(phy: int = 0, **facts: Any) -> Chip:
    """One chip of a list."""
    given = {
        "logic": phy, "card": phy, "chip_name": "910B3", "model": "910B3-Ascend-V1", "vdie": f"D{phy}",
        "pcie": f"0000:{phy:02X}:00.0", "serial": f"S{phy}",
    }  # fmt: skip
    return Chip(phy=phy, **{**given, **facts})


def machine(
    family: str = "Ascend910B", *, board: int = 0x30, mainboard: int = 0, chips: Sequence[Chip] = ()
) -> Machine:
    """A machine of these chips."""
    found = tuple(chips) or (chip(),)
    return Machine(family=family, board=board, mainboard=mainboard, driver="25.0.rc1", chips=found)


def container(name: str, *devices: int, id_: str = "c1", pids: Sequence[int] = ()) -> Container:
    """A running container."""
    return Container(id_, name, devices, frozenset(pids))
