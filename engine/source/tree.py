"""Which files of a tree are read, and which are refused: the same rules for commits and folders on disk."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from belay.engine.errors import SourceError, bounded
from belay.engine.source.records import MAX_MESSAGE, Limits, RefusedFile

ROOTS: Final = ("desired", "policies")
EXTENSIONS: Final = (".yaml", ".yml", ".json")
MAX_PROBLEMS: Final = 100
"""Refused files that are listed by name; the rest is a count."""

REGULAR: Final = frozenset({"100644", "100755", "100664"})
LINK: Final = "120000"
SUBMODULE: Final = "160000"
SPECIAL: Final = "special"
"""Pseudo mode of a socket, pipe or device on disk."""


class TreeEntry(msgspec.Struct, frozen=True):
    """One leaf of a tree: git mode, blob id, repository path as bytes, size in bytes."""

    mode: str
    blob: str
    path: bytes
    size: int


class LinkTarget(msgspec.Struct, frozen=True):
    """The target of a symlink: a regular file's blob, or why it is refused."""

    blob: str = ""
    size: int = 0
    refusal: str = ""


class TreeSelection(msgspec.Struct, frozen=True):
    """Accepted files (path below the prefix → blob id) and their sizes, refused files, and whether any is a symlink."""

    files: Mapping[str, str]
    sizes: Mapping[str, int]
    problems: tuple[RefusedFile, ...]
    links: bool


def is_document_path(path: str) -> bool:
    """Whether a path (below the prefix) is that of a document."""
    root, slash, _ = path.partition("/")
    return bool(slash) and root in ROOTS and path.lower().endswith(EXTENSIONS)


def may_declare(path: str) -> bool:
    """Whether the file of a document path can declare anything: it is not hidden, and no JSON Schema for editors."""
    folder = f"/{path}".rpartition("/")[0]
    return "/." not in f"/{path}" and not (path.lower().endswith(".json") and folder.endswith("/schemas"))


def select(
    entries: Iterable[TreeEntry], prefix: str, limits: Limits, follow: Callable[[TreeEntry], LinkTarget]
) -> TreeSelection:
    """Select the files to read. Single bad files are refused by name; a tree beyond the limits raises SourceError
    TooManyFiles or TreeTooLarge."""
    files: dict[str, str] = {}
    sizes: dict[str, int] = {}
    problems: list[RefusedFile] = []
    links = False
    total = 0
    for entry in entries:
        path, refusal = _name(entry, prefix)
        if not (is_document_path(path) if refusal is None else _is_odd_document(entry.path)) and entry.mode in REGULAR:
            continue
        blob, size = entry.blob, entry.size
        if refusal is None and entry.mode == LINK:
            links = True
            if not is_document_path(path) and path not in ROOTS and not _maybe_folder(path):
                continue
            target = (
                follow(entry)
                if is_document_path(path)
                else LinkTarget(refusal="a symlink in place of a folder is not followed")
            )
            blob, size = target.blob, target.size
            refusal = ("LinkRefused", target.refusal) if target.refusal else None
        elif refusal is None:
            refusal = _kind(entry)
        if refusal is None and size > limits.blob:
            refusal = ("FileTooLarge", f"{size} bytes; the limit is {limits.blob}")
        if refusal is not None:
            problems.append(RefusedFile(path, *refusal))
            continue
        files[path], sizes[path] = blob, size
        total += size
        if len(files) > limits.files:
            raise SourceError(
                "TooManyFiles", f"the tree holds more than {limits.files} files", hint="Split the repository"
            )
        if total > limits.total:
            raise SourceError(
                "TreeTooLarge", f"the files hold more than {limits.total} bytes together", hint="Split the repository"
            )
    return TreeSelection(files, sizes, tuple(sorted(problems)), links)


def resolve_link(link: str, target: str) -> str | None:
    """Return the repository path that a symlink at `link` points to by its text `target`, or None when it leaves the
    repository."""
    if target.startswith("/") or not target or "\x00" in target:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
    parts = path.split("/")
    return None if parts[0] == ".." or ".git" in (part.lower() for part in parts) else path


def changed_paths(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths that were added, changed or removed, sorted."""
    return tuple(sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path)))


def capped(problems: tuple[RefusedFile, ...]) -> tuple[RefusedFile, ...]:
    """Return at most MAX_PROBLEMS problems; the last one counts the others."""
    if len(problems) <= MAX_PROBLEMS:
        return problems
    rest = len(problems) - MAX_PROBLEMS + 1
    return (*problems[: MAX_PROBLEMS - 1], RefusedFile("", "MoreRefused", f"{rest} more files are refused"))


def _name(entry: TreeEntry, prefix: str) -> tuple[str, tuple[str, str] | None]:
    raw = entry.path[len(prefix.encode()) :]
    try:
        path = raw.decode("utf-8")
    except UnicodeDecodeError:
        return _printable(raw), ("NameRefused", "the name is not UTF-8")
    if any(ord(c) < 32 or ord(c) == 127 for c in path):
        return _printable(raw), ("NameRefused", "the name holds control characters")
    return path, None


def _is_odd_document(raw: bytes) -> bool:
    return raw.lower().endswith(tuple(extension.encode() for extension in EXTENSIONS))


def _kind(entry: TreeEntry) -> tuple[str, str] | None:
    if entry.mode in REGULAR:
        return None
    if entry.mode == SUBMODULE:
        return "SubmoduleRefused", "a submodule (or a repository inside the repository) is not read"
    return "NotAFile", f"mode {entry.mode} is not a regular file"


def _maybe_folder(path: str) -> bool:
    """Whether a link may point to a folder of documents: a link without an extension does, and is reported."""
    return "." not in posixpath.basename(path)


def _printable(raw: bytes) -> str:
    return bounded(raw.decode("utf-8", "backslashreplace").encode("unicode_escape").decode("ascii"), MAX_MESSAGE)
