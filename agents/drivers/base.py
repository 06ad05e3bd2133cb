"""The driver protocol that an agent uses, with its data types.

The nouns follow the driver's interface (component/ascend-common/devmanager; chips are named by *physical id*, the N of
``/dev/davinciN``). Methods are coroutines: an implementation that blocks runs its calls in separate threads, so that
a hung driver never stops the agent, and the agent puts a deadline on every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

from belay.agents.drivers.failures import DriverError as DriverError
from belay.engine.model.generations import Generation, generation_of
from belay.engine.model.labels import ASCEND_910, NPU

BOOTED: Final = 16
"""Boot status of a chip whose start is finished (component/ascend-device-plugin/pkg/server/hot_reset_manager.go)."""

CARD_DROP: Final = "40F84E00"
"""Code of a chip that the driver cannot reach (its error -8012)."""

RESET_FINISHED: Final = "8C2FA009"
"""Not a fault: the chip was reset, its codes have to be read again."""

Plane = Literal["chip", "network"]
Assertion = Literal["occur", "recover", "once"]


class Chip(msgspec.Struct, frozen=True, kw_only=True):
    """One chip as found at start. ``card`` and ``die`` are its location; ``ip`` is empty without a port.

    ``associated_card`` is the card that shares optical ports with its own (A3 modules), -1 where there is none;
    ``urma`` are the EIDs (32 hex digits) of each of its URMA devices (Ascend950).
    """

    id: int
    logic_id: int
    card: int
    die: int = 0
    serial: str = ""
    ip: str = ""
    super_device_id: int = -2
    urma: tuple[tuple[str, ...], ...] = ()
    associated_card: int = -1


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The node as the driver describes it.

    ``resource`` is the Kubernetes resource, ``prefix`` that of device names, ``accelerator`` and ``server_type`` the
    values of the labels the device plugin writes, ``memory_gb`` of one chip; super pod fields are -2 where the product
    has none.

    ``super_pod_type`` is -1 where the driver has none, ``mainboard`` its id, ``card_type`` the annotation of servers
    with Ascend950 cards.
    """

    resource: str
    prefix: str
    chip_name: str
    accelerator: str
    server_type: str
    driver_version: str
    memory_gb: int
    super_pod_id: int = -2
    server_index: int = -2
    rack_id: int | None = None
    super_pod_type: int = -1
    mainboard: int = 0
    card_type: str = ""
    labels: Mapping[str, str] = {}

    @property
    def generation(self) -> Generation:
        """The chips' generation."""
        return generation_of(self.prefix)

    @property
    def training(self) -> bool:
        """Whether reports carry the network and recovering lists (the 910 family and its successors do)."""
        return self.resource in (ASCEND_910, NPU)


class Code(msgspec.Struct, frozen=True):
    """One fault code that is present. ``code`` is upper-case hex; ``severity`` 0 suggestion … 3 critical, None
    unknown."""

    code: str
    time_ms: int
    plane: Plane = "chip"
    severity: int | None = None


class Event(msgspec.Struct, frozen=True):
    """A change of one code of one chip; ``module`` is the path of the affected part, where the driver
    names one."""

    chip: int
    code: str
    assertion: Assertion
    time_ms: int
    plane: Plane = "chip"
    severity: int | None = None
    module: tuple[int, ...] = ()


class VNPU(msgspec.Struct, frozen=True, order=True):
    """One virtual NPU: ``id`` is the vdev id (100 and up), ``vgroup`` its vGroup where the driver reports one."""

    id: int
    chip: int
    template: str
    vgroup: int | None = None


class Driver(Protocol):
    """Access to the chips of one node. Every method may raise DriverError."""

    async def machine(self) -> Machine:
        """Describe the node."""
        ...

    async def chips(self) -> Sequence[Chip]:
        """List the chips, ascending by id."""
        ...

    async def faults(self) -> Mapping[int, Sequence[Code]]:
        """Read every present code of every chip; a chip that is off the bus has the code CARD_DROP, one that cannot be
        read is left out."""
        ...

    async def events(self) -> Sequence[Event]:
        """Wait for events and return them. Never returns where the driver has no events."""
        ...

    async def processes(self) -> Mapping[int, int]:
        """Count the processes that use each chip; absent means none."""
        ...

    async def reset_group(self, chip: int) -> Sequence[int]:
        """Return the chips that a reset of `chip` also resets, itself included."""
        ...

    async def reset(self, chips: Sequence[int], *, out_of_band: bool = True) -> None:
        """Start a reset of these chips together; returns when the hardware has accepted it.

        ``out_of_band``: where the chips refuse, their board controller may reset them.
        """
        ...

    async def reset_out_of_band(self, chips: Sequence[int]) -> bool:
        """Start a reset, by their board controller, of chips that did not boot; False if there is none."""
        ...

    async def rescan(self, chips: Sequence[int]) -> None:
        """Rescan for chips that another program has reset; does nothing where the driver has no rescan."""
        ...

    async def boot_status(self, chip: int) -> int:
        """Return a chip's boot status; BOOTED when its start is finished."""
        ...

    async def vnpus(self) -> Sequence[VNPU]:
        """List the vNPUs of the node, ascending by id."""
        ...

    async def create_vnpu(self, chip: int, template: str) -> VNPU:
        """Create one vNPU."""
        ...

    async def destroy_vnpu(self, vnpu: int) -> None:
        """Destroy one vNPU."""
        ...
