"""Whether the state of a rank can be kept after a memory error, from when it came and when the optimizer ran.

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


def set_start(start_time: int | None = None) -> None:
    """The update begins. Raises TypeError for a time that is not a number of microseconds."""
    _window["start"] = now_us() if start_time is None else _time("start_time", start_time)


def set_end(end_time: int | None = None) -> None:
    """The update ended. Raises TypeError for a time that is not a number of microseconds."""
    _window["end"] = now_us() if end_time is None else _time("end_time", end_time)


def error_time(text: str) -> int:
    """Time of an error from its text; 0 when there is none. Raises TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"the text of an error must be a str, got {type(text).__name__}")
    found = TIME.search(text)
    return int(found.group(1)) if found else 0


def can_repair(hbm_error_time: int | None, start_time: int | None = None, end_time: int | None = None) -> bool:
    """Whether the state of a rank may be kept after a memory error (``utils/uce_utils.py``, ``_can_do_repair``).

    True once an update was begun and one was ended, and the error came after both, or between a begin and the end that
    followed it. False before the window: the step's gradients may be wrong and the update would take them in; for an
    error whose time is not known; and in the first step. Raises TypeError for times that are no numbers of
    microseconds.
    """
    if hbm_error_time is None or _time("hbm_error_time", hbm_error_time) <= 0:
        return False
    begun = _window.get("start") if start_time is None else _time("start_time", start_time)
    ended = _window.get("end") if end_time is None else _time("end_time", end_time)
    if not begun or not ended:
        return False
    return hbm_error_time > max(begun, ended) or begun < hbm_error_time < ended


def _time(name: str, given: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be a whole number of microseconds, got {type(given).__name__}")
    return given
