"""What an act comes to: changed files, the subject of the commit, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RepositoryEdit:
    """Changed files (None removes one), the subject, and the commands that undo the act, or what finds them at last.

    ``revert``: after these commands the commit is reverted, too; where there are none, it is reverted in any case.
    ``only_while``: what must hold for the way back to be one; empty where it always is.
    """

    files: Mapping[str, bytes | None]
    subject: str
    undo: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    revert: bool = False
    only_while: str = ""

    @property
    def reverted(self) -> bool:
        """Whether reverting the commit is a part of the way back."""
        return self.revert or not self.undo
