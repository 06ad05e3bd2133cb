"""The tree before a change, out of the repository that the change is checked out from.

It is the tree of the commit that both have in common: CI checks a change out as it was merged when the request was
opened or pushed to, and what came to the target since then is not the change's. Files are taken as the repository
holds them (`git cat-file`), as the engine reads them: `git archive` would leave out what `export-ignore` names, and
rewrite what other attributes name.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from belay.engine.errors import InputError

MOST_BYTES: Final = 256 * 1024 * 1024
MOST_FILES: Final = 100_000
SECONDS: Final = 60


@contextlib.contextmanager
def tree_at(folder: str, revision: str) -> Iterator[str]:
    """A folder with the files that ``folder``, inside a Git work tree, had when it parted from ``revision``; removed
    afterwards. Where they have no commit in common, those that it has at ``revision``.

    Raises:
        InputError: no work tree, no such revision (a shallow clone?), or too large.
    """
    if revision.startswith("-"):
        raise InputError(f"{revision!r} is not a revision", where="--base")
    prefix = _git(folder, "rev-parse", "--show-prefix", why="is in no Git work tree").strip()
    root = _git(folder, "rev-parse", "--show-toplevel", why="is in no Git work tree").strip()
    commit = _git(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}",
        why=f"has no revision {revision}; a shallow clone lacks it: fetch all (fetch-depth: 0, GIT_DEPTH: 0)",
    ).strip()  # fmt: skip
    commit = _parted(root, commit, revision)
    with tempfile.TemporaryDirectory(prefix="belay-review-") as scratch:
        target = Path(scratch) / "tree"
        target.mkdir()
        if not prefix or _has(root, commit, prefix):  # else the folder is new
            _write(root, f"{commit}:{prefix}", target, f"{folder} at {revision}")
        yield str(target)


def _parted(root: str, commit: str, revision: str) -> str:
    """The newest commit that the work tree's own and ``commit`` have in common; ``commit`` where they have none."""
    done = _run(root, "merge-base", "HEAD", commit)
    if done.returncode == 0:
        return done.stdout.split()[0]
    if _run(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        raise InputError(
            f"holds no commit that this one and {revision} have in common", where=root,
            hint="It is a shallow clone: fetch all (fetch-depth: 0, GIT_DEPTH: 0).",
        )  # fmt: skip
    return commit


def _write(root: str, tree: str, target: Path, where: str) -> None:
    """Write the regular files of a tree below ``target``.

    Links are left out: the engine resolves them inside a commit, which a folder of files is not.
    """
    blobs: list[tuple[str, str]] = []
    total = 0
    for record in _git(root, "ls-tree", "-r", "-z", "--long", "--full-tree", tree, why="cannot be read").split("\0"):
        head, _, path = record.partition("\t")
        if not path:
            continue
        mode, kind, name, size = head.split()
        if kind != "blob" or mode not in ("100644", "100755"):
            continue
        total += int(size)
        blobs.append((name, path))
    if total > MOST_BYTES or len(blobs) > MOST_FILES:
        raise InputError(
            f"it holds more than {MOST_BYTES >> 20} MiB or {MOST_FILES} files", where=where,
            hint="Keep the state repository to manifests, or name a folder with --base.",
        )  # fmt: skip
    listed = "".join(f"{name}\n" for name, _ in blobs).encode()
    done = _raw(root, listed, "cat-file", "--batch")
    if done.returncode:
        raise InputError("cannot be read", where=where, hint=done.stderr.decode(errors="replace").strip()[:300])
    data, at = memoryview(done.stdout), 0
    for name, path in blobs:
        line = bytes(data[at : at + 256]).partition(b"\n")[0]
        fields = line.split()
        if len(fields) != 3 or fields[0] != name.encode():
            raise InputError(f"lacks the file {path}: {line[:100].decode(errors='replace')}", where=where)
        at += len(line) + 1
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data[at : at + int(fields[2])])
        at += int(fields[2]) + 1


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
    done = _raw(folder, b"", *words)
    # names of files are bytes: those that are no UTF-8 come back the same when they are written
    texts = (os.fsdecode(done.stdout), done.stderr.decode(errors="replace"))
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)


def _raw(folder: str, given: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", folder, *words],
            env={**bare, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1"},
            capture_output=True,
            input=given,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise InputError("git is not installed", where="--base") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"git {words[0]} took longer than {SECONDS} s", where=folder) from error
