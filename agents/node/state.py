"""The agent's current state of its node: one object that every part of the agent reads and writes in one loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from belay.agents.drivers.base import VNPU, Chip, Code, Machine
from belay.agents.node.faults import PresentFaults
from belay.agents.node.occupancy import Users, users
from belay.agents.node.policy import FaultLevels
from belay.agents.node.port_faults import PORT_CODES, PortsDown, derived
from belay.engine.model.cluster import Orders, Pod
from belay.engine.model.levels import IN_SERVICE, NOT_HANDLE, rank, stays_healthy, worst
from belay.engine.wire.podannotations import physical_names


@dataclass
class NodeState:
    """Chips are named by physical id. `withdrawn` chips are not offered because an order is about to act on them,
    `resetting` ones are being acted on, the newest reset of `failed_resets` did not help, `healing` ones are healed
    under the job that uses them, so the job must not be moved for them meanwhile. The codes of `unread` ones have
    never been read; those of others stay as they were while they cannot be. `bodies` are the pods as they were read,
    once `pods_read`; `polled`: the driver has reported its codes and vNPUs. `levels`: the addresses of Ascend950
    chips by network level. `found`
    are codes that the agent itself sees and the driver does not know of. `exhausted` ones need a reset and have
    none left of those that the agent decides on itself. `idle` holds, per chip, since when it is unused: (monotonic s,
    Unix ms). `claimed` maps chips to the resource claim (DRA) that they were given to. `port_codes` are the
    driver's codes about ports of Ascend950 chips, `ports_down` what of them is down. `reset_with` are, per chip, those
    that reset with it, as the driver last said."""

    node: str
    machine: Machine
    chips: Sequence[Chip]
    judge: FaultLevels
    book: PresentFaults = field(default_factory=PresentFaults)
    processes: dict[int, int] = field(default_factory=dict)
    pods: Sequence[Pod] = ()
    bodies: Sequence[Mapping[str, Any]] = ()
    pods_read: bool = False
    polled: bool = False
    vnpus: Sequence[VNPU] = ()
    found: dict[int, tuple[Code, ...]] = field(default_factory=dict)
    users: Users = field(default_factory=lambda: Users({}, {}))
    idle: dict[int, tuple[float, int]] = field(default_factory=dict)
    orders: Orders | None = None
    withdrawn: set[int] = field(default_factory=set)
    resetting: set[int] = field(default_factory=set)
    failed_resets: set[int] = field(default_factory=set)
    exhausted: set[int] = field(default_factory=set)
    healing: set[int] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)
    port_codes: dict[int, frozenset[str]] = field(default_factory=dict)
    ports_down: dict[int, PortsDown] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    levels: dict[int, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    claimed: Mapping[int, str] = field(default_factory=dict)
    reset_with: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        """The physical ids of the node's chips."""
        return [chip.id for chip in self.chips]

    @property
    def third_party(self) -> bool:
        """Whether chips that the agent cannot reset are for a tool outside: on super pods they can be reset so."""
        return self.machine.super_pod_id >= 0

    def name(self, chip: int) -> str:
        """Return the device name of a chip, e.g. ``Ascend910-3``."""
        return f"{self.machine.prefix}{chip}"

    def take_codes(self, codes: Mapping[int, Sequence[Code]], now_ms: int) -> None:
        """Take what the driver lists by chip; one that it leaves out could not be read."""
        missing = [chip for chip in self.ids if chip not in codes]
        self.unread = set(missing) if not self.polled else self.unread & set(missing)
        if missing:
            self.problems["codes"] = f"driver: the codes of {self.name(missing[0])} cannot be read"
        else:
            self.problems.pop("codes", None)
        listed = {chip: (*found, *self.found.get(chip, ())) for chip, found in codes.items()}
        if self.machine.generation.unified_bus:
            for chip, codes_now in codes.items():
                self.port_codes[chip] = PORT_CODES & {code.code.upper() for code in codes_now}
            known = {chip: self.port_codes.get(chip, frozenset()) for chip in self.ids}
            more = derived(known, self.ports_down, self.machine.mainboard)
            listed = {chip: (*rows, *more.get(chip, ())) for chip, rows in listed.items()}
        self.book.poll(listed, now_ms)

    def settle_users(self, monotonic: float, now_ms: int) -> None:
        """Derive the users of chips, and since when chips are idle. Any use restarts the idle clock."""
        offered = physical_names({self.name(c.id): {"DeviceID": c.logic_id} for c in self.chips})
        self.users = users(self.pods, self.ids, self.vnpus, self.machine.prefix, offered)
        for chip in self.ids:
            if self.in_use(chip):
                self.idle.pop(chip, None)
            else:
                self.idle.setdefault(chip, (monotonic, now_ms))

    def in_use(self, chip: int) -> bool:
        """Return whether a pod, a resource claim or a process uses the chip."""
        return bool(self.users.chips.get(chip)) or chip in self.claimed or self.processes.get(chip, 0) > 0

    @property
    def reset_groups(self) -> tuple[tuple[int, ...], ...]:
        """The chips that reset together; empty until the driver has said so for every chip."""
        if any(chip not in self.reset_with for chip in self.ids):
            return ()
        return tuple(sorted({self.reset_with[chip] for chip in self.ids}))

    def occupants(self, chips: Iterable[int]) -> str:
        """Return the users of the chips, for a refusal; empty without any."""
        wanted = list(chips)
        names = [
            *self.users.of(wanted),
            *(f"resource claim {self.claimed[c]}" for c in wanted if c in self.claimed),
            *(f"{n} processes on {self.name(c)}" for c in wanted if (n := self.processes.get(c, 0))),
        ]
        return ", ".join(names[:3])

    def idle_for(self, chips: Iterable[int], monotonic: float) -> float:
        """Return for how many seconds none of the chips has been used; 0 while one is."""
        return min((monotonic - self.idle[chip][0] if chip in self.idle else 0.0 for chip in chips), default=0.0)

    def withheld(self, chip: int) -> str | None:
        """Return why the chip must not be given to new work, None when it may: ListAndWatch and Allocate use this."""
        if chip in self.claimed:
            return f"it is given to resource claim {self.claimed[chip]}"
        return self.out_of_service(chip)

    def out_of_service(self, chip: int) -> str | None:
        """Return why the chip must not be given to new work, whether a claim has it or not; None when it may."""
        if chip in self.resetting:
            return "it is being reset"
        if chip in self.withdrawn:
            return "an order is about to act on it"
        if self.orders is not None and (level := self.orders.isolate.get(chip)):
            # PreSeparateNPU spares the present users, which withholding from new work does too
            return f"isolated by order: {level}"
        if chip in self.unread:
            return "its codes cannot be read"
        level = self.judge.local_level(chip, self.book.chip(chip))
        if level not in IN_SERVICE:
            return f"faulty: {level}"
        return None

    def healthy(self, chip: int) -> bool:
        """Return whether the chip stays out of the unhealthy list: its own codes and resets only, not what was
        ordered. While it is healed under its job it stays out, as the device plugin left it out."""
        if chip in self.healing:
            return True
        if chip in self.resetting or chip in self.unread:
            return False
        levels = [self.judge.level(entry) for entry in self.book.chip(chip) if entry.plane == "chip"]
        levels.append(self.judge.upgrades.level(chip, "chip"))
        used = self.in_use(chip)
        return all(stays_healthy(level, used) for level in levels)

    def network_healthy(self, chip: int) -> bool:
        """Return whether the chip's port works: only NotHandleFault is tolerated on that plane."""
        if chip in self.healing:
            return True
        if chip in self.resetting:
            return False
        levels = [self.judge.level(entry) for entry in self.book.chip(chip) if entry.plane == "network"]
        return rank(worst(self.judge.upgrades.level(chip, "network"), *levels)) <= rank(NOT_HANDLE)
