"""Times as people read them: how long ago, or in how long.

Lengths are written as kubectl writes an object's AGE (k8s.io/apimachinery, package util/duration, HumanDuration).
"""

from __future__ import annotations

import re
from typing import Final

from belay.engine.model.times import parse_rfc3339

_TIME: Final = re.compile(r"\b[12]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")
#: Beyond so many seconds a time is a placeholder of a format (year 1 or 9999), not a moment.
_MOMENT: Final = 100 * 365 * 86400


def length(seconds: float) -> str:
    """``90s``, ``5m30s``, ``45m``, ``3h20m``, ``30h``, ``3d5h``, ``300d``, ``2y30d``: coarser the longer it is."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def relative(moment: float, now: float) -> str:
    """``5m30s ago``, ``in 45m``, or ``now``; both are Unix seconds."""
    apart = moment - now
    if abs(apart) < 1:
        return "now"
    return f"in {length(apart)}" if apart > 0 else f"{length(-apart)} ago"


def moment_of(text: str) -> float | None:
    """Unix seconds of a text that is an RFC 3339 time and nothing else; None for any other text."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return parse_rfc3339(text)
    except (ValueError, OverflowError):
        return None


def readable(text: str, now: float | None) -> str:
    """The text for a person: a time alone as its distance from ``now``, a time within a text with it added.

    ``now`` None leaves the text as it is.
    """
    if now is None or "T" not in text:
        return text
    alone = moment_of(text)
    if alone is not None and abs(alone - now) < _MOMENT:
        return relative(alone, now)
    return _TIME.sub(lambda found: _beside(found[0], now), text)


def _beside(text: str, now: float) -> str:
    moment = moment_of(text)
    if moment is None or abs(moment - now) >= _MOMENT:
        return text
    return f"{text} ({relative(moment, now)})"


def _two(large: int, unit: str, small: int, part: str) -> str:
    return f"{large}{unit}{small}{part}" if small else f"{large}{unit}"
