"""Reading commits, trees and blobs of one repository."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from engine.errors import SourceError, bounded
from engine.log import redact
from engine.source.git import Git, GitFailed
from engine.source.records import MAX_MESSAGE, Limits
from engine.source.tree import LINK, REGULAR, ROOTS, Entry, Target, inside

MAX_LINK: Final = 4096
"""Longest text of a symlink, in bytes."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit says about itself; times are unix seconds, texts bounded."""

    sha: str
    author: str
    authored: float
    committed: float
    subject: str


class Version(msgspec.Struct, frozen=True):
    """One file as a commit left it."""

    sha: str
    blob: str
    mode: str


class Change(msgspec.Struct, frozen=True):
    """One path that differs between two commits. A removed path has mode `000000`."""

    mode: str
    blob: str
    path: bytes


class Objects:
    """The object store of one repository, read with plumbing commands. Every method raises GitFailed when the store
    cannot answer."""

    def __init__(self, git: Git, limits: Limits) -> None:
        self.git = git
        self._limits = limits

    def has_commit(self, sha: str) -> bool:
        """Tell whether the commit is here."""
        return self.git.run("cat-file", "-e", f"{sha}^{{commit}}", ok=(0, 1, 128)).code == 0

    def resolve(self, name: str) -> str | None:
        """Return the commit that a full reference name points to, or None."""
        output = self.git.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", ok=(0, 1, 128)
        )
        return output.data.decode().strip() if output.code == 0 else None

    def is_ancestor(self, old: str, new: str) -> bool:
        """Tell whether `new` was made on top of `old`; False when `old` is unknown here."""
        return self.git.run("merge-base", "--is-ancestor", old, new, ok=(0, 1, 128)).code == 0

    def commit(self, sha: str) -> Commit:
        """Return what the commit says about itself."""
        output = self.git.run("log", "-1", "--no-color", "--format=%an <%ae>%x00%at%x00%ct%x00%s", sha, "--")
        author, authored, committed, subject = (_text(part) for part in output.data.rstrip(b"\n").split(b"\x00", 3))
        return Commit(
            sha=sha, author=author, authored=_seconds(authored), committed=_seconds(committed), subject=subject
        )

    def entries(self, sha: str, prefix: str) -> list[Entry]:
        """List every leaf below desired/ and policies/. Raises SourceError TooManyFiles when the listing itself is too
        large."""
        try:
            output = self.git.run(
                "ls-tree", "-r", "-z", "--long", "--full-tree", sha, "--", *(prefix + root for root in ROOTS)
            )
        except GitFailed as error:
            if error.reason == "GitOutputTooLarge":
                raise SourceError(
                    "TooManyFiles", "the list of files is too large", hint="Split the repository"
                ) from error
            raise
        return [_entry(record) for record in output.data.split(b"\x00") if record]

    def changes(self, old: str, new: str, prefix: str) -> list[Change]:
        """List the paths below desired/ and policies/ that differ between two commits."""
        output = self.git.run(
            "diff-tree",
            "-r",
            "-z",
            "--raw",
            "--no-abbrev",
            "--no-renames",
            "--no-ext-diff",
            old,
            new,
            "--",
            *(prefix + root for root in ROOTS),
        )
        fields = output.data.split(b"\x00")
        return [_change(fields[at], fields[at + 1]) for at in range(0, len(fields) - 1, 2)]

    def sizes(self, blobs: Iterable[str]) -> dict[str, int]:
        """Return the size of each blob in bytes. Raises GitFailed when one is missing."""
        wanted = list(dict.fromkeys(blobs))
        if not wanted:
            return {}
        output = self.git.run(
            "cat-file",
            "--batch-check=%(objectname) %(objecttype) %(objectsize)",
            data="".join(f"{b}\n" for b in wanted).encode(),
        )
        found: dict[str, int] = {}
        for line in output.data.decode().splitlines():
            name, kind, *size = line.split(" ")
            if kind != "blob":
                raise GitFailed("ObjectMissing", f"object {bounded(name, 60)} is missing", transient=True)
            found[name] = int(size[0])
        return found

    def read(self, blobs: Sequence[str]) -> dict[str, bytes]:
        """Return the contents of each blob. Raises GitFailed when one is missing, SourceError TreeTooLarge beyond the
        total limit."""
        if not blobs:
            return {}
        try:
            output = self.git.run(
                "cat-file",
                "--batch",
                data="".join(f"{b}\n" for b in blobs).encode(),
                limit=self._limits.total + 128 * len(blobs) + 4096,
            )
        except GitFailed as error:
            if error.reason == "GitOutputTooLarge":
                raise SourceError(
                    "TreeTooLarge", f"the blobs hold more than {self._limits.total} bytes together"
                ) from error
            raise
        return _contents(output.data, len(blobs))

    def follow(self, sha: str, entry: Entry) -> Target:
        """Resolve a symlink of a commit to the regular file it points to inside the same commit."""
        if entry.size > MAX_LINK:
            return Target(refusal="the symlink's text is too long")
        text = self.read([entry.blob])[entry.blob]
        try:
            target = inside(entry.path.decode(), text.decode())
        except UnicodeDecodeError:
            return Target(refusal="the symlink's text is not UTF-8")
        if target is None:
            return Target(refusal="the symlink leaves the repository")
        output = self.git.run("ls-tree", "-z", "--long", "--full-tree", sha, "--", target)
        found = [_entry(record) for record in output.data.split(b"\x00") if record]
        if len(found) != 1 or found[0].path != target.encode() or found[0].mode not in REGULAR:
            what = "another symlink" if found and found[0].mode == LINK else "no regular file of the repository"
            return Target(refusal=f"the symlink points to {what}")
        return Target(blob=found[0].blob, size=found[0].size)

    def versions(self, sha: str, path: str, limit: int) -> list[Version]:
        """List the versions of one file (repository path), newest first, along first parents from `sha`; deletions are
        left out."""
        output = self.git.run(
            "log", "-z", "--first-parent", "--diff-merges=first-parent", "--no-color", "--raw", "--no-abbrev",
            "--no-renames", f"--max-count={limit}", "--format=tformat:commit %H", sha, "--", path,
        )  # fmt: skip
        versions: list[Version] = []
        current = ""
        for field in output.data.split(b"\x00"):
            if field.startswith(b"commit "):
                current = field[7:].decode()
            elif (raw := field.lstrip(b"\n")).startswith(b":"):
                _, mode, _, blob, _ = raw[1:].decode().split(" ", 4)
                if blob.strip("0"):
                    versions.append(Version(current, blob, mode))
        return versions


def _entry(record: bytes) -> Entry:
    meta, _, path = record.partition(b"\t")
    mode, _kind, blob, size = meta.decode("ascii").split()
    return Entry(mode, blob, path, int(size) if size != "-" else 0)


def _change(meta: bytes, path: bytes) -> Change:
    _, mode, _, blob, _ = meta[1:].decode("ascii").split(" ", 4)
    return Change(mode, blob, path)


def _contents(data: bytes, count: int) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    at = 0
    for _ in range(count):
        end = data.find(b"\n", at)
        header = data[at:end].decode("utf-8", "replace").split(" ") if end >= 0 else []
        if len(header) != 3 or header[1] != "blob":
            raise GitFailed(
                "ObjectMissing", f"object {bounded(' '.join(header) or '?', 60)} cannot be read", transient=True
            )
        size = int(header[2])
        contents[header[0]] = data[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return contents


def _text(raw: bytes) -> str:
    text = redact(raw.decode("utf-8", "replace"))
    return bounded("".join(c if c.isprintable() else " " for c in text), MAX_MESSAGE)


def _seconds(text: str) -> float:
    # a forged commit may carry an absurd time; it is only shown
    return float(text) if text.lstrip("-").isdigit() and len(text) < 14 else 0.0
