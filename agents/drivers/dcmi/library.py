"""Find, verify and load `libdcmi.so`, and call its functions by name.

Rules of component/ascend-common/devmanager/dcmi/dcmi.go: each folder of LD_LIBRARY_PATH, then the loader's cache; the
file and every folder above it must belong to root and be writable by root only.
"""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from belay.agents.drivers.dcmi import prototypes
from belay.agents.drivers.dcmi.errors import SYMBOL_MISSING, DcmiError
from belay.agents.drivers.failures import DriverError

NAME = "libdcmi.so"
MAX_PATH_TEXT = 1024
MAX_DEPTH = 20
CACHE_SECONDS = 10.0


def find(library_path: str, name: str = NAME, *, cache: Callable[[], str] | None = None) -> Path:
    """Return the path of the library.

    ``library_path`` is the value of LD_LIBRARY_PATH. Raises DriverError that lists the searched folders, or states
    that the variable is longer than 1024 characters.
    """
    if len(library_path) > MAX_PATH_TEXT:
        raise DriverError(f"LD_LIBRARY_PATH is longer than {MAX_PATH_TEXT} characters; shorten it")
    for folder in library_path.split(":"):
        if folder and (file := Path(folder) / name).is_file():
            return file
    for line in (cache or _loader_cache)().splitlines():
        entry, arrow, target = line.strip().partition(" => ")
        if arrow and entry.split(" ")[0] == name and Path(target).is_file():
            return Path(target)
    raise DriverError(f"{name} is neither in LD_LIBRARY_PATH nor in the loader's cache; is the NPU driver installed?")


def _loader_cache() -> str:
    for command in ("ldconfig", "/sbin/ldconfig"):
        try:
            done = subprocess.run(
                [command, "--print-cache"], capture_output=True, text=True, timeout=CACHE_SECONDS, check=False
            )
            return done.stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
    return ""


def trusted(file: Path, owners: frozenset[int] = frozenset({0})) -> None:
    """Return if only root could have put this file there.

    Raises DriverError that names the path, its owner or mode, and what to do.
    """
    if file.is_symlink() and file.lstat().st_uid not in owners:
        raise DriverError(f"{file}: the link belongs to user {file.lstat().st_uid}, not to root; chown it")
    real = file.resolve(strict=True)
    for path in _upwards(real):
        status = path.stat()
        if status.st_uid not in owners:
            raise DriverError(f"{path}: belongs to user {status.st_uid}, not to root; chown it")
        # in a folder with the sticky bit no other user can replace root's file
        if status.st_mode & 0o022 and not (path != real and status.st_mode & stat.S_ISVTX):
            raise DriverError(f"{path}: mode {stat.S_IMODE(status.st_mode):04o} lets others write; chmod go-w it")


def _upwards(path: Path) -> Iterator[Path]:
    yield path
    for depth, parent in enumerate(path.parents):
        if depth >= MAX_DEPTH:
            raise DriverError(f"{path}: more than {MAX_DEPTH} folders deep")
        yield parent


_subscribed: Final[list[Any]] = []


class Library:
    """The loaded library. ``call`` is thread-safe: ctypes releases the interpreter lock while it runs."""

    def __init__(self, file: Path) -> None:
        try:
            self._lib = ctypes.CDLL(str(file), mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
        except OSError as error:
            raise DriverError(f"{file}: cannot be loaded: {error}"[:300]) from error
        self.file = file
        self._bound: dict[str, Any] = {}

    def has(self, name: str) -> bool:
        """Return whether the library has this function."""
        return self._function(name) is not None

    def call(self, name: str, *arguments: Any) -> None:
        """Call; raises DcmiError unless it returns 0."""
        function = self._function(name)
        if function is None:
            raise DcmiError(name, SYMBOL_MISSING)
        code = function(*arguments)
        if code != 0:
            raise DcmiError(name, code)

    def subscribe(self, name: str, *arguments: Any) -> None:
        """Call with a callback as the last argument, which the library's own thread calls from now on.

        Libraries keep the pointer, and have no call that returns it: the callback is kept for the life of the process,
        whatever object subscribed. A freed one would end the process.
        """
        _subscribed.append(arguments[-1])
        self.call(name, *arguments)

    def _function(self, name: str) -> Any:
        if name not in self._bound:
            function = getattr(self._lib, name, None)
            if function is not None:
                function.argtypes = list(prototypes.ALL[name])
                function.restype = ctypes.c_int
            self._bound[name] = function
        return self._bound[name]
