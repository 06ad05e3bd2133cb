"""Types of the source: configuration, limits, revisions, conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from belay.engine.errors import InputError, bounded
from belay.engine.model.last_changes import LastChange

VerifyMode = Literal["none", "ssh", "gpg"]

MAX_MESSAGE: Final = 300
"""Longest text of a condition, an author, a subject, in characters."""

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)(://|::)")
_SCP_LIKE = re.compile(r"^(?:[A-Za-z0-9_.-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!//).+")
_SCHEMES: Final = frozenset({"file", "ssh", "https"})
_COMMIT = re.compile(r"^[0-9a-f]{40}([0-9a-f]{24})?$")
_BRANCH = re.compile(r"^(?![-/.])(?!.*(?:\.\.|//|@\{|\.lock(?:/|$)|/\.|\.$|/$))[^\x00-\x20\x7f~^:?*\[\\]{1,200}$")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits beyond which a repository is refused. Sizes in bytes, times in seconds."""

    blob: int = 1 << 20
    total: int = 64 << 20
    files: int = 20_000
    pack: int = 2 << 30
    remote_timeout: float = 60.0
    clone_timeout: float = 600.0
    local_timeout: float = 30.0
    lock_timeout: float = 60.0


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the desired state is and how it is verified.

    `url` is the path of a work tree, a plain folder or a bare repository, or a `file://`, `ssh://` or `https://` URL
    (also `user@host:path`). `path` is the folder of the repository that holds `desired/` and `policies/`; `interval` is
    in seconds. `allowed_signers` is an SSH allowed-signers file, or for gpg a keyring folder or a file of public keys;
    it must lie outside the repository.

    With a `verify_mode`: `anchor` is a commit that every revision must descend from; `repository` is the name under
    which signers know the repository (empty: the path of `url`), `require_trailer` whether each revision must name it
    in a `Belay-Source` trailer; `allow_rewrite_to` is the one commit that may come into force without following the
    last accepted revision. Raises InputError for invalid settings.
    """

    url: str
    branch: str = "main"
    path: str = ""
    interval: float = 30.0
    verify_mode: VerifyMode = "none"
    allowed_signers: Path | None = None
    suspend: bool = False
    anchor: str = ""
    repository: str = ""
    require_trailer: bool = False
    allow_rewrite_to: str = ""

    def __post_init__(self) -> None:
        _check_url(self.url)
        for field, commit in (("anchor", self.anchor), ("allowRewriteTo", self.allow_rewrite_to)):
            if commit and not _COMMIT.match(commit):
                raise InputError(
                    f"{bounded(commit, 80)!r} is not the full name of a commit",
                    where=f"Source spec.verify.{field}",
                    hint="Write all of what `git rev-parse` prints",
                )
        if any(ord(c) <= 32 for c in self.repository) or len(self.repository) > 300:
            raise InputError(
                "holds spaces, or more than 300 characters",
                where="Source spec.verify.repository",
                hint="Write a name such as platform/npu-state",
            )
        if not _BRANCH.match(self.branch):
            raise InputError(
                f"{bounded(self.branch, 80)!r} is not a branch name",
                where="Source spec.branch",
                hint="Name it without refs/heads/",
            )
        if not 1 <= self.interval <= 86_400:
            raise InputError(f"{self.interval} s is out of range", where="Source spec.interval", hint="Use 1s to 24h")
        if PurePosixPath(self.path).is_absolute() or ".." in PurePosixPath(self.path).parts or "\x00" in self.path:
            raise InputError(
                f"{bounded(self.path, 80)!r} leaves the repository",
                where="Source spec.path",
                hint="Use a folder inside the repository",
            )
        self._check_signers()

    def _check_signers(self) -> None:
        where = "Source spec.verify"
        if self.verify_mode not in ("none", "ssh", "gpg"):
            raise InputError(f"mode {self.verify_mode!r} is unknown", where=where, hint="Use none, ssh or gpg")
        if self.verify_mode == "none":
            return
        if self.allowed_signers is None:
            raise InputError(
                f"mode {self.verify_mode} needs allowedSigners", where=where, hint="Name a file outside the repository"
            )
        if (local := self.local) is not None and self.allowed_signers.resolve().is_relative_to(local):
            raise InputError(
                "allowedSigners lies inside the repository, where a push could change it",
                where=where,
                hint="Move it outside",
            )

    @property
    def local(self) -> Path | None:
        """The absolute path, when `url` is a plain path; None for a URL, `file://` included."""
        if _SCHEME.match(self.url) or (_SCP_LIKE.match(self.url) and not Path(self.url).exists()):
            return None
        return Path(self.url).expanduser().resolve()

    @property
    def repository_name(self) -> str:
        """`repository`, else the path of `url` without `.git`: `platform/npu-state`."""
        if self.repository:
            return self.repository
        if self.local is not None:
            path = str(self.local)
        elif _SCHEME.match(self.url):
            path = urlsplit(self.url).path
        else:
            path = self.url.partition(":")[2]
        return "".join(path.strip("/").removesuffix(".git").split()) or "repository"

    @property
    def name(self) -> str:
        """What revisions are made for: repository, branch and, if it is not the root, the folder."""
        return " ".join(part for part in (self.repository_name, self.branch, self.prefix.rstrip("/")) if part)

    @property
    def prefix(self) -> str:
        """`path` as the beginning of a repository path: empty or ending in a slash."""
        clean = PurePosixPath(self.path).as_posix().strip("/")
        return "" if clean in ("", ".") else f"{clean}/"


class RefusedFile(msgspec.Struct, frozen=True, order=True):
    """A file that was refused. `reason` is a CamelCase constant; `held` is the commit whose version stays in force, if
    one does."""

    path: str
    reason: str
    message: str
    held: str = ""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One state of the repository that was fetched, verified and accepted.

    `sha` is the commit, or `worktree-<digest>` for a work tree with uncommitted changes. `files` maps each path
    (relative to the source's `path`, below desired/ or policies/, YAML or JSON) to its blob id; do not change it.
    `changed` are the paths that differ from the previous revision, removed ones included. Times are unix seconds.
    `signer` and `commit` (the content of the commit object, for others to verify) are set where commits are verified.
    `last_changes` are the commits that last changed the files, as far as the history was read.
    """

    sha: str
    files: Mapping[str, str]
    changed: tuple[str, ...] = ()
    problems: tuple[RefusedFile, ...] = ()
    author: str = ""
    authored: float = 0.0
    committed: float = 0.0
    subject: str = ""
    signer: str | None = None
    commit: bytes = b""
    last_changes: Mapping[str, LastChange] = {}


class Rewrite(msgspec.Struct, frozen=True):
    """A branch whose new tip, ``after``, does not descend from the one before."""

    before: str
    after: str


class SourceCondition(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes-style condition without times; its writer sets the transition time."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


class FetchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one fetch.

    `revision` is in force now: a new one, the last good one, or None when there never was one. `attempted` is the
    newest commit seen, in force or not. `changed_ref`: `revision` differs from the caller's previous one.
    """

    revision: Revision | None
    conditions: tuple[SourceCondition, ...]
    changed_ref: bool = False
    attempted: str | None = None

    def condition(self, kind: str) -> SourceCondition | None:
        """Return the condition of that type, if it is there."""
        return next((c for c in self.conditions if c.type == kind), None)


def _check_url(url: str) -> None:
    where, hint = "Source spec.url", "Use a path, or a file://, ssh:// or https:// URL"
    if not url or url.startswith("-") or any(ord(c) < 32 or ord(c) == 127 for c in url) or len(url) > 2000:
        raise InputError("the address is empty or malformed", where=where, hint=hint)
    scheme = _SCHEME.match(url)
    if scheme and (scheme[1].lower() not in _SCHEMES or scheme[2] == "::"):
        raise InputError(f"protocol {bounded(scheme[1], 20)!r} is not allowed", where=where, hint=hint)
