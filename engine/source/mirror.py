"""The local copy of a remote branch: a bare repository that several processes may share.

One lock file guards every change. It is inherited by the git processes started under it, so leftovers found while
holding it (lock files, half-written packs, incomplete clones) belong to no live process and are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from belay.engine import log
from belay.engine.errors import SourceError, bounded
from belay.engine.source.git import Git, GitFailed
from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import Limits, SourceConfig

CANDIDATE: Final = "refs/belay/candidate"
IN_FORCE: Final = "refs/belay/in-force"
"""Reference that keeps the revision in force in the mirror when its branch is rewritten or deleted."""

_LOCK_STEP: Final = 0.02
_MAX_TRASH: Final = 16
_log = log.get("source")


class Mirror:
    """A bare mirror of one branch of one remote, in a folder below `directory` named after what is mirrored."""

    def __init__(self, config: SourceConfig, directory: Path, limits: Limits) -> None:
        self._url = str(config.local) if config.local else config.url
        self._reference = f"refs/heads/{config.branch}"
        self._limits = limits
        # the name depends on the verification mode: a revision accepted unverified must not be in force once signatures
        # are required
        identity = "\0".join((self._url, config.branch, config.path, config.verify_mode))
        self._parent = directory
        self._name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._lock: int | None = None

    @property
    def path(self) -> Path:
        """The folder of the bare repository."""
        return self._parent / f"{self._name}.git"

    @property
    def objects(self) -> ObjectStore:
        """The mirror's object store."""
        return ObjectStore(Git(self.path, timeout=self._limits.local_timeout, lock=self._lock), self._limits)

    def exists(self) -> bool:
        """Whether a mirror exists."""
        return (self.path / "HEAD").is_file()

    def remote_tip(self) -> str | None:
        """Ask the remote for the branch's commit; None when it has no such branch. Raises SourceError Unreachable or
        AccessDenied."""
        self._parent.mkdir(parents=True, exist_ok=True)
        git = Git(self._parent, repository=False, timeout=self._limits.remote_timeout)
        try:
            output = git.run("ls-remote", "--quiet", "--", self._url, self._reference, limit=1 << 20)
        except GitFailed as error:
            raise self._unreachable(error) from error
        for line in output.data.decode("utf-8", "replace").splitlines():
            sha, _, name = line.partition("\t")
            if name == self._reference:
                return sha
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the mirror and remove leftovers of killed processes. Raises SourceError MirrorBusy after a timeout."""
        self._parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._parent / f"{self._name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire(descriptor)
            self._lock = descriptor
            self._sweep()
            yield
        finally:
            self._lock = None
            os.close(descriptor)

    def fetch(self, tip: str) -> str:
        """Make the branch's newest commit available and return it; `tip` is what the remote just reported. Call it
        locked."""
        if not self.exists():
            return self._clone()
        if self.objects.has_commit(tip):
            self.objects.git.run("update-ref", CANDIDATE, tip)
            return tip
        try:
            self._pull(self.path, self._limits.remote_timeout)
        except GitFailed as error:
            if error.reason == "GitTimeout":
                raise self._unreachable(error) from error
            # the remote answered a moment ago, so the mirror may be damaged: clone again
            _log.warning("mirror could not be updated", error=str(error))
            return self._clone()
        return self._candidate(self.objects)

    def rebuild(self) -> str:
        """Replace a broken mirror by a new clone and return the branch's commit; the old one stays until the new one is
        complete. Call it locked."""
        _log.warning("rebuilding mirror", mirror=self._name)
        return self._clone()

    def mark_in_force(self, sha: str) -> None:
        """Remember durably which commit is in force. Call it locked."""
        self.objects.git.run("update-ref", IN_FORCE, sha)

    def in_force(self) -> str | None:
        """Return the commit remembered as in force, by this or an earlier process."""
        return self.objects.resolve(IN_FORCE) if self.exists() else None

    def _clone(self) -> str:
        fresh = self._parent / f"{self._name}.new-{time.time_ns()}"
        fresh.mkdir()
        _log.info("cloning the repository", mirror=self._name)
        try:
            git = Git(fresh, timeout=self._limits.local_timeout, lock=self._lock)
            git.run("init", "--bare", "--quiet", "--template=", "--initial-branch=belay", ".")
            try:
                self._pull(fresh, self._limits.clone_timeout)
            except GitFailed as error:
                raise self._unreachable(error) from error
            tip = self._candidate(ObjectStore(git, self._limits))
            self._swap(fresh)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _log.info("repository cloned", mirror=self._name, sha=tip)
        return tip

    def _swap(self, fresh: Path) -> None:
        trash = self._parent / f"{self._name}.old-{time.time_ns()}"
        if self.path.exists():
            os.replace(self.path, trash)
        os.replace(fresh, self.path)
        shutil.rmtree(trash, ignore_errors=True)

    def _pull(self, directory: Path, timeout: float) -> None:
        git = Git(directory, timeout=timeout, file_limit=self._limits.pack, lock=self._lock)
        git.run(
            "fetch", "--quiet", "--force", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
            "--no-auto-maintenance", "--", self._url, f"+{self._reference}:{CANDIDATE}",
        )  # fmt: skip

    def _candidate(self, objects: ObjectStore) -> str:
        tip = objects.resolve(CANDIDATE)
        if tip is None:
            raise GitFailed("GitFailed", "the fetched branch does not point to a commit", transient=True)
        return tip

    def _acquire(self, descriptor: int) -> None:
        deadline = time.monotonic() + self._limits.lock_timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise SourceError("MirrorBusy", "another process holds the mirror", transient=True) from error
                time.sleep(_LOCK_STEP)

    def _sweep(self) -> None:
        for left in [*self._parent.glob(f"{self._name}.new-*"), *self._parent.glob(f"{self._name}.old-*")][:_MAX_TRASH]:
            shutil.rmtree(left, ignore_errors=True)
        if not self.path.is_dir():
            return
        stale = [*self.path.glob("*.lock"), *self.path.glob("refs/**/*.lock"), *self.path.glob("objects/pack/tmp_*")]
        for left in [*stale, *self.path.glob("objects/tmp_*"), *self.path.glob("objects/pack/*.lock")]:
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                left.unlink()

    def _unreachable(self, error: GitFailed) -> SourceError:
        if error.reason == "GitMissing":
            return error
        text = error.message.lower()
        shown = bounded(log.redact(self._url), 120)
        if "dubious ownership" in text:
            return SourceError(
                "AccessDenied",
                f"{shown} belongs to another user",
                transient=True,
                hint="Run as its owner, or change the owner of the folder",
            )
        if any(word in text for word in _DENIED):
            return SourceError(
                "AccessDenied", f"{shown} refuses access: {error.message}", transient=True, hint="Check the credentials"
            )
        return SourceError("Unreachable", f"{shown} cannot be reached: {error.message}", transient=True)


_DENIED: Final = (
    "authentication failed",
    "permission denied",
    "could not read username",
    "could not read password",
    "host key verification failed",
    "403",
)
