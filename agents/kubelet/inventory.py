"""A node's offers to kubelet: resources, their ids, and the chip of each id. Pure.

Resource names: component/ascend-device-plugin/pkg/common/constants.go; docs/zh/scheduling/04_usage/02_virtual_instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from belay.agents.drivers.base import VNPU, Chip, Machine
from belay.agents.kubelet import names
from belay.agents.kubelet.names import CORE, EDGE_PREFIX
from belay.agents.kubelet.settings import PluginSettings
from belay.engine.model.labels import HUAWEI_PREFIX

Kind = Literal["whole", "static", "core", "share", "soft"]

#: Product → suffix of the resource in servers with mixed 310P cards.
MIXED: Final = {"Atlas 300V": "V", "Atlas 300V Pro": "VPro", "Atlas 300I Pro": "IPro"}


class Offer(msgspec.Struct, frozen=True):
    """One resource.

    ``own`` maps each id to the chip in its name, ``parts`` each chip to its number of ids.
    """

    resource: str
    kind: Kind
    own: dict[str, int]
    parts: dict[int, int]

    @property
    def device_type(self) -> str:
        """``Ascend910`` of ``huawei.com/Ascend910``; the socket is named after it."""
        return self.resource.removeprefix(HUAWEI_PREFIX)


def offers(
    machine: Machine,
    chips: Sequence[Chip],
    vnpus: Sequence[VNPU],
    settings: PluginSettings,
    *,
    suffixes: Mapping[str, str],
    products: Mapping[int, str],
) -> tuple[dict[str, Offer], list[str]]:
    """Return resource → offer, and messages about the chips left out.

    Chips are named by physical id. ``suffixes``: template → suffix of its resource; ``products``: chip → product, for
    servers with mixed cards.
    """
    kind = machine.prefix.rstrip("-")
    trouble: list[str] = []
    most = names.MAX_DEVICES.get(kind, names.MAX_DEVICES_ELSE)
    whole = sorted(chip.id for chip in chips)
    if settings.dynamic:
        return {HUAWEI_PREFIX + CORE: _cores(machine, whole)}, trouble
    cut = {vnpu.chip for vnpu in vnpus}
    found: dict[str, Offer] = {}
    for chip in whole:
        if chip not in cut:
            _add_chip(found, machine, chip, settings, products.get(chip, ""), trouble)
    for vnpu in sorted(vnpus):
        suffix = suffixes.get(vnpu.template, "")
        if not names.legal_spec(kind, suffix):
            trouble.append(f"vNPU {vnpu.id} of {machine.prefix}{vnpu.chip} has template {vnpu.template!r}: no resource")
            continue
        name = names.virtual(kind, suffix, vnpu.id, vnpu.chip)
        resource = f"{HUAWEI_PREFIX}{kind}-{suffix}"
        offer = found.setdefault(resource, Offer(resource, "static", {}, {}))
        offer.own[name] = vnpu.chip
        offer.parts[vnpu.chip] = offer.parts.get(vnpu.chip, 0) + 1
    # a node with vNPUs on all chips still offers the whole-chip resource, with no ids
    if not settings.mixed:
        found.setdefault(machine.resource, Offer(machine.resource, "whole", {}, {}))
    devices = sum(len(o.parts) if o.kind != "static" else len(o.own) for o in found.values())
    if devices > most:
        trouble.append(f"{devices} devices, a node of {kind} may have {most}: none is offered")
        return {}, trouble
    return found, trouble


def _add_chip(
    found: dict[str, Offer], machine: Machine, chip: int, settings: PluginSettings, product: str, trouble: list[str]
) -> None:
    if settings.mixed:
        tail = MIXED.get(product)
        if tail is None:
            trouble.append(f"{machine.prefix}{chip} is no card of a mixed server: {product or 'product unknown'}")
            return
        resource = f"{machine.resource}-{tail}"
        found.setdefault(resource, Offer(resource, "whole", {}, {})).own[f"{machine.prefix}{tail}-{chip}"] = chip
        found[resource].parts[chip] = 1
        return
    kind: Kind = "soft" if settings.soft else "share" if settings.share > 1 else "whole"
    offer = found.setdefault(machine.resource, Offer(machine.resource, kind, {}, {}))
    name = f"{EDGE_PREFIX if settings.edge else machine.prefix}{chip}"
    offer.parts[chip] = settings.share
    if settings.share == 1:
        offer.own[name] = chip
    else:
        offer.own.update({names.shared(name, index): chip for index in range(settings.share)})


def cores_of(machine: Machine) -> int:
    """Return the AI cores of one chip, from the server type (``Ascend910B-20``). Raises ValueError when it has none."""
    tail = machine.server_type.rpartition("-")[2]
    if not tail.isdecimal() or not 1 <= int(tail) <= 64:
        raise ValueError(f"server type {machine.server_type!r} does not give the AI cores of a chip")
    return int(tail)


def _cores(machine: Machine, chips: Sequence[int]) -> Offer:
    each = cores_of(machine)
    own = {f"{names.CORE_PREFIX}{number}": chip for number, chip in enumerate(c for c in chips for _ in range(each))}
    return Offer(HUAWEI_PREFIX + CORE, "core", own, dict.fromkeys(chips, each))
