"""The node's chips and vNPUs as devices of ResourceSlices. Pure.

Driver, pool and the attributes ``deviceType`` and ``physicId`` are those of MindCluster's driver
(component/ascend-dynamic-resource-allocation); the others let claims ask for size and place. Names of devices are DNS
labels, so they are in lower case. Formats: resource.k8s.io/v1, v1beta2 and v1beta1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from agents.drivers.base import VNPU, Chip, Machine
from engine.model.generations import Generation
from engine.wire.dra import DRIVER, TAINT_UNHEALTHY

#: Devices of one slice: the API's limit for slices with taints (resource.k8s.io/v1, ResourceSliceMaxDevicesWithTaints).
MAX_DEVICES: Final = 64
_MAX_STRING: Final = 64


class Device(msgspec.Struct, frozen=True):
    """One device: its name in the pool, its chip (physical id), its vNPU where it is one, whether it takes no new work.

    ``values`` are its attributes, ``capacity`` its quantities as text.
    """

    name: str
    chip: int
    vnpu: VNPU | None
    withheld: bool
    values: Mapping[str, str | int]
    capacity: Mapping[str, str]


def devices(machine: Machine, chips: Sequence[Chip], vnpus: Sequence[VNPU], withheld: Collection[int]) -> list[Device]:
    """The devices of a node, ascending by chip: a chip that is cut is offered as its vNPUs, any other whole.

    ``withheld`` are chips that take no new work.
    """
    cut: dict[int, list[VNPU]] = {}
    for vnpu in sorted(vnpus):
        cut.setdefault(vnpu.chip, []).append(vnpu)
    found = []
    for chip in sorted(chips, key=lambda one: one.id):
        kept_back = chip.id in withheld
        parts = cut.get(chip.id)
        if not parts:
            found.append(
                Device(
                    chip_name(machine, chip.id), chip.id, None, kept_back, _values(machine, chip, None), _sizes(machine)
                )
            )
        for vnpu in parts or ():
            name = f"{chip_name(machine, chip.id)}-vnpu-{vnpu.id}"
            found.append(Device(name, chip.id, vnpu, kept_back, _values(machine, chip, vnpu), {}))
    return found


def chip_name(machine: Machine, chip: int) -> str:
    """The name of a whole chip, e.g. ``ascend910-3``."""
    return f"{machine.prefix}{chip}".lower()


def slices(
    node: str, owner: Mapping[str, Any] | None, found: Sequence[Device], generation: int, version: str, *, taints: bool
) -> list[dict[str, Any]]:
    """The ResourceSlices of a node for one API version; without devices one empty slice, which says so.

    Without ``taints``, which older API servers do not keep, a device that takes no new work is left out.
    """
    offered = [one for one in found if taints or not one.withheld]
    parts = [offered[at : at + MAX_DEVICES] for at in range(0, len(offered), MAX_DEVICES)] or [[]]
    bodies = []
    for number, part in enumerate(parts):
        metadata: dict[str, Any] = {"name": slice_name(node, number)}
        if owner:
            metadata["ownerReferences"] = [dict(owner)]
        bodies.append(
            {
                "apiVersion": f"resource.k8s.io/{version}",
                "kind": "ResourceSlice",
                "metadata": metadata,
                "spec": {
                    "driver": DRIVER,
                    "nodeName": node,
                    "pool": {"name": node, "generation": generation, "resourceSliceCount": len(parts)},
                    "devices": [_body(one, version, taints=taints) for one in part],
                },
            }
        )
    return bodies


def slice_name(node: str, number: int) -> str:
    """The name of the node's slice of that number."""
    return f"{node[:230]}-{DRIVER}-{number}"


def _values(machine: Machine, chip: Chip, vnpu: VNPU | None) -> dict[str, str | int]:
    values: dict[str, str | int] = {
        "deviceType": machine.chip_name,
        "physicId": chip.id,
        "type": "npu" if vnpu is None else "vnpu",
        "card": chip.card,
        "die": chip.die,
        "resource": machine.resource,
        "serverType": machine.server_type,
        "driverVersion": machine.driver_version,
    }
    if chip.serial:
        values["serial"] = chip.serial
    if machine.generation is Generation.ASCEND910:
        values["ring"] = chip.id // _ring_size(machine)
    if machine.super_pod_id >= 0:
        values |= {"superPodId": machine.super_pod_id, "serverIndex": machine.server_index}
    if machine.rack_id is not None and machine.rack_id >= 0:
        values["rackId"] = machine.rack_id
    if vnpu is not None:
        values |= {"template": vnpu.template, "vnpuId": vnpu.id}
    # the API refuses longer texts, and with them the whole slice
    return {name: value[:_MAX_STRING] if isinstance(value, str) else value for name, value in values.items()}


def _ring_size(machine: Machine) -> int:
    """Chips that HCCS joins: 16 of a super pod's server, 4 of the first generation's 910, else 8."""
    if machine.super_pod_id >= 0:
        return 16
    return 4 if machine.server_type.startswith("Ascend910-") else 8


def _sizes(machine: Machine) -> dict[str, str]:
    sizes = {"memory": f"{machine.memory_gb}Gi"}
    cores = machine.server_type.rpartition("-")[2]
    if cores.isdecimal():
        sizes["aiCores"] = cores
    return sizes


def _body(device: Device, version: str, *, taints: bool) -> dict[str, Any]:
    basic: dict[str, Any] = {
        "attributes": {
            name: {"int": value} if isinstance(value, int) else {"string": value}
            for name, value in device.values.items()
            if value != ""
        }
    }
    if device.capacity:
        basic["capacity"] = {name: {"value": value} for name, value in device.capacity.items()}
    if taints and device.withheld:
        basic["taints"] = [{"key": TAINT_UNHEALTHY, "value": "true", "effect": "NoSchedule"}]
    return {"name": device.name, **({"basic": basic} if version == "v1beta1" else basic)}
