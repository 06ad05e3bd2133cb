"""DcmiDriver: the chips of this machine, through the driver's own library in a separate process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from belay.agents.drivers.base import CARD_DROP, VNPU, Assertion, Chip, Code, DriverError, Event, Machine, Plane
from belay.agents.drivers.dcmi import family as families
from belay.agents.drivers.dcmi.chip_readings import ChipReadings
from belay.agents.drivers.dcmi.control import OUT_OF_BAND
from belay.agents.drivers.dcmi.errors import NOT_READY, TIMED_OUT, DcmiError
from belay.agents.drivers.dcmi.library import find
from belay.agents.drivers.dcmi.supervisor import Supervisor
from belay.agents.drivers.dcmi.switch import NAME as SWITCH_LIBRARY
from belay.agents.drivers.surroundings import SwitchFault
from belay.engine.model.labels import ACCELERATOR_TYPE, INFER_CARD_TYPE

CALL_SECONDS: Final = 5.0
NETWORK_SECONDS: Final = 1.0
RESET_SECONDS: Final = 30.0
OUT_OF_BAND_SECONDS: Final = 150.0
RESCAN_PAUSE: Final = 3.0
NETWORK_GOOD: Final = frozenset({0, 6})
NETWORK_UNASKED: Final = 0
TRAINING: Final = (families.A1, families.A2, families.A3, families.A5)
LINK_DOWN: Final = "81078603"
NETWORK_CODES: Final = frozenset({LINK_DOWN, "81078607", "110000002", "110001024"})
"""Codes of RoCE and UBOE ports; those of the bus between chips are the chip's own
(component/ascend-device-plugin/pkg/common/fault_code.go)."""
ASSERTIONS: Final[tuple[Assertion, ...]] = ("recover", "occur", "once")
DRIVER_ROOT_MB: Final = 1024
MOST_SEVERE: Final = 3


class DcmiDriver:
    """The node's driver. ``sleep`` and ``now_ms`` are the clock; see `belay.agents.drivers.base.Driver` for the
    methods.

    ``switch_library`` is the bus switch's; without it, it is searched for as the driver's is.
    """

    def __init__(
        self,
        library: Path,
        *,
        sleep: Callable[[float], Any],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        owners: frozenset[int] = frozenset(),
        env: dict[str, str] | None = None,
        switch_library: Path | None = None,
        cards_timeout: float = 0.0,
    ) -> None:
        self.calls = Supervisor(library, owners=owners, env=env, cards_timeout=cards_timeout)
        self._sleep, self._now_ms = sleep, now_ms
        self._switch_library, self._owners = switch_library, owners
        self._machine: Machine | None = None
        self._family = self._product = ""
        self._board = self._mainboard = 0
        self._seen: dict[tuple[int, str], int] = {}
        self._vnpus: dict[int, int] = {}
        self._cut: tuple[VNPU, ...] = ()
        self._brothers: dict[int, int | None] = {}
        self._readings = ChipReadings(self._ask)

    async def _ask(self, call: str, *arguments: Any, timeout: float = CALL_SECONDS) -> Any:
        return await self.calls.ask(call, *arguments, timeout=timeout)

    async def _places(self) -> Sequence[tuple[int, int, int, int]]:
        if not self.calls.places:
            await self._ask("version")
        return self.calls.places

    async def _of_chips(self, *calls: str) -> Mapping[int, Sequence[Any]]:
        """What every chip answers to these; errors stand in the place of values."""
        return await self._readings.read([phy for phy, *_ in await self._places()], *calls, seconds=CALL_SECONDS)

    async def machine(self) -> Machine:
        """Describe the node by its first chip."""
        if self._machine is not None:
            return self._machine
        first, info, self._board = await self._first()
        self._family = families.family(info["name"], self._board)
        self._mainboard = await self._reading("mainboard", first, default=0)
        self._product = await self._reading("product", first, default="")
        mode = families.RUN_MODES[self._family]
        memory = await self._memory_gb(first)
        pod = await self._super_pod(first)
        labels = {}
        if self._board in families.INFER_CARD_BOARDS:
            labels[ACCELERATOR_TYPE] = "card-910b-infer"
        if self._product == families.DUO:
            labels[INFER_CARD_TYPE] = "card-300i-duo"
        kind = "npu" if self._family == families.A5 else self._family
        self._machine = Machine(
            resource=f"huawei.com/{mode}",
            prefix=f"{mode}-",
            chip_name=info["name"],
            accelerator=f"huawei-{mode}",
            server_type=f"{kind}-{info['aicores']}",
            driver_version=await self._ask("version"),
            memory_gb=memory,
            super_pod_id=pod.get("super_pod_id", -2),
            server_index=pod.get("server_id", -2),
            rack_id=pod.get("chassis_id") if self._family == families.A5 else None,
            super_pod_type=pod.get("super_pod_type", -1),
            mainboard=self._mainboard,
            card_type=families.card_type(self._board, self._mainboard) if self._family == families.A5 else "",
            labels=labels,
        )
        return self._machine

    async def _memory_gb(self, chip: int) -> int:
        for call in ("hbm", "ddr"):
            found = await self._tried(call, chip, default=None)
            if found and found["total"]:
                return int(found["total"]) // DRIVER_ROOT_MB
        return 0

    async def _first(self) -> tuple[int, Mapping[str, Any], int]:
        """Return the first chip that answers, its information and its board: a chip that dropped off the bus does not
        answer, and any other identifies the machine as well."""
        failure: DriverError | None = None
        for phy, *_ in await self._places():
            try:
                return phy, await self._ask("chip_info", phy), (await self._ask("board", phy))["board"]
            except DcmiError as error:
                failure = failure or error
        raise failure or DriverError("the driver lists no NPU")

    async def _reading(self, call: str, *arguments: Any, default: Any) -> Any:
        """Return a reading of a chip; the default when it does not answer."""
        try:
            return await self._ask(call, *arguments)
        except DcmiError as error:
            if error.code == TIMED_OUT:
                raise
            return default

    async def _super_pod(self, phy: int) -> Mapping[str, int]:
        """A training chip's place in its super pod: -1 where it has none, nothing where it does not know the question.

        Servers that belong to no super pod are not kept waiting by a chip that does not answer.
        """
        found: Mapping[str, int] = {}
        if self._family in (families.A3, families.A5):
            found = await self._reading("super_pod", phy, default=found)
        elif self._family in (families.A1, families.A2):
            with contextlib.suppress(DcmiError):
                found = await self._ask("super_pod", phy)
        return found

    async def _tried(self, call: str, *arguments: Any, default: Any) -> Any:
        try:
            return await self._ask(call, *arguments)
        except DcmiError as error:
            if error.supported:
                raise
            return default

    async def chips(self) -> Sequence[Chip]:
        """List the chips with serial number, address and super-pod id; values that a chip lacks are empty."""
        await self.machine()
        found = []
        for phy, logic, card, device in await self._places():
            brother = -1
            urma: tuple[tuple[str, ...], ...] = ()
            if self._family == families.A5:
                urma = tuple(tuple(eids) for eids in await self._reading("urma", phy, default=()))
            if self._family == families.A3:
                brother = await self._ask_brother(phy)
            pod = (await self._super_pod(phy)).get("sdid", -2)
            found.append(
                Chip(
                    id=phy, logic_id=logic, card=card, die=device, super_device_id=pod, associated_card=brother,
                    urma=urma, serial=await self._reading("serial", phy, default=""),
                    ip=await self._reading("ip", phy, default=""),
                )
            )  # fmt: skip
        return found

    async def faults(self) -> Mapping[int, Sequence[Code]]:
        """Read every present code of every chip, and the health of its network.

        A chip that cannot be read is left out; raises DriverError when none can.
        """
        await self.machine()
        answers = await self._of_chips("health", "codes")
        # a message of its own, because this check is known to hang
        networks: Mapping[int, Sequence[Any]] = {}
        if self._family in TRAINING:
            there = [phy for phy, (health, codes) in answers.items() if not _gone(health, codes)]
            networks = await self._readings.read(there, "network", seconds=NETWORK_SECONDS)

        found: dict[int, Sequence[Code]] = {}
        failure: DriverError | None = None
        for phy, (health, codes) in answers.items():
            try:
                found[phy] = self._codes(phy, health, codes, networks.get(phy, (NETWORK_UNASKED,))[0])
            except DriverError as error:
                failure = failure or error
        if not found and failure is not None:
            raise failure
        present = {(phy, code.code) for phy, codes in found.items() for code in codes}
        self._seen = {key: at for key, at in self._seen.items() if key in present or key[0] not in found}
        return found

    def _codes(self, phy: int, health: Any, numbers: Any, network: Any) -> Sequence[Code]:
        """The codes by what a chip answered. Raises the error of an answer that is one."""
        if _gone(health, numbers):
            return [self._code(phy, CARD_DROP, "chip")]
        for answer in (health, numbers):
            if isinstance(answer, DriverError):
                raise answer

        # where the driver announces no events, the worst that the chip says of itself is all that is known of a code
        severity = health if not self.calls.announces and 0 <= health <= MOST_SEVERE else None
        codes = []
        for number in numbers:
            code = f"{number:X}"
            codes.append(self._code(phy, code, _plane(code), severity))
        if _disconnected(network) and not any(code.plane == "network" for code in codes):
            codes.append(self._code(phy, LINK_DOWN, "network"))
        return codes

    def _code(self, phy: int, code: str, plane: Plane, severity: int | None = None) -> Code:
        return Code(code, self._seen.setdefault((phy, code), self._now_ms()), plane, severity)

    async def events(self) -> Sequence[Event]:
        """Wait for fault events; the time of each is that of its arrival."""
        await self._places()
        raw = [await self.calls.events.get()]
        while not self.calls.events.empty():
            raw.append(self.calls.events.get_nowait())
        by_logic = {logic: phy for phy, logic, *_ in self.calls.places}
        now = self._now_ms()
        events = []
        for event in raw:
            phy = by_logic.get(event["chip"])
            if phy is None or not 0 <= event["assertion"] < len(ASSERTIONS):
                continue
            code = f"{event['code']:X}"
            severity = event["severity"] if 0 <= event["severity"] <= 3 else None
            module = tuple(event["module"])
            events.append(Event(phy, code, ASSERTIONS[event["assertion"]], now, _plane(code), severity, module))
        return events

    async def processes(self) -> Mapping[int, int]:
        """Count the processes on each chip; a chip that dropped off the bus has none."""
        found = {}
        for phy, (processes,) in (await self._of_chips("processes")).items():
            if isinstance(processes, DriverError):
                if isinstance(processes, DcmiError) and processes.code == NOT_READY:
                    continue
                raise processes
            if processes:
                found[phy] = len(processes)
        return found

    async def reset_group(self, chip: int) -> Sequence[int]:
        """Return the chips that reset with ``chip``."""
        await self.machine()
        cards = {phy: card for phy, _, card, _ in await self._places()}
        if chip not in cards:
            raise DriverError(f"no chip {chip}")
        brother = await self._brother(chip) if self._family == families.A3 else None
        return families.reset_group(self._family, self._board, self._mainboard, self._product, chip, cards, brother)

    async def _ask_brother(self, chip: int) -> int:
        try:
            found = await self._brother(chip)
        except DcmiError as error:
            if error.code == TIMED_OUT:
                raise
            found = None
        return -1 if found is None else found

    async def _brother(self, chip: int) -> int | None:
        """Return the card that shares optical ports with a chip's, None if there is none (A3).

        A chip off the bus, the one to reset, does not answer: use an earlier answer of its card, or the other card's.
        """
        cards = {phy: card for phy, _, card, _ in await self._places()}
        mine = cards[chip]
        for phy in sorted(cards, key=lambda phy: (phy != chip, cards[phy] != mine, phy)):
            try:
                found = await self._tried("brother", phy, default=None)
            except DcmiError as error:
                if error.code != NOT_READY:
                    raise
                if mine in self._brothers:
                    return self._brothers[mine]
                continue
            if cards[phy] == mine:
                self._brothers[mine] = found
                return int(found) if found is not None else None
            if found == mine:
                return cards[phy]
        return None

    async def reset(self, chips: Sequence[int], *, out_of_band: bool = True) -> None:
        """Start an in-band reset; a module that refuses it is reset out of band where that channel is open.

        One call resets one ring or module; groups of several modules need one call for each.
        """
        await self.machine()
        cards = {phy: card for phy, _, card, _ in await self._places()}
        first_of: dict[int, int] = {}
        for chip in sorted(chips):
            first_of.setdefault(cards.get(chip, -1) if self._family == families.A3 else 0, chip)
        for chip in first_of.values():
            try:
                await self._ask("reset", chip, timeout=RESET_SECONDS)
            except DcmiError as error:
                asks = out_of_band and self._family == families.A3
                if not asks or not await self._tried("outband", chip, default=False):
                    raise
                await self._out_of_band(chip, error)

    async def reset_out_of_band(self, chips: Sequence[int]) -> bool:
        """Reset, by their board controller, modules that did not boot; False where its channel is closed."""
        await self.machine()
        if self._family != families.A3:
            return False
        cards = {phy: card for phy, _, card, _ in await self._places()}
        for chip in {cards.get(chip, -1): chip for chip in sorted(chips, reverse=True)}.values():
            if not await self._tried("outband", chip, default=False):
                return False
            await self._out_of_band(chip, None)
        return True

    async def _out_of_band(self, chip: int, first: DcmiError | None) -> None:
        try:
            await self._ask("pre_reset", chip, timeout=RESET_SECONDS)
            await self._ask("reset", chip, OUT_OF_BAND, timeout=OUT_OF_BAND_SECONDS)
            await self._sleep(RESCAN_PAUSE)
            await self._ask("rescan", chip, timeout=RESET_SECONDS)
        except DriverError as error:
            raise DriverError(f"in-band: {first or 'no boot'}; out of band: {error}") from error

    async def rescan(self, chips: Sequence[int]) -> None:
        """Rescan for modules; the driver never loses those that are not reset out of band."""
        await self.machine()
        if self._family not in (families.A3, families.A5):
            return
        cards = {phy: card for phy, _, card, _ in await self._places()}
        for chip in sorted({cards.get(chip, -1 - chip): chip for chip in sorted(chips, reverse=True)}.values()):
            await self._ask("rescan", chip, timeout=RESET_SECONDS)

    async def boot_status(self, chip: int) -> int:
        """Return a chip's boot status; a chip that is off the bus has not started."""
        try:
            return int(await self._ask("boot", chip))
        except DcmiError as error:
            if error.code != NOT_READY:
                raise
            return 0

    async def vnpus(self) -> Sequence[VNPU]:
        """List the vNPUs; a chip that does not answer keeps its last list. Raises DriverError when none can."""
        found: list[VNPU] = []
        failures: list[DriverError] = []
        answers = await self._of_chips("vnpus")
        for phy, (vnpus,) in answers.items():
            if not isinstance(vnpus, DriverError):
                found += [VNPU(vnpu["id"], phy, vnpu["template"], vnpu["vgroup"]) for vnpu in vnpus]
            elif not isinstance(vnpus, DcmiError) or vnpus.supported:
                failures.append(vnpus)
                found += [vnpu for vnpu in self._cut if vnpu.chip == phy]
        if failures and len(failures) == len(answers):
            raise failures[0]
        self._cut = tuple(found)
        self._vnpus = {vnpu.id: vnpu.chip for vnpu in found}
        return sorted(found)

    async def create_vnpu(self, chip: int, template: str) -> VNPU:
        """Create a vNPU."""
        number, vgroup = await self._ask("create_vnpu", chip, template, timeout=RESET_SECONDS)
        self._vnpus[number] = chip
        return VNPU(number, chip, template, vgroup)

    async def destroy_vnpu(self, vnpu: int) -> None:
        """Destroy a vNPU."""
        if vnpu not in self._vnpus:
            await self.vnpus()
        if vnpu not in self._vnpus:
            raise DriverError(f"no vNPU {vnpu}")
        await self._ask("destroy_vnpu", self._vnpus.pop(vnpu), vnpu, timeout=RESET_SECONDS)

    async def switch(self) -> Sequence[SwitchFault] | None:
        """Return the active faults of the bus switch; None on servers without one or without its library."""
        await self.machine()
        if self._family not in (families.A3, families.A5):
            return None
        if self._switch_library is None:
            try:
                self._switch_library = find(os.environ.get("LD_LIBRARY_PATH", ""), SWITCH_LIBRARY)
            except DriverError:
                return None
        rows = await self._ask("switch_faults", str(self._switch_library), sorted({0, *self._owners}))
        return [
            SwitchFault(row["code"], row["chip"], row["port"], row["time"], row["peer_port"], row["severity"])
            for row in rows
        ]

    async def close(self) -> None:
        """End the driver process."""
        await self.calls.close()


def _gone(*answers: Any) -> bool:
    """Whether a chip says that it is off the bus."""
    return any(answer == NOT_READY or getattr(answer, "code", 0) == NOT_READY for answer in answers)


def _disconnected(network: Any) -> bool:
    """Whether a chip's network is bad. Raises the error of a check that failed; a missing answer is no fault."""
    if not isinstance(network, DriverError):
        return network not in NETWORK_GOOD
    if isinstance(network, DcmiError) and (not network.supported or network.code == TIMED_OUT):
        return False
    raise network


def _plane(code: str) -> Plane:
    return "network" if code in NETWORK_CODES else "chip"
