"""Detect containers that share a chip unintentionally, from containerd's bundles; report, never act.

A bundle's ``config.json`` holds the environment and the device rules that the container really got. Source:
component/ascend-device-plugin/pkg/duplicatedetector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.kubelet.pods import VISIBLE
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState

#: State folders of containerd: standalone, and started by Docker.
STATES: Final = (Path("/run/containerd"), Path("/run/docker/containerd/daemon"), Path("/run/docker/containerd"))
TASKS: Final = "io.containerd.runtime.v2.task"
EVERY: Final = 60.0
MAX_CONFIG: Final = 4 << 20
MAX_CONTAINERS: Final = 2000
MAJORS: Final = ("devdrv-cdev", "vdevdrv-cdev")
_OPTIONS: Final = "ASCEND_RUNTIME_OPTIONS"
_NAMES: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9.]*-)?(\d{1,4})")
_log = Log("kubelet")


def majors(devices: Path = Path("/proc/devices")) -> frozenset[int]:
    """Return the major numbers of the driver's device nodes; none without the driver."""
    try:
        lines = devices.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    rows = (line.split() for line in lines)
    return frozenset(int(row[0]) for row in rows if len(row) == 2 and row[1] in MAJORS and row[0].isdecimal())


def chips_of(spec: Mapping[str, Any], driver: frozenset[int]) -> frozenset[str]:
    """Return a container's devices (``3``: chip 3, ``v100``: vNPU 100) from its environment, else its device rules."""
    env = dict(entry.partition("=")[::2] for entry in (spec.get("process") or {}).get("env") or ())
    if text := env.get(VISIBLE, ""):
        sign = "v" if "VIRTUAL" in env.get(_OPTIONS, "").split(",") else ""
        return frozenset(f"{sign}{number}" for number in _numbers(text))
    rules = ((spec.get("linux") or {}).get("resources") or {}).get("devices") or ()
    return frozenset(
        str(rule["minor"])
        for rule in rules
        if rule.get("allow") and rule.get("major") in driver and isinstance(rule.get("minor"), int)
    )


def _numbers(text: str) -> Iterable[int]:
    for part in text[:4096].split(","):
        low, _, high = part.strip().partition("-") if part.strip()[:1].isdigit() else (part.strip(), "", "")
        if high.isdecimal() and low.isdecimal() and int(low) <= int(high) <= 1123:
            yield from range(int(low), int(high) + 1)
        elif match := _NAMES.fullmatch(part.strip()):
            yield int(match[1])


def shared(containers: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Return device → its containers, for devices with more than one."""
    found: dict[str, list[str]] = {}
    for name in sorted(containers):
        for device in containers[name]:
            found.setdefault(device, []).append(name)
    return {device: found[device] for device in sorted(found) if len(found[device]) > 1}


class Duplicates:
    """Check until cancelled; ``allowed`` returns whether chips are shared on purpose on this node."""

    def __init__(
        self, state: NodeState, clock: Clock, *, allowed: bool = False, every: float = EVERY,
        folders: Sequence[Path] = STATES, driver: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        self._state, self._clock, self._allowed, self._every = state, clock, allowed, every
        self._folders, self._driver = folders, majors() if driver is None else driver
        self._reported: dict[str, list[str]] = {}
        self._read: dict[Path, tuple[int, frozenset[str]]] = {}

    async def run(self) -> None:
        """Check once a minute."""
        while not self._allowed:
            self.check()
            await self._clock.pause(self._every)

    def check(self) -> dict[str, list[str]]:
        """Check once. Returns device → containers, for devices with more than one."""
        containers = {}
        kept = {}
        for path in self._bundles():
            try:
                found = path.stat()
                known = self._read.get(path)
                if known is None or known[0] != found.st_mtime_ns:
                    if found.st_size > MAX_CONFIG:
                        continue
                    spec = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
                    known = (found.st_mtime_ns, chips_of(spec, self._driver))
            except (OSError, msgspec.DecodeError, AttributeError, TypeError, ValueError, RecursionError):
                continue
            kept[path] = known
            if known[1]:
                containers[f"{path.parent.parent.name}/{path.parent.name[:16]}"] = known[1]
        self._read = kept
        twice = shared(containers)
        for device, names in twice.items():
            if self._reported.get(device) != names:
                _log.warning("several containers have one chip", device=device, containers=", ".join(names))
        self._reported = twice
        if twice:
            device, names = next(iter(twice.items()))
            text = f"device {device} is in several containers: {', '.join(names)}"
            self._state.problems["duplicates"] = text[:MAX_TEXT]
        else:
            self._state.problems.pop("duplicates", None)
        return twice

    def _bundles(self) -> list[Path]:
        found: list[Path] = []
        for folder in self._folders:
            found += sorted((folder / TASKS).glob("*/*/config.json"))
        return found[:MAX_CONTAINERS]
