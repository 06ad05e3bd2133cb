"""Reads commits, trees and blobs of one repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from belay.engine.errors import SourceError, bounded
from belay.engine.log import redact
from belay.engine.source.git import Git, GitFailed
from belay.engine.source.records import MAX_MESSAGE, Limits
from belay.engine.source.tree import LINK, REGULAR, ROOTS, LinkTarget, TreeEntry, is_document_path, resolve_link

MAX_TRAILED: Final = 2000
"""Most commits whose trailers are read."""
_COMMIT: Final = re.compile(r"^[0-9a-f]{40}([0-9a-f]{24})?$")
MAX_LINK: Final = 4096
"""Longest text of a symlink, in bytes."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a commit; times are Unix seconds, texts are bounded."""

    sha: str
    author: str
    authored: float
    committed: float
    subject: str


class BlobVersion(msgspec.Struct, frozen=True):
    """One file as of a commit."""

    sha: str
    blob: str
    mode: str


class PathChange(msgspec.Struct, frozen=True):
    """One path that differs between two commits. A removed path has mode `000000`."""

    mode: str
    blob: str
    path: bytes


class ObjectStore:
    """The object store of one repository, read with plumbing commands. Every method raises GitFailed when the store
    cannot answer."""

    def __init__(self, git: Git, limits: Limits) -> None:
        self.git = git
        self._limits = limits

    def has_commit(self, sha: str) -> bool:
        """Whether the store has the commit."""
        return self.git.run("cat-file", "-e", f"{sha}^{{commit}}", ok=(0, 1, 128)).code == 0

    def resolve(self, name: str) -> str | None:
        """Return the commit that a full reference name points to, or None."""
        output = self.git.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", ok=(0, 1, 128)
        )
        return output.data.decode("ascii", "replace").strip() if output.code == 0 else None

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether `old` is an ancestor of `new`; False when `old` is unknown here."""
        return self.git.run("merge-base", "--is-ancestor", old, new, ok=(0, 1, 128)).code == 0

    def commit(self, sha: str) -> Commit:
        """Return the metadata of the commit."""
        output = self.git.run("log", "-1", "--no-color", "--format=%an <%ae>%x00%at%x00%ct%x00%s", sha, "--")
        parts = [_text(part) for part in output.data.rstrip(b"\n").split(b"\x00", 3)]
        if len(parts) != 4:
            raise GitFailed("ObjectMissing", f"commit {bounded(sha, 60)} cannot be read", transient=True)
        author, authored, committed, subject = parts
        return Commit(
            sha=sha, author=author, authored=_seconds(authored), committed=_seconds(committed), subject=subject
        )

    def trailers(self, base: str, tip: str, key: str) -> list[tuple[str, tuple[str, ...]]]:
        """The commits after ``base`` up to ``tip`` with a trailer, newest first, with its values.

        Only the tip is read where ``base`` is unknown here, e.g. after a branch was rewritten. At most ``MAX_TRAILED``
        commits are read. Trailers are those that `git interpret-trailers` finds.
        """
        known = bool(base) and _COMMIT.match(base) is not None and self.has_commit(base)
        span = ("--max-count", str(MAX_TRAILED), f"{base}..{tip}") if known else ("--max-count", "1", tip)
        form = f"tformat:%H%x00%(trailers:key={key},valueonly,unfold,separator=%x00)"
        output = self.git.run("log", "-z", "--no-color", f"--format={form}%x00%x01", *span, "--")
        found = []
        for record in output.data.split(b"\x00\x01\x00"):
            sha, *values = (_text(field).strip() for field in record.removesuffix(b"\x00\x01").split(b"\x00"))
            if wanted := tuple(value for value in values if value):
                found.append((sha, wanted))
        return found

    def earlier(self, base: str, tip: str, prefix: str) -> dict[str, str]:
        """Documents of ``base`` that differ or are missing in ``tip``: path below ``prefix`` and blob id; empty where
        ``base`` is unknown here.
        """
        if not _COMMIT.match(base) or not self.has_commit(base):
            return {}
        rows = [row for row in self.changes(tip, base, prefix) if row.mode in REGULAR]
        paths = [(row.path.removeprefix(prefix.encode()).decode("utf-8", "replace"), row.blob) for row in rows]
        sizes = self.sizes(blob for _, blob in paths)
        return {path: blob for path, blob in paths if is_document_path(path) and sizes[blob] <= self._limits.blob}

    def entries(self, sha: str, prefix: str) -> list[TreeEntry]:
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

    def changes(self, old: str, new: str, prefix: str) -> list[PathChange]:
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

    def raw(self, kind: str, name: str) -> bytes:
        """The content of one object of a kind (commit, tree, blob)."""
        return self.git.run("cat-file", kind, name).data

    def between(self, old: str, new: str, limit: int) -> list[str]:
        """The commits after ``old`` up to ``new``, newest first; only ``new`` where ``old`` is unknown here."""
        if not _COMMIT.match(old) or not self.has_commit(old):
            return [new]
        return self.git.run("rev-list", f"--max-count={limit}", f"{old}..{new}", "--").data.decode().split()

    def follow(self, sha: str, entry: TreeEntry) -> LinkTarget:
        """Resolve a symlink of a commit to the regular file it points to inside the same commit."""
        if entry.size > MAX_LINK:
            return LinkTarget(refusal="the symlink's text is too long")
        text = self.read([entry.blob])[entry.blob]
        try:
            target = resolve_link(entry.path.decode(), text.decode())
        except UnicodeDecodeError:
            return LinkTarget(refusal="the symlink's text is not UTF-8")
        if target is None:
            return LinkTarget(refusal="the symlink leaves the repository")
        output = self.git.run("ls-tree", "-z", "--long", "--full-tree", sha, "--", target)
        found = [_entry(record) for record in output.data.split(b"\x00") if record]
        if len(found) != 1 or found[0].path != target.encode() or found[0].mode not in REGULAR:
            what = "another symlink" if found and found[0].mode == LINK else "no regular file of the repository"
            return LinkTarget(refusal=f"the symlink points to {what}")
        return LinkTarget(blob=found[0].blob, size=found[0].size)

    def first_parents(self, sha: str, limit: int) -> list[str]:
        """The commits before `sha` along first parents, newest first."""
        output = self.git.run("rev-list", "--first-parent", f"--max-count={limit}", "--skip=1", sha, "--")
        return output.data.decode("ascii", "replace").split()

    def file_at(self, sha: str, path: str) -> BlobVersion | None:
        """One file (repository path) as of a commit; None if it is missing or no file."""
        output = self.git.run("ls-tree", "-z", "--long", "--full-tree", sha, "--", path)
        found = [_entry(record) for record in output.data.split(b"\x00") if record]
        if len(found) != 1 or found[0].path != path.encode():
            return None
        return BlobVersion(sha, found[0].blob, found[0].mode)

    def versions(self, sha: str, path: str, limit: int) -> list[BlobVersion]:
        """List the versions of one file (repository path), newest first, along first parents from `sha`; deletions are
        left out."""
        output = self.git.run(
            "log", "-z", "--first-parent", "--diff-merges=first-parent", "--no-color", "--raw", "--no-abbrev",
            "--no-renames", f"--max-count={limit}", "--format=tformat:commit %H", sha, "--", path,
        )  # fmt: skip
        versions: list[BlobVersion] = []
        current = ""
        for field in output.data.split(b"\x00"):
            if field.startswith(b"commit "):
                current = field[7:].decode()
            elif (raw := field.lstrip(b"\n")).startswith(b":"):
                _, mode, _, blob, _ = raw[1:].decode().split(" ", 4)
                if blob.strip("0"):
                    versions.append(BlobVersion(current, blob, mode))
        return versions


def _entry(record: bytes) -> TreeEntry:
    meta, _, path = record.partition(b"\t")
    mode, _kind, blob, size = meta.decode("ascii").split()
    return TreeEntry(mode, blob, path, int(size) if size != "-" else 0)


def _change(meta: bytes, path: bytes) -> PathChange:
    _, mode, _, blob, _ = meta[1:].decode("ascii").split(" ", 4)
    return PathChange(mode, blob, path)


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
