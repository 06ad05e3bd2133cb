"""The state files that storage clients leave on a node: DPC's and DTFS's.

Formats, bounds and checks: component/noded/pkg/monitoring (dpc, dtfs), docs/zh/scheduling 06_api/03_noded.md.
A file is three lines for each instance; one line that does not fit makes the whole reading fail, and the state last
read stays in force.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final, NamedTuple

from belay.agents.common.log import Log
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.surroundings import Client

#: More instances than this are not read.
MAX_INSTANCES: Final = 21
MAX_BYTES: Final = 65_536
#: The mode: only the owner may write, and no user may execute the file.
FORBIDDEN_MODE: Final = 0o133
LOG_EVERY: Final = 60
_INSTANCE: Final = re.compile(r"\[instidx=(\d{1,10})\]")
_log = Log("storage")


class Kind(NamedTuple):
    """One client: its file (where NodeD's manifest or Belay's mounts it, else where the kernel has it), the keys of its
    two lines and the value of each that means trouble (0 means none)."""

    name: str
    files: tuple[str, ...]
    keys: tuple[str, str]
    bad: tuple[int, int]
    process: int
    """The line of the process; the other line is that of memory (DPC) or the link (DTFS)."""
    empty_is_error: bool


DPC: Final = Kind(
    name="dpc",
    files=(
        "/user/mind-cluster/dpcstatus/dpc_status_check",
        "/host/proc/odcs/dpc_status_check",
        "/proc/odcs/dpc_status_check",
    ),
    keys=("DPC_INTERNAL_ERROR", "DPC_PROCESS_ERROR"),
    bad=(-12, -1),
    process=1,
    empty_is_error=False,
)
DTFS: Final = Kind(
    name="dtfs",
    files=(
        "/user/mind-cluster/dtfsstatus/dtfs_status_check",
        "/host/proc/dtfs/dtfs_status_check",
        "/proc/dtfs/dtfs_status_check",
    ),
    keys=("DTFS_PROCESS_ERROR", "DTFS_LINK_ERROR"),
    bad=(-1, -1),
    process=0,
    empty_is_error=True,
)


class StorageError(DriverError):
    """A state file cannot be trusted or read."""


def parse(kind: Kind, text: str) -> Client:
    """Read a state file's text. Raises StorageError at the first line that does not fit."""
    lines = [line.strip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    if not lines and kind.empty_is_error:
        raise StorageError(f"{kind.name}: the state file is empty")
    process, others = False, []
    for at in range(0, min(len(lines), 3 * MAX_INSTANCES), 3):
        head = _INSTANCE.fullmatch(lines[at])
        if head is None:
            raise StorageError(f"{kind.name}: line {at + 1} is {lines[at][:40]!r}, not [instidx=N]")
        values = [_value(kind, lines, at + 1 + part, part) for part in (0, 1)]
        process = process or values[kind.process]
        if values[1 - kind.process]:
            others.append(head[1])
    return Client(process=process, memory=bool(others), short=tuple(others))


def _value(kind: Kind, lines: list[str], at: int, part: int) -> bool:
    if at >= len(lines):
        raise StorageError(f"{kind.name}: the state file ends after line {at}; {kind.keys[part]} is missing")
    key, colon, value = (word.strip() for word in lines[at].partition(":"))
    if key != kind.keys[part] or not colon or value not in ("0", str(kind.bad[part])):
        raise StorageError(
            f"{kind.name}: line {at + 1} is {lines[at][:40]!r}, not {kind.keys[part]}: 0 or {kind.bad[part]}"
        )
    return value != "0"


def read(kind: Kind, file: Path, owner: int = 0) -> Client | None:
    """Read a state file; None when there is none. Raises StorageError."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{file} cannot be opened: {error.strerror}") from error
    try:
        with open(descriptor, "rb") as source:
            found = os.fstat(descriptor)
            mode = stat.S_IMODE(found.st_mode)
            if not stat.S_ISREG(found.st_mode):
                raise StorageError(f"{file} is not a regular file")
            if found.st_uid != owner or mode & FORBIDDEN_MODE:
                raise StorageError(f"{file} belongs to user {found.st_uid} with mode {mode:04o}; it is not trusted")
            data = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise StorageError(f"{file} is longer than {MAX_BYTES} bytes")
    return parse(kind, data.decode("utf-8", "replace"))


class Clients:
    """Reads both files; one that fails keeps its last state and is logged now and then."""

    def __init__(self, dpc: Path | None = None, dtfs: Path | None = None, *, owner: int = 0) -> None:
        self._files = {
            DPC: (dpc,) if dpc is not None else tuple(map(Path, DPC.files)),
            DTFS: (dtfs,) if dtfs is not None else tuple(map(Path, DTFS.files)),
        }
        self._owner = owner
        self._last: dict[str, Client] = {}
        self._failures: dict[str, int] = {}

    def refresh(self) -> dict[str, Client] | None:
        """The clients' states by name; None when the node has neither."""
        for kind, files in self._files.items():
            file = next((one for one in files if os.path.lexists(one)), files[0])
            try:
                found = read(kind, file, self._owner)
                if found is None and kind.name in self._last:
                    raise StorageError(f"{file} is gone")
            except StorageError as error:
                failures = self._failures[kind.name] = self._failures.get(kind.name, 0) + 1
                if failures % LOG_EVERY == 1:
                    _log.warning("a storage client's state cannot be read, the last one stays", error=error)
                continue
            self._failures[kind.name] = 0
            if found is not None:
                self._last[kind.name] = found
        return dict(self._last) if self._last else None
