"""Where revisions come from: a branch of a remote repository, or a folder of this machine.

A new kind of source is a class here that does what ``RevisionOrigin`` asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from belay.engine import log
from belay.engine.errors import SourceError
from belay.engine.source.commit_files import CommittedFile, hold
from belay.engine.source.commits import Commits
from belay.engine.source.git import GitFailed
from belay.engine.source.mirror import Mirror
from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import Limits, Revision, Rewrite
from belay.engine.source.tree import TreeSelection, capped, changed_paths
from belay.engine.source.worktree import WorkTree, digest

_NOTHING: Final = TreeSelection({}, {}, (), False)
_log = log.get("source")


class RevisionOrigin(Protocol):
    """One place from which a source's revisions come.

    ``attempted`` is the newest commit, or state of a folder, that was seen; ``rewrite`` the last one of the branch.
    """

    attempted: str | None
    rewrite: Rewrite | None

    def newest(self, base: Revision | None) -> Revision:
        """The newest revision, ``base`` itself where nothing has changed since. Raises SourceError."""
        ...

    def remembered(self) -> Revision | None:
        """The revision that was in force before this process, if this place remembers it and it passes every check.
        Raises SourceError."""
        ...

    def head(self, last: Revision | None) -> str | None:
        """The commit whose history holds earlier versions of files; ``last`` is the last revision in force."""
        ...

    def objects(self) -> ObjectStore:
        """Commits, trees and blobs. Raises GitFailed where there is no repository."""
        ...

    def distrust(self) -> None:
        """Objects of this place could not be read: look after them at the next fetch."""
        ...


class RemoteBranch:
    """A branch of a remote repository, or of a bare one of this machine, by its mirror."""

    def __init__(self, mirror: Mirror, branch: str, commits: Commits) -> None:
        self.attempted: str | None = None
        self.rewrite: Rewrite | None = None
        self._mirror = mirror
        self._branch = branch
        self._commits = commits
        self._suspect = False

    def newest(self, base: Revision | None) -> Revision:
        """Fetch the branch; a mirror that turns out to be damaged is cloned again."""
        tip = self._mirror.remote_tip()
        if tip is None:
            raise SourceError(
                "BranchNotFound",
                f"the repository has no branch {self._branch}",
                hint="Push it, or change spec.branch",
            )
        self.attempted = tip
        with self._mirror.locked():
            try:
                # a new clone does not have it
                self._commits.floor = self._mirror.in_force() or self._commits.floor
                sha = self._mirror.rebuild() if self._suspect else self._mirror.fetch(tip)
                return self._advance(sha, base)
            except GitFailed as error:
                if error.reason in ("GitTimeout", "GitMissing"):
                    raise
                _log.warning("mirror is damaged", error=str(error))
            return self._advance(self._mirror.rebuild(), base)

    def _advance(self, sha: str, base: Revision | None) -> Revision:
        """Accept the branch's tip. A tip that does not descend from the one in force is accepted too, and reported."""
        self.attempted = sha
        self._suspect = False
        objects = self._mirror.objects
        before = self._commits.floor = base.sha if base else self._mirror.in_force() or self._commits.floor
        revision = self._commits.revision(objects, sha, base)
        if revision is base:
            return revision
        if before and before != sha:
            self.rewrite = None if objects.is_ancestor(before, sha) else Rewrite(before, sha)
        self._mirror.mark_in_force(sha)
        return revision

    def remembered(self) -> Revision | None:
        """The revision that the mirror has marked as in force."""
        sha = self._mirror.in_force()
        return self._commits.revision(self._mirror.objects, sha, None) if sha else None

    def head(self, last: Revision | None) -> str | None:
        """The commit in force."""
        return last.sha if last else self._mirror.in_force()

    def objects(self) -> ObjectStore:
        """Those of the mirror."""
        return self._mirror.objects

    def distrust(self) -> None:
        """The next fetch clones again."""
        self._suspect = True


class FolderOrigin:
    """A folder of this machine, uncommitted changes included; a repository or not."""

    def __init__(self, root: Path, prefix: str, limits: Limits, commits: Commits) -> None:
        self.attempted: str | None = None
        self.rewrite: Rewrite | None = None
        self.root = root
        self._tree = WorkTree(root, prefix, limits)
        self._limits = limits
        self._commits = commits

    def is_there(self) -> bool:
        """Whether the folder is to be read as it is; a bare repository is mirrored like a remote one."""
        if not self.root.is_dir():
            return False
        bare = (self.root / "HEAD").is_file() and (self.root / "objects").is_dir()
        return (self.root / ".git").exists() or not bare

    def newest(self, base: Revision | None) -> Revision:
        """The commit that is checked out where the folder holds just its files, else the files as they are."""
        if self._tree.busy():
            raise SourceError("WorkTreeBusy", "git is changing the work tree", transient=True)
        objects = self._repository()
        head = self.attempted = objects.resolve("HEAD") if objects else None
        if self._commits.verifier.required:
            return self._signed(objects, head, base)

        committed = self._committed(objects, head)
        snapshot = self._tree.snapshot(set(committed.files.values()))
        selection = snapshot.selection
        if objects and head and selection.files == committed.files and not selection.problems:
            return base if base and base.sha == head else self._commits.revision(objects, head, base)

        name = self.attempted = digest(selection)
        if base and base.sha == name:
            return base
        before = base.files if base else {}
        held = hold(selection, _versions_of(head, committed, selection))
        self._commits.emptied.check(before, held.files, tuple)
        known = self._commits.changes.of(objects, head, committed.files) if objects and head else {}
        return Revision(
            sha=name,
            files=held.files,
            changed=changed_paths(before, held.files),
            problems=capped(held.problems),
            committed=snapshot.newest,
            subject=f"uncommitted changes on {head[:12]}" if head else "a folder without commits",
            last_changes={
                path: change for path, change in known.items() if held.files.get(path) == committed.files.get(path)
            },
        )

    def _signed(self, objects: ObjectStore | None, head: str | None, base: Revision | None) -> Revision:
        """What HEAD holds: uncommitted files carry no signature."""
        if objects is None or head is None:
            raise SourceError(
                "VerificationFailed",
                "the folder has no commit that could be verified",
                hint="Commit with a signature",
            )
        return self._commits.revision(objects, head, base)

    def _committed(self, objects: ObjectStore | None, head: str | None) -> TreeSelection:
        if objects is None or head is None:
            return _NOTHING
        try:
            return self._commits.files.select(objects, head)
        except SourceError as error:
            if isinstance(error, GitFailed):
                raise
            # the commit is too large, but the folder may be fixed already
            return _NOTHING

    def remembered(self) -> Revision | None:
        """Nothing: the folder itself is what there is."""
        return None

    def head(self, last: Revision | None) -> str | None:
        """The commit that is checked out."""
        objects = self._repository()
        return objects.resolve("HEAD") if objects else None

    def objects(self) -> ObjectStore:
        """Those of the folder's repository."""
        objects = self._repository()
        if objects is None:
            raise GitFailed(
                "ObjectMissing",
                "the folder is not a repository and no longer holds that version",
                transient=True,
            )
        return objects

    def distrust(self) -> None:
        """The repository is its user's: nothing in it is repaired."""

    def contents(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Those of these blobs that are uncommitted files of the last revision."""
        found = ((blob, self._tree.contents(blob)) for blob in blobs)
        return {blob: content for blob, content in found if content is not None}

    def _repository(self) -> ObjectStore | None:
        git = self._tree.git
        return ObjectStore(git, self._limits) if git else None


def _versions_of(head: str | None, committed: TreeSelection, selection: TreeSelection) -> dict[str, CommittedFile]:
    """What the commit has of the files that are refused in the folder."""
    if not head:
        return {}
    paths = (problem.path for problem in selection.problems)
    return {path: CommittedFile(head, committed.files[path]) for path in paths if path in committed.files}


__all__ = ["FolderOrigin", "RevisionOrigin", "RemoteBranch"]
