"""The chip list: the chips present, their names and their vNPUs (component/npu-exporter/collector/common)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi import family as families
from belay.agents.exporter.source import Place, Source

PERIOD: Final = 60.0
VDIE: Final = 1
INFERENCE_BOARDS: Final = frozenset({0x28, 0x29, 0x69})
"""A2 boards that are not training cards."""

SOC_PRODUCT: Final = "Atlas 200I SoC A1"
NO_SERIAL: Final = "NA"
LOWEST_VDEV, HIGHEST_VDEV = 100, 1123


class Vnpu(msgspec.Struct, frozen=True):
    """A vNPU: id, AI cores, per cent in use, KB in all and used."""

    id: int
    cores: float
    rate: float
    total: float
    used: float

    @property
    def valid(self) -> bool:
        """Whether the id is one that vNPUs have."""
        return LOWEST_VDEV <= self.id <= HIGHEST_VDEV


class Chip(msgspec.Struct, frozen=True, kw_only=True):
    """One chip of the list; fields that could not be read are empty."""

    phy: int
    logic: int
    card: int
    chip_name: str = ""
    model: str = ""
    vdie: str = ""
    pcie: str = ""
    serial: str = NO_SERIAL
    product: str = ""
    vnpus: tuple[Vnpu, ...] = ()


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The node: its chips and the properties that decide which groups it has. ``board`` and ``mainboard`` are the
    first chip's."""

    family: str
    board: int
    mainboard: int
    driver: str
    chips: tuple[Chip, ...]

    @property
    def training(self) -> bool:
        """Whether the chips are training cards."""
        if self.family in (families.P310, "Ascend310", "Ascend310B"):
            return False
        return not (self.family == families.A2 and self.board in INFERENCE_BOARDS)

    @property
    def kind(self) -> str:
        """The device type in Telegraf's tag."""
        if self.family in (families.A1, families.A2, families.A3):
            return "ascend910"
        return "npu" if self.family == families.A5 else self.family.lower()

    @property
    def cards(self) -> int:
        """How many cards carry the chips."""
        return len({chip.card for chip in self.chips})


class ChipList:
    """Reads the list again each minute; product names are read once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._products: dict[int, str] = {}
        self._known: tuple[str, int, int, str] | None = None

    async def read(self) -> Machine:
        """The machine now. Raises DriverError when its kind is unknown."""
        places = await self._source.places()
        if not places:
            raise DriverError("the driver lists no NPU")
        if self._known is None:
            self._known = await self._kind([place[0] for place in places])
        family, board, mainboard, driver = self._known
        found = [await self._chip(place, family) for place in places]
        return Machine(family=family, board=board, mainboard=mainboard, driver=driver, chips=tuple(found))

    async def _kind(self, chips: Sequence[int]) -> tuple[str, int, int, str]:
        """Identify it by the first chip that answers: one that dropped off the bus does not."""
        errors = []
        for phy in chips:
            wanted = (("chip_info", phy), ("board", phy), ("mainboard", phy), ("version",))
            info, board, mainboard, version = await self._source.read(phy, wanted)
            if info.ok:
                break
            errors.append(info.error)
        else:
            raise DriverError(errors[0])
        number = board.value["board"] if board.ok else 0
        family = families.family(info.value["name"], number)
        main = mainboard.value if mainboard.ok else 0
        return family, number, main, version.value if version.ok else ""

    async def _chip(self, place: Place, family: str) -> Chip:
        phy, logic, card, _ = place
        wanted: list[tuple[Any, ...]] = [("chip_info", phy), ("die", phy, VDIE), ("pcie", phy), ("serial", phy)]
        cut = family == families.P310
        if cut:
            wanted.append(("vnpus", phy))
            if phy not in self._products:
                wanted.append(("product", phy))
        answers = await self._source.read(phy, wanted)
        info, die, pcie, serial = answers[:4]
        vnpus = _vnpus(answers[4].value) if cut and answers[4].ok else ()
        if len(answers) > 5 and answers[5].ok:
            self._products[phy] = str(answers[5].value)
        product = self._products.get(phy, "")
        return Chip(
            phy=phy,
            logic=logic,
            card=card,
            chip_name=info.value["name"] if info.ok else "",
            model=model_name(info.value) if info.ok else "",
            vdie=die.value if die.ok else "",
            pcie=pcie.value if pcie.ok and product != SOC_PRODUCT else "",
            serial=(serial.value or NO_SERIAL) if serial.ok else NO_SERIAL,
            product=product,
            vnpus=vnpus,
        )


def model_name(info: dict[str, Any]) -> str:
    """``<name>-<type>-<version>``; empty when all three are (an A3 has no type, hence its double dash)."""
    parts = (info.get("name", ""), info.get("type", ""), info.get("version", ""))
    return "-".join(parts) if any(parts) else ""


def _vnpus(found: Sequence[dict[str, Any]]) -> tuple[Vnpu, ...]:
    return tuple(
        Vnpu(
            vnpu["id"], vnpu["aicore"], vnpu["core_used"], vnpu["memory_total"],
            vnpu["memory_total"] - vnpu["memory_free"],
        )
        for vnpu in sorted(found, key=lambda vnpu: int(vnpu["id"]))
    )  # fmt: skip
