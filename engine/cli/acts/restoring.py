"""The way back of a confirmed deletion: how the documents come back that the branch had at a revision and has no more.

Only they come back: what others have committed since then stays.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from belay.engine.cli.acts.clone import Clone
from belay.engine.cli.acts.placed_documents import documents
from belay.engine.errors import InputError

_MOST_COMMITS: Final = 50
_MOST_FILES: Final = 100


def restoring(clone: Clone, base: str) -> tuple[str, ...]:
    """The steps that bring back what has been deleted since ``base``, to be asked for when the branch is published."""
    commits = _commits_since(clone, base)
    changed = {commit: clone.documents_of(commit) for commit in commits}
    touched = sorted({path for paths in changed.values() for path in paths})
    gone = _gone(clone, base, touched) if touched else {}
    if len(commits) == 1 and set(gone) == set(touched):
        return (f"belay rollback {base[:12]}",)
    if 0 < len(gone) <= _MOST_FILES:
        return _checkouts(clone, base, gone, changed)
    before = f" from {base[:12]}" if base else ", as they were before they went"
    return (f"restore the documents{before}, and push",)


def _checkouts(
    clone: Clone, base: str, gone: Mapping[str, bool], changed: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Take each file from where it still was whole; where others have changed it, too, a person picks its lines."""
    by_source: dict[str, list[str]] = {}
    for path, whole in gone.items():
        touching = [commit for commit in changed if path in changed[commit]]
        # without the file, the newest commit that touched it is the one that removed it
        exact = whole or len(touching) == 1
        source = clone.resolve(f"{touching[0]}~1")[:12] if exact else f"--patch {base[:12]}"
        by_source.setdefault(source, []).append(path)
    return (
        *(f"git checkout {source} -- {_from_top(paths)}" for source, paths in by_source.items()),
        f"git commit -m 'Restore documents' -- {_from_top(gone)}",
        "git push",
    )


def _from_top(paths: Iterable[str]) -> str:
    """Paths below the clone's root, as Git takes them in any folder of it."""
    return " ".join(shlex.quote(f":/{path}") for path in paths)


def _commits_since(clone: Clone, base: str) -> Sequence[str]:
    """The commits that changed documents after ``base``, newest first; none where they are unknown or too many."""
    try:
        start = clone.resolve(base) if base else ""
    except InputError:
        return ()
    if not start or not clone.contains("HEAD", start):
        return ()
    found = clone.changes_since(start)
    return found if len(found) <= _MOST_COMMITS else ()


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
