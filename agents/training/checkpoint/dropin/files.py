"""``open_file`` and ``create_file``: bytes through the pool, for frameworks with their own formats (MindSpore).

Needs no torch.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from belay.agents.training.checkpoint import durable, sources
from belay.agents.training.checkpoint.dropin import process
from belay.agents.training.checkpoint.errors import CheckpointError


class Readable:
    """A file opened by :func:`open_file`, until :meth:`close`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = process.path_of(path)
        self._data: bytes | None = None
        self._file: sources.FileSource | None = None
        with process.client_of_process().resident(self.path) as slot:
            if slot is not None:
                # a copy, since the slot may be reused while the file is open
                self._data = bytes(slot.content)
                return
        self._file = sources.FileSource(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        self._data = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, offset: int = 0, count: int = -1) -> bytes:
        """``count`` bytes from ``offset`` (-1: to the end). Raises ``RuntimeError`` for a range outside of the file,
        ``ValueError`` for what is no number and for a closed file, ``Damaged``."""
        if type(offset) is not int or type(count) is not int:
            raise ValueError(f"offset {offset!r:.40} or count {count!r:.40} is not a whole number")
        if self._data is None and self._file is None:
            raise ValueError(f"{self.path} is closed")
        size = len(self._data) if self._data is not None else self._file.size if self._file is not None else 0
        end = size if count == -1 else offset + count
        if offset < 0 or count < -1 or offset > size or end > size:
            raise RuntimeError(f"{self.path} has {size} bytes: {count} from {offset} on cannot be read")
        if self._data is not None:
            return self._data[offset:end]
        assert self._file is not None
        return sources.read(self._file, offset, end - offset)


class Writable:
    """A file made by :func:`create_file`: it appears complete when it is closed, or not at all."""

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        self.path, self.mode = process.path_of(path), mode
        self._parts: list[bytes] = []
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.drop()
        self.close()

    def write(self, data: bytes | bytearray | memoryview | list[Any]) -> int:
        """Add bytes, or a list of them; returns how many. Raises ``TypeError``, ``ValueError`` when closed."""
        if not self._open:
            raise ValueError(f"{self.path} is closed")
        parts = data if isinstance(data, list) else [data]
        for part in parts:
            if not isinstance(part, bytes | bytearray | memoryview):
                raise TypeError(f"only bytes are written, not {type(part).__name__}")
        self._parts += [bytes(part) for part in parts]
        return sum(len(part) for part in parts)

    def drop(self) -> None:
        """Drop the written data: no file appears, an old one stays."""
        self._parts, self._open = [], False

    def close(self) -> int:
        """Save the file: 0, or -1 with the reason in the log."""
        if not self._open:
            return 0
        self._open = False
        data = bytearray().join(self._parts)
        self._parts = []
        try:
            self._hand_over(data)
            return 0
        except OSError as error:
            process.log.error("%s was not written: %s", self.path, error)
            return -1

    def _hand_over(self, data: bytearray) -> None:
        client = process.client_of_process()
        try:
            if not self.path.parent.is_dir():
                raise CheckpointError(f"{self.path.parent} is not a folder")
            ticket = client.allocate(len(data))
            ticket.memory.content(len(data))[:] = data
            client.commit(ticket, (self.path,), self.mode)
        except CheckpointError as error:
            process.log.warning("%s; %s is written directly", error, self.path)
            durable.write(self.path, memoryview(data), mode=self.mode)


def open_file(path: str | os.PathLike[str]) -> Readable:
    """``with open_file(path) as file: file.read(offset, count)``. Raises ``FileNotFoundError``."""
    return Readable(path)


def create_file(path: str | os.PathLike[str], mode: int = 0o600) -> Writable:
    """``with create_file(path) as file: file.write(data)``; leaving by an exception drops the file."""
    return Writable(path, mode)
