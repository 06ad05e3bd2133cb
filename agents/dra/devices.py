"""The node's chips, vNPUs, and the parts that chips can be cut into, as devices of ResourceSlices. Pure.

A chip and its parts share counters (partitionable devices, KEP-4815): the whole chip takes all of them. Driver, pool
and the attributes ``deviceType`` and ``physicId`` are those of MindCluster's driver
(component/ascend-dynamic-resource-allocation); the others let claims ask for size and place. Names of devices are DNS
labels, so they are in lower case. Formats: resource.k8s.io/v1, v1beta2 and v1beta1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from belay.agents.dra.parts import ChipParts, Part
from belay.agents.drivers.base import VNPU, Chip, Machine
from belay.agents.node.occupancy import Users
from belay.engine.model.generations import Generation
from belay.engine.wire.dra import DRIVER, TAINT_IN_USE, TAINT_UNHEALTHY

#: Devices of one slice: the API's limit for slices with taints (resource.k8s.io/v1, ResourceSliceMaxDevicesWithTaints).
MAX_DEVICES: Final = 64
#: Counter sets of one slice that holds nothing else (ResourceSliceMaxCounterSets).
MAX_COUNTER_SETS: Final = 8
_MAX_STRING: Final = 64
NO_USERS: Final = Users({}, {})


class CounterForm(StrEnum):
    """Where an API server takes shared counters: nowhere, beside the devices that consume them (Kubernetes 1.33 and
    1.34), or in slices of their own (since 1.35).
    """

    NOWHERE = "nowhere"
    BESIDE = "beside"
    APART = "apart"


class Device(msgspec.Struct, frozen=True):
    """One device: its name in the pool, its chip (physical id), its vNPU where it is one, whether it takes no new work,
    and whether a pod holds it through the device plugin.

    ``values`` are its attributes, ``capacity`` its quantities as text. ``template``: of a part that is cut when a claim
    gets it; ``consumes`` what it takes of its chip's counters, nothing for a device that shares none.
    """

    name: str
    chip: int
    vnpu: VNPU | None
    withheld: bool
    values: Mapping[str, str | int]
    capacity: Mapping[str, str]
    template: str = ""
    consumes: Mapping[str, str] = {}
    in_use: bool = False

    @property
    def taints(self) -> tuple[str, ...]:
        """Keys of its taints, each of which keeps new claims off."""
        wanted = ((TAINT_UNHEALTHY, self.withheld), (TAINT_IN_USE, self.in_use))
        return tuple(key for key, applies in wanted if applies)


def devices(
    machine: Machine,
    chips: Sequence[Chip],
    vnpus: Sequence[VNPU],
    withheld: Collection[int],
    parts: ChipParts | None = None,
    users: Users = NO_USERS,
) -> list[Device]:
    """The devices of a node, ascending by chip: a chip that is cut is offered as its vNPUs, any other whole.

    ``withheld`` are chips that take no new work, ``users`` pods that hold chips through the device plugin. With
    ``parts`` every chip is offered whole and as all of its parts: vNPUs come and go with those who use them.
    """
    cut: dict[int, list[VNPU]] = {}
    for vnpu in sorted(vnpus) if parts is None else ():
        cut.setdefault(vnpu.chip, []).append(vnpu)
    found = []
    for chip in sorted(chips, key=lambda one: one.id):
        kept_back = chip.id in withheld
        name, fixed = chip_name(machine, chip.id), cut.get(chip.id)
        if not fixed:
            all_of_it = parts.totals if parts is not None else {}
            values = _values(machine, chip, None)
            found.append(Device(name, chip.id, None, kept_back, values, _sizes(machine), "", all_of_it))
        for part in parts.parts if parts is not None else ():
            found.append(_part_of(machine, chip, part, kept_back))
        for vnpu in fixed or ():
            name = f"{chip_name(machine, chip.id)}-vnpu-{vnpu.id}"
            found.append(Device(name, chip.id, vnpu, kept_back, _values(machine, chip, vnpu), {}))
    return [
        msgspec.structs.replace(one, in_use=bool(user_of(users, one.chip, one.vnpu.id if one.vnpu else 0)))
        for one in found
    ]


def user_of(users: Users, chip: int, vnpu: int) -> str:
    """The pod that holds a device through the device plugin; empty without one. ``vnpu`` 0 is the whole chip."""
    if vnpu:
        return users.vnpus.get(vnpu, "")
    return next(iter(users.of([chip])), "")


def _part_of(machine: Machine, chip: Chip, part: Part, withheld: bool) -> Device:
    name = f"{chip_name(machine, chip.id)}-vnpu-{part.name}"
    values = _values(machine, chip, None) | {"type": "vnpu", "template": part.template}
    return Device(name, chip.id, None, withheld, values, part.capacity, part.template, part.consumes)


def chip_name(machine: Machine, chip: int) -> str:
    """The name of a whole chip, e.g. ``ascend910-3``."""
    return f"{machine.prefix}{chip}".lower()


def slices(
    node: str,
    owner: Mapping[str, Any] | None,
    found: Sequence[Device],
    generation: int,
    version: str,
    *,
    taints: bool,
    counters: CounterForm = CounterForm.NOWHERE,
) -> list[dict[str, Any]]:
    """The ResourceSlices of a node for one API version; without devices one empty slice, which says so.

    Without ``taints``, which older API servers do not keep, a device that takes no new claim is left out; where
    ``counters`` are taken nowhere, so are parts of chips.
    """
    counted = counters is not CounterForm.NOWHERE
    offered = [device for device in found if (taints or not device.taints) and (counted or not device.template)]
    contents = _contents(offered, counters)
    bodies = []
    for number, content in enumerate(contents):
        metadata: dict[str, Any] = {"name": slice_name(node, number)}
        if owner:
            metadata["ownerReferences"] = [dict(owner)]
        spec: dict[str, Any] = {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": len(contents)},
        }
        if content.counters:
            spec["sharedCounters"] = content.counters
        # a slice of counters has no devices, not even an empty list
        if content.devices or not content.counters:
            spec["devices"] = [_body(device, version, taints, counted) for device in content.devices]
        bodies.append(
            {"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        )
    return bodies


class _Content(NamedTuple):
    """What one slice holds."""

    devices: list[Device]
    counters: list[dict[str, Any]]


def _contents(offered: list[Device], form: CounterForm) -> list[_Content]:
    """Devices and counters, cut into slices; one empty slice where there is nothing."""
    groups = [offered]
    if form is CounterForm.BESIDE and any(device.consumes for device in offered):
        # those that share counters stand together: such a server takes these from the same slice only
        groups = [list(_by_chip(offered, chip)) for chip in dict.fromkeys(device.chip for device in offered)]

    contents = []
    for group in groups:
        beside = _counter_sets(group) if form is CounterForm.BESIDE else []
        contents += [_Content(group[at : at + MAX_DEVICES], beside) for at in range(0, len(group), MAX_DEVICES)]
    if form is CounterForm.APART:
        sets = _counter_sets(offered)
        contents += [_Content([], sets[at : at + MAX_COUNTER_SETS]) for at in range(0, len(sets), MAX_COUNTER_SETS)]
    return contents or [_Content([], [])]


def slice_name(node: str, number: int) -> str:
    """The name of the node's slice of that number."""
    return f"{node[:230]}-{DRIVER}-{number}"


def _by_chip(found: Iterable[Device], chip: int) -> Iterable[Device]:
    return (one for one in found if one.chip == chip)


def _counter_sets(found: Iterable[Device]) -> list[dict[str, Any]]:
    """The counters of the chips of these devices: what the whole chip takes."""
    return [
        {"name": _counter_set(one.chip), "counters": _amounts(one.consumes)}
        for one in found
        if one.consumes and not one.template
    ]


def _counter_set(chip: int) -> str:
    return f"chip-{chip}"


def _amounts(found: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {name: {"value": value} for name, value in found.items()}


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


def _body(device: Device, version: str, taints: bool, counters: bool) -> dict[str, Any]:
    basic: dict[str, Any] = {
        "attributes": {
            name: {"int": value} if isinstance(value, int) else {"string": value}
            for name, value in device.values.items()
            if value != ""
        }
    }
    if device.capacity:
        basic["capacity"] = {name: {"value": value} for name, value in device.capacity.items()}
    if counters and device.consumes:
        basic["consumesCounters"] = [{"counterSet": _counter_set(device.chip), "counters": _amounts(device.consumes)}]
    if taints and device.taints:
        basic["taints"] = [{"key": key, "value": "true", "effect": "NoSchedule"} for key in device.taints]
    return {"name": device.name, **({"basic": basic} if version == "v1beta1" else basic)}
