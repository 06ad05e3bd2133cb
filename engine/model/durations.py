"""Durations as people write them: a number with its unit, such as 90s, 10m or 6h."""

from __future__ import annotations

import re
from typing import Final

DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$"
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")


def parse_duration(value: object) -> float:
    """Seconds of a Go-style duration such as ``90s``, ``6h`` or ``1h30m``.

    Raises:
        ValueError: not a duration; a bare number is refused because its unit is ambiguous.
    """
    if not isinstance(value, str) or len(value) > 64 or not re.match(DURATION_PATTERN, value):
        raise ValueError(f"{_shown(value)} is not a duration: write a number with its unit, such as 90s, 10m or 6h")
    return round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value)), 9)


def format_duration(seconds: float) -> str:
    """The shortest Go-style text of a duration: ``86400.0`` gives ``24h``, ``0.25`` gives ``250ms``."""
    for unit in ("h", "m", "s", "ms", "us"):
        count = seconds / _UNITS[unit]
        if count >= 1 and abs(count - round(count)) < 1e-9:
            return f"{round(count)}{unit}"
    return f"{round(seconds * 1e9)}ns" if seconds else "0s"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
