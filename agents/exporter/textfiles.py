"""Metrics that people write into files (docs/zh/scheduling/06_api/00_npu_exporter/03_custom_metrics_file.md).

    {"version": "1.0", "name": "room_temperature", "desc": "…", "timestamp": 1700000000000000,
     "data_list": [{"label": {"rack": "7"}, "value": 21.5}]}

A file's name, labels and description are those of its first good reading; what changes later costs that round only.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from belay.agents.common.log import Log
from belay.agents.exporter.table import BY_NAME

MOST_FILES: Final = 10
MOST_BYTES: Final = 100 * 1024
MOST_ITEMS: Final = 128
MOST_LABELS: Final = 10
LONGEST_NAME: Final = 128
LONGEST_DESC: Final = 1024
VERSION: Final = "1.0"
METRIC_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_EXECUTE: Final = 0o111
_log = Log("exporter")


class _Item(msgspec.Struct):
    label: dict[str, str]
    value: float


class _File(msgspec.Struct):
    version: str
    name: str
    desc: str
    timestamp: int
    data_list: list[_Item]


class TextMetric(msgspec.Struct, frozen=True):
    """One file's metric: label names sorted, rows of label values and the value, the file's own time."""

    path: str
    name: str
    desc: str
    version: str
    labels: tuple[str, ...]
    time_ms: int
    rows: tuple[tuple[tuple[str, ...], float], ...]


class TextFileError(ValueError):
    """A file breaks a rule; the text names the file, the field and the rule."""


class TextFiles:
    """The files that were configured. `read` is a round: invalid files keep their last values."""

    def __init__(self, paths: str) -> None:
        given = [part.strip() for part in paths.split(",") if part.strip()]
        if len(given) > MOST_FILES:
            _log.warning("only the first text files are read", given=len(given), read=MOST_FILES)
        self._paths = [Path(part) for part in given[:MOST_FILES]]
        self._known: dict[Path, TextMetric] = {}

    @property
    def paths(self) -> Sequence[Path]:
        """The files still read."""
        return tuple(self._paths)

    @property
    def waiting(self) -> tuple[Path, ...]:
        """Files that are missing or empty; they are retried for a while at the start."""
        return tuple(path for path in self._paths if path not in self._known and _missing(path))

    def drop(self, paths: Iterable[Path]) -> None:
        """Stop reading files that never appeared."""
        for path in paths:
            _log.error("a text file never came", path=str(path))
            self._paths.remove(path)

    def read(self) -> tuple[TextMetric, ...]:
        """Every file's metric, in the order of the files; a name counts for the first file that has it."""
        names: dict[str, Path] = {metric.name: path for path, metric in self._known.items()}
        for path in self._paths:
            try:
                found = _read(path, self._known.get(path))
            except (OSError, TextFileError) as error:
                _log.warning("a text file is passed over", path=str(path), error=error)
                continue
            if found.name in BY_NAME or names.setdefault(found.name, path) != path:
                _log.warning("a text file's name is taken", path=str(path), name=found.name)
                continue
            self._known[path] = found
        return tuple(self._known[path] for path in self._paths if path in self._known)


def _missing(path: Path) -> bool:
    try:
        return path.lstat().st_size == 0
    except OSError:
        return True


def _read(path: Path, before: TextMetric | None) -> TextMetric:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TextFileError(f"{path}: no regular file")
        if status.st_uid != os.geteuid():
            raise TextFileError(f"{path}: belongs to user {status.st_uid}; chown it to {os.geteuid()}")
        if status.st_mode & _EXECUTE:
            raise TextFileError(f"{path}: mode {stat.S_IMODE(status.st_mode):04o} is executable; chmod a-x it")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise TextFileError(f"{path}: longer than {MOST_BYTES} bytes")
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise TextFileError(f"{path}: {error}") from error
    _check(path, found)
    names = tuple(sorted(found.data_list[0].label)) if before is None else before.labels
    if before is not None and (found.name, found.desc, found.version) != (before.name, before.desc, before.version):
        raise TextFileError(f"{path}: name, desc and version must stay as they were at the start ({before.name})")
    rows = tuple((tuple(item.label.get(name, "") for name in names), item.value) for item in found.data_list)
    return TextMetric(str(path), found.name, found.desc, found.version, names, found.timestamp // 1000, rows)


def _check(path: Path, found: _File) -> None:
    rules = (
        ("version", found.version == VERSION, f"must be {VERSION}"),
        ("name", 1 <= len(found.name) <= LONGEST_NAME and METRIC_NAME.fullmatch(found.name) is not None,
         f"must be a metric name of 1 to {LONGEST_NAME} characters"),
        ("desc", 1 <= len(found.desc) <= LONGEST_DESC, f"must have 1 to {LONGEST_DESC} characters"),
        ("timestamp", found.timestamp > 0, "must be microseconds since 1970"),
        ("data_list", 1 <= len(found.data_list) <= MOST_ITEMS, f"must have 1 to {MOST_ITEMS} items"),
    )  # fmt: skip
    for field, kept, rule in rules:
        if not kept:
            raise TextFileError(f"{path}: {field}: {rule}")
    labels = found.data_list[0].label
    if len(labels) > MOST_LABELS or any(LABEL_NAME.fullmatch(name) is None for name in labels):
        raise TextFileError(f"{path}: data_list[0].label: at most {MOST_LABELS} labels, named by letters, digits and _")
