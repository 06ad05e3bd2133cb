"""The newest complete checkpoint, for recoveries without a living replica.

``NewestComplete`` is the protocol for launchers and controllers; ``Tiers`` (in ``tiers.py``) implements it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Found:
    """A complete checkpoint: the file of every rank exists and has the size recorded with its checksums.

    ``step`` is the last finished step in it, ``world_size`` the number of ranks that wrote it, ``tier`` its storage
    (``memory``, ``peer``, ``local``, ``shared``), ``place`` the folder.
    """

    step: int
    world_size: int
    tier: str
    place: str


class NewestComplete(Protocol):
    """Finds and loads the newest complete checkpoint across all tiers."""

    def newest(self, at_most: int | None = None) -> Found | None:
        """The newest complete checkpoint, of a step up to ``at_most`` if given; ``None`` without one."""

    def missing(self) -> list[str]:
        """The missing shards of newer checkpoints, for messages: at most 20 lines."""

    def load(self, found: Found, rank: int) -> Any:
        """The state of ``rank`` in ``found``, verified by its checksums.

        Raises ``CheckpointError`` naming the file when it is damaged; then call :meth:`newest` again
        with ``at_most=found.step - 1``.
        """
