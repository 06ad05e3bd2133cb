"""A file of records, one line each, that survives crashes: ``<crc32> <json>``, synced before a method returns.

The agent keeps its durable state in such files. A line that a crash cut off was never synced, so no caller relied on
it; the file's owner decides what other damage means.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)


class LineFile:
    """One file, of which ``size`` bytes are known to be good. Methods raise OSError and have then changed nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def read(self) -> bytes:
        """Read all records and accept them as good. Raises FileNotFoundError when there is no file."""
        raw = self.path.read_bytes()
        self.size = len(raw)
        return raw

    def append(self, data: bytes) -> None:
        """Add lines."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            _write(descriptor, data)
            os.fsync(descriptor)
        except OSError:
            # a partial line may exist: cut it off, or the next one would be appended to it
            os.ftruncate(descriptor, self.size)
            raise
        finally:
            os.close(descriptor)
        self.size += len(data)

    def replace(self, data: bytes) -> None:
        """Replace all lines atomically."""
        fresh = self.path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.size = len(data)


def lines_of(records: Iterable[msgspec.Struct]) -> bytes:
    """Records as lines."""
    texts = map(msgspec.json.encode, records)
    return b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts)


def records_of(raw: bytes, kind: type[R]) -> Iterator[R]:
    """The records of all complete lines. Raises ValueError at the first damaged one, which it names."""
    *lines, _ = raw.split(b"\n")
    for number, line in enumerate(lines, start=1):
        code, _, text = line.partition(b" ")
        try:
            if int(code, 16) != zlib.crc32(text):
                raise ValueError("its sum is wrong")
            yield msgspec.json.decode(text, type=kind)
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"line {number} is damaged: {error}") from error


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
