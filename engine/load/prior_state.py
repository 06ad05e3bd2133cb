"""What a tree declared before this revision, which a mistake must not remove.

An unusable document may be any document that is missing now, whatever name its text has and whichever file it was moved
to in the same step. So while a file is refused, everything stays in force that was declared when it became or stayed
broken and is declared nowhere now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class FileVersion(msgspec.Struct, frozen=True):
    """One earlier content of a file.

    ``blob`` is its Git blob id; ``data`` is None where Git and Redis lost it; ``number`` counts versions back from 1, 0
    where that is unknown.
    """

    path: str
    blob: str
    data: bytes | None
    number: int = 0

    def __str__(self) -> str:
        return f"{self.path}~{self.blob[:12] or self.number}"

    @property
    def distance(self) -> str:
        """How far back it is, for a message; empty where unknown."""
        return {0: "", 1: " (1 version back)"}.get(self.number, f" ({self.number} versions back)")


class Retained(msgspec.Struct, frozen=True):
    """Versions whose documents stay in force ``until`` none of these files is refused any more."""

    until: frozenset[str]
    versions: tuple[FileVersion, ...]


class PriorState(msgspec.Struct, frozen=True):
    """The state before a revision.

    ``in_force``: versions in force, in part or whole, of each file that differs now or is gone. ``older``: further good
    versions of files, newest first, for documents with unknown names. ``same``: unchanged files; ``settled``: those of
    them that were refused before. ``kept``: what earlier mistakes keep in force. ``complete`` is False when some of
    this is unknown: then nothing may be pruned while any document is refused.
    """

    in_force: Mapping[str, tuple[FileVersion, ...]] = {}
    older: Mapping[str, tuple[FileVersion, ...]] = {}
    same: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    kept: tuple[Retained, ...] = ()
    complete: bool = True

    @staticmethod
    def of(histories: Mapping[str, Sequence[bytes]]) -> PriorState:
        """The state from earlier contents of changed files, newest first, all of which may have been in force."""
        in_force = {
            path: tuple(FileVersion(path, "", data, number) for number, data in enumerate(contents, start=1))
            for path, contents in histories.items()
        }
        return PriorState(in_force=in_force)

    def versions_of(self, path: str) -> tuple[FileVersion, ...]:
        """Every known earlier content of one file, newest first."""
        return (*self.in_force.get(path, ()), *self.older.get(path, ()))


UNKNOWN = PriorState(complete=False)
"""No knowledge of earlier declarations."""
