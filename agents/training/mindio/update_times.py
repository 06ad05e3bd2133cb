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
    """The update begins."""
    _window["start"] = now_us() if at is None else at


def set_end(at: int | None = None) -> None:
    """The update ended."""
    _window["end"] = now_us() if at is None else at


def error_time(text: str) -> int:
    """Time of an error from its text; 0 when there is none."""
    found = TIME.search(text)
    return int(found.group(1)) if found else 0


def can_repair(at: int | None, start: int | None = None, end: int | None = None) -> bool:
    """False for an error inside the window, or one whose time is not known."""
    if not at:
        return False
    first = _window.get("start") if start is None else start
    last = _window.get("end") if end is None else end
    if first is None or at < first:
        return True
    return last is not None and last >= first and at > last
