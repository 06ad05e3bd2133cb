"""The source: from a configured repository to the revision in force."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belay.engine import log
from belay.engine.errors import SourceError, bounded
from belay.engine.source.acceptance import Acceptance
from belay.engine.source.commit_proofs import CommitProver
from belay.engine.source.conditions import report
from belay.engine.source.confirmations import confirmed
from belay.engine.source.emptied import EmptyTreeGuard
from belay.engine.source.git import GitFailed
from belay.engine.source.last_changes import LastChanges
from belay.engine.source.mirror import Mirror
from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import FetchResult, Limits, RefusedFile, Revision, SourceConfig
from belay.engine.source.signatures import Signature, Verifier
from belay.engine.source.tree import (
    REGULAR,
    TreeEntry,
    TreeSelection,
    capped,
    changed_paths,
    is_document_path,
    select,
)
from belay.engine.source.watch import Watch
from belay.engine.source.worktree import WorkTree, digest
from belay.engine.wire.commitproof import CommitProof

if TYPE_CHECKING:
    import asyncio

_BLOB = re.compile(r"^[0-9a-f]{40}([0-9a-f]{24})?$")
_MAX_HELD: Final = 64
_HELD_DEPTH: Final = 50
_MAX_VOUCHED: Final = 1000
_BACKOFF_BASE: Final = 1.0
_BACKOFF_CEILING: Final = 300.0
_BACKOFF_FLOOR: Final = 0.2
_NOTHING: Final = TreeSelection({}, {}, (), False)
_log = log.get("source")


class GitSource:
    """One repository as desired state.

    `mirror_dir` is a folder for mirrors and keyrings that processes on this machine may share. Methods may be called
    from any thread; `fetch` never raises for errors of a repository or a network: it reports them in conditions and
    keeps the last good revision in force.
    """

    def __init__(
        self,
        config: SourceConfig,
        mirror_dir: Path,
        *,
        limits: Limits | None = None,
        chance: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self._limits = limits or Limits()
        self._chance = chance or random.Random()
        self._mirror = Mirror(config, mirror_dir, self._limits)
        self._verifier = Verifier(config, mirror_dir / "gnupg", clock)
        self._acceptance = Acceptance(config)
        self._prover = CommitProver(config.prefix)
        self._emptied = EmptyTreeGuard(self.read)
        self._changes = LastChanges(config.prefix)
        self._floor: str | None = None
        self._vouched: dict[str, bool] = {}
        self._tree = WorkTree(config.local, config.prefix, self._limits) if config.local else None
        self._guard = threading.RLock()
        self._watch = Watch(config, self.next_delay)
        self._selected: tuple[str, TreeSelection] | None = None
        self._last: Revision | None = None
        self._attempted: str | None = None
        self._accepted: tuple[str, str] | None = None
        self._rewritten: tuple[str, str] | None = None
        self._suspect = False
        self._failures = 0

    def fetch(self, previous: Revision | None = None) -> FetchResult:
        """Fetch the newest revision. `previous` is the caller's revision in force (None after a restart: then the
        one that the mirror remembers)."""
        with self._guard:
            base = self._base(previous)
            if self.config.suspend:
                return self._result(base or self._remembered(), previous, None, suspended=True)
            try:
                revision = self._from_folder(base) if self._is_folder() else self._from_remote(base)
            except SourceError as error:
                return self._refused(base, previous, error)
            self._failures = 0
            self._last = revision
            return self._result(revision, previous, None)

    def remember(self, accepted: Mapping[str, float], distrust: str = "") -> None:
        """Take what the cluster remembers of this source: its verified revisions and when they came (Unix seconds),
        oldest first. ``distrust`` says why that memory cannot be trusted; empty while it can."""
        with self._guard:
            self._acceptance.distrust = distrust
            self._acceptance.accepted = tuple(accepted)
            self._verifier.seen = dict(accepted)

    def read(self, blob_ids: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of blobs named by a revision, in one run of git. Raises SourceError when one is gone (the
        next fetch repairs a damaged mirror) or when together they exceed the size limit."""
        wanted = list(dict.fromkeys(blob_ids))
        for blob in wanted:
            if not _BLOB.match(blob):
                raise SourceError("ObjectMissing", f"{bounded(blob, 60)!r} is not a blob id")
        with self._guard:
            held = {
                blob: content for blob in wanted if self._tree and (content := self._tree.contents(blob)) is not None
            }
            try:
                missing = [blob for blob in wanted if blob not in held]
                return held | self._objects().read(missing) if missing else held
            except GitFailed:
                self._suspect = True
                raise

    def history(self, path: str, limit: int = 20) -> list[tuple[str, str]]:
        """List (commit, blob) of one file's versions in the branch in force, newest first; only versions within the
        size limit."""
        with self._guard:
            sha = self._committed_sha()
            if sha is None or not is_document_path(path) or any(ord(c) < 32 for c in path):
                return []
            return self._versions(self._objects(), sha, path, max(1, min(limit, 1000)))

    def confirmations(self, base: str, tip: str) -> tuple[str, ...] | None:
        """The digests that commits after ``base`` up to ``tip`` confirm (trailer ``Belay-Confirm``); None while the
        repository cannot answer. Where signatures are required, only signed commits count.

        Does not wait for a running fetch: commits do not change."""
        if not _BLOB.match(tip):
            return ()  # uncommitted files have no commit message
        try:
            return confirmed(self._objects(), self._verifier, base, tip)
        except SourceError as error:
            _log.warning("confirmations cannot be read", reason=str(error))
            return None

    def earlier(self, base: str, tip: str) -> dict[str, str]:
        """Files of ``base`` that differ or are missing in ``tip``, as path and blob id; empty while the repository
        cannot answer."""
        try:
            return self._objects().earlier(base, tip, self.config.prefix) if _BLOB.match(tip) else {}
        except SourceError as error:
            _log.warning("earlier documents cannot be read", reason=str(error))
            return {}

    def proof(self, revision: Revision, older: str) -> CommitProof:
        """What proves that documents are part of a revision's commit; ``older`` is the revision before, or empty.
        Raises SourceError."""
        return self._prover.prove(self._objects(), revision, older)

    def watch(self, stop: asyncio.Event) -> AsyncIterator[str]:
        """Yield a cause (`start`, `poll`, `request`, `files`) whenever `fetch` should be called, until `stop` is set.
        Polls wait the interval ± 10 %, and back off with full jitter while fetching fails."""
        return self._watch.causes(stop)

    def fetch_soon(self) -> None:
        """Ask for a fetch soon, from any thread: a webhook was called. Many requests become one fetch."""
        self._watch.fetch_soon()

    def next_delay(self) -> float:
        """Return the seconds to wait before the next poll."""
        if not self._failures:
            return self.config.interval * self._chance.uniform(0.9, 1.1)
        ceiling = min(max(_BACKOFF_CEILING, self.config.interval), _BACKOFF_BASE * 2.0 ** min(self._failures, 20))
        return _BACKOFF_FLOOR + self._chance.uniform(0.0, ceiling)

    # ---- where a revision comes from

    def _from_remote(self, base: Revision | None) -> Revision:
        tip = self._mirror.remote_tip()
        if tip is None:
            raise SourceError(
                "BranchNotFound",
                f"the repository has no branch {self.config.branch}",
                hint="Push it, or change spec.branch",
            )
        self._attempted = tip
        with self._mirror.locked():
            try:
                self._floor = self._mirror.in_force() or self._floor  # a new clone does not have it
                sha = self._mirror.rebuild() if self._suspect else self._mirror.fetch(tip)
                return self._advance(sha, base)
            except GitFailed as error:
                if error.reason in ("GitTimeout", "GitMissing"):
                    raise
                _log.warning("mirror is damaged", error=str(error))
            return self._advance(self._mirror.rebuild(), base)

    def _advance(self, sha: str, base: Revision | None) -> Revision:
        """Accept the branch's tip. A tip that does not descend from the one in force is accepted too, and reported."""
        self._attempted = sha
        self._suspect = False
        objects = self._mirror.objects
        before = self._floor = base.sha if base else self._mirror.in_force() or self._floor
        if base and before == sha and self._accepted == (sha, self._verifier.stamp()):
            return base
        revision = self._accept(objects, sha, base)
        if before and before != sha:
            self._rewritten = None if objects.is_ancestor(before, sha) else (before, sha)
        self._mirror.mark_in_force(sha)
        return revision

    def _from_folder(self, base: Revision | None) -> Revision:
        tree = self._tree
        assert tree is not None
        if tree.busy():
            raise SourceError("WorkTreeBusy", "git is changing the work tree", transient=True)
        objects = ObjectStore(tree.git, self._limits) if tree.git else None
        head = objects.resolve("HEAD") if objects else None
        self._attempted = head
        if self._verifier.required:
            if objects is None or head is None:
                raise SourceError(
                    "VerificationFailed",
                    "the folder has no commit that could be verified",
                    hint="Commit with a signature",
                )
            # uncommitted files carry no signature: only what HEAD holds counts
            return (
                base
                if base and base.sha == head and self._accepted == (head, self._verifier.stamp())
                else self._accept(objects, head, base)
            )
        committed = self._committed(objects, head)
        snapshot = tree.snapshot(set(committed.files.values()))
        selection = snapshot.selection
        if objects and head and selection.files == committed.files and not selection.problems:
            self._attempted = head
            return base if base and base.sha == head else self._accept(objects, head, base)
        name = self._attempted = digest(selection)
        if base and base.sha == name:
            return base
        files = dict(selection.files)
        problems = tuple(self._hold(p, committed.files.get(p.path), head, files) for p in selection.problems)
        self._emptied.check(base.files if base else {}, files, tuple)
        subject = f"uncommitted changes on {head[:12]}" if head else "a folder without commits"
        changed = changed_paths(base.files if base else {}, files)
        known = self._changes.of(objects, head, committed.files) if objects and head else {}
        return Revision(
            sha=name,
            files=files,
            changed=changed,
            problems=capped(problems),
            committed=snapshot.newest,
            subject=subject,
            last_changes={path: one for path, one in known.items() if files.get(path) == committed.files.get(path)},
        )

    def _accept(self, objects: ObjectStore, sha: str, base: Revision | None) -> Revision:
        """Verify one commit and choose its files. Raises SourceError VerificationFailed, OtherSource, RolledBack,
        NotFastForward, EmptyTree, EmptyLayer, TooManyFiles or TreeTooLarge."""
        stamp = self._verifier.stamp()
        signature = Signature(None)
        if self._verifier.required:
            signature = self._verifier.check(objects.git, sha)
            if signature.signer is None:
                raise SourceError(
                    "VerificationFailed", signature.refusal, hint="Sign it with a key of spec.verify.allowedSigners"
                )
            self._acceptance.check(objects, sha, signature.text.payload, base.sha if base else self._floor)
        selection = self._select(objects, sha)
        files = dict(selection.files)
        problems = []
        for number, problem in enumerate(selection.problems):
            commit, blob = (
                self._last_good(objects, sha, problem.path)
                if number < _MAX_HELD and is_document_path(problem.path)
                else (None, None)
            )
            problems.append(self._hold(problem, blob, commit, files))
        older = base.sha if base else self._floor or ""
        before = base.files if base else {} if older == sha else self._files_at(objects, older)
        self._emptied.check(before, files, lambda: confirmed(objects, self._verifier, older, sha))
        self._accepted = (sha, stamp)
        about = objects.commit(sha)
        return Revision(
            sha=sha,
            files=files,
            changed=changed_paths(base.files if base else {}, files),
            problems=capped(tuple(problems)),
            author=about.author,
            authored=about.authored,
            committed=about.committed,
            subject=about.subject,
            signer=signature.signer,
            commit=signature.raw,
            last_changes=self._changes.of(objects, sha, files),
        )

    def _files_at(self, objects: ObjectStore, sha: str) -> Mapping[str, str]:
        """The files of an earlier commit; empty where it is not known here."""
        return self._list(objects, sha).files if _BLOB.match(sha) and objects.has_commit(sha) else {}

    # ---- which files

    def _select(self, objects: ObjectStore, sha: str) -> TreeSelection:
        if self._selected and self._selected[0] == sha:
            return self._selected[1]
        selection = self._step(objects, sha)
        if selection is None:
            selection = self._list(objects, sha)
        self._selected = (sha, selection)
        return selection

    def _list(self, objects: ObjectStore, sha: str) -> TreeSelection:
        return select(
            objects.entries(sha, self.config.prefix),
            self.config.prefix,
            self._limits,
            lambda entry: objects.follow(sha, entry),
        )

    def _step(self, objects: ObjectStore, sha: str) -> TreeSelection | None:
        """Derive a selection from the last one and the changes since; None when a full listing is needed."""
        if self._selected is None or not objects.has_commit(self._selected[0]):
            return None
        old, before = self._selected
        if before.links or before.problems:
            return None
        changes = objects.changes(old, sha, self.config.prefix)
        if any(change.mode not in REGULAR and change.mode != "000000" for change in changes):
            return None
        sizes = objects.sizes(change.blob for change in changes if change.mode in REGULAR)
        entries = [TreeEntry(c.mode, c.blob, c.path, sizes[c.blob]) for c in changes if c.mode in REGULAR]
        part = select(entries, self.config.prefix, self._limits, lambda entry: objects.follow(sha, entry))
        if part.problems:
            return None
        gone = {
            c.path[len(self.config.prefix.encode()) :].decode("utf-8", "replace") for c in changes if c.mode == "000000"
        }
        files = {path: blob for path, blob in before.files.items() if path not in gone} | dict(part.files)
        all_sizes = {path: size for path, size in before.sizes.items() if path not in gone} | dict(part.sizes)
        if len(files) > self._limits.files or sum(all_sizes.values()) > self._limits.total:
            return None
        return TreeSelection(files, all_sizes, (), False)

    def _committed(self, objects: ObjectStore | None, head: str | None) -> TreeSelection:
        if objects is None or head is None:
            return _NOTHING
        try:
            return self._select(objects, head)
        except SourceError as error:
            if isinstance(error, GitFailed):
                raise
            return _NOTHING  # the commit is too large, but the folder may be fixed already

    def _versions(self, objects: ObjectStore, sha: str, path: str, limit: int) -> list[tuple[str, str]]:
        versions = [v for v in objects.versions(sha, self.config.prefix + path, limit) if v.mode in REGULAR]
        sizes = objects.sizes(v.blob for v in versions)
        return [(v.sha, v.blob) for v in versions if sizes[v.blob] <= self._limits.blob]

    def _last_good(self, objects: ObjectStore, sha: str, path: str) -> tuple[str, str] | tuple[None, None]:
        """Commit and blob of the newest acceptable version of a file before ``sha``. Where signatures are required, it
        is the version in the tree of a commit that verifies itself: an unsigned ancestor gives none."""
        if not self._verifier.required:
            versions = self._versions(objects, sha, path, _HELD_DEPTH)
            return versions[0] if versions else (None, None)
        refused = objects.file_at(sha, self.config.prefix + path)
        for commit in objects.first_parents(sha, _HELD_DEPTH):
            found = objects.file_at(commit, self.config.prefix + path)
            if found is None or found.mode not in REGULAR or (refused is not None and found.blob == refused.blob):
                continue
            if objects.sizes([found.blob])[found.blob] <= self._limits.blob and self._vouches(objects, commit):
                return commit, found.blob
        return None, None

    def _vouches(self, objects: ObjectStore, commit: str) -> bool:
        """Whether a commit is signed by a listed key."""
        name = f"{commit} {self._verifier.stamp()}"
        if name not in self._vouched:
            if len(self._vouched) >= _MAX_VOUCHED:
                self._vouched.clear()
            self._vouched[name] = self._verifier.check(objects.git, commit).signer is not None
        return self._vouched[name]

    def _hold(self, problem: RefusedFile, blob: str | None, commit: str | None, files: dict[str, str]) -> RefusedFile:
        """Keep the last accepted version of a refused file in force, so that it is not taken for deleted."""
        if not blob or not commit:
            return problem
        files[problem.path] = blob
        return RefusedFile(
            problem.path, problem.reason, f"{problem.message}; the version of {commit[:12]} stays in force", commit
        )

    # ---- what stays

    def _base(self, previous: Revision | None) -> Revision | None:
        base = previous or self._last
        if base and self._verifier.required and base.signer is None:
            return None
        return base

    def _remembered(self) -> Revision | None:
        """Return the revision that the mirror remembers as in force, if it still passes every check."""
        try:
            sha = None if self._is_folder() else self._mirror.in_force()
            return self._accept(self._mirror.objects, sha, None) if sha else None
        except SourceError as error:
            _log.warning("the remembered revision cannot be used", error=str(error))
            return None

    def _refused(self, base: Revision | None, previous: Revision | None, error: SourceError) -> FetchResult:
        if error.transient:
            self._failures += 1
        else:
            self._failures = 0
        _log.warning(
            "fetch refused, the last good revision stays in force",
            reason=error.reason,
            error=str(error),
            failures=self._failures,
        )
        return self._result(base or self._remembered(), previous, error)

    def _result(
        self, revision: Revision | None, previous: Revision | None, error: SourceError | None, suspended: bool = False
    ) -> FetchResult:
        changed = (revision.sha if revision else None) != (previous.sha if previous else None)
        if revision is not None:
            self._last = revision
        rewritten = self._rewritten if revision and self._rewritten and self._rewritten[1] == revision.sha else None
        conditions = report(self.config, revision, error, rewritten, suspended)
        return FetchResult(revision=revision, conditions=conditions, changed_ref=changed, attempted=self._attempted)

    def _committed_sha(self) -> str | None:
        if self._is_folder():
            return self._objects().resolve("HEAD") if self._tree and self._tree.git else None
        return self._last.sha if self._last else self._mirror.in_force()

    def _objects(self) -> ObjectStore:
        if self._is_folder() and self._tree is not None:
            if self._tree.git is None:
                raise GitFailed(
                    "ObjectMissing",
                    "the folder is not a repository and no longer holds that version",
                    transient=True,
                )
            return ObjectStore(self._tree.git, self._limits)
        return self._mirror.objects

    def _is_folder(self) -> bool:
        """Whether `url` is a folder to read directly; a bare repository is mirrored like a remote one."""
        local = self.config.local
        if local is None or not local.is_dir():
            return False
        return (local / ".git").exists() or not ((local / "HEAD").is_file() and (local / "objects").is_dir())
