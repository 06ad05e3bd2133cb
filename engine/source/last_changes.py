"""The commit that last changed each file in force, or removed one that is there no more, and its author.

One walk through the history answers for all files, newest commit first: the first commit that gave a path the blob in
force is the one. That holds across merges too, since the log leaves out parents that brought nothing, and shows what a
merge itself resolved. Later revisions walk only what came since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from belay.engine import log
from belay.engine.errors import SourceError, bounded
from belay.engine.log import redact
from belay.engine.model.last_changes import LastChange
from belay.engine.source.objects import ObjectStore
from belay.engine.source.tree import ROOTS

WALKS: Final = (200, 5000)
"""Commits of a first walk, and of a second where the first left files open. What is older stays without an answer."""
MAX_AUTHOR: Final = 100
MAX_WHY: Final = 200
_WORDS_BYTES: Final = 8 << 20
"""Messages beyond this are not read at all; the changes are named without their reasons then."""
_TRAILER: Final = re.compile(r"([A-Za-z-]+-by|Belay-[A-Za-z-]+|Change-Id|Cc): .", re.IGNORECASE)
"""Known trailers only: people begin a reason with a word and a colon, too, such as the number of a ticket."""
#: Removed files that a walk names, the newest first.
MAX_REMOVED: Final = 1000
_COMMIT: Final = re.compile(rb"^[0-9a-f]{40}([0-9a-f]{24})? ")
_log = log.get("source")


class _Written(NamedTuple):
    """One commit that gave a path a blob."""

    path: str
    blob: str
    change: LastChange


class LastChanges:
    """Answers for one repository, and remembers the newest revision that it answered for."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: tuple[str, Mapping[str, str], Mapping[str, LastChange]] = ("", {}, {})

    def of(self, objects: ObjectStore, sha: str, files: Mapping[str, str]) -> Mapping[str, LastChange]:
        """The last change of each of a commit's files (path → blob id); files whose change lies too far back, or that
        the repository cannot answer for, are left out. Files that commits have removed are named by that commit.
        """
        before, old_files, old = self._known
        if before == sha and old_files == files:
            return old

        try:
            follows = bool(before) and objects.has_commit(before) and objects.is_ancestor(before, sha)
            if follows:
                fresh = _with_reasons(
                    objects, self._walk(objects, (f"--max-count={WALKS[-1]}", f"{before}..{sha}"), files)
                )
                kept = {path: old[path] for path in old if old_files.get(path) == files.get(path)}
                found: Mapping[str, LastChange] = {**kept, **fresh}
            else:
                found = _with_reasons(objects, self._whole_walk(objects, sha, files))
        except SourceError as error:
            _log.info("the last changes of files cannot be read", sha=sha, reason=str(error))
            return {}

        self._known = (sha, dict(files), found)
        return found

    def _whole_walk(self, objects: ObjectStore, sha: str, files: Mapping[str, str]) -> Mapping[str, LastChange]:
        found: Mapping[str, LastChange] = {}
        for most in WALKS:
            found = self._walk(objects, (f"--max-count={most}", sha), files)
            if files.keys() <= found.keys():
                break
        return found

    def _walk(self, objects: ObjectStore, span: tuple[str, ...], files: Mapping[str, str]) -> dict[str, LastChange]:
        output = objects.git.run(
            "log", "-z", "--no-color", "--raw", "-c", "--no-abbrev", "--no-renames",
            "--format=tformat:%H %an <%ae>", *span, "--", *(self._prefix + root for root in ROOTS),
        )  # fmt: skip
        found: dict[str, LastChange] = {}
        removed: dict[str, LastChange] = {}
        for row in _rows(output.data):
            path = row.path.removeprefix(self._prefix)
            if files.get(path) == row.blob:
                found.setdefault(path, row.change)
            elif path not in files and not row.blob.strip("0") and len(removed) < MAX_REMOVED:
                removed.setdefault(path, row.change)
        return removed | found


def _rows(data: bytes) -> Iterator[_Written]:
    """What each commit of a log wrote: ``:modes blobs status``, then a path; with as many colons as parents."""
    change = LastChange("")
    fields = iter(data.split(b"\x00"))
    for field in fields:
        row = field.lstrip(b"\n")
        if row.startswith(b":"):
            parents = len(row) - len(row.lstrip(b":"))
            blob = row[parents:].split(b" ")[2 * parents + 1].decode("ascii", "replace")
            yield _Written(next(fields, b"").decode("utf-8", "replace"), blob, change)
        elif _COMMIT.match(row):
            commit, _, author = row.partition(b" ")
            change = LastChange(commit.decode(), _author(author))


def _with_reasons(objects: ObjectStore, changes: Mapping[str, LastChange]) -> dict[str, LastChange]:
    """The same changes, each with how the body of its commit's message begins."""
    commits = sorted({change.commit for change in changes.values()})
    if not commits:
        return dict(changes)
    try:
        output = objects.git.run(
            "log", "-z", "--no-color", "--no-walk=unsorted", "--stdin", "--format=tformat:%H %b",
            data="\n".join(commits).encode(), limit=_WORDS_BYTES,
        )  # fmt: skip
    except SourceError as error:
        _log.info("the messages of commits cannot be read", reason=str(error))
        return dict(changes)

    reasons = {}
    for record in output.data.split(b"\x00"):
        commit, _, body = record.decode("utf-8", "replace").lstrip("\n").partition(" ")
        reasons[commit] = why(body)
    return {
        path: msgspec.structs.replace(change, why=reasons.get(change.commit, "")) for path, change in changes.items()
    }


def why(body: str) -> str:
    """The first paragraph of a message's body that is not made of trailers, in one line; empty if there is none."""
    for paragraph in re.split(r"\n[ \t]*\n", body.replace("\r\n", "\n")):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if lines and not all(_TRAILER.match(line) for line in lines):
            return _printable(" ".join(lines), MAX_WHY)
    return ""


def _author(raw: bytes) -> str:
    return _printable(raw.decode("utf-8", "replace"), MAX_AUTHOR)


def _printable(text: str, longest: int) -> str:
    return bounded("".join(letter if letter.isprintable() else " " for letter in redact(text)), longest)
