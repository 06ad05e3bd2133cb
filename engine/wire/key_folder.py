"""A folder of key files, as kubelet mounts a Secret: ``*.pub`` and a few files by name, read again when they change.

The folder is an argument: this module opens nothing by a path of its own.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from typing import Any, Final, Protocol

from belay.engine.wire.seals import MAX_PEM

MAX_KEYS: Final = 32
"""Most public keys of a folder that count, by name."""
Stamp = tuple[tuple[str, int, int], ...]


class KeyFile(Protocol):
    """What is needed of a file; ``pathlib.Path`` has it."""

    @property
    def name(self) -> str:
        """The file's name without folders."""

    def stat(self) -> Any:
        """Its size and time of change."""

    def read_bytes(self) -> bytes:
        """Its content."""


class Folder(Protocol):
    """What is needed of a folder; ``pathlib.Path`` has it."""

    def is_dir(self) -> bool:
        """Whether it is there."""

    def glob(self, pattern: str, /) -> Iterable[KeyFile]:
        """Its files by pattern."""

    def __truediv__(self, name: str, /) -> KeyFile:
        """One file of it."""


class KeyFolder:
    """The public keys and the named files of a folder; None is a folder without files."""

    def __init__(self, folder: Folder | None, *names: str) -> None:
        self._folder = folder
        self._names = names

    def stamp(self) -> Stamp:
        """A value that changes with the files."""
        found = []
        for file in self._files():
            try:
                status = file.stat()
            except OSError:
                continue
            found.append((file.name, int(status.st_mtime_ns), int(status.st_size)))
        return tuple(found)

    def read(self) -> dict[str, bytes]:
        """The content of each file that is there, public keys first.

        Raises:
            ValueError: a file cannot be read, is a pipe or device, or is larger than MAX_PEM; the message names it and
                shows no content.
        """
        contents: dict[str, bytes] = {}
        for file in self._files():
            try:
                status = file.stat()
                if not stat.S_ISREG(status.st_mode):
                    raise ValueError(f"{file} is not a regular file")  # a pipe hangs its reader, /dev/zero never ends
                if status.st_size > MAX_PEM:
                    raise ValueError(f"{file} is larger than {MAX_PEM} bytes")
                contents[file.name] = file.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ValueError(f"{file} cannot be read: {error.strerror}") from error
        return contents

    def place(self, name: str) -> str:
        """Where a file of that name is, for messages."""
        return str(self._folder / name) if self._folder is not None else name

    def _files(self) -> list[KeyFile]:
        if self._folder is None or not self._folder.is_dir():
            return []
        public = sorted(self._folder.glob("*.pub"), key=lambda file: file.name)[:MAX_KEYS]
        return [*public, *(self._folder / name for name in self._names)]


__all__ = ["MAX_KEYS", "KeyFolder", "Stamp"]
