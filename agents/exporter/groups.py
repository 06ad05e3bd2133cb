"""Collection groups: how often, on which chips, switched on by which file (component/npu-exporter/collector/config)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from belay.agents.common.log import Log
from belay.agents.drivers.dcmi.family import A1, A2, A3, A5, P310
from belay.agents.exporter.chips import Machine

FOLDER: Final = Path("/user/mind-cluster/npu-exporter-config")
METRICS_FILE: Final = "metricConfiguration.json"
PLUGINS_FILE: Final = "pluginConfiguration.json"
ONCE: Final = -1
DEFAULT_SECONDS: Final = 60
MOST_SECONDS: Final = 86_400
TEXT: Final = "text"
_FILE_LIMIT: Final = 1 << 20
_log = Log("exporter")

Lane = Literal["single", "chip", "plugin"]
CARD_MAINBOARDS: Final = frozenset({0x68, 0x6B, 0x6C})
"""Atlas 350 cards: alone, meshed by two, meshed by four."""


class Group(msgspec.Struct, frozen=True):
    """A group with its interval in seconds (-1: once) and its lane: one loop for all, or one per chip."""

    name: str
    seconds: int
    lane: Lane = "single"

    @property
    def lifetime(self) -> float:
        """How long its samples are shown."""
        return float("inf") if self.seconds == ONCE else max(60.0, 2.0 * self.seconds)


DEFAULTS: Final = (
    Group("version", ONCE),
    Group("utilization", 1),
    Group("npu", 5),
    Group("ddr", 10),
    Group("sio", 60),
    Group("hbm", 60),
    Group("hccs", 60),
    Group("pcie", 60),
    Group("vnpu", 60),
    Group("nodeBase", 86_400),
    Group("roce", 60, "chip"),
    Group("optical", 60, "chip"),
    Group("network", 60, "chip"),
    Group("ub", 60),
    Group(TEXT, 60, "plugin"),
)
"""All of them, with the intervals that hold without configuration files."""


def supported(group: str, machine: Machine) -> bool:
    """Whether the machine's chips have what the group reads."""
    family, board = machine.family, machine.mainboard
    match group:
        case "ddr":
            return family not in (A2, A3, A5)
        case "sio":
            return family in (A3, A5)
        case "hbm":
            return family in (A1, A2, A3, A5)
        case "hccs":
            return family in (A2, A3)
        case "pcie":
            return family == A2 or (family == A5 and board in CARD_MAINBOARDS | {0x44})
        case "vnpu":
            return family == P310
        case "roce":
            return machine.training and family != A5
        case "optical":
            return machine.training and not (family == A5 and board in CARD_MAINBOARDS | {0x07, 0x03})
        case "network":
            return machine.training and not (family == A5 and board == 0x68)
        case "ub":
            return family == A5
        case _:
            return any(group == known.name for known in DEFAULTS)


def configured(folder: Path, update_time: int = 0, more: Sequence[str] = ()) -> tuple[Group, ...]:
    """The groups that the two files switch on; a missing or unreadable file means its defaults. ``more`` are groups of
    collectors that are installed beside the exporter.

    ``update_time`` over 0 replaces every interval. What is wrong in a file is logged by name and costs that entry only.
    """
    names = tuple(group.name for group in DEFAULTS if group.lane != "plugin")
    own = [Group(name, 60, "plugin") for name in more if all(name != group.name for group in DEFAULTS)]
    plugins = [*(group for group in DEFAULTS if group.name == TEXT), *own]
    metrics = [group for group in DEFAULTS if group.name in names]
    found = [*_file(folder / METRICS_FILE, metrics), *_file(folder / PLUGINS_FILE, plugins)]
    if update_time > 0:
        found = [msgspec.structs.replace(group, seconds=update_time) for group in found]
    return tuple(found)


def _file(path: Path, offered: Sequence[Group]) -> list[Group]:
    known = {group.name: group for group in offered}
    entries = _entries(path)
    if entries is None:
        return list(known.values())
    on: dict[str, Group] = {}
    for number, entry in enumerate(entries):
        where = f"{path}: entry {number + 1}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("metricsGroup"), str):
            _log.warning("a group has no name", at=where)
            continue
        name = entry["metricsGroup"]
        if name not in known:
            _log.warning("no such group", at=where, group=name)
            continue
        on.pop(name, None)
        if str(entry.get("state", "")).upper() != "ON":
            continue
        seconds = _seconds(entry.get("intervalSeconds"))
        if seconds is None:
            _log.warning("a group is off: intervalSeconds is -1 or 1 to 86400", at=where, group=name)
            continue
        on[name] = msgspec.structs.replace(known[name], seconds=seconds)
    return list(on.values())


def _seconds(given: Any) -> int | None:
    if given is None:
        return DEFAULT_SECONDS
    if isinstance(given, bool) or not isinstance(given, int):
        return None
    return given if given == ONCE or 1 <= given <= MOST_SECONDS else None


def _entries(path: Path) -> list[Any] | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_LIMIT + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("a configuration cannot be read, defaults hold", at=str(path), error=error)
        return None
    try:
        if len(data) > _FILE_LIMIT:
            raise ValueError(f"larger than {_FILE_LIMIT} bytes")
        found = json.loads(data)
        if not isinstance(found, list):
            raise ValueError("no list of groups")
    except (ValueError, RecursionError) as error:
        _log.warning("a configuration cannot be read, defaults hold", at=str(path), error=error)
        return None
    return found
