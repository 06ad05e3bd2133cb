"""Maintenance windows of a ``SafetyBudget``: when disruptive actions may run.

They work as Argo CD's sync windows do: an open ``deny`` window blocks its actions whatever else is open; where
``allow`` windows concern an action, it waits until one of them is open; an action without windows may always run.
Schedules are five cron fields (minute, hour, day of month, month, day of week) with lists, ranges, steps and
English names, or ``@daily`` and its like, read in ``timeZone``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Annotated, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import Field, StringConstraints, model_validator

from belay.engine.documents.scalars import Document, Duration, Name

#: An IANA name, as far as its form goes; :func:`zone_problem` says whether it is known.
TimeZone = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}$")]
WindowAction = Literal["EvictPod", "ResetChips", "IsolateChip", "IsolateNode", "DeleteObject", "PartitionChip"]

#: Longest window; a longer one needs another schedule.
MAX_DURATION: Final = 31 * 86400.0
#: Days to look ahead for the next start: February 29th recurs within eight years.
_HORIZON_DAYS: Final = 8 * 366
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SHORT: Final = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_PART: Final = re.compile(r"^(\*|\?|[0-9A-Z]{1,3})(?:-([0-9A-Z]{1,3}))?(?:/([0-9]{1,2}))?$")


class Cron(NamedTuple):
    """A schedule's fields as sets; ``either``: both day fields are restricted, and one match is enough."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def on(self, day: date) -> bool:
        """Whether the schedule has a start on a day."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day or by_weekday if self.either else by_day and by_weekday


@lru_cache(maxsize=256)
def cron(text: str) -> Cron:
    """Read a schedule.

    Raises:
        ValueError: not a schedule; the text names the wrong field.
    """
    fields = _SHORT.get(text.strip().lower(), text).upper().split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"schedule {text!r} must have five fields: minute, hour, day of month, month, day of week")
    sets = [_values(field, *row) for field, row in zip(fields, _FIELDS, strict=True)]
    weekdays = frozenset(value % 7 for value in sets[4])
    either = fields[2][0] not in "*?" and fields[4][0] not in "*?"
    minutes, hours = tuple(sorted(sets[0])), tuple(sorted(sets[1]))
    return Cron(minutes, hours, frozenset(sets[2]), frozenset(sets[3]), weekdays, either)


def _values(field: str, what: str, low: int, high: int, names: Sequence[str]) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.match(part)
        if match is None:
            raise ValueError(f"{part!r} is not a {what} of a schedule")
        first, last, step = match.groups()
        if first in "*?":
            if last is not None:
                raise ValueError(f"{part!r} is not a {what} of a schedule")
            start, end = low, min(high, 6) if what == "day of week" else high
        else:
            start = _number(first, what, low, names)
            end = _number(last, what, low, names) if last else (high if step else start)
        every = int(step) if step else 1
        if not low <= start <= end <= high or every < 1:
            raise ValueError(f"{part!r} is not a {what} of a schedule: it must lie within {low} and {high}")
        found.update(range(start, end + 1, every))
    return found


def _number(text: str, what: str, low: int, names: Sequence[str]) -> int:
    if text.isdecimal():
        return int(text)
    if text in names:
        return names.index(text) + low
    raise ValueError(f"{text!r} is not a {what} of a schedule")


class MaintenanceWindow(Document):
    """From each start of ``schedule`` for ``duration`` seconds, ``actions`` in ``pools`` (none: in all) are allowed
    or denied.
    """

    kind: Literal["allow", "deny"]
    schedule: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    duration: Duration
    time_zone: TimeZone = "UTC"
    actions: Annotated[tuple[WindowAction, ...], Field(min_length=1)]
    pools: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _can_be_read(self) -> MaintenanceWindow:
        parsed = cron(self.schedule)
        if not 60 <= self.duration <= MAX_DURATION:
            raise ValueError("duration must be between 1m and 744h")
        if problem := zone_problem(self.time_zone):
            raise ValueError(problem)
        leap = date(2024, 1, 1)
        if not any(parsed.on(leap + timedelta(days=n)) for n in range(366)):
            raise ValueError(f"schedule {self.schedule!r} names a day that no year has")
        return self

    @cached_property
    def _cron(self) -> Cron:
        return cron(self.schedule)

    def concerns(self, action: str, pools: frozenset[str]) -> bool:
        """Whether the window applies to an action on these pools; a window with pools needs one of them."""
        return action in self.actions and (not self.pools or not pools.isdisjoint(self.pools))

    def open_until(self, now: float) -> float | None:
        """When the window that is open now closes (Unix seconds), None while none is open."""
        latest = None
        for start in self._starts(now - self.duration, now):
            if start <= now < start + self.duration:
                latest = start
        return None if latest is None else latest + self.duration

    def next_start(self, now: float) -> float | None:
        """The next start after ``now``; None within eight years."""
        return next((start for start in self._starts(now, now + _HORIZON_DAYS * 86400) if start > now), None)

    def _starts(self, after: float, until: float) -> Iterator[float]:
        """Starts between two moments, in order, without local times that a clock change skips."""
        zone = _zone(self.time_zone)
        day = datetime.fromtimestamp(after, tz=zone).date() - timedelta(days=1)
        last = datetime.fromtimestamp(until, tz=zone).date()
        while day <= last:
            if self._cron.on(day):
                for hour in self._cron.hours:
                    for minute in self._cron.minutes:
                        start = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                        moment = start.timestamp()
                        real = datetime.fromtimestamp(moment, tz=UTC).astimezone(zone)
                        if (real.hour, real.minute) == (hour, minute) and after <= moment <= until:
                            yield moment
            day += timedelta(days=1)


class ClosedWindow(NamedTuple):
    """A blocked action; ``until`` in Unix seconds, None when no window will ever allow it."""

    until: float | None


_STEPS: Final = 64


def closed(windows: Sequence[MaintenanceWindow], action: str, pools: frozenset[str], now: float) -> ClosedWindow | None:
    """Until when the windows block an action; None when it may run now."""
    concerned = [window for window in windows if window.concerns(action, pools)]
    if not concerned or _allowed(concerned, now):
        return None
    moment = now
    for _ in range(_STEPS):
        turns = [t for w in concerned for t in (w.open_until(moment), w.next_start(moment)) if t is not None]
        later = [turn for turn in turns if turn > moment]
        if not later:
            return ClosedWindow(None)
        moment = min(later)
        if _allowed(concerned, moment):
            return ClosedWindow(moment)
    return ClosedWindow(None)


def _allowed(windows: Sequence[MaintenanceWindow], now: float) -> bool:
    open_now = {window.kind for window in windows if window.open_until(now) is not None}
    if "deny" in open_now:
        return False
    return "allow" in open_now or all(window.kind == "deny" for window in windows)


def zone_problem(name: str) -> str:
    """What is wrong with a time zone; empty for one that is known here."""
    try:
        _zone(name)
    except (KeyError, OSError, ValueError):
        return f"timeZone {name!r} is unknown here: use an IANA name such as UTC"
    return ""


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


__all__ = ["ClosedWindow", "Cron", "MaintenanceWindow", "TimeZone", "closed", "cron", "zone_problem"]
