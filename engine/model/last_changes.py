"""Who changed a document last, and where in Git it stands."""

from __future__ import annotations

import msgspec


class LastChange(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """The commit that gave a file the content that is in force, and that commit's author.

    ``why`` is how the body of its message begins; empty if it has none.

    Where only the tip of a branch is signed, the author of an older commit is what that commit says of itself.
    """

    commit: str
    author: str = ""
    why: str = ""


class Place(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """Where a document stands: file and line, the commit that last changed the file, its author, and why.

    ``line`` is 0 and ``commit`` empty if they are unknown, as for shipped documents and objects in the cluster.
    """

    file: str
    line: int = 0
    commit: str = ""
    author: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """The place for people: ``file:line@commit by author``; empty without a file."""
        if not self.file:
            return ""
        place = f"{self.file}:{self.line}" if self.line else self.file
        at = f"@{self.commit[:12]}" if self.commit else ""
        return f"{place}{at}" + (f" by {self.author}" if self.author else "")
