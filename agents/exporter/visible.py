"""Which devices a container was given: by its environment, else by its device rules.

The exporter only observes, so it ignores an invalid item, whereas the runtime and the container manager refuse the
container (component/npu-exporter/collector/container/parser.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

VARIABLE: Final = "ASCEND_VISIBLE_DEVICES"
LONGEST_VALUE: Final = 1024
HIGHEST: Final = 32_767
MOST_DEVICES: Final = 100_000
MOST_ENVS: Final = 10_000
_NUMBER = re.compile(r"[+-]?\d{1,9}")
_DAVINCI = re.compile(r"/dev/v?davinci(\d{1,5})")


def parse(value: str) -> tuple[int, ...]:
    """The ids of a value such as ``0-3,5``, ``Ascend910-0,Ascend910-1`` or ``npu-4``, in its order."""
    if len(value) > LONGEST_VALUE:
        return ()
    found: list[int] = []
    named = "Ascend" in value or "npu" in value
    for item in value.split(","):
        parts = item.split("-")
        if named:
            if len(parts) == 2 and _NUMBER.fullmatch(parts[1]):
                found.append(int(parts[1]))
        elif len(parts) == 1:
            if _NUMBER.fullmatch(item):
                found.append(int(item))
        elif len(parts) == 2 and all(_NUMBER.fullmatch(part) for part in parts):
            first, last = int(parts[0]), int(parts[1])
            if last <= HIGHEST:
                found += range(first, last + 1)
    return tuple(found)


def of_environment(envs: Sequence[str]) -> tuple[int, ...] | None:
    """The value of the last entry with the variable; None without one."""
    for entry in reversed(envs):
        if VARIABLE in entry:
            parts = entry.split("=")
            return parse(parts[1]) if len(parts) == 2 else ()
    return None


def of_spec(spec: Mapping[str, Any], majors: frozenset[int]) -> tuple[int, ...]:
    """The devices of an OCI specification; nothing when it exceeds the limits or has another shape."""
    process, linux = spec.get("process"), spec.get("linux")
    envs = process.get("env") or [] if isinstance(process, dict) else []
    resources = linux.get("resources") if isinstance(linux, dict) else None
    rules = resources.get("devices") or [] if isinstance(resources, dict) else []
    if not isinstance(envs, list) or not isinstance(rules, list):
        return ()
    if len(envs) > MOST_ENVS or len(rules) > MOST_DEVICES:
        return ()
    named = of_environment([entry for entry in envs if isinstance(entry, str)])
    if named is not None:
        return named
    found = []
    for rule in rules:
        major, minor = (rule.get("major"), rule.get("minor")) if isinstance(rule, dict) else (None, None)
        if not isinstance(major, int) or major not in majors or rule.get("type") != "c":
            continue
        if isinstance(minor, int) and 0 <= minor <= HIGHEST:
            found.append(minor)
    return tuple(found)


def of_inspection(document: Mapping[str, Any]) -> tuple[int, ...]:
    """The devices in iSulad's description of a container; a privileged one without the variable has none."""
    config, host = document.get("Config"), document.get("HostConfig")
    if not isinstance(config, dict) or not isinstance(host, dict):
        return ()
    envs = config.get("Env") or []
    if not isinstance(envs, list) or len(envs) > MOST_ENVS:
        return ()
    named = of_environment([entry for entry in envs if isinstance(entry, str)])
    if named is not None:
        return named
    devices = host.get("Devices") or []
    if host.get("Privileged") or not isinstance(devices, list) or len(devices) > MOST_DEVICES:
        return ()
    found = []
    for device in devices:
        match = _DAVINCI.fullmatch(str(device.get("PathInContainer", ""))) if isinstance(device, dict) else None
        if match:
            found.append(int(match[1]))
    return tuple(found)
