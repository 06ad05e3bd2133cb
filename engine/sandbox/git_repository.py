"""The Git repository that `belay up` serves: bare, local, made from a folder once."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from belay import SHIPPED
from belay.engine.errors import BelayError, InputError
from belay.engine.source import Limits

BRANCH: Final = "main"
CLONE: Final = "state"
"""The folder of a person's clone, in the README and the guides."""
_SECONDS: Final = 60


def git(*arguments: str, cwd: Path | None = None) -> str:
    """Run git and return what it prints.

    Raises:
        BelayError: git is missing or fails; the text contains the end of git's output.
    """
    environment = os.environ | {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "belay",
        "GIT_AUTHOR_EMAIL": "belay@localhost",
        "GIT_COMMITTER_NAME": "belay",
        "GIT_COMMITTER_EMAIL": "belay@localhost",
    }
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # set when we run inside a Git hook
        environment.pop(name, None)
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise BelayError("git is not installed", hint="Install the package git.") from error
    except subprocess.TimeoutExpired as error:
        raise BelayError(f"git {arguments[0]} took longer than {_SECONDS} s") from error
    if done.returncode:
        raise BelayError(f"git {arguments[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def clone_command(repository: Path, here: Path) -> str:
    """What a person types to have the repository as `state` in the folder ``here``.

    A clone of an earlier sandbox may lie there: it is put aside, as pushes from it would go nowhere. One of this
    sandbox is brought up to date.
    """
    clone = f"git clone {shlex.quote(str(repository))} {CLONE}"
    place = here / CLONE
    if not place.exists():
        return clone

    try:
        followed = git("config", "--file", str(place / ".git" / "config"), "remote.origin.url")
    except BelayError:
        followed = ""
    if followed == str(repository):
        return f"git -C {CLONE} pull"

    aside = next(name for number in itertools.count(1) if not (here / (name := f"{CLONE}.{number}")).exists())
    return f"mv {CLONE} {aside} && {clone}"


def sample() -> Path:
    """The sample state that comes with Belay: ``desired/`` beside ``engine/``, else in the installed package."""
    return _shipped("desired")


def schemas() -> Path:
    """The JSON Schemas of Belay's kinds, which the sample's documents name for editors."""
    return _shipped("policies") / "schemas"


def _shipped(room: str) -> Path:
    folder = SHIPPED / room
    if not folder.is_dir():
        raise InputError(
            "the sample state is missing", where=str(folder), hint="Install Belay again, or give --state DIR."
        )
    return folder


def check(state: Path, data: Path) -> None:
    """Reject a folder that cannot be a state repository.

    Raises:
        InputError: it is not a folder, holds nothing, or holds the folder ``data``, which would be copied into itself.
    """
    where = f"--state {state}"
    if not state.is_dir():
        raise InputError("is not a folder", where=where, hint="Give a folder with desired/ and policies/.")
    if data.is_relative_to(state):
        hint = "Give the folder with desired/ and policies/ itself, or another --data DIR."
        raise InputError(f"holds {data}, where the sandbox keeps its own files", where=where, hint=hint)
    try:
        first = next((entry for entry in state.iterdir() if entry.name != ".git"), None)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    if first is None:
        raise InputError("is empty", where=where, hint="Give a folder with desired/ and policies/.")


def ensure(path: Path, state: Path | None, go_on: Callable[[], None] = lambda: None) -> str:
    """Create the bare repository at ``path`` unless it exists, with one commit of ``state`` (default: the sample).

    Returns the commit at the tip of the branch. A folder with ``desired/`` or ``policies/`` inside is taken as it is,
    any other becomes ``desired/``. ``go_on`` is called before each file, and may raise.

    Raises:
        InputError: ``state`` cannot be used, or holds more than a state repository may.
    """
    if not (path / "HEAD").is_file():
        if state is not None:
            check(state, path.parent)
        fresh = path.with_name(f".{path.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        git("init", "--quiet", "--bare", f"--initial-branch={BRANCH}", str(fresh))
        _first_commit(fresh, sample() if state is None else state, go_on, whole=state is not None)
        fresh.rename(path)  # so that an incomplete repository is never used
    return git("--git-dir", str(path), "rev-parse", f"refs/heads/{BRANCH}")


def _first_commit(bare: Path, source: Path, go_on: Callable[[], None], *, whole: bool) -> None:
    # beside the repository: the common temporary folder may be the one to copy
    with tempfile.TemporaryDirectory(prefix=".state-", dir=bare.parent) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        as_it_is = whole and any((source / part).is_dir() for part in ("desired", "policies"))
        _copy(source, tree if as_it_is else tree / "desired", go_on)
        if not whole:  # the sample names its schemas, so that editors complete and check
            _copy(schemas(), tree / "policies" / "schemas", go_on)
        git("init", "--quiet", f"--initial-branch={BRANCH}", cwd=tree)
        git("add", "--all", cwd=tree)
        if not git("ls-files", cwd=tree):
            hint = "Give a folder with desired/ and policies/."
            raise InputError("holds no file", where=f"--state {source}", hint=hint)
        git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--message", "Declare the cluster", cwd=tree)
        git("push", "--quiet", "--no-verify", str(bare), f"HEAD:refs/heads/{BRANCH}", cwd=tree)


def _copy(source: Path, target: Path, go_on: Callable[[], None]) -> None:
    """Copy files and links of a folder without ``.git``; sockets and pipes are left out."""
    where, hint = f"--state {source}", "Give the folder with desired/ and policies/ itself."
    limits, files, size = Limits(), 0, 0

    def unreadable(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}", where=where)

    for folder, folders, names in os.walk(source, onerror=unreadable):
        folders[:] = sorted(name for name in folders if name != ".git")
        into = target / Path(folder).relative_to(source)
        into.mkdir(parents=True, exist_ok=True)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*links, *sorted(name for name in names if name != ".git")):
            go_on()
            file = Path(folder) / name
            try:
                info = file.lstat()
                if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                    continue
                files, size = files + 1, size + info.st_size
                if files > limits.files or size > limits.total:
                    most = f"{limits.files} files or {limits.total >> 20} MiB"
                    raise InputError(f"holds more than {most}, too much for a state repository", where=where, hint=hint)
                shutil.copy2(file, into / name, follow_symlinks=False)
            except OSError as error:
                unreadable(error)
