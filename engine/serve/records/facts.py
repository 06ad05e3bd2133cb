"""What is kept: records of what happened, and spans of time. Plain values, without a database or a clock.

All times are Unix milliseconds. A record's id and a span's id are derived from what they are about, so that reading the
same thing again, after a restart or by another server, adds nothing.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec


class RecordKind(StrEnum):
    """What a record is about."""

    REVISION = "revision"
    """A commit was accepted, or refused."""
    CONFIRMATION = "confirmation"
    """Something waited for a person's confirmation, or stopped waiting."""
    ACTION = "action"
    """The engine did something to a node, a chip or an object."""
    DECISION = "decision"
    """The planner decided about a job: rescheduled, moved, scaled in."""
    PLACED = "placed"
    RELEASED = "released"
    WAITING = "waiting"
    FAULT = "fault"
    HELD = "held"
    """A chip or node is kept out of service, or no longer."""
    RECOVERY = "recovery"
    HISTORY = "history"
    """Something about the history itself: where it begins, what was removed from its beginning."""


class SpanKind(StrEnum):
    """What lasted for a time."""

    HOLDS = "holds"
    """A pod holds chips of a node."""
    WAITS = "waits"
    """A job waits for chips."""
    IDLE = "idle"
    """A job holds chips and does not run."""
    FAULT = "fault"
    HELD = "held"
    RECOVERY = "recovery"
    REFUSED = "refused"
    """The newest commit is refused."""
    UNCONFIRMED = "unconfirmed"
    """A deletion waits for a person."""


class HistoryRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One thing that happened. ``chip`` is -1 where no single chip is meant, ``person`` whose job it is, ``author`` who
    wrote the commit ``revision`` that is the cause.
    """

    id: str
    at: int
    kind: RecordKind
    text: str
    job: str = ""
    namespace: str = ""
    queue: str = ""
    person: str = ""
    node: str = ""
    chip: int = -1
    pool: str = ""
    cause: str = ""
    revision: str = ""
    author: str = ""


class Span(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A time with a beginning and, once ``ended`` is not 0, an end. ``subject`` is what no other of its kind has that
    lasts at the same time; ``cost`` and ``seen`` are those of a recovery.
    """

    kind: SpanKind
    subject: str
    begun: int
    ended: int = 0
    job: str = ""
    namespace: str = ""
    queue: str = ""
    person: str = ""
    node: str = ""
    chip: int = -1
    pool: str = ""
    chips: int = 0
    reason: str = ""
    cost: int = 0
    seen: int = 0

    @property
    def key(self) -> tuple[SpanKind, str]:
        """What no two lasting spans share."""
        return self.kind, self.subject

    @property
    def id(self) -> str:
        """The id in the store."""
        return identity(self.kind, self.subject, str(self.begun))

    def seconds(self, begin: int, end: int, now: int) -> float:
        """How many of its seconds lie between two times; what has not ended counts until ``now``."""
        return max(0, min(self.ended or now, end) - max(self.begun, begin)) / 1000


class HistoryChanges(msgspec.Struct, frozen=True):
    """What a look at the cluster adds: records, spans that began or changed, and those that ended."""

    records: tuple[HistoryRecord, ...] = ()
    spans: tuple[Span, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.spans)


def identity(*parts: str) -> str:
    """A stable id of what these parts name."""
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:40]
