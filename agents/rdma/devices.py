"""RDMA cards of this node, from sysfs: what they are, which device nodes a container needs for them.

Source: component/k8s-rdma-shared-dev-plugin/pkg/resources/ub_device, pkg/utils; Linux' sysfs (ABI of infiniband,
infiniband_verbs, infiniband_mad).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from belay.agents.rdma.config import RdmaResource, number

#: Number of cards of a bus that are looked at.
MAX_CARDS: Final = 4096
_MAX_TEXT: Final = 1024
_LINK_TYPES: Final = {"1": "ether", "32": "infiniband", "772": "loopback"}
#: Character devices of a card: the class that lists them.
_CLASSES: Final = ("infiniband_cm", "infiniband_mad", "infiniband_verbs")


class RdmaCard(msgspec.Struct, frozen=True):
    """``name`` on its bus, ``hca`` its name as an RDMA device, ``interface`` its network interface or empty, ``nodes``
    the device nodes below ``/dev``.
    """

    name: str
    hca: str
    vendor: str
    device_id: str
    driver: str
    interface: str
    link_type: str
    nodes: tuple[str, ...]


def cards(sys: Path, bus: str) -> list[RdmaCard]:
    """All usable cards of a bus (``ub`` or ``pci``): with a driver, ``uverbs`` and ``rdma_cm``."""
    found = []
    for place in _entries(sys / "bus" / bus / "devices"):
        hcas = [path.name for path in _entries(place / "infiniband")]
        driver = _link(place / "driver")
        if not hcas or not driver:
            continue
        interface = next((path.name for path in _entries(place / "net")), "")
        nodes = tuple(dict.fromkeys(node for hca in hcas for node in device_nodes(sys, hca)))
        if not any("uverbs" in node for node in nodes) or not any("rdma_cm" in node for node in nodes):
            continue
        kind = text(sys / "class/net" / interface / "type") if interface else ""
        vendor, device = text(place / "vendor"), text(place / "device")
        found.append(
            RdmaCard(place.name, hcas[0], vendor, device, driver, interface, _LINK_TYPES.get(kind, kind), nodes)
        )
    return found


def device_nodes(sys: Path, hca: str) -> list[str]:
    """Device nodes of an RDMA device, below ``/dev``: its own ones, and the one for connections."""
    found = [
        f"/dev/infiniband/{path.name}"
        for kind in _CLASSES
        for path in _entries(sys / "class" / kind)
        if text(path / "ibdev") == hca
    ]
    return [*found, "/dev/infiniband/rdma_cm"] if (sys / "class/misc/rdma_cm").exists() else found


def selected(found: Iterable[RdmaCard], resource: RdmaResource) -> list[RdmaCard]:
    """The cards that a resource's selectors choose."""

    def fits(allowed: frozenset[str], value: str) -> bool:
        return not allowed or value in allowed

    return [
        card
        for card in found
        if fits(resource.vendors, number(card.vendor))
        and fits(resource.device_ids, number(card.device_id))
        and fits(resource.drivers, card.driver)
        and fits(resource.interfaces, card.interface)
        and fits(resource.link_types, card.link_type)
    ]


def text(path: Path) -> str:
    """The first 1,024 bytes of a file of sysfs, without white space around them; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TEXT).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _entries(place: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(place))[:MAX_CARDS]:
            yield place / name


def _link(path: Path) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
