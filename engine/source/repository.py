"""The source: from a configured repository to the revision in force."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belay.engine import log
from belay.engine.errors import SourceError, bounded
from belay.engine.source.commit_proofs import CommitProver
from belay.engine.source.commits import Commits, is_object_id
from belay.engine.source.conditions import report
from belay.engine.source.confirmations import confirmed
from belay.engine.source.emptied import EmptyTreeGuard
from belay.engine.source.git import GitFailed
from belay.engine.source.mirror import Mirror
from belay.engine.source.origins import FolderOrigin, RemoteBranch, RevisionOrigin
from belay.engine.source.records import FetchResult, Limits, Revision, SourceConfig
from belay.engine.source.signatures import Verifier
from belay.engine.source.tree import is_document_path
from belay.engine.source.watch import Watch
from belay.engine.wire.commitproof import CommitProof

if TYPE_CHECKING:
    import asyncio

_MAX_VERSIONS: Final = 1000
_BACKOFF_BASE: Final = 1.0
_BACKOFF_CEILING: Final = 300.0
_BACKOFF_FLOOR: Final = 0.2
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
        self._verifier = Verifier(config, mirror_dir / "gnupg", clock)
        self._commits = Commits(config, self._limits, self._verifier, EmptyTreeGuard(self.read))
        self._prover = CommitProver(config.prefix)
        self._remote = RemoteBranch(Mirror(config, mirror_dir, self._limits), config.branch, self._commits)
        self._folder = FolderOrigin(config.local, config.prefix, self._limits, self._commits) if config.local else None
        self._guard = threading.RLock()
        self._watch = Watch(config, self.next_delay)
        self._last: Revision | None = None
        self._failures = 0

    def fetch(self, previous: Revision | None = None) -> FetchResult:
        """Fetch the newest revision. `previous` is the caller's revision in force (None after a restart: then the
        one that the mirror remembers)."""
        with self._guard:
            base = self._base(previous)
            if self.config.suspend:
                return self._result(base or self._remembered(), previous, None, suspended=True)
            try:
                revision = self._origin().newest(base)
            except SourceError as error:
                return self._refused(base, previous, error)
            self._failures = 0
            self._last = revision
            return self._result(revision, previous, None)

    def remember(self, accepted: Mapping[str, float], distrust: str = "") -> None:
        """Take what the cluster remembers of this source: its verified revisions and when they came (Unix seconds),
        oldest first. ``distrust`` says why that memory cannot be trusted; empty while it can."""
        with self._guard:
            self._commits.acceptance.distrust = distrust
            self._commits.acceptance.accepted = tuple(accepted)
            self._verifier.seen = dict(accepted)

    def read(self, blob_ids: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of blobs named by a revision, in one run of git. Raises SourceError when one is gone (the
        next fetch repairs a damaged mirror) or when together they exceed the size limit."""
        wanted = list(dict.fromkeys(blob_ids))
        for blob in wanted:
            if not is_object_id(blob):
                raise SourceError("ObjectMissing", f"{bounded(blob, 60)!r} is not a blob id")
        with self._guard:
            held = self._folder.contents(wanted) if self._folder else {}
            missing = [blob for blob in wanted if blob not in held]
            origin = self._origin()
            try:
                return held | origin.objects().read(missing) if missing else held
            except GitFailed:
                origin.distrust()
                raise

    def history(self, path: str, limit: int = 20) -> list[tuple[str, str]]:
        """List (commit, blob) of one file's versions in the branch in force, newest first; only versions within the
        size limit."""
        with self._guard:
            origin = self._origin()
            sha = origin.head(self._last)
            if sha is None or not is_document_path(path) or any(ord(c) < 32 for c in path):
                return []
            limit = max(1, min(limit, _MAX_VERSIONS))
            versions = self._commits.files.versions(origin.objects(), sha, path, limit)
            return [(version.commit, version.blob) for version in versions]

    def confirmations(self, base: str, tip: str) -> tuple[str, ...] | None:
        """The digests that commits after ``base`` up to ``tip`` confirm (trailer ``Belay-Confirm``); None while the
        repository cannot answer. Where signatures are required, only signed commits count.

        Does not wait for a running fetch: commits do not change."""
        if not is_object_id(tip):
            return ()  # uncommitted files have no commit message
        try:
            return confirmed(self._origin().objects(), self._verifier, base, tip)
        except SourceError as error:
            _log.warning("confirmations cannot be read", reason=str(error))
            return None

    def earlier(self, base: str, tip: str) -> dict[str, str]:
        """Files of ``base`` that differ or are missing in ``tip``, as path and blob id; empty while the repository
        cannot answer."""
        try:
            return self._origin().objects().earlier(base, tip, self.config.prefix) if is_object_id(tip) else {}
        except SourceError as error:
            _log.warning("earlier documents cannot be read", reason=str(error))
            return {}

    def proof(self, revision: Revision, older: str) -> CommitProof:
        """What proves that documents are part of a revision's commit; ``older`` is the revision before, or empty.
        Raises SourceError."""
        return self._prover.prove(self._origin().objects(), revision, older)

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

    def _origin(self) -> RevisionOrigin:
        """Where the revisions come from now: a folder may appear, or become a bare repository."""
        return self._folder if self._folder is not None and self._folder.is_there() else self._remote

    # ---- what stays

    def _base(self, previous: Revision | None) -> Revision | None:
        base = previous or self._last
        if base and self._verifier.required and base.signer is None:
            return None
        return base

    def _remembered(self) -> Revision | None:
        """Return the revision that was in force before this process, if it still passes every check."""
        try:
            return self._origin().remembered()
        except SourceError as error:
            _log.warning("the remembered revision cannot be used", error=str(error))
            return None

    def _refused(self, base: Revision | None, previous: Revision | None, error: SourceError) -> FetchResult:
        self._failures = self._failures + 1 if error.transient else 0
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
        origin = self._origin()
        rewrite = origin.rewrite if revision and origin.rewrite and origin.rewrite.after == revision.sha else None
        conditions = report(self.config, revision, error, rewrite, suspended)
        return FetchResult(revision=revision, conditions=conditions, changed_ref=changed, attempted=origin.attempted)
