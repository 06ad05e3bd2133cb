"""Who used how many chips for how long, and what of it made progress: sums over spans, for chargeback and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.errors import InputError
from belay.engine.serve.records.facts import Span, SpanKind

GROUPS: Final = ("user", "queue", "namespace", "pool")
UNKNOWN: Final = "unknown"
_FIELDS: Final = {"user": "person", "queue": "queue", "namespace": "namespace", "pool": "pool"}


class Window(msgspec.Struct, frozen=True):
    """From when to when, and the present, in Unix milliseconds: what lasts is counted until the present."""

    begin: int
    end: int
    now: int

    def seconds(self, span: Span) -> float:
        """Seconds of a span within the window."""
        return span.seconds(self.begin, self.end, self.now)

    def share(self, span: Span) -> float:
        """The part of a span that lies within the window, from 0 to 1."""
        whole = span.seconds(0, 2**62, self.now)
        inside = self.begin <= span.begun <= self.end
        return self.seconds(span) / whole if whole else float(inside)

    def lost(self, span: Span) -> float:
        """Chip-seconds without progress that a recovery cost within the window; of one under way, so far."""
        if span.ended:
            return span.cost * self.share(span)
        return span.chips * self.seconds(span)


class UsedChips(msgspec.Struct):
    """Sums of one group, in seconds: chips held whole, vNPUs held, chips that stood still in recoveries, and those of
    them that were free meanwhile, because the pods were being moved.
    """

    chips: float = 0.0
    parts: float = 0.0
    lost: float = 0.0
    moved: float = 0.0
    jobs: set[str] = msgspec.field(default_factory=set)

    @property
    def goodput(self) -> float | None:
        """The share of the chip-time of its jobs, recoveries included, in which they made progress, if there is any."""
        whole = self.chips + self.moved
        return max(0.0, 1 - self.lost / whole) if whole else None


def group_of(by: str, span: Span) -> str:
    """The group of a span."""
    return str(getattr(span, _FIELDS[by])) or UNKNOWN


def check_group(by: str) -> str:
    """The group that is asked for. Raises InputError for one that there is not."""
    if by not in GROUPS:
        raise InputError(f"{by[:40]!r} is nothing to group by", where="by", hint=f"Write one of {', '.join(GROUPS)}.")
    return by


def used(by: str, spans: Iterable[Span], window: Window) -> dict[str, UsedChips]:
    """The sums by group."""
    found: dict[str, UsedChips] = {}
    held: dict[str, list[Span]] = {}
    recoveries: list[Span] = []
    for span in spans:
        if span.kind is SpanKind.HOLDS:
            seconds = window.seconds(span)
            if not seconds:
                continue
            sums = found.setdefault(group_of(by, span), UsedChips())
            sums.jobs.add(span.job)
            if span.reason:
                sums.parts += span.chips * seconds
            else:
                sums.chips += span.chips * seconds
                held.setdefault(span.job, []).append(span)
        elif span.kind is SpanKind.RECOVERY:
            recoveries.append(span)

    for one in recoveries:
        lost = window.lost(one)
        if not lost and not window.seconds(one):
            continue
        sums = found.setdefault(group_of(by, one), UsedChips())
        sums.jobs.add(one.job)
        sums.lost += lost
        sums.moved += max(0.0, one.chips * window.seconds(one) - _held_during(one, held.get(one.job, ()), window))
    return found


def _held_during(one: Span, held: Iterable[Span], window: Window) -> float:
    """Chip-seconds that the job held while it recovered."""
    begin, end = max(one.begun, window.begin), min(one.ended or window.now, window.end)
    return sum(span.chips * span.seconds(begin, end, window.now) for span in held)


def usage_rows(by: str, found: Mapping[str, UsedChips]) -> list[dict[str, Any]]:
    """The sums as rows in hours, those that used most first."""
    rows = [
        {
            by: group, "jobs": len(sums.jobs), "chipHours": _hours(sums.chips), "vnpuHours": _hours(sums.parts),
            "lostChipHours": _hours(sums.lost),
            "goodput": round(sums.goodput, 4) if sums.goodput is not None else None,
        }
        for group, sums in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-float(str(row["chipHours"])), str(row[by])))


def _hours(seconds: float) -> float:
    return round(seconds / 3600, 4)
