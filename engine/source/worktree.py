"""A local folder as a source, uncommitted changes included.

Files are named by the blob id that git would give them (sha1 over `blob <size>NUL<content>`; git's documentation of
hash-object), so that documents cached from a commit are found again in a folder, and vice versa. Filters and
line-end conversion are not applied.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from belay.engine.errors import SourceError
from belay.engine.source.git import Git, GitFailed
from belay.engine.source.objects import MAX_LINK
from belay.engine.source.records import Limits
from belay.engine.source.tree import (
    EXTENSIONS,
    LINK,
    ROOTS,
    SPECIAL,
    SUBMODULE,
    LinkTarget,
    TreeEntry,
    TreeSelection,
    resolve_link,
    select,
)

_RACY_NS: Final = 50_000_000
"""A file that changed within this time before it was hashed may change again with the same time stamp."""

_BUSY_SECONDS: Final = 30.0
_MAX_DEPTH: Final = 32
_REGULAR: Final = "100644"


class _Seen(msgspec.Struct, frozen=True):
    stamp: tuple[int, int, int, int]
    hashed: int
    blob: str


class Snapshot(msgspec.Struct, frozen=True):
    """Content of the folder at one moment, and when its newest accepted file was changed (Unix seconds)."""

    selection: TreeSelection
    newest: float


class WorkTree:
    """Reads desired/ and policies/ below `root/prefix`, hashing only files whose time stamps changed."""

    def __init__(self, root: Path, prefix: str, limits: Limits) -> None:
        self.root = root
        self._prefix = prefix
        self._limits = limits
        self._seen: dict[bytes, _Seen] = {}
        self._contents: dict[str, bytes] = {}

    @property
    def git(self) -> Git | None:
        """git in this folder, or None when it is a plain folder."""
        return Git(self.root, timeout=self._limits.local_timeout) if (self.root / ".git").exists() else None

    def busy(self) -> bool:
        """Whether git is changing the folder now (a checkout, a merge), so that files may be missing for a moment."""
        try:
            age = time.time() - (self.root / ".git" / "index.lock").stat().st_mtime
        except OSError:
            return False
        return age < _BUSY_SECONDS

    def snapshot(self, known: frozenset[str] | set[str]) -> Snapshot:
        """Hash the folder. Contents of blobs outside `known` (those that git has) are kept until the next
        snapshot. Raises SourceError TooManyFiles, TreeTooLarge or Unreadable."""
        seen: dict[bytes, _Seen] = {}
        contents: dict[str, bytes] = {}
        newest = 0.0
        entries: list[TreeEntry] = []
        ignored = self._ignored()
        for path, status in self._walk():
            if path in ignored or any(path.startswith(folder) for folder in ignored if folder.endswith(b"/")):
                continue
            entry = self._entry(path, status, seen, contents, known)
            entries.append(entry)
            if entry.mode == _REGULAR:
                newest = max(newest, status.st_mtime)
            if len(entries) > 4 * self._limits.files:
                raise SourceError(
                    "TooManyFiles",
                    f"the folder holds more than {4 * self._limits.files} files",
                    hint="Split the repository",
                )
        selection = select(
            entries, self._prefix, self._limits, lambda entry: self._follow(entry, seen, contents, known)
        )
        wanted = set(selection.files.values())
        self._seen, self._contents = seen, {blob: content for blob, content in contents.items() if blob in wanted}
        return Snapshot(selection, newest)

    def contents(self, blob: str) -> bytes | None:
        """Return the content of an uncommitted blob of the last snapshot."""
        return self._contents.get(blob)

    def _walk(self) -> Iterator[tuple[bytes, os.stat_result]]:
        base = os.fsencode(self.root)
        pending = [(os.fsencode(self._prefix + root), 0) for root in reversed(ROOTS)]
        while pending:
            folder, depth = pending.pop()
            try:
                top = os.lstat(os.path.join(base, folder))
                if not stat.S_ISDIR(top.st_mode):
                    yield folder, top
                    continue
                children = sorted(os.scandir(os.path.join(base, folder)), key=lambda child: child.name, reverse=True)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SourceError(
                    "Unreadable", f"{os.fsdecode(folder)} cannot be read: {error.strerror}", transient=True
                ) from error
            if depth and any(child.name == b".git" for child in children):
                yield folder, top
                continue
            for child in children:
                path = folder + b"/" + child.name
                if child.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
                    pending.append((path, depth + 1))
                # lock links and swap files of editors come and go
                elif not child.name.startswith(b".#"):
                    with contextlib.suppress(FileNotFoundError):
                        yield path, child.stat(follow_symlinks=False)

    def _ignored(self) -> set[bytes]:
        git = self.git
        if git is None:
            return set()
        roots = [self._prefix + root for root in ROOTS]
        try:
            output = git.run(
                "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory", "--", *roots
            )
        except GitFailed:
            # a folder that git cannot read is still a folder; resolving HEAD reports the error
            return set()
        return {os.fsencode(name.decode("utf-8", "surrogateescape")) for name in output.data.split(b"\x00") if name}

    def _entry(
        self,
        path: bytes,
        status: os.stat_result,
        seen: dict[bytes, _Seen],
        contents: dict[str, bytes],
        known: set[str] | frozenset[str],
    ) -> TreeEntry:
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            return TreeEntry(LINK, "", path, status.st_size)
        if stat.S_ISDIR(mode):
            return TreeEntry(SUBMODULE, "", path, 0)
        if not stat.S_ISREG(mode):
            return TreeEntry(SPECIAL, "", path, 0)
        if not path.lower().endswith(tuple(e.encode() for e in EXTENSIONS)) or status.st_size > self._limits.blob:
            return TreeEntry(_REGULAR, "", path, status.st_size)
        blob, size = self._hash(path, status, seen, contents, known)
        return TreeEntry(_REGULAR, blob, path, size)

    def _hash(
        self,
        path: bytes,
        status: os.stat_result,
        seen: dict[bytes, _Seen],
        contents: dict[str, bytes],
        known: set[str] | frozenset[str],
    ) -> tuple[str, int]:
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)
        cached = self._seen.get(path)
        if cached and cached.stamp == stamp and stamp[0] + _RACY_NS < cached.hashed:
            content = self._contents.get(cached.blob)
            if content is not None or cached.blob in known:
                seen[path] = cached
                if content is not None:
                    contents[cached.blob] = content
                return cached.blob, status.st_size
        hashed = time.time_ns()
        content = self._content(path)
        blob = blob_id(content)
        seen[path] = _Seen(stamp, hashed, blob)
        if blob not in known:
            contents[blob] = content
        return blob, len(content)

    def _content(self, path: bytes) -> bytes:
        try:
            descriptor = os.open(
                os.path.join(os.fsencode(self.root), path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError as error:
            raise SourceError(
                "Unreadable",
                f"{path.decode('utf-8', 'backslashreplace')} cannot be read: {error.strerror}",
                transient=True,
            ) from error
        with os.fdopen(descriptor, "rb") as file:
            return file.read(self._limits.blob + 1)

    def _follow(
        self, entry: TreeEntry, seen: dict[bytes, _Seen], contents: dict[str, bytes], known: set[str] | frozenset[str]
    ) -> LinkTarget:
        if entry.size > MAX_LINK:
            return LinkTarget(refusal="the symlink's text is too long")
        base = os.fsencode(self.root)
        try:
            target = resolve_link(entry.path.decode(), os.readlink(os.path.join(base, entry.path)).decode())
        except (UnicodeDecodeError, OSError):
            return LinkTarget(refusal="the symlink cannot be read")
        if target is None:
            return LinkTarget(refusal="the symlink leaves the repository")
        path = target.encode()
        parts = path.split(b"/")
        try:
            folders = [os.lstat(os.path.join(base, *parts[:depth])) for depth in range(1, len(parts))]
            status = os.lstat(os.path.join(base, path))
        except OSError:
            return LinkTarget(refusal="the symlink points to no regular file of the repository")
        if stat.S_ISLNK(status.st_mode) or any(stat.S_ISLNK(folder.st_mode) for folder in folders):
            return LinkTarget(refusal="the symlink points to another symlink")
        if not stat.S_ISREG(status.st_mode):
            return LinkTarget(refusal="the symlink points to no regular file of the repository")
        if status.st_size > self._limits.blob:
            return LinkTarget(size=status.st_size)
        return LinkTarget(*self._hash(path, status, seen, contents, known))


def blob_id(content: bytes) -> str:
    """Return the id git gives to a blob of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def digest(selection: TreeSelection) -> str:
    """Return the name of an uncommitted state: `worktree-` and 40 hex digits over paths and blobs."""
    total = hashlib.sha256()
    for path, blob in sorted(selection.files.items()):
        total.update(f"{path}\0{blob}\n".encode())
    for problem in selection.problems:
        total.update(f"!{problem.path}\0{problem.reason}\n".encode("utf-8", "backslashreplace"))
    return f"worktree-{total.hexdigest()[:40]}"
