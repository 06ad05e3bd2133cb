"""The clone of a state repository that a person works in: changed files become one commit.

Git runs with the person's own settings, so author, signature and hooks are theirs. Nothing that the person has changed
is committed along.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from belay.engine.errors import BelayError, InputError
from belay.engine.log import redact
from belay.engine.model.wording import counted

_SECONDS: Final = 120.0
_MOST: Final = 2000
_UNDER_WAY: Final = {
    "MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert", "rebase-merge": "rebase",
    "rebase-apply": "rebase",
}  # fmt: skip
"""What Git keeps in its folder while an operation of the person waits to be finished."""


class Clone:
    """A work tree; ``root`` is its top, ``folder`` the state repository within it (``desired/`` lies there).

    Raises:
        InputError: the folder is in no work tree of Git, or holds no state repository.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise InputError(
                "no such directory",
                where=folder,
                hint="Name the clone of your state repository: --repo DIR",
                code="NotARepository",
            )
        done = self.git("rev-parse", "--show-toplevel", check=False)
        if done.returncode:
            raise InputError("this is no clone of a Git repository", where=folder, code="NotARepository",
                             hint="Go to the clone of your state repository, or name it: --repo DIR")  # fmt: skip
        self.root = Path(done.stdout.strip())
        while not is_state_repository(self.folder):
            if self.folder == self.root:
                raise InputError("there is neither desired/ nor policies/", where=str(self.root), code="NotARepository",
                                 hint="Name the clone of your state repository: --repo DIR")  # fmt: skip
            self.folder = self.folder.parent

    def files(self) -> Mapping[str, bytes]:
        """The documents, by path below ``folder``."""
        from belay.engine.load import load_directory

        return load_directory(self.folder)

    def check_clean(self, files: Mapping[str, bytes | None]) -> None:
        """Raises InputError where one of the files has changes of the person's own, or is a link to another."""
        for path in files:
            self._check_no_link(path)

        # without a path git would look at every file
        changed = self.git("status", "--porcelain", "--", *files).stdout if files else ""
        if changed:
            raise InputError(f"{len(changed.splitlines())} of the files to edit have uncommitted changes",
                             where=changed.splitlines()[0][3:], hint="Commit or stash them first",
                             code="UncommittedChanges")  # fmt: skip

    def _check_no_link(self, path: str) -> None:
        place = self.folder / path
        if place.is_symlink():
            raise InputError(
                f"this is a symbolic link to {os.readlink(place)}, which an act does not edit",
                where=path,
                hint="Edit that file and commit it, or put it in the link's place",
            )

    def check_whole(self) -> None:
        """Raises InputError where a sparse checkout leaves documents out: an act would be planned without them."""
        if self.setting("core.sparseCheckout") != "true":
            return
        rooms = self._rooms()
        listed = self.git("ls-files", "-t", "-z", "--", *rooms, at=self.root).stdout.split("\0")
        left_out = [row[2:] for row in listed if row.startswith("S ")]
        if left_out:
            raise InputError(
                f"a sparse checkout leaves out {counted(len(left_out), 'file')} of desired/ and policies/, "
                "so what the act does cannot be planned",
                where=left_out[0], hint=f"git sparse-checkout add {' '.join(rooms)}",
            )  # fmt: skip

    def check_idle(self) -> None:
        """Raises InputError while a merge, rebase or the like waits to be finished: Git commits no single file then."""
        for name, operation in _UNDER_WAY.items():
            place = self.git("rev-parse", "--git-path", name).stdout.strip()
            if (self.folder / place).exists():
                raise InputError(f"a {operation} is under way in this clone", where=str(self.root),
                                 hint=f"Finish it: git {operation} --continue; or give it up: git {operation} --abort",
                                 code="UncommittedChanges")  # fmt: skip

    def check_author(self) -> None:
        """Raises InputError if Git does not know who commits here."""
        for person in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
            if self.git("var", person, check=False).returncode:
                raise unknown_author(str(self.root))

    def diff(self, files: Mapping[str, bytes | None]) -> str:
        """What the changed files would change, as Git shows it. Nothing is written."""
        import difflib

        lines: list[str] = []
        for path, data in sorted(files.items()):
            place = self.folder / path
            old = place.read_bytes().decode("utf-8", "replace").splitlines(keepends=True) if place.exists() else []
            new = [] if data is None else data.decode("utf-8", "replace").splitlines(keepends=True)
            names = (f"a/{path}" if old else "/dev/null", f"b/{path}" if data is not None else "/dev/null")
            for line in difflib.unified_diff(old, new, *names):
                lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
        return "".join(lines)

    def commit(self, files: Mapping[str, bytes | None], message: str) -> str:
        """Write and commit the files, and nothing else; the id of the commit. A commit that Git refuses leaves the
        files as they were."""
        before = {path: _content(self.folder / path) for path in files}
        self._write(files)
        try:
            if files:
                self.git("add", "--all", "--", *files)
                self.git("commit", "--quiet", "--only", "--message", message, "--", *files)
            else:
                self.git("commit", "--quiet", "--allow-empty", "--only", "--message", message)
        except BelayError:
            self._write(before)
            if files:  # without a path everything that the person has staged would be taken out
                self.git("reset", "--quiet", "--", *files, check=False)
            raise
        return self.git("rev-parse", "HEAD").stdout.strip()

    def head(self) -> str:
        """The commit that is checked out."""
        return self.git("rev-parse", "HEAD").stdout.strip()

    def drop(self, commit: str) -> bool:
        """Take a commit off the branch, where it is the newest and nothing is uncommitted; whether that is done."""
        if self.head() != commit or self.git("status", "--porcelain", "--untracked-files=no").stdout:
            return False
        return not self.git("reset", "--quiet", "--keep", f"{commit}~1", check=False).returncode

    def words(self, commit: str = "HEAD") -> str:
        """What a rebase leaves of a commit: author, time of writing, and message."""
        return self.git("log", "-1", "--format=%ae %at %B", commit).stdout

    def before_last_change(self) -> str:
        """The commit before the last one that changed a document."""
        found = self.git("rev-list", "-1", "HEAD", "--", *self._rooms(), at=self.root).stdout.strip()
        return self.resolve(f"{found or 'HEAD'}~1")

    def resolve(self, revision: str) -> str:
        """The full id of a commit. Raises InputError where there is none."""
        done = self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False)
        if done.returncode:
            shallow = self.git("rev-parse", "--is-shallow-repository", check=False).stdout.strip() == "true"
            hint = "This clone is shallow: git fetch --unshallow" if shallow else "git fetch, or git log --oneline"
            raise InputError("there is no such commit here", where=revision, hint=hint)
        return done.stdout.strip()

    def contains(self, later: str, commit: str) -> bool:
        """Whether ``later`` is known here and has ``commit`` in its history."""
        return self.git("merge-base", "--is-ancestor", commit, later, check=False).returncode == 0

    def pushed(self, commit: str) -> bool:
        """Whether a remote branch, as last seen here, contains the commit; True where there is no remote."""
        if not self.git("remote").stdout.strip():
            return True
        return bool(self.git("branch", "--remotes", "--contains", commit).stdout.strip())

    def at(self, commit: str) -> dict[str, bytes]:
        """The files of desired/ and policies/ at a commit, by path below ``folder``."""
        rooms = self._rooms()
        listed = self.git("ls-tree", "-r", "-z", "--name-only", commit, "--", *rooms, at=self.root).stdout
        found: dict[str, bytes] = {}
        for name in filter(None, listed.split("\0")):
            done = subprocess.run(
                ["git", "cat-file", "blob", f"{commit}:{name}"], cwd=self.root, capture_output=True, timeout=_SECONDS,
                check=True,
            )  # fmt: skip
            found[name.removeprefix(rooms[0].removesuffix("desired"))] = done.stdout
        return found

    def contents(self, commit: str, paths: Iterable[str]) -> dict[str, bytes]:
        """Some files at a commit, by path below ``folder``; those that it has not are left out."""
        prefix = self._rooms()[0].removesuffix("desired")
        found: dict[str, bytes] = {}
        for path in paths:
            done = subprocess.run(
                ["git", "cat-file", "blob", f"{commit}:{prefix}{path}"], cwd=self.root, capture_output=True,
                timeout=_SECONDS,
            )  # fmt: skip
            if not done.returncode:
                found[path] = done.stdout
        return found

    def changes_since(self, commit: str) -> list[str]:
        """The commits of the branch after ``commit`` that changed documents, newest first; a merge counts as one."""
        listed = self.git("rev-list", "--first-parent", f"{commit}..HEAD", "--", *self._rooms(), at=self.root).stdout
        return listed.split()

    def documents_of(self, commit: str) -> tuple[str, ...]:
        """The paths below desired/ and policies/ that a commit changed, beside its first parent."""
        listed = self.git("diff-tree", "-r", "-z", "--root", "-m", "--first-parent", "--no-commit-id", "--name-only",
                          commit, "--", *self._rooms(), at=self.root).stdout  # fmt: skip
        return tuple(filter(None, listed.split("\0")))

    def _rooms(self) -> list[str]:
        """desired/ and policies/ as paths below ``root``."""
        return [(self.folder / room).relative_to(self.root).as_posix() for room in ("desired", "policies")]

    def _write(self, files: Mapping[str, bytes | None]) -> None:
        for path, data in files.items():
            place = self.folder / path
            if data is None:
                place.unlink(missing_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    def setting(self, name: str) -> str:
        """A setting of the person's Git configuration, empty where it is not set."""
        return self.git("config", "--get", name, check=False).stdout.strip()

    def certificates(self, url: str) -> str:
        """The file of certificates that Git trusts for an address beside the system's, or nothing."""
        named = os.environ.get("GIT_SSL_CAINFO", "")
        return named or self.git("config", "--get-urlmatch", "http.sslCAInfo", url, check=False).stdout.strip()

    def git(self, *args: str, check: bool = True, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run git here, or ``at`` another folder. Raises BelayError where it is missing, does not end, or fails
        although ``check``."""
        try:
            done = subprocess.run(
                ["git", "--literal-pathspecs", "-c", "core.quotePath=false", *args],
                cwd=at or self.folder,
                capture_output=True, text=True, timeout=_SECONDS, errors="replace",
            )  # fmt: skip
        except FileNotFoundError as error:
            raise BelayError("the git command is not on PATH", hint="Install git") from error
        except subprocess.TimeoutExpired as error:
            raise BelayError(f"git {args[0]} did not end within {_SECONDS:.0f} s") from error
        if check and done.returncode:
            raise BelayError(f"git {args[0]} failed: {said(done)}", where=str(self.folder))
        return done


def unknown_author(where: str) -> InputError:
    """Git does not know who commits in a folder."""
    return InputError(
        "Git does not know your name and address, which a commit carries",
        where=where,
        hint='Give both: git config --global user.name "NAME"; git config --global user.email ADDRESS',
        code="NoAuthor",
    )


def is_state_repository(folder: Path) -> bool:
    """Whether documents may lie here."""
    return any((folder / room).is_dir() for room in ("desired", "policies"))


def _content(place: Path) -> bytes | None:
    return place.read_bytes() if place.exists() else None


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What git printed about a failure, in one line and without secrets."""
    return redact(" ".join(done.stderr.split()))[:_MOST] or f"exit {done.returncode}"
