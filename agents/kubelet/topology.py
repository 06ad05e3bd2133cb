"""A chip's NUMA nodes, and other data that only the driver's library has.

Source: component/ascend-device-plugin/pkg/device/numa_utils.go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from belay.agents.common.log import Log
from belay.agents.drivers.base import Driver, DriverError, Machine

SYSTEM: Final = Path("/sys/devices/system/node")
PCI: Final = Path("/sys/bus/pci/devices")
_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
SECONDS: Final = 5.0
ALONE: Final = 1
_log = Log("topology")


async def ask_driver(driver: Driver, call: str, *arguments: Any, default: Any) -> Any:
    """Make a library call through the driver; return ``default`` where it has none or does not answer."""
    calls = getattr(driver, "calls", None)
    if calls is None:
        return default
    try:
        return await calls.ask(call, *arguments, timeout=SECONDS)
    except DriverError:
        return default


async def single_dies(driver: Driver, machine: Machine) -> str:
    """Have the driver of an A3 server allocate the dies of each chip separately. Returns why it cannot, else empty.

    It is a setting of the whole node (dcmi_set_multi_die_policy), which ``-useSingleDieMode`` requests.
    """
    calls = getattr(driver, "calls", None)
    if calls is None or not machine.server_type.startswith("Ascend910A3-"):
        return ""
    try:
        if await calls.ask("die_policy", timeout=SECONDS) != ALONE:
            await calls.ask("set_die_policy", ALONE, timeout=SECONDS)
            _log.info("the dies of each chip are given out alone from now on")
    except DriverError as error:
        return f"useSingleDieMode: the dies of a chip are given out together: {error}"
    return ""


async def numa_nodes(driver: Driver, chip: int, system: Path = SYSTEM, pci: Path = PCI) -> list[int]:
    """Return a chip's NUMA nodes: from the processors that the driver names, else its bus address; empty if unknown."""
    near = cpus(str(await ask_driver(driver, "affinity", chip, default="")))
    found = sorted(number for number, own in nodes(system) if own & near)
    if found:
        return found
    address = str(await ask_driver(driver, "pcie", chip, default="")).lower()
    if not address:
        return []
    try:
        text = (pci / address / "numa_node").read_text(encoding="ascii").strip()
    except OSError:
        return []
    return [int(text)] if text.isdecimal() else []


def nodes(system: Path) -> Sequence[tuple[int, set[int]]]:
    """Return this machine's NUMA nodes, as (node, its processors)."""
    out = []
    for path in system.glob("node[0-9]*/cpulist"):
        number = path.parent.name.removeprefix("node")
        if number.isdecimal():
            try:
                out.append((int(number), cpus(path.read_text(encoding="ascii"))))
            except OSError:
                continue
    return sorted(out, key=lambda pair: pair[0])


def cpus(text: str) -> set[int]:
    """Parse a list in the kernel's form, ``0-3,8``; unreadable parts are left out."""
    out: set[int] = set()
    for part in text.strip().split(","):
        match = _RANGE.fullmatch(part.strip())
        if match:
            out.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return out
