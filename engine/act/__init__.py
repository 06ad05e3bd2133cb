"""Carrying out a plan: every precondition is checked again at the edge, a partial apply is normal, twice is as good as
once.

One function per kind of action (``table.TABLE``); ``batch.run`` carries out what one message holds.
"""

from __future__ import annotations

from engine.act.batch import Batch, decode, dropped, run, split
from engine.act.claims import Claimed, claim
from engine.act.edge import Edge, Fence, Refused, Superseded, written
from engine.act.following import Following
from engine.act.table import TABLE

__all__ = [
    "TABLE",
    "Batch",
    "Claimed",
    "Edge",
    "Fence",
    "Following",
    "Refused",
    "Superseded",
    "claim",
    "decode",
    "dropped",
    "run",
    "split",
    "written",
]
