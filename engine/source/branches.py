"""Every branch of a repository, and its newest pull or merge requests, to read: their commits and their documents.

A repository on this machine is read where it lies; of a remote one a bare copy with recent commits is kept. All
processes that use the copy together fetch it at most once in a few seconds, one at a time: a lock file guards it, which
the git process inherits, so that leftovers found under it belong to no live process. Nothing here decides what comes
into force: nothing is verified.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from belay.engine.errors import SourceError, bounded
from belay.engine.source.git import Git, GitFailed
from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import Limits
from belay.engine.source.tree import select

MOST_BRANCHES: Final = 200
MOST_REQUESTS: Final = 50
"""Newest pull or merge requests: forges keep a reference of every one that ever was, closed or not."""
MOST_CHANGED: Final = 32
DEPTH: Final = 200
FETCH_SECONDS: Final = 10.0
"""Seconds for which the copy, or why it could not be fetched, counts as the present one."""
REQUEST: Final = re.compile(r"(?:pull|merge-requests)/[1-9]\d{0,8}")
"""The name of a pull request (GitHub, Gitea) or a merge request (GitLab): its reference without `refs/` and `/head`."""
_REQUESTS: Final = ("refs/pull/*/head", "refs/merge-requests/*/head")
_LOCK_STEP: Final = 0.05
_MOST_LEFT: Final = 1_000
_SEPARATOR: Final = "%x00"
_RECORD: Final = b"\x01"


class BranchTip(msgspec.Struct, frozen=True):
    """A branch, or a pull or merge request, and its newest commit; ``time`` in Unix seconds."""

    name: str
    revision: str
    time: float
    subject: str
    author: str


class LoggedCommit(msgspec.Struct, frozen=True):
    """A commit and the first files below ``desired/`` and ``policies/`` that it changed; ``time`` in Unix seconds."""

    id: str
    author: str
    time: float
    subject: str
    changed: tuple[str, ...]


class Branches:
    """The branches of one repository. ``url`` as in :class:`SourceConfig`, ``path`` the folder in it that holds the
    documents, ``folder`` where a copy of a remote one is kept. ``clock`` is Unix seconds. Every method raises
    SourceError when the repository cannot be read.
    """

    def __init__(self, url: str, path: str, folder: Path, clock: Callable[[], float] = time.time) -> None:
        local = Path(url.removeprefix("file://"))
        self._url, self._clock = url, clock
        self._prefix = f"{path.strip('/')}/" if path.strip("/") else ""
        self._remote = not local.is_dir()
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        self._directory = folder / f"branches-{name}.git" if self._remote else local
        self._stamp = folder / f"branches-{name}.fetched"
        self._lock = folder / f"branches-{name}.lock"
        self._limits = Limits()

    def tips(self, current: str = "") -> list[BranchTip]:
        """The branches, then the open requests, of each the ones with the newest commits first.

        A request counts as open unless its commit is that of a branch or in branch ``current``.
        """
        git = self._git()
        found = self._listed(git, MOST_BRANCHES, "refs/heads/")
        merged = [f"--no-merged=refs/heads/{current}"] if any(tip.name == current for tip in found) else []
        known = {tip.revision for tip in found}
        requests = self._listed(git, MOST_REQUESTS, *merged, *_REQUESTS)
        return [*found, *(tip for tip in requests if tip.revision not in known)]

    @staticmethod
    def _listed(git: Git, most: int, *which: str) -> list[BranchTip]:
        form = _SEPARATOR.replace("%x", "%").join(
            ("%(refname:lstrip=1)", "%(objectname)", "%(committerdate:unix)", "%(contents:subject)", "%(authorname)")
        )
        output = git.run("for-each-ref", "--sort=-committerdate", f"--count={most}", f"--format={form}%01", *which)
        found = []
        for record in output.data.split(_RECORD):
            fields = [part.decode("utf-8", "replace").strip() for part in record.split(b"\x00")]
            if len(fields) == 5:
                ref, revision, at, subject, author = fields
                name = ref.removeprefix("heads/") if ref.startswith("heads/") else ref.removesuffix("/head")
                found.append(BranchTip(name, revision, _seconds(at), bounded(subject, 200), bounded(author, 200)))
        return found

    def resolve(self, branch: str) -> str:
        """The newest commit of a branch, or of a request (``pull/12``, ``merge-requests/12``)."""
        objects = ObjectStore(self._git(), self._limits)
        found = objects.resolve(f"refs/heads/{branch}")
        if found is None and REQUEST.fullmatch(branch):
            found = objects.resolve(f"refs/{branch}/head")
        if found is None:
            raise SourceError("NoSuchBranch", f"there is no branch {bounded(branch, 100)}")
        return found

    def documents(self, revision: str) -> dict[str, bytes]:
        """The documents of a commit by their path below the folder; files that would be refused are left out."""
        objects = ObjectStore(self._git(), self._limits)
        chosen = select(
            objects.entries(revision, self._prefix),
            self._prefix,
            self._limits,
            lambda entry: objects.follow(revision, entry),
        )
        blobs = objects.read(sorted(set(chosen.files.values())))
        return {path: blobs[blob] for path, blob in chosen.files.items() if blob in blobs}

    def log(self, revision: str, most: int = 50) -> list[LoggedCommit]:
        """The newest commits up to a commit or a branch that is named in full, newest first."""
        form = _SEPARATOR.join(("%H", "%an <%ae>", "%ct", "%s"))
        output = self._git().run(
            "log", "--no-color", "--first-parent", f"--max-count={most}", "--name-only", "--no-renames",
            f"--format=tformat:%x01{form}%x00", revision, "--",
        )  # fmt: skip
        found = []
        for record in output.data.split(_RECORD)[1:]:
            sha, author, at, subject, files = [
                part.decode("utf-8", "replace") for part in (*record.split(b"\x00", 4), b"", b"", b"", b"")[:5]
            ]
            changed = tuple(line for line in files.split("\n") if line.strip())[:MOST_CHANGED]
            found.append(LoggedCommit(sha.strip(), bounded(author, 200), _seconds(at), bounded(subject, 200), changed))
        return found

    def _git(self) -> Git:
        if self._remote and not self._is_fresh():
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                with self._locked() as lock:
                    # another process may have fetched while this one waited
                    if not self._is_fresh():
                        self._fetch(Git(self._directory, timeout=self._limits.local_timeout, lock=lock))
            except OSError as error:
                text = f"the copy of the repository cannot be kept: {error.strerror or error}"
                raise SourceError(
                    "CopyUnwritable", text, hint="Set BELAY_DATA to a folder that can be written."
                ) from error
        return Git(self._directory, timeout=self._limits.local_timeout)

    def _is_fresh(self) -> bool:
        """Whether the copy was fetched just now. Raises SourceError where that failed just now."""
        try:
            with self._stamp.open("rb") as file:
                fetched, _, why = file.read(4096).decode("utf-8", "replace").partition("\n")
        except OSError:
            return False
        fresh = fetched.isdecimal() and len(fetched) < 15 and 0 <= self._clock() - int(fetched) / 1000 < FETCH_SECONDS
        if fresh and why:
            raise SourceError("Unreachable", why, transient=True)
        return fresh

    def _fetch(self, git: Git) -> None:
        self._sweep()
        if not (self._directory / "HEAD").is_file():
            git.run("init", "--bare", "--quiet", "--template=", "--initial-branch=belay", ".")
        why = ""
        try:
            requests = self._offered_requests(git)
            git.run(
                "fetch", "--quiet", "--prune", "--no-tags", f"--depth={DEPTH}", "--", self._url,
                "+refs/heads/*:refs/heads/*", *(f"+{ref}:{ref}" for ref in requests),
                timeout=self._limits.remote_timeout,
            )  # fmt: skip
            self._drop_requests(git, requests)
        except GitFailed as error:
            why = bounded(f"the repository cannot be read: {error}", 1000)
            raise SourceError("Unreachable", why, transient=True) from error
        finally:
            fresh = self._stamp.with_suffix(".new")
            fresh.write_text(f"{int(self._clock() * 1000)}\n{why}", encoding="utf-8")
            os.replace(fresh, self._stamp)

    def _offered_requests(self, git: Git) -> list[str]:
        """The references of the newest requests of the remote repository, by their numbers."""
        output = git.run("ls-remote", "--quiet", "--", self._url, *_REQUESTS, timeout=self._limits.remote_timeout)
        refs = [row.partition(b"\t")[2].decode("utf-8", "replace") for row in output.data.splitlines()]
        numbers = {ref: int(ref.split("/")[2]) for ref in refs if _is_request(ref)}
        return sorted(numbers, key=lambda ref: numbers[ref], reverse=True)[:MOST_REQUESTS]

    @staticmethod
    def _drop_requests(git: Git, kept: Sequence[str]) -> None:
        """Forget the requests of the copy that are not offered any more."""
        output = git.run("for-each-ref", "--format=%(refname)", *_REQUESTS)
        gone = [ref for ref in output.data.decode("utf-8", "replace").split() if ref not in kept]
        if gone:
            git.run("update-ref", "--stdin", data="".join(f"delete {ref}\n" for ref in gone).encode())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The lock of the copy: a descriptor that git processes inherit."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            ends = time.monotonic() + self._limits.remote_timeout
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= ends:
                        text = "another process fetches the repository all the time"
                        raise SourceError("MirrorBusy", text, transient=True) from error
                    time.sleep(_LOCK_STEP)
            yield descriptor
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what a git process left that was killed; call it locked."""
        left = [*self._directory.glob("*.lock"), *self._directory.glob("refs/**/*.lock")]
        left += [*self._directory.glob("objects/pack/tmp_*"), *self._directory.glob("objects/tmp_*")]
        for file in left[:_MOST_LEFT]:
            file.unlink(missing_ok=True)


def _is_request(ref: str) -> bool:
    return bool(REQUEST.fullmatch(ref.removeprefix("refs/").removesuffix("/head"))) and ref.endswith("/head")


def _seconds(text: str) -> float:
    return float(text) if text.strip().isdecimal() and len(text) < 15 else 0.0
