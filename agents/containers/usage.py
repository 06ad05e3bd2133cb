"""Which chips a container uses, from its environment or its devices.

Source: component/container-manager/pkg/container/app/parse.go. A list with one invalid item excludes the container from
management.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "ASCEND_VISIBLE_DEVICES"
MAX_VALUE: Final = 1024
MAX_CHIP: Final = 32_767
MAX_ENV: Final = 10_000
MAX_DEVICES: Final = 100_000
MAX_LINES: Final = 512
MAX_MINOR: Final = (1 << 31) - 1
_MAJOR: Final = re.compile(r"^[0-9]{1,3}\s[v]?devdrv-cdev$")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class UsageError(ValueError):
    """A container's list of chips is invalid."""


def chips_of_environment(environment: Sequence[str]) -> tuple[int, ...] | None:
    """The chips that the last entry with `VARIABLE` names; None without one."""
    if len(environment) > MAX_ENV:
        raise UsageError(f"{len(environment)} environment entries, at most {MAX_ENV} are read")
    for entry in reversed(environment):
        if VARIABLE in entry:
            return _chips(entry)
    return None


def _chips(entry: str) -> tuple[int, ...]:
    parts = entry.split("=")
    if len(parts) != 2 or parts[0] != VARIABLE:
        raise UsageError(f"{entry[:80]!r} is not {VARIABLE}=VALUE")
    value = parts[1]
    if len(value.encode()) > MAX_VALUE:
        raise UsageError(f"{VARIABLE} is longer than {MAX_VALUE} bytes")
    found: set[int] = set()
    for item in value.split(","):
        if "Ascend" in value:
            name, minus, number = item.partition("-")
            if not name.startswith("Ascend") or not minus or "-" in number:
                raise UsageError(f"{item[:40]!r} is not a name such as Ascend910-0")
            found.add(_number(number))
        elif "-" in item:
            found.update(_range(item))
        else:
            found.add(_number(item))
    return tuple(sorted(found))


def _range(item: str) -> range:
    ends = item.split("-")
    if len(ends) != 2:
        raise UsageError(f"{item[:40]!r} is not a range such as 0-3")
    first, last = _number(ends[0]), _number(ends[1])
    if first > last:
        raise UsageError(f"range {item[:40]!r} ends before it begins")
    return range(first, last + 1)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 0 <= int(text) <= MAX_CHIP:
        raise UsageError(f"{text[:40]!r} is not a chip number")
    return int(text)


def chips_of_paths(paths: Iterable[str]) -> tuple[int, ...]:
    """The chips of Docker's mapped devices, by their names in the container.

    ``davinci_manager`` and similar devices are not chips. Devices that are not the driver's are ignored, whereas
    MindCluster rejects the container: a mapped /dev/fuse must not leave a faulty chip's container running.
    """
    found = set()
    for path in paths:
        name = path.removeprefix("/dev/")
        number = name.removeprefix("davinci")
        if number == name or "_" in number:
            continue
        found.add(_number(number))
    return tuple(sorted(found))


def chips_of_rules(devices: Sequence[Mapping[str, Any]], majors: frozenset[int]) -> tuple[int, ...]:
    """The chips of a container's device rules: character devices of the driver's major numbers, the minor is the id."""
    if len(devices) > MAX_DEVICES:
        raise UsageError(f"{len(devices)} device rules, at most {MAX_DEVICES} are read")
    found = set()
    for rule in devices:
        major, minor = rule.get("major"), rule.get("minor")
        if not isinstance(major, int) or not isinstance(minor, int):
            continue
        if minor > MAX_MINOR:
            raise UsageError(f"device number {minor} is too large")
        if rule.get("type") == "c" and major in majors and minor >= 0:
            found.add(minor)
    return tuple(sorted(found))


def majors(text: str) -> frozenset[int]:
    """The driver's major numbers in the text of ``/proc/devices``."""
    return frozenset(int(line.split()[0]) for line in text.splitlines()[:MAX_LINES] if _MAJOR.match(line))


def driver_majors(file: Path = Path("/proc/devices")) -> frozenset[int]:
    """The driver's major numbers on this host; none when they cannot be read."""
    try:
        return majors(file.read_text())
    except (OSError, UnicodeDecodeError):
        return frozenset()
