"""The last changes of a revision's files, from the controller to the workers, beside the files themselves.

``{"commits": [[commit, author], …], "files": {path: number of its commit}, "whys": [why, …]}``: most files of a tree
share few commits. ``whys`` has a text for each commit; it is left out where none has one, or the table would be too
large.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from belay.engine.model.last_changes import LastChange

META: Final = "lastChanges"
"""Field of a revision's record that names the blob with its table."""
MAX_BYTES: Final = 2 << 20
"""A larger table is left out: places then name the revision in force, without an author."""


class _Table(msgspec.Struct, frozen=True, omit_defaults=True):
    commits: tuple[tuple[str, str], ...] = ()
    files: dict[str, int] = {}
    whys: tuple[str, ...] = ()


def encode(changes: Mapping[str, LastChange]) -> bytes:
    """The table as bytes; empty if there is nothing to say, or too much."""
    if not changes:
        return b""
    numbers = {change: number for number, change in enumerate(sorted(set(changes.values())))}
    files = {path: numbers[changes[path]] for path in sorted(changes)}
    rows = tuple((change.commit, change.author) for change in numbers)
    whys = tuple(change.why for change in numbers)
    for words in (whys if any(whys) else (), ()):
        table = msgspec.json.encode(_Table(rows, files, words))
        if len(table) <= MAX_BYTES:
            return table
    return b""


def decode(table: bytes) -> dict[str, LastChange]:
    """The table of ``encode``; empty if it is none. Rows that name no commit are left out."""
    try:
        found = msgspec.json.decode(table, type=_Table)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    whys = found.whys if len(found.whys) == len(found.commits) else ("",) * len(found.commits)
    commits = [LastChange(commit, author, why) for (commit, author), why in zip(found.commits, whys, strict=True)]
    return {path: commits[number] for path, number in found.files.items() if 0 <= number < len(commits)}
