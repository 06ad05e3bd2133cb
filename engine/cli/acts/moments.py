"""Times to come, as people write them."""

from __future__ import annotations

import time
from typing import Final

from belay.engine.errors import InputError
from belay.engine.model.durations import parse_duration
from belay.engine.model.times import parse_rfc3339

_DAY: Final = 86_400.0
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS_OF_WORDS: Final = {"tonight": (0, 22), "tomorrow": (1, 0)}
"""Days from today, and the hour."""
_HINT: Final = "Write 36h, 22:00, tonight, friday, 2026-12-24 or 2026-12-24T18:00:00Z"


def moment_to_come(text: str, now: float, option: str) -> float:
    """A time (RFC 3339, a day, the beginning of a weekday or of tomorrow, tonight at 22:00, the next time that a clock
    shows it), or a duration from now.

    Days and clocks are of the local time zone.

    Raises:
        InputError: it is none of these, or has gone by.
    """
    try:
        moment = _read(text, now)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{error}", where=option, hint=_HINT) from error
    if moment <= now:
        raise InputError("this time has gone by", where=f"{option} {text}")
    return float(round(moment))


def _read(text: str, now: float) -> float:
    here = time.localtime(now)
    word = text.casefold()
    if word in _DAYS_OF_WORDS:
        days, hour = _DAYS_OF_WORDS[word]
        return time.mktime((here.tm_year, here.tm_mon, here.tm_mday + days, hour, 0, 0, 0, 0, -1))
    if word in _WEEKDAYS:
        days = (_WEEKDAYS.index(word) - here.tm_wday) % 7 or 7
        return time.mktime((here.tm_year, here.tm_mon, here.tm_mday + days, 0, 0, 0, 0, 0, -1))
    for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"):
        try:
            return time.mktime(time.strptime(text, form))
        except ValueError:
            continue
    try:
        clock = time.strptime(text, "%H:%M")
    except ValueError:
        return parse_rfc3339(text) if "T" in text else now + parse_duration(text)
    today = time.mktime((*here[:3], clock.tm_hour, clock.tm_min, 0, 0, 0, -1))
    return today if today > now else today + _DAY
