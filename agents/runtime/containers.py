"""Running containers that the runtime created: they carry ASCEND_DOCKER_RUNTIME=True.

They are found in two ways, because each has gaps: by the environment of processes, and by runc's states and the bundles
they name (a program may have cleared its environment).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

MARK: Final = "ASCEND_DOCKER_RUNTIME=True"
_STATES: Final = (
    "run/containerd/runc",
    "run/docker/runtime-runc",
    "run/docker/runtime-ascend",
    "run/runc",
    "run/isulad/runc",
)
_MAX_FILE: Final = 10 << 20
_MAX_STATES: Final = 8192
_NAMES_IN_CGROUP: Final = 64


class Running(NamedTuple):
    """A container by its id (or the command of its process), and its first process."""

    name: str
    pid: int


def running(root: Path = Path("/")) -> Sequence[Running]:
    """The containers, by id. ``root`` is the mount point of the host's file system."""
    found = {state.pid: state for state in _by_state(root)}
    known = set(found)
    for process in _by_environment(root / "proc"):
        if not known & _line(root / "proc", process.pid):
            found[process.pid] = process
            known.add(process.pid)
    return sorted(found.values())


def _by_state(root: Path) -> Iterator[Running]:
    files = [file for folder in _STATES for file in (root / folder).glob("**/state.json")]
    for file in sorted(files)[:_MAX_STATES]:
        state = _json(file)
        labels = (state.get("config") or {}).get("labels") or []
        bundle = next((label[7:] for label in labels if isinstance(label, str) and label.startswith("bundle=")), None)
        pid = state.get("init_process_pid")
        if not bundle or not isinstance(pid, int) or not (root / "proc" / str(pid)).exists():
            continue
        env = (_json(root / bundle.lstrip("/") / "config.json").get("process") or {}).get("env") or []
        if MARK in env:
            yield Running(str(state.get("id") or file.parent.name), pid)


def _by_environment(proc: Path) -> Iterator[Running]:
    """Processes with the variable in another mount namespace: a shell with the variable is not a container."""
    own = _link(proc / "self/ns/mnt")
    for entry in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            if MARK.encode() not in (entry / "environ").read_bytes()[:_MAX_FILE].split(b"\0"):
                continue
            if (space := _link(entry / "ns/mnt")) == own or not space:
                continue
            name = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue  # it ended, or is another user's
        yield Running(_container_of(entry) or f"{name}[{entry.name}]", int(entry.name))


def _container_of(entry: Path) -> str:
    """The container's id where the control group ends in one."""
    try:
        last = (entry / "cgroup").read_text(encoding="utf-8").splitlines()[0].rpartition("/")[2]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""
    name = last.removesuffix(".scope").rpartition("-")[2]
    return name if len(name) == _NAMES_IN_CGROUP and all(c in "0123456789abcdef" for c in name) else ""


def _line(proc: Path, pid: int) -> set[int]:
    """The process and those above it."""
    found: set[int] = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _json(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MAX_FILE:
            return {}
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
