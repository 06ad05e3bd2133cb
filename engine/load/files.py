"""Files that do not come from Git: a directory, and the policies shipped with Belay."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from belay.engine.errors import InputError
from belay.engine.load.yaml12 import MAX_BYTES
from belay.engine.shipped_files import shipped_root

SUFFIXES: Final = (".yaml", ".yml", ".json")
MAX_FILES: Final = 20_000
ROOTS: Final = ("desired", "policies")
_NO_TEXT: Final = re.compile(r"[\ud800-\udfff]")
"""Surrogates, by which Python stands for bytes in file names that are not UTF-8."""


def is_document(path: str) -> bool:
    """Whether a file of a state repository is read: YAML or JSON, not hidden, not a JSON Schema for editors."""
    if not path.lower().endswith(SUFFIXES) or path.startswith(".") or "/." in path:
        return False
    return not (path.lower().endswith(".json") and f"/{path}".rpartition("/")[0].endswith("/schemas"))


def load_directory(path: str | os.PathLike[str]) -> Mapping[str, bytes]:
    """The documents below a directory, by path relative to it with ``/``.

    A directory with a folder ``desired`` or ``policies`` is a state repository, of which only these are read; any other
    directory is read whole. Of a file larger than 1 MiB, just enough is read for ``load`` to refuse it.

    Raises:
        InputError: no such directory, more than 20,000 documents, or a symbolic link to a folder, to nothing, or out
            of the directory.
    """
    root = Path(path)
    if not root.is_dir():
        raise InputError("no such directory", where=str(path), hint="Name a folder that holds desired/ or policies/")
    rooms = [root / room for room in ROOTS if (root / room).is_dir()]
    files: dict[str, bytes] = {}
    for top in rooms or [root]:
        for file in _walk(root, top):
            name = file.relative_to(root).as_posix()
            if not is_document(name):
                continue
            if _NO_TEXT.search(name):
                raise InputError("a file name is not UTF-8", where=ascii(name), hint="Rename the file")
            if len(files) == MAX_FILES:
                raise InputError(f"more than {MAX_FILES} documents", where=str(path), hint="Split the repository")
            files[name] = _read(file)
    return files


def _walk(root: Path, top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            _check_own_folder(Path(folder, name))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.lower().endswith(SUFFIXES) or name.startswith("."):
                continue
            if file.is_symlink() and not _target(file).is_relative_to(root.resolve()):
                text = "a symbolic link leads out of the directory"
                raise InputError(text, where=str(file), hint="Copy the file here")
            if file.is_file():
                yield file


def _check_own_folder(folder: Path) -> None:
    """Raises InputError for a link to a folder: what reads the repository's commits refuses it, so that the documents
    behind it would be missing there."""
    if folder.is_symlink():
        raise InputError("a symbolic link in place of a folder is not followed, so no document in it counts",
                         where=str(folder), hint="Move the folder here, or link its files one by one")  # fmt: skip


def _target(link: Path) -> Path:
    try:
        target = link.resolve()
    except (OSError, RuntimeError) as problem:  # Python 3.11 raises RuntimeError for a link to itself
        raise _leads_nowhere(link) from problem
    if not target.exists():
        raise _leads_nowhere(link)
    return target


def _leads_nowhere(link: Path) -> InputError:
    return InputError("a symbolic link leads nowhere", where=str(link), hint="Remove it")


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as problem:
        text = f"cannot be read: {problem.strerror}"
        raise InputError(text, where=str(file), hint="Check its permissions") from problem


@cache
def shipped_policies() -> Mapping[str, bytes]:
    """The policies that come with Belay, by path such as ``policies/products/atlas-800t-a2.yaml``.

    Raises:
        InputError: the installation lacks them.
    """
    return {name: data for name, data in load_directory(shipped_root()).items() if name.startswith("policies/")}
