"""Carrying out a plan: every precondition is checked again at the edge, a partial apply is normal, and repeating an
action changes nothing.

One function per kind of action (``table.TABLE``); ``batch.run`` carries out the actions of one message.
"""

from __future__ import annotations

from belay.engine.act.batch import Batch, decode, dropped, run, split
from belay.engine.act.claims import SETTLE_SECONDS, ClaimResult, SettlingClaims, claim, ended
from belay.engine.act.edge import Edge, Fence, Refused, Superseded, written
from belay.engine.act.pod_watch import PodWatch
from belay.engine.act.table import TABLE

__all__ = [
    "SETTLE_SECONDS",
    "TABLE",
    "Batch",
    "ClaimResult",
    "Edge",
    "Fence",
    "PodWatch",
    "Refused",
    "SettlingClaims",
    "Superseded",
    "claim",
    "decode",
    "dropped",
    "ended",
    "run",
    "split",
    "written",
]
