"""Times from and to text, without a clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

#: The first and the last second that can be written; a report may state any number as a time.
_FIRST: Final = datetime(1000, 1, 1, tzinfo=UTC).timestamp()
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def utc(seconds: float) -> datetime:
    """The time in UTC; clamped to the years 1000 to 9999."""
    return datetime.fromtimestamp(round(min(max(seconds, _FIRST), _LAST), 3), tz=UTC)


def rfc3339(seconds: float) -> str:
    """``2026-09-01T08:00:00Z``, with milliseconds when there are any; clamped to the years 1000 to 9999."""
    moment = utc(seconds)
    if moment.microsecond:
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_rfc3339(text: str) -> float:
    """Unix seconds of an RFC 3339 time.

    Raises:
        ValueError: the text is not RFC 3339 or lacks its zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} lacks a zone, write it as 2026-09-01T08:00:00Z")
    return moment.timestamp()
