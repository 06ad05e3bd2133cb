"""A node's sources beside its chips: hardware alarms, switch, shared storage, pings to neighbours, chip utilisation.

The sources are those of NodeD and of the device plugin's own watches (component/noded/pkg/monitoring,
component/ascend-device-plugin/pkg/device/deviceswitch and hangdetection).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec


class Alarm(msgspec.Struct, frozen=True, order=True):
    """A hardware alarm of the board's controller: device type as in NodeD's table, device id, code."""

    device_type: str
    device_id: int
    code: str


class SwitchFault(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """A fault of the LingQu switch: assembled code, switch chip and port, when it was raised (ms), the port of the peer
    and the severity (0 suggestion, 1 minor, 2 major, 3 critical) as the switch's library reports them."""

    code: str
    chip: int = 0
    port: int = 0
    time_ms: int = 0
    peer_port: int = 0
    severity: int = 0


class Client(msgspec.Struct, frozen=True):
    """A storage client's state: its process is abnormal; it is short of memory (DPC) or its link is down (DTFS), and
    its affected instances."""

    process: bool = False
    memory: bool = False
    short: tuple[str, ...] = ()


class Ping(msgspec.Struct, frozen=True):
    """One destination of a card's pings: packets returned, and the number of replies counted."""

    ok: int
    replies: int


class Use(msgspec.Struct, frozen=True):
    """The utilisation of a chip: AI cores (percent), HBM (percent), packets of its port and CPU seconds of its
    processes, both counted since their start, and the processes."""

    cores: float
    memory: float
    packets: int
    cpu_seconds: float
    processes: frozenset[int] = frozenset()


class Surroundings(Protocol):
    """Access to these sources. Every method may raise DriverError; None means that the node has no such source."""

    async def alarms(self) -> Sequence[Alarm] | None:
        """Read the active hardware alarms."""
        ...

    async def switch(self) -> Sequence[SwitchFault] | None:
        """Read the switch's active faults."""
        ...

    async def storage(self) -> Mapping[str, Client] | None:
        """Read the state of the storage clients ``dpc`` and ``dtfs``."""
        ...

    async def pings(self) -> Mapping[int, Sequence[Ping]] | None:
        """Read the newest results of the pings between chips, by chip."""
        ...

    async def use(self) -> Mapping[int, Use] | None:
        """Read the utilisation of the chips that have processes."""
        ...


class _Chip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The simulated state of one chip: ``ping`` lost or unknown, ``hang``: its processes are idle."""

    ping: str = "ok"
    hang: bool = False


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The injected faults around a simulated node; ``silent``: its agents' reports do not reach the API server."""

    hardware: tuple[Alarm, ...] = ()
    switch: tuple[SwitchFault, ...] = ()
    storage: dict[str, Client] = {}
    chips: dict[str, _Chip] = {}
    silent: bool = False


PING_WORDS: Final = ("ok", "lost", "unknown")


class SimulatedSurroundings:
    """The surroundings of a simulated node, as `belay inject` describes them."""

    def __init__(self, chips: int, *, super_pod: bool) -> None:
        self._chips, self._super_pod = chips, super_pod
        self._has_switch = super_pod
        self._spec = Described()
        self._ticks = 0

    @property
    def silent(self) -> bool:
        """Whether reports are lost in transit."""
        return self._spec.silent

    def apply(self, spec: Mapping[str, Any]) -> None:
        """Apply a complete description. Raises ValueError when it does not fit the node; then nothing has changed."""
        try:
            found = msgspec.convert(spec, Described)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        for name, chip in found.chips.items():
            if not name.isdigit() or int(name) >= self._chips:
                raise ValueError(f"{name!r} is not a chip of this node; they are 0 to {self._chips - 1}")
            if chip.ping not in PING_WORDS:
                raise ValueError(f"ping of chip {name} must be one of {', '.join(PING_WORDS)}")
        if unknown := sorted(set(found.storage) - {"dpc", "dtfs"}):
            raise ValueError(f"{unknown[0]!r} is not a storage client; they are dpc and dtfs")
        self._spec = found
        # a switch that was ever described stays, so that its recovery is reported too
        self._has_switch = self._super_pod or "switch" in spec

    async def alarms(self) -> Sequence[Alarm] | None:
        """Read the active hardware alarms."""
        return sorted(self._spec.hardware)

    async def switch(self) -> Sequence[SwitchFault] | None:
        """Read the switch's active faults."""
        return sorted(self._spec.switch) if self._has_switch else None

    async def storage(self) -> Mapping[str, Client] | None:
        """Read the state of the storage clients."""
        return dict(self._spec.storage)

    async def pings(self) -> Mapping[int, Sequence[Ping]] | None:
        """Read the pings: two destinations for every chip that is described."""
        results = {"ok": Ping(10, 10), "lost": Ping(0, 10), "unknown": Ping(0, 0)}
        return {int(name): [results[chip.ping]] * 2 for name, chip in self._spec.chips.items()}

    async def use(self) -> Mapping[int, Use] | None:
        """Read the use of the chips that are described: counters of busy ones advance with every reading."""
        self._ticks += 1
        busy = Use(80.0, 60.0 + self._ticks % 3, self._ticks * 10_000, self._ticks * 60.0, frozenset({1}))
        still = Use(0.0, 60.0, 0, 0.0, frozenset({1}))
        return {int(name): still if chip.hang else busy for name, chip in self._spec.chips.items()}
