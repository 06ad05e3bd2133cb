"""Times in lines of logs: with a zone, or of a clock whose zone follows from when the file was written last."""

from __future__ import annotations

import calendar
import re
from typing import Final, NamedTuple

_STAMP: Final = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[-T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:\.\d{3})?(Z|[+-]\d\d:?\d\d)?"
)
_SYSLOG: Final = re.compile(r"^(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ([ \d]\d) (\d\d):(\d\d):(\d\d)\b")
#: Of Kubernetes' components: E1123 16:00:00.123456, in UTC in a container.
_KLOG: Final = re.compile(r"^[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\b")
_NAMED: Final = re.compile(  # of switches: May 27 2025 11:25:00+08:00; of tools and dmesg -T: Fri May 27 11:25:00 2025
    r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(\d{1,2}) (?:(\d{4}) )?(\d\d):(\d\d):(\d\d)"
    r"(?:(Z|[+-]\d\d:?\d\d)| (\d{4})\b)?"
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: Zones differ by whole quarters of an hour.
_QUARTER: Final = 900_000
_DAY: Final = 86_400_000
#: A line carries its time near its begin.
_LOOK: Final = 160


class Stamp(NamedTuple):
    """Unix ms; ``local``: of an unknown zone, as if it were UTC."""

    ms: int
    local: bool


def stamp_of(line: str, written_ms: int) -> Stamp | None:
    """The first time in a line; None without one. ``written_ms``: when its file was written last, for years."""
    found = _STAMP.search(line[:_LOOK])
    if found is not None:
        year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
        if not (1990 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60):
            return None
        ms = calendar.timegm((year, month, day, hour, minute, min(second, 59))) * 1000
        ms += int((found[7] or "0")[:3].ljust(3, "0"))
        zone = found[8]
        if zone is None:
            return Stamp(ms, True)
        return Stamp(ms - _offset(zone), False)
    if (named := _named(line)) is not None:
        return named
    syslog, klog = _SYSLOG.match(line), _KLOG.match(line)
    found = syslog or klog
    if found is None:
        return None
    year = _year(written_ms)
    month = _MONTHS.index(found[1]) + 1 if syslog is not None else int(found[1])
    day = int(found[2])
    if not (1 <= month <= 12 and 1 <= day <= 31) or int(found[3]) > 23 or int(found[4]) > 59:
        return None
    parts = (month, day, int(found[3]), int(found[4]), min(int(found[5]), 59))
    ms = calendar.timegm((year, *parts)) * 1000
    if ms > written_ms + 2 * _DAY:  # December's lines, read in January
        ms = calendar.timegm((year - 1, *parts)) * 1000
    return Stamp(ms, True)


def _named(line: str) -> Stamp | None:
    found = _NAMED.search(line[:_LOOK])
    if found is None or not (found[3] or found[8]):
        return None
    year, day, hour, minute = int(found[3] or found[8]), int(found[2]), int(found[4]), int(found[5])
    if not (1990 <= year <= 2200 and 1 <= day <= 31 and hour < 24 and minute < 60):
        return None
    ms = calendar.timegm((year, _MONTHS.index(found[1]) + 1, day, hour, minute, min(int(found[6]), 59))) * 1000
    return Stamp(ms - _offset(found[7]), False) if found[7] else Stamp(ms, True)


def offset_in(line: str) -> int | None:
    """The zone that a line's time states, as ms east of UTC; None without one, and for ``Z``, which says nothing about
    the clock of its node."""
    found = _STAMP.search(line[:_LOOK])
    zone = found[8] if found is not None else None
    if zone is None and (named := _NAMED.search(line[:_LOOK])) is not None:
        zone = named[7]
    return _offset(zone) if zone and zone != "Z" else None


def zone_of(last: Stamp | None, written_ms: int) -> int:
    """What to add to local times of a file, in ms: its last line is as old as the file's last change."""
    if last is None or not last.local:
        return 0
    shift = round((written_ms - last.ms) / _QUARTER) * _QUARTER
    return shift if abs(shift) <= 15 * 3_600_000 else 0


def _offset(zone: str) -> int:
    if zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    size = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000
    return -size if zone[0] == "-" else size


def _year(ms: int) -> int:
    days = ms // _DAY
    year = 1970 + int(days / 365.2425)
    while calendar.timegm((year + 1, 1, 1, 0, 0, 0)) * 1000 <= ms:
        year += 1
    while calendar.timegm((year, 1, 1, 0, 0, 0)) * 1000 > ms:
        year -= 1
    return year
