"""The newest complete checkpoint, for recoveries without a living replica."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """A complete checkpoint: the file of every rank exists and has the size recorded with its checksums.

    ``step`` is the last finished step in it, ``world_size`` the number of ranks that wrote it, ``tier`` its storage
    (the name of a folder as ``Tiers`` got it, ``memory`` or ``objects``), ``place`` the folder.
    """

    step: int
    world_size: int
    tier: str
    place: str
