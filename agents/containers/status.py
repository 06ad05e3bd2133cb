"""The state file and the table that people read.

Format and words: component/container-manager/pkg/container/domain/display.go; docs/zh/scheduling 04_usage/05_appliance.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from belay.agents.containers.states import Status

FILE: Final = Path("/tmp/status.json")
MODE: Final = 0o640
MAX_FILE: Final = 100 << 20
#: 31 December 9999: later years do not have four digits.
MAX_SINCE: Final = 253_402_214_400
WIDTH: Final = 65
_BORDER: Final = "+" + "=" * 98 + "+"
_RULES: Final[dict[str, tuple[int, str]]] = {
    "pausing": (30, "Container pause may fail. Please manually delete the container"),
    "paused": (400, "Device hot reset may fail. Please check of device status and recovery are required"),
    "resuming": (
        30,
        "The device has been recovered, but the container failed to be resumed. Please manually pull up the container",
    ),
}  # fmt: skip


class StatusError(Exception):
    """The state file cannot be written or read."""


def write(file: Path, states: Iterable[tuple[str, Status, int]]) -> None:
    """Replace the file atomically, so that a reader never sees half of it and a link in its place is not followed."""
    rows = [
        {"CtrId": name, "Status": status, "StatusStartTime": since, "Description": ""} for name, status, since in states
    ]
    try:
        descriptor, fresh = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                json.dump(rows, out, separators=(",", ":"))
            os.chmod(fresh, MODE)
            os.replace(fresh, file)
        except BaseException:
            os.unlink(fresh)
            raise
    except OSError as error:
        raise StatusError(f"{file} cannot be written: {error.strerror}") from error


def read(file: Path, *, own: bool = False) -> list[dict[str, Any]]:
    """Read the file's records. With ``own`` only a file that this user alone can write is trusted."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as source:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise StatusError(f"{file} is not a regular file")
            if found.st_size > MAX_FILE:
                raise StatusError(f"{file} is longer than {MAX_FILE} bytes")
            if own and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
                raise StatusError(f"{file} can be written by others; it is not believed")
            data = source.read(MAX_FILE + 1)
    except FileNotFoundError as error:
        raise StatusError(f"{file} is not there; does `belay containers run` run?") from error
    except OSError as error:
        raise StatusError(f"{file} cannot be read: {error.strerror}") from error
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StatusError(f"{file} is not JSON: {error}") from error
    # MindCluster writes null where there are no containers
    rows = [] if rows is None else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise StatusError(f"{file} must hold a list of records")
    for row in rows:
        if not isinstance(row.get("StatusStartTime"), int) or not isinstance(row.get("CtrId"), str):
            raise StatusError(f"{file}: a record lacks CtrId or StatusStartTime")
        if not 0 <= row["StatusStartTime"] < MAX_SINCE:
            raise StatusError(
                f"{file}: StatusStartTime {str(row['StatusStartTime'])[:24]} is not a time in Unix seconds"
            )
    return rows


def earlier(file: Path) -> dict[str, tuple[Status, int]]:
    """The states that an earlier manager process wrote, by container id; empty without a trusted file."""
    try:
        rows = read(file, own=True)
    except StatusError:
        return {}
    return {row["CtrId"]: (row["Status"], row["StatusStartTime"]) for row in rows if str(row.get("Status")) in _RULES}


def description(status: str, since: int, now: float) -> str:
    """Describe a state that began at ``since`` (Unix seconds)."""
    if status == "running":
        return "normal"
    if status not in _RULES:
        return "unknown"
    limit, text = _RULES[status]
    return text if now - since > limit else "normal"


def table(rows: Sequence[dict[str, Any]], now: float) -> str:
    """The table: a border before each record and after the last."""
    lines = []
    for row in rows:
        status = str(row.get("Status", ""))
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["StatusStartTime"]))
        lines.append(_BORDER)
        lines += _row("Container ID", row["CtrId"])
        lines += _row("Container Status", status)
        lines += _row("Container Status Start Time", started)
        lines += _row("Container Description", description(status, row["StatusStartTime"], now))
    return "\n".join([*lines, _BORDER]) + "\n"


def _row(label: str, text: str) -> list[str]:
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    parts = textwrap.wrap(plain, WIDTH, break_on_hyphens=False) if len(plain) > WIDTH else [plain]
    lines = [f"| {label:<27}: {parts[0]:<67} |"]
    return lines + [f"| {'':>27}  {part:<67} |" for part in parts[1:]]
