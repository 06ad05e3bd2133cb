"""The way back of a confirmed deletion: how the documents come back that the branch had at a revision and has no more.

Only they come back: what others have committed since then stays.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from belay.engine.cli.acts.clone import Clone
from belay.engine.cli.acts.edits import documents
from belay.engine.errors import InputError

_MOST_COMMITS: Final = 50
_MOST_FILES: Final = 100


def restoring(clone: Clone, base: str) -> tuple[str, ...]:
    """The steps that bring back what has been deleted since ``base``, to be asked for when the branch is published."""
    by_hand = (f"restore the documents{f' from {base[:12]}' if base else ', as they were before they went'}, and push",)
    commits = _commits_since(clone, base)
    if not commits or len(commits) > _MOST_COMMITS:
        return by_hand

    changed = {commit: clone.documents_of(commit) for commit in commits}
    touched = sorted({path for paths in changed.values() for path in paths})
    gone = _gone(clone, base, touched)
    if not gone or len(gone) > _MOST_FILES:
        return by_hand
    if len(commits) == 1 and set(gone) == set(touched):
        return (f"belay rollback {base[:12]}",)

    at_top = {path: shlex.quote(f":/{path}") for path in gone}
    sources: dict[str, list[str]] = {}
    for path, whole in gone.items():
        by = [commit for commit in commits if path in changed[commit]]
        # without the file, the newest commit that touched it is the one that removed it
        exact = whole or len(by) == 1
        source = clone.resolve(f"{by[0]}~1")[:12] if exact else f"--patch {base[:12]}"
        sources.setdefault(source, []).append(at_top[path])
    everything = " ".join(at_top.values())
    return (
        *(f"git checkout {source} -- {' '.join(paths)}" for source, paths in sources.items()),
        f"git commit -m 'Restore documents' -- {everything}",
        "git push",
    )


def _commits_since(clone: Clone, base: str) -> Sequence[str]:
    """The commits that changed documents after ``base``, newest first; none where the branch does not come from it."""
    try:
        start = clone.resolve(base) if base else ""
    except InputError:
        return ()
    return clone.changes_since(start) if start and clone.contains("HEAD", start) else ()


def _gone(clone: Clone, base: str, touched: Sequence[str]) -> dict[str, bool]:
    """The files, by path below the clone's root, with documents that are gone; whether the file is gone, too."""
    folder = clone.folder.relative_to(clone.root).as_posix()
    prefix = "" if folder == "." else f"{folder}/"
    paths = [path.removeprefix(prefix) for path in touched]
    before, after = clone.contents(base, paths), clone.contents("HEAD", paths)

    names = _names(after)
    still = {name for found in names.values() for name in found}
    found = {path for path, declared in _names(before).items() if not declared <= still}
    # a file that declares nothing which can be read here is gone with its file
    found |= {path for path in before if path not in after and path not in _names(before)}
    return {prefix + path: path not in after for path in sorted(found)}


def _names(files: Mapping[str, bytes]) -> dict[str, set[str]]:
    """Which documents each file declares."""
    found: dict[str, set[str]] = {}
    for one in documents(files):
        found.setdefault(one.file, set()).add(f"{one.kind}/{one.name}")
    return found
