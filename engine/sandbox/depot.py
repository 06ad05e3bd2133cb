"""The Git repository that `belay up` serves: bare, local, made from a folder once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from engine.errors import BelayError, InputError

BRANCH: Final = "main"
_SECONDS: Final = 60


def git(*arguments: str, cwd: Path | None = None) -> str:
    """Run git and return what it prints.

    Raises:
        BelayError: git is missing or fails; the text holds the end of what it said.
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


def sample() -> Path:
    """The sample state that comes with Belay: ``desired/`` beside ``engine/``, else in the installed package."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "desired").is_dir() and (checkout / "policies").is_dir():
        return checkout / "desired"
    packaged = Path(str(resources.files("engine") / "shipped" / "desired"))
    if not packaged.is_dir():
        raise InputError(
            "the sample state is missing", where=str(packaged), hint="Install Belay again, or give --state DIR."
        )
    return packaged


def ensure(path: Path, state: Path | None) -> str:
    """Make the bare repository at ``path`` unless it is there, with one commit of ``state`` (default: the sample).

    Returns the commit at the tip of the branch. A folder with ``desired/`` or ``policies/`` inside is taken as it is,
    any other becomes ``desired/``.
    """
    if not (path / "HEAD").is_file():
        if state is not None and not state.is_dir():
            raise InputError(
                "is no folder", where=f"--state {state}", hint="Give a folder with desired/ and policies/."
            )
        fresh = path.with_name(f".{path.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        git("init", "--quiet", "--bare", f"--initial-branch={BRANCH}", str(fresh))
        _first_commit(fresh, sample() if state is None else state, whole=state is not None)
        fresh.rename(path)  # a half-made repository is never taken for a whole one
    return git("--git-dir", str(path), "rev-parse", f"refs/heads/{BRANCH}")


def _first_commit(bare: Path, source: Path, *, whole: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="belay-state-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        as_it_is = whole and any((source / part).is_dir() for part in ("desired", "policies"))
        target = tree if as_it_is else tree / "desired"
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
        git("init", "--quiet", f"--initial-branch={BRANCH}", cwd=tree)
        git("add", "--all", cwd=tree)
        git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--message", "Declare the cluster", cwd=tree)
        git("push", "--quiet", "--no-verify", str(bare), f"HEAD:refs/heads/{BRANCH}", cwd=tree)
