"""Which files of a commit are read, and the newest acceptable version of one that is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import Limits, RefusedFile
from belay.engine.source.signatures import Verifier
from belay.engine.source.tree import REGULAR, TreeEntry, TreeSelection, is_document_path, select

T = TypeVar("T")
_ABSENT: Final = "000000"
"""The mode of a file that a commit removed."""
_MAX_HELD: Final = 64
"""Refused files of one commit for which an earlier version is looked for."""
_HELD_DEPTH: Final = 50
"""Commits in which it is looked for."""
_MAX_VOUCHED: Final = 1000


class CommittedFile(NamedTuple):
    """One version of a file: the commit that has it, and its blob id."""

    commit: str
    blob: str


class CommitFiles:
    """Answers for the commits of one source. ``prefix`` is the source's folder in its repository."""

    def __init__(self, prefix: str, limits: Limits, verifier: Verifier) -> None:
        self._prefix = prefix
        self._limits = limits
        self._verifier = verifier
        self._last: tuple[str, TreeSelection] | None = None
        self._vouched: dict[str, bool] = {}

    def select(self, objects: ObjectStore, sha: str) -> TreeSelection:
        """The files of a commit, and those refused. Raises SourceError TooManyFiles or TreeTooLarge."""
        if self._last and self._last[0] == sha:
            return self._last[1]
        selection = self._step(objects, sha)
        if selection is None:
            selection = self.whole_tree(objects, sha)
        self._last = (sha, selection)
        return selection

    def whole_tree(self, objects: ObjectStore, sha: str) -> TreeSelection:
        """The same by reading the whole tree; another commit's selection is neither used nor kept."""
        return select(
            objects.entries(sha, self._prefix), self._prefix, self._limits, lambda entry: objects.follow(sha, entry)
        )

    def versions(self, objects: ObjectStore, sha: str, path: str, limit: int) -> list[CommittedFile]:
        """A file's versions within the size limit, up to a commit, newest first."""
        versions = [v for v in objects.versions(sha, self._prefix + path, limit) if v.mode in REGULAR]
        sizes = objects.sizes(v.blob for v in versions)
        return [CommittedFile(v.sha, v.blob) for v in versions if sizes[v.blob] <= self._limits.blob]

    def hold_refused(self, objects: ObjectStore, sha: str, selection: TreeSelection) -> TreeSelection:
        """The selection with the last acceptable version of each refused file in force."""
        held: dict[str, CommittedFile] = {}
        for problem in selection.problems[:_MAX_HELD]:
            if is_document_path(problem.path) and (version := self._last_good(objects, sha, problem.path)):
                held[problem.path] = version
        return hold(selection, held)

    def _step(self, objects: ObjectStore, sha: str) -> TreeSelection | None:
        """Derive a selection from the last one and the changes since; None when a full listing is needed."""
        if self._last is None or not objects.has_commit(self._last[0]):
            return None
        old, before = self._last
        if before.links or before.problems:
            return None
        changes = objects.changes(old, sha, self._prefix)
        if any(change.mode not in REGULAR and change.mode != _ABSENT for change in changes):
            return None

        written = [change for change in changes if change.mode in REGULAR]
        sizes = objects.sizes(change.blob for change in written)
        entries = [TreeEntry(change.mode, change.blob, change.path, sizes[change.blob]) for change in written]
        part = select(entries, self._prefix, self._limits, lambda entry: objects.follow(sha, entry))
        if part.problems:
            return None

        start = len(self._prefix.encode())
        gone = {change.path[start:].decode("utf-8", "replace") for change in changes if change.mode == _ABSENT}
        files = _without(before.files, gone) | dict(part.files)
        all_sizes = _without(before.sizes, gone) | dict(part.sizes)
        if len(files) > self._limits.files or sum(all_sizes.values()) > self._limits.total:
            return None
        return TreeSelection(files, all_sizes, (), False)

    def _last_good(self, objects: ObjectStore, sha: str, path: str) -> CommittedFile | None:
        """The newest acceptable version of a file before ``sha``. Where signatures are required, it is the version in
        the tree of a commit that verifies itself: an unsigned ancestor gives none."""
        if not self._verifier.required:
            return next(iter(self.versions(objects, sha, path, _HELD_DEPTH)), None)
        refused = objects.file_at(sha, self._prefix + path)
        for commit in objects.first_parents(sha, _HELD_DEPTH):
            found = objects.file_at(commit, self._prefix + path)
            if found is None or found.mode not in REGULAR or (refused is not None and found.blob == refused.blob):
                continue
            if objects.sizes([found.blob])[found.blob] <= self._limits.blob and self._vouches(objects, commit):
                return CommittedFile(commit, found.blob)
        return None

    def _vouches(self, objects: ObjectStore, commit: str) -> bool:
        """Whether a commit is signed by a listed key."""
        name = f"{commit} {self._verifier.stamp()}"
        if name not in self._vouched:
            if len(self._vouched) >= _MAX_VOUCHED:
                self._vouched.clear()
            self._vouched[name] = self._verifier.check(objects.git, commit).signer is not None
        return self._vouched[name]


def hold(selection: TreeSelection, versions: Mapping[str, CommittedFile]) -> TreeSelection:
    """Keep these versions of refused files (by path) in force, so that the files are not taken for deleted."""
    files = dict(selection.files)
    problems: list[RefusedFile] = []
    for problem in selection.problems:
        version = versions.get(problem.path)
        if version is None:
            problems.append(problem)
            continue
        files[problem.path] = version.blob
        message = f"{problem.message}; the version of {version.commit[:12]} stays in force"
        problems.append(RefusedFile(problem.path, problem.reason, message, version.commit))
    return TreeSelection(files, selection.sizes, tuple(problems), selection.links)


def _without(table: Mapping[str, T], paths: set[str]) -> dict[str, T]:
    return {path: value for path, value in table.items() if path not in paths}


__all__ = ["CommitFiles", "CommittedFile", "hold"]
