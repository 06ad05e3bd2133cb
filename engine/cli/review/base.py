"""The tree before a change, out of the repository that the change is checked out from."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine.errors import InputError

MOST_BYTES: Final = 256 * 1024 * 1024
SECONDS: Final = 60


@contextlib.contextmanager
def tree_at(folder: str, revision: str) -> Iterator[str]:
    """A folder with the files that ``folder``, inside a Git work tree, has at ``revision``; removed afterwards.

    Raises:
        InputError: no work tree, no such revision (a shallow clone?), or too large.
    """
    if revision.startswith("-"):
        raise InputError(f"{revision!r} is no revision", where="--base")
    prefix = _git(folder, "rev-parse", "--show-prefix", why="is in no Git work tree").strip()
    commit = _git(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}",
        why=f"has no revision {revision}; a shallow clone lacks it: fetch all (fetch-depth: 0, GIT_DEPTH: 0)",
    ).strip()  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="belay-review-") as scratch:
        packed, target = Path(scratch) / "base.tar", Path(scratch) / "tree"
        target.mkdir()
        root = _git(folder, "rev-parse", "--show-toplevel", why="is in no Git work tree").strip()
        if prefix and not _has(root, commit, prefix):
            yield str(target)  # the folder is new
            return
        _git(root, "archive", "--format=tar", "-o", str(packed), f"{commit}:{prefix}", why="cannot be read")
        if packed.stat().st_size > MOST_BYTES:
            raise InputError(f"is larger than {MOST_BYTES >> 20} MiB at {revision}", where=folder)
        with tarfile.open(packed) as archive:
            # links out of the tree are left out, as the engine refuses them; it reads regular files only
            archive.extractall(target, members=[one for one in archive if one.isfile() or one.isdir()], filter="data")
        packed.unlink()
        yield str(target)


def _has(root: str, commit: str, prefix: str) -> bool:
    return _run(root, "cat-file", "-e", f"{commit}:{prefix}").returncode == 0


def _git(folder: str, *words: str, why: str) -> str:
    done = _run(folder, *words)
    if done.returncode:
        said = " ".join(done.stderr.split())
        if "dubious ownership" in said:
            hint = f"Run: git config --global --add safe.directory {folder}"
            raise InputError("belongs to another user, so git reads nothing in it", where=folder, hint=hint)
        raise InputError(why, where=folder, hint=said[:300])
    return done.stdout


def _run(folder: str, *words: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", folder, *words],
            env={**bare, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise InputError("git is not installed", where="--base") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"git {words[0]} took longer than {SECONDS} s", where=folder) from error
