"""A simulated node in memory: its chips fail on command, take time to reset, and hold vNPUs.

The simulation is strict: it refuses what hardware refuses (a reset of chips in use, a template that does not
fit), resets may fail or hang, and codes stay until a reset heals them. Faults are injected by method, or as a whole by
`apply`, which takes the JSON object that `belay inject` writes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.agents.drivers.base import BOOTED, CARD_DROP, VNPU, Assertion, Chip, Code, DriverError, Event, Machine, Plane
from belay.engine.model.labels import ASCEND_910
from belay.engine.model.vnpu import ChipCapacity, TemplateSize, unfit

RESET_SECONDS: Final = 20.0
"""Time of a healthy chip from reset to boot status 16; real chips take 10 s to 60 s."""

FIRST_VNPU: Final = 100
VGROUPS: Final = 4
_MAX_EVENTS: Final = 10_000
_NEVER: Final = 1 << 62


class ServerModel(msgspec.Struct, frozen=True, kw_only=True):
    """One server model. The defaults make an Atlas 800T A2: 8 chips in one HCCS ring that resets as one."""

    machine: Machine = Machine(
        resource=ASCEND_910,
        prefix="Ascend910-",
        chip_name="910B3",
        accelerator="huawei-Ascend910",
        server_type="Ascend910B-20",
        driver_version="25.0.rc1",
        memory_gb=64,
    )
    chips: int = 8
    chips_per_card: int = 1
    reset_groups: tuple[tuple[int, ...], ...] = (tuple(range(8)),)
    sizes: Mapping[str, TemplateSize] = {}
    totals: ChipCapacity | None = None


class Injected(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The injected faults of one chip: codes of the chip and its port, one-time codes, a drop off the bus."""

    codes: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    drop: bool = False


class SimulatedDriver:
    """The driver of one simulated node.

    `seed` decides serials and addresses; `now_ms` and `sleep` are the clock; a reset takes `reset_seconds`, which
    `scale` shortens. `healed` is called with the chips whose faults a reset has removed. `vnpus` exist at the start, as
    hardware keeps them over a restart; those that the node cannot hold are left out. `recut` is called with all of them
    after every change.
    """

    def __init__(
        self,
        node: str,
        row: ServerModel | None = None,
        *,
        seed: int = 0,
        scale: float = 1.0,
        reset_seconds: float = RESET_SECONDS,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Any],
        healed: Callable[[Sequence[int]], None] | None = None,
        vnpus: Sequence[VNPU] = (),
        recut: Callable[[Sequence[VNPU]], None] | None = None,
    ) -> None:
        self.row = row or ServerModel()
        self._node, self._seed, self._scale = node, seed, scale
        self._reset_ms = int(reset_seconds * scale * 1000)
        self._now_ms, self._sleep = now_ms, sleep
        self._healed, self._recut = healed, recut
        self._codes: dict[int, dict[tuple[Plane, str], Code]] = {chip: {} for chip in range(self.row.chips)}
        self._dropped: set[int] = set()
        self._processes: dict[int, int] = {}
        self._booting: dict[int, int] = {}
        self._vnpus = {v.id: v for v in vnpus if v.chip < self.row.chips and v.template in self.row.sizes}
        self._events: list[Event] = []
        self._happened = asyncio.Event()
        self._spec: dict[int, Injected] = {}
        self._reset_failures = self._stalled_boots = 0
        self._spec_failures: int | None = None
        self.hang = False
        self.resets: list[tuple[int, ...]] = []
        self.rescans: list[tuple[int, ...]] = []
        self._outside: set[int] = set()

    # ---- the driver

    async def machine(self) -> Machine:
        """Describe the node by its server model."""
        return self.row.machine

    async def chips(self) -> Sequence[Chip]:
        """List the chips; serials and addresses follow from node and seed."""
        digest = hashlib.sha256(f"{self._node}/{self._seed}".encode()).digest()
        super_pod = self.row.machine.super_pod_id >= 0
        return [
            Chip(
                id=chip,
                logic_id=chip,
                card=chip // self.row.chips_per_card,
                die=chip % self.row.chips_per_card,
                serial=f"SIM{digest[:4].hex().upper()}{chip:02d}",
                ip=f"10.{digest[0]}.{digest[1]}.{chip + 1}" if self.row.machine.training else "",
                super_device_id=self.row.machine.server_index * self.row.chips + chip if super_pod else -2,
                associated_card=self._brother(chip),
            )
            for chip in range(self.row.chips)
        ]

    def _brother(self, chip: int) -> int:
        """Return the card that resets with the chip's own on an A3 server; other servers have none."""
        if not self.row.machine.server_type.startswith("Ascend910A3-"):
            return -1
        size = self.row.chips_per_card
        group = next((group for group in self.row.reset_groups if chip in group), ())
        return next((other // size for other in group if other // size != chip // size), -1)

    async def faults(self) -> Mapping[int, Sequence[Code]]:
        """Read every present code."""
        await self._maybe_hang()
        now = self._now_ms()
        return {
            chip: [Code(CARD_DROP, now)] if chip in self._dropped else list(codes.values())
            for chip, codes in self._codes.items()
        }

    async def events(self) -> Sequence[Event]:
        """Wait for events and return them."""
        await self._happened.wait()
        self._happened.clear()
        events, self._events = self._events, []
        return events

    async def processes(self) -> Mapping[int, int]:
        """Count processes per chip."""
        await self._maybe_hang()
        return dict(self._processes)

    async def reset_group(self, chip: int) -> Sequence[int]:
        """Return the chips that reset together."""
        self._known(chip)
        return next((group for group in self.row.reset_groups if chip in group), (chip,))

    async def reset(self, chips: Sequence[int], *, out_of_band: bool = True) -> None:
        """Reset chips together. Hardware refuses a partial group and chips that processes hold."""
        await self._maybe_hang()
        wanted = set(chips)
        for chip in sorted(wanted):
            if not set(await self.reset_group(chip)) <= wanted:
                raise DriverError(f"chip {chip} resets together with chips that were not named")
        if busy := sorted(chip for chip in wanted if self._processes.get(chip)):
            raise DriverError(f"chip {busy[0]} is used by {self._processes[busy[0]]} processes")
        self.resets.append(tuple(sorted(wanted)))
        if self._reset_failures > 0:
            self._reset_failures -= 1
            raise DriverError("the driver returned -8020: reset failed")
        finished = self._now_ms() + self._reset_ms
        if self._stalled_boots > 0:
            self._stalled_boots -= 1
            finished = _NEVER
        for chip in wanted:
            self._booting[chip] = finished

    async def reset_out_of_band(self, chips: Sequence[int]) -> bool:
        """Reset by the board controller, which A3 servers have; it recovers chips that do not boot."""
        if not self.row.machine.server_type.startswith("Ascend910A3-"):
            return False
        await self._maybe_hang()
        self.resets.append(tuple(sorted(chips)))
        finished = self._now_ms() + self._reset_ms
        self._booting.update(dict.fromkeys(chips, finished))
        return True

    async def rescan(self, chips: Sequence[int]) -> None:
        """Rescan for chips that an external tool has reset; the reset healed them."""
        await self._maybe_hang()
        self.rescans.append(tuple(sorted(chips)))
        found = sorted(self._outside & set(chips))
        self._outside -= set(found)
        for chip in found:
            self._booting.pop(chip, None)
        self._heal(found)

    async def boot_status(self, chip: int) -> int:
        """Return whether the chip has started; a reset that has just finished heals it."""
        await self._maybe_hang()
        self._known(chip)
        finished = self._booting.get(chip)
        if finished is None:
            return BOOTED
        if self._now_ms() < finished:
            return 3
        done = sorted(c for c, at in self._booting.items() if at <= self._now_ms())
        for c in done:
            del self._booting[c]
        self._heal(done)
        return BOOTED

    async def vnpus(self) -> Sequence[VNPU]:
        """List the vNPUs."""
        await self._maybe_hang()
        return sorted(self._vnpus.values())

    async def create_vnpu(self, chip: int, template: str) -> VNPU:
        """Create a vNPU where it fits; this takes a second."""
        await self._work(1.0)
        self._known(chip)
        size = self.row.sizes.get(template)
        if size is None or self.row.totals is None:
            raise DriverError(f"template {template!r} is unknown to {self.row.machine.chip_name}")
        there = [self.row.sizes[v.template] for v in self._vnpus.values() if v.chip == chip]
        if why := unfit(self.row.totals, [*there, size]):
            raise DriverError(f"{template} does not fit on chip {chip}: {why}")
        number = next(i for i in range(FIRST_VNPU, FIRST_VNPU + 1024) if i not in self._vnpus)
        vnpu = VNPU(number, chip, template, self._vgroup(chip, size.aicore))
        self._vnpus[vnpu.id] = vnpu
        self._remember_vnpus()
        return vnpu

    def _vgroup(self, chip: int, cores: int) -> int | None:
        """The vGroup of a new vNPU: 310P chips have four, of which two vNPUs of one core share one by time slices."""
        if self.row.machine.prefix != "Ascend310P-":
            return None
        taken = dict.fromkeys(range(VGROUPS), 0)
        for vnpu in self._vnpus.values():
            if vnpu.chip == chip and vnpu.vgroup is not None:
                taken[vnpu.vgroup] += self.row.sizes[vnpu.template].aicore
        half = [group for group, used in taken.items() if used == 1 and cores == 1]
        return next(iter([*half, *(group for group, used in taken.items() if not used)]), None)

    async def destroy_vnpu(self, vnpu: int) -> None:
        """Destroy a vNPU; this takes a second."""
        await self._work(1.0)
        if self._vnpus.pop(vnpu, None) is None:
            raise DriverError(f"there is no vNPU {vnpu}")
        self._remember_vnpus()

    def _remember_vnpus(self) -> None:
        if self._recut is not None:
            self._recut(sorted(self._vnpus.values()))

    # ---- changes by a test or a scenario

    def inject(self, chip: int, code: str, *, plane: Plane = "chip", severity: int | None = None) -> None:
        """Make a code present."""
        self._known(chip)
        key = (plane, code.upper())
        if key not in self._codes[chip]:
            self._codes[chip][key] = Code(code.upper(), self._now_ms(), plane, severity)
            self._emit(chip, code, "occur", plane, severity)

    def clear(self, chip: int, code: str, *, plane: Plane = "chip") -> None:
        """Clear a code without a reset."""
        if self._codes[chip].pop((plane, code.upper()), None) is not None:
            self._emit(chip, code, "recover", plane)

    def once(self, chip: int, code: str, *, plane: Plane = "chip") -> None:
        """Raise a one-time event."""
        self._known(chip)
        self._emit(chip, code, "once", plane)

    def drop(self, chip: int, dropped: bool = True) -> None:
        """Drop a chip off the bus, or return it."""
        self._known(chip)
        if dropped != (chip in self._dropped):
            (self._dropped.add if dropped else self._dropped.discard)(chip)
            self._emit(chip, CARD_DROP, "occur" if dropped else "recover", "chip")

    def occupy(self, chip: int, processes: int) -> None:
        """Set how many processes use a chip."""
        self._known(chip)
        self._processes[chip] = processes

    def fail_resets(self, times: int) -> None:
        """Make the next resets fail."""
        self._reset_failures = times

    def stall_boots(self, times: int) -> None:
        """Keep chips from booting after the next resets."""
        self._stalled_boots = times

    def device(self, chip: int) -> str:
        """Return a chip's device name."""
        return f"{self.row.machine.prefix}{chip}"

    def described(self, chip: int) -> tuple[str, ...]:
        """Return the codes that the last applied description names for a chip itself."""
        return self._spec.get(chip, Injected()).codes

    def apply(self, spec: Mapping[str, Any]) -> None:
        """Apply a complete description of the faults:
        `{"Ascend910-3": {"codes": […], "network": […], "once": […], "drop": bool}, "resetFails": n, "hang": bool,
        "processes": {…}}`.

        Faults that it names are present, faults that it no longer names are cleared. A fault that a
        reset healed stays healed while the description is unchanged. Raises ValueError when it does not fit the node;
        then nothing has changed.
        """
        chips, failures, hang, processes = self._read(spec)
        before, self._spec = self._spec, chips
        if failures != self._spec_failures:
            self._reset_failures = failures or 0
            self._spec_failures = failures
        self.hang = hang
        self._processes = processes
        for chip in range(self.row.chips):
            old, new = before.get(chip, Injected()), chips.get(chip, Injected())
            planes: tuple[tuple[Plane, Collection[str], Collection[str]], ...] = (
                ("chip", old.codes, new.codes),
                ("network", old.network, new.network),
            )
            for plane, before_codes, after_codes in planes:
                for code in sorted(set(before_codes) - set(after_codes)):
                    self.clear(chip, code, plane=plane)
                for code in sorted(set(after_codes) - set(before_codes)):
                    self.inject(chip, code, plane=plane)
            for code in sorted(set(new.once) - set(old.once)):
                self.once(chip, code)
            if old.drop != new.drop:
                self.drop(chip, new.drop)

    def _read(self, spec: Mapping[str, Any]) -> tuple[dict[int, Injected], int | None, bool, dict[int, int]]:
        chips: dict[int, Injected] = {}
        failures, hang = spec.get("resetFails"), spec.get("hang", False)
        if failures is not None and (not isinstance(failures, int) or isinstance(failures, bool) or failures < 0):
            raise ValueError("resetFails must be a number of resets")
        if not isinstance(hang, bool):
            raise ValueError("hang must be true or false")
        for key, value in spec.items():
            if key in ("resetFails", "hang", "processes"):
                continue
            try:
                chips[self._number(key)] = msgspec.convert(value, Injected)
            except msgspec.ValidationError as error:
                raise ValueError(f"{key}: {error}") from error
        counts = spec.get("processes") or {}
        if not isinstance(counts, dict) or not all(isinstance(n, int) and 0 <= n <= 4096 for n in counts.values()):
            raise ValueError("processes must map device names to counts")
        return chips, failures, hang, {self._number(key): n for key, n in counts.items()}

    def _number(self, name: str) -> int:
        number = name.removeprefix(self.row.machine.prefix)
        if not number.isdigit() or int(number) >= self.row.chips:
            raise ValueError(
                f"{name!r} is not a chip of this node; they are {self.row.machine.prefix}0 to -{self.row.chips - 1}"
            )
        return int(number)

    def reset_outside(self, chips: Sequence[int]) -> None:
        """Reset chips as an external tool does; the driver notices at the next rescan."""
        self._outside |= set(chips)

    def _heal(self, chips: Sequence[int]) -> None:
        healed = []
        for chip in chips:
            gone = [key for key in self._codes[chip] if key[0] == "chip"]
            if gone or chip in self._dropped:
                healed.append(chip)
            for key in gone:
                del self._codes[chip][key]
                self._emit(chip, key[1], "recover", key[0])
            self.drop(chip, False)
        if healed and self._healed:
            self._healed(healed)

    def _emit(self, chip: int, code: str, assertion: Assertion, plane: Plane, severity: int | None = None) -> None:
        if len(self._events) < _MAX_EVENTS:
            self._events.append(Event(chip, code.upper(), assertion, self._now_ms(), plane, severity))
        self._happened.set()

    def _known(self, chip: int) -> None:
        if chip not in self._codes:
            raise DriverError(f"there is no chip {chip}")

    async def _work(self, seconds: float) -> None:
        await self._maybe_hang()
        await self._sleep(seconds * self._scale)

    async def _maybe_hang(self) -> None:
        while self.hang:
            await self._sleep(0.5)
