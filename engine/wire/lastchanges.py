"""The last changes of a revision's files, from the controller to the workers, beside the files themselves.

``{"commits": [[commit, author], …], "files": {path: number of its commit}}``: most files of a tree share few commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.model.last_changes import LastChange

META: Final = "lastChanges"
"""Field of a revision's record that names the blob with its table."""
MAX_BYTES: Final = 2 << 20
"""A larger table is left out: places then name the revision in force, without an author."""


class _Table(msgspec.Struct, frozen=True):
    commits: tuple[tuple[str, str], ...] = ()
    files: dict[str, int] = {}


def encode(changes: Mapping[str, LastChange]) -> bytes:
    """The table as bytes; empty where there is nothing to say, or too much."""
    if not changes:
        return b""
    numbers = {change: number for number, change in enumerate(sorted(set(changes.values())))}
    files = {path: numbers[changes[path]] for path in sorted(changes)}
    rows = tuple((change.commit, change.author) for change in numbers)
    table = msgspec.json.encode(_Table(rows, files))
    return table if len(table) <= MAX_BYTES else b""


def decode(table: bytes) -> dict[str, LastChange]:
    """The table of ``encode``; empty where it is none. Rows that name no commit are left out."""
    try:
        found = msgspec.json.decode(table, type=_Table)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    commits = [LastChange(commit, author) for commit, author in found.commits]
    return {path: commits[number] for path, number in found.files.items() if 0 <= number < len(commits)}
