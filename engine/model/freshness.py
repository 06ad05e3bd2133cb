"""How old what is shown is: the last pass of a shard, and why none comes.

One sentence for everybody who shows state: `belay status`, ``get`` and ``explain``, ``/readyz``, the page, the console,
the metrics and the conditions of ``belay-sync``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from belay.engine.model.times import rfc3339

LEAST_SECONDS: Final = 30.0
"""A pass that is missing for less time is no news: one may take so long."""
MISSED: Final = 3
"""Regular passes that may be missing before it is news."""
APPLIED: Final = "Applied"
READY: Final = "Ready"
VOUCHED: Final = (READY, APPLIED)
"""Conditions of ``belay-sync`` that say whether everything is in force; the worst shard decides them."""
DOUBTED: Final = (*VOUCHED, "PruneHeld")
"""Conditions of ``belay-sync`` that are true only as long as passes come."""
NO_PASS: Final = "NoPass"
"""Reason of conditions that are unknown because no pass comes."""


class Hindrance(StrEnum):
    """Why a shard has no pass."""

    LEASE_HELD = "LeaseHeld"
    REDIS_AWAY = "RedisAway"
    NO_WORKER = "NoWorker"
    QUEUE_FULL = "QueueFull"
    NO_REVISION = "NoRevision"
    SNAPSHOT_WAITS = "SnapshotWaits"
    ENDED_EARLY = "EndedEarly"
    NOT_COMPLETED = "NotCompleted"
    UNREPORTED = "Unreported"


class LastPass(msgspec.Struct, frozen=True, kw_only=True):
    """The last completed pass of a shard. Times are Unix seconds.

    ``identifier`` is empty for a pass that had nothing to write. ``every`` is the longest time between two passes while
    nothing happens. ``reason`` and ``problem`` say what hinders the next one, as ``by`` saw it at ``said``.
    """

    shard: str
    identifier: str = ""
    time: float = 0.0
    revision: str = ""
    every: float = 10.0
    reason: str = ""
    problem: str = ""
    said: float = 0.0
    by: str = ""


def allowed_seconds(every: float) -> float:
    """Seconds without a pass after which it is news."""
    return max(LEAST_SECONDS, MISSED * every)


def is_missing(last: LastPass, now: float) -> bool:
    """Whether a pass is missing for so long that it is news. ``now`` is Unix seconds by the reader's clock."""
    return now - last.time > allowed_seconds(last.every) and bool(last.time or last.problem)


def missing_pass(last: LastPass, now: float) -> str:
    """``no pass for 840 s: reason``; empty while passes come.

    A pass that lies ahead of the reader's clock says nothing of its age, so it vouches for nothing.
    """
    ahead = last.time - now
    if ahead > allowed_seconds(last.every):
        return (
            f"the last pass{_of_shard(last)} is {ahead:.0f} s ahead of this clock, so the age of what is shown "
            f"is not known: set the clock of {last.by or 'the worker'}, or this one"
        )
    if not is_missing(last, now):
        return ""
    age = f" for {now - last.time:.0f} s" if last.time else " yet"
    return f"no pass{_of_shard(last)}{age}: {_why(last)}"


def missing_since(last: LastPass, now: float) -> str:
    """The same with the time of the last pass, for texts that shall not change every second."""
    if not is_missing(last, now):
        return ""
    begun = f" since {rfc3339(last.time)}" if last.time else " yet"
    return f"no pass{_of_shard(last)}{begun}: {_why(last)}"


def _of_shard(last: LastPass) -> str:
    return "" if last.shard == "main" else f" of shard {last.shard}"


def _why(last: LastPass) -> str:
    return last.problem or (
        "no process reports why; see whether controller and worker run, and whether they reach the API server and Redis"
    )
