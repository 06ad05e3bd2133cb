"""SmiDriver: a node's chips through npu-smi, where the driver's library cannot be used.

It reads chips, faults, processes and vNPUs, and creates vNPUs. It has no events (codes are polled), does not reset
chips, and has no health of the network port. Every call starts a program, so the library is preferred.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from belay.agents.drivers import server_models
from belay.agents.drivers.base import BOOTED, VNPU, Chip, Code, DriverError, Event, Machine
from belay.agents.drivers.dcmi import family as families
from belay.agents.drivers.tools.hccn import Tool
from belay.agents.drivers.tools.npu_smi import NpuSmi, NpuSmiChip
from belay.engine.model.labels import ACCELERATOR_TYPE, INFER_CARD_TYPE

_MEGABYTES_PER_GB: Final = 1024
_OK: Final = frozenset({"OK", "HEALTHY", "NORMAL"})


class SmiDriver:
    """See `belay.agents.drivers.base.Driver` for the methods."""

    def __init__(
        self, tool: Tool | None = None, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self.smi, self._now_ms = NpuSmi(tool), now_ms
        self._places: dict[int, NpuSmiChip] = {}
        self._machine: Machine | None = None
        self._group: Callable[[int], Sequence[int]] | None = None
        self._seen: dict[tuple[int, str], int] = {}
        self._vnpus: dict[int, int] = {}

    async def _all(self) -> dict[int, NpuSmiChip]:
        if not self._places:
            self._places = {place.phy: place for place in await self.smi.places()}
        return self._places

    async def place(self, chip: int) -> NpuSmiChip:
        """Return the location of a physical id. Raises DriverError when there is none."""
        try:
            return (await self._all())[chip]
        except KeyError:
            raise DriverError(f"no chip {chip}") from None

    async def machine(self) -> Machine:
        """Describe the node by its first chip."""
        if self._machine is not None:
            return self._machine
        first = min((await self._all()).values())
        board = await self.smi.board(first.card)
        number = int(board.text("Board ID") or "0", 16)
        family = families.family(first.name, number)
        mode = families.RUN_MODES[family]
        product = board.text("Product Name")
        found = server_models.machine(f"huawei.com/{mode}", first.name)
        common = await self.smi.about("common", first.card, first.chip)
        cores = common.text("Aicore Count")
        usages = await self.smi.about("usages", first.card, first.chip)
        memory = usages.number("HBM Capacity", "DDR Capacity")
        labels = {}
        if number in families.INFER_CARD_BOARDS:
            labels[ACCELERATOR_TYPE] = "card-910b-infer"
        if product == families.DUO:
            labels[INFER_CARD_TYPE] = "card-300i-duo"
        kind = "npu" if family == families.A5 else family
        cards = {place.phy: place.card for place in self._places.values()}
        # only the library has the paired module of an A3 module: without it, only the module itself is known
        self._group = lambda chip: families.reset_group(family, number, 0, product, chip, cards, None)
        self._machine = msgspec.structs.replace(
            found,
            server_type=f"{kind}-{cores}" if cores.isdecimal() else found.server_type,
            driver_version=board.text("Software Version"),
            memory_gb=int(memory) // _MEGABYTES_PER_GB,
            labels=labels,
        )
        return self._machine

    async def chips(self) -> Sequence[Chip]:
        """List the chips with their serial numbers."""
        found = []
        serials: dict[int, str] = {}
        for phy, place in sorted((await self._all()).items()):
            if place.card not in serials:
                serials[place.card] = (await self.smi.board(place.card)).text("Serial Number")
            found.append(
                Chip(id=phy, logic_id=place.logic, card=place.card, die=place.chip, serial=serials[place.card])
            )
        return found

    async def faults(self) -> Mapping[int, Sequence[Code]]:
        """Read the codes of every chip; one that cannot be read is left out. Raises DriverError when none can."""
        found, present = {}, set()
        failure: DriverError | None = None
        for phy, place in sorted((await self._all()).items()):
            try:
                codes = await self.smi.codes(place.card, place.chip)
            except DriverError as error:
                failure = failure or error
                continue
            present |= {(phy, code) for code in codes}
            found[phy] = [Code(code, self._seen.setdefault((phy, code), self._now_ms())) for code in codes]
        if not found and failure is not None:
            raise failure
        self._seen = {key: at for key, at in self._seen.items() if key in present or key[0] not in found}
        return found

    async def events(self) -> Sequence[Event]:
        """Wait indefinitely: the program reports no events."""
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    async def processes(self) -> Mapping[int, int]:
        """Count the processes on each chip."""
        listed = await self.smi.processes()
        places = await self._all()
        counts = {phy: len(listed.get((place.card, place.chip), ())) for phy, place in sorted(places.items())}
        return {phy: count for phy, count in counts.items() if count}

    async def reset_group(self, chip: int) -> Sequence[int]:
        """Return the chips that reset with ``chip``."""
        await self.place(chip)
        await self.machine()
        assert self._group is not None
        return self._group(chip)

    async def reset(self, chips: Sequence[int], *, out_of_band: bool = True) -> None:
        """Refuse: resets need the driver's library."""
        raise DriverError("chips are not reset through npu-smi; install the driver's libdcmi.so and use --driver dcmi")

    async def reset_out_of_band(self, chips: Sequence[int]) -> bool:
        """Return False: npu-smi has no out-of-band reset."""
        return False

    async def rescan(self, chips: Sequence[int]) -> None:
        """Do nothing: npu-smi lists the chips that the driver has found."""

    async def boot_status(self, chip: int) -> int:
        """Return BOOTED once the chip's health can be read."""
        place = await self.place(chip)
        facts = await self.smi.about("health", place.card, place.chip)
        return BOOTED if facts.text("Health", "Health Status") else 0

    async def healthy(self, chip: int) -> bool:
        """Return whether the program reports a chip as healthy."""
        place = await self.place(chip)
        facts = await self.smi.about("health", place.card, place.chip)
        if not (said := facts.text("Health", "Health Status")):
            raise DriverError(f"npu-smi does not show the health of chip {chip}")
        return said.upper() in _OK

    async def vnpus(self) -> Sequence[VNPU]:
        """List the vNPUs."""
        found = []
        for phy, place in sorted((await self._all()).items()):
            found += [VNPU(number, phy, template) for number, template in await self.smi.vnpus(place.card, place.chip)]
        self._vnpus = {vnpu.id: vnpu.chip for vnpu in found}
        return sorted(found)

    async def create_vnpu(self, chip: int, template: str) -> VNPU:
        """Create a vNPU and find its id."""
        place = await self.place(chip)
        before = {number for number, _ in await self.smi.vnpus(place.card, place.chip)}
        await self.smi.create(place.card, place.chip, template)
        for number, name in await self.smi.vnpus(place.card, place.chip):
            if number not in before:
                self._vnpus[number] = chip
                return VNPU(number, chip, name)
        raise DriverError(f"npu-smi cut a vNPU {template} on chip {chip}, but lists no new one")

    async def destroy_vnpu(self, vnpu: int) -> None:
        """Destroy a vNPU."""
        if vnpu not in self._vnpus:
            await self.vnpus()
        if vnpu not in self._vnpus:
            raise DriverError(f"no vNPU {vnpu}")
        place = await self.place(self._vnpus.pop(vnpu))
        await self.smi.destroy(place.card, place.chip, vnpu)
