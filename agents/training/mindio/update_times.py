"""Whether a memory error occurred while the optimizer changed its state, which then cannot be trusted.

The window is set by `tft_set_update_start_time` and `tft_set_update_end_time` (component/mindio/tft, utils); times are
microseconds of the device's clock, here of the host's where there is no device.
"""

from __future__ import annotations

import re
import time

HBM = "HBM MULTI BIT ECC"
TIME = re.compile(r"time us=\s*(\d+)")

_window: dict[str, int] = {}


def now_us() -> int:
    """Current time in microseconds."""
    return time.time_ns() // 1000


def set_start(at: int | None = None) -> None:
    """The update begins. Raises TypeError for a time that is not a number of microseconds."""
    _window["start"] = now_us() if at is None else _time("start_time", at)


def set_end(at: int | None = None) -> None:
    """The update ended. Raises TypeError for a time that is not a number of microseconds."""
    _window["end"] = now_us() if at is None else _time("end_time", at)


def error_time(text: str) -> int:
    """Time of an error from its text; 0 when there is none. Raises TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"the text of an error must be a str, got {type(text).__name__}")
    found = TIME.search(text)
    return int(found.group(1)) if found else 0


def can_repair(at: int | None, start: int | None = None, end: int | None = None) -> bool:
    """False for an error inside the window, or one whose time is not known (None, 0). Raises TypeError for times that
    are no numbers of microseconds: a wrong answer would keep state that cannot be trusted."""
    if at is None or _time("hbm_error_time", at) <= 0:
        return False
    first = _window.get("start") if start is None else _time("start_time", start)
    last = _window.get("end") if end is None else _time("end_time", end)
    if first is None or at < first:
        return True
    return last is not None and last >= first and at > last


def _time(name: str, given: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be a whole number of microseconds, got {type(given).__name__}")
    return given
