"""The labels of a chip's metrics: one entry per chip, or per vNPU on a 310P, with the container that holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from belay.agents.drivers.dcmi.family import A5
from belay.agents.exporter.chips import Chip, Machine, Vnpu

SHARED: Final = "not_displayed_for_multi_pod"
"""Stands for pod and container of a chip that several containers hold."""

_PARTS: Final = 3


class RuntimeFault(Exception):
    """A container runtime cannot be asked; the text names the socket, or what it answered, and what to do."""


class NotServed(RuntimeFault):
    """It has no such service."""


class Container(msgspec.Struct, frozen=True):
    """A running container: its id, ``<namespace>_<pod>_<container>``, the devices it was given, its processes."""

    id: str
    name: str
    devices: tuple[int, ...]
    pids: frozenset[int] = frozenset()

    @property
    def parts(self) -> tuple[str, str, str]:
        """Namespace, pod and container; empty ones when the name is not of three parts."""
        parts = self.name.split("_")
        return (parts[0], parts[1], parts[2]) if len(parts) == _PARTS else ("", "", "")


Containers = Mapping[int, Sequence[Container]]
"""Containers by device id: the chip's physical id (logic id on Ascend 950), or the id of a vNPU."""


class Entry(msgspec.Struct, frozen=True):
    """A chip, or one of its vNPUs, and the containers that hold it."""

    chip: Chip
    vnpu: Vnpu | None
    containers: tuple[Container, ...]

    @property
    def sole(self) -> Container | None:
        """The only container that holds it, if its name can be shown."""
        if len(self.containers) == 1 and self.containers[0].parts[0]:
            return self.containers[0]
        return None

    @property
    def whole(self) -> bool:
        """Whether this is a chip and not a vNPU: container metrics are for chips only."""
        return self.vnpu is None or not self.vnpu.valid

    def pod(self) -> tuple[str, str, str]:
        """The labels namespace, pod_name and container_name."""
        if len(self.containers) > 1:
            return (SHARED, SHARED, SHARED)
        return self.containers[0].parts if self.containers else ("", "", "")

    def card(self) -> tuple[str, ...]:
        """The values of the label set ``card``."""
        chip = self.chip
        return (str(chip.phy), chip.model, chip.vdie, chip.pcie, *self.pod())

    def process(self, pid: str) -> tuple[str, ...]:
        """The label set ``process``: pod labels only for a process of a known container, with its full name."""
        chip = self.chip
        owner = next((c for c in self.containers if pid and int(pid) in c.pids), None)
        namespace, pod, _ = owner.parts if owner else ("", "", "")
        full, number = (owner.name, owner.id) if owner else ("", "")
        return (str(chip.phy), chip.model, chip.vdie, chip.pcie, namespace, pod, full, pid, number)


def entries(machine: Machine, containers: Containers) -> Iterator[Entry]:
    """One entry per chip, ascending; on a 310P one per vNPU in place of a chip that is divided."""
    for chip in machine.chips:
        if chip.vnpus:
            for vnpu in chip.vnpus:
                yield Entry(chip, vnpu, tuple(containers.get(vnpu.id, ())))
        else:
            device = chip.logic if machine.family == A5 else chip.phy
            yield Entry(chip, None, tuple(containers.get(device, ())))
