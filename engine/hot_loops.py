"""A watch over the CPU time of this process: a log line when a loop is hot, with the thread and the place in the code.

No input may make a process loop. Operators rarely have a profiler at hand, so the line itself names the place.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

from belay.engine import log
from belay.engine.model.hot_loop import BUSY_SHARE, BUSY_WINDOW, HotLoopDetector, busiest

_log = log.get("hot-loop")
TICK_SECONDS: Final = 5.0
_TASKS: Final = Path("/proc/self/task")
_FRAMES: Final = 8
_SAMPLE_SECONDS: Final = 0.2


def warn(reason: str) -> None:
    """Log that a loop is hot, and where it is now. Takes 0.2 s: the busiest thread is found by its CPU time."""
    thread, place = hottest()
    _log.warning("hot loop", reason=reason, thread=thread, place=place)


def hottest() -> tuple[str, str]:
    """(name, place) of the thread that uses the most CPU time now; the place is innermost first, empty for native
    threads."""
    before = thread_times()
    time.sleep(_SAMPLE_SECONDS)
    after = thread_times()
    after.pop(threading.get_native_id(), None)
    found = busiest(before, after)
    for thread in threading.enumerate():
        if thread.native_id == found and thread.ident is not None:
            return thread.name, _place(sys._current_frames().get(thread.ident))
    return f"native thread {found}", ""


def thread_times() -> dict[int, float]:
    """CPU time in s of each thread of this process, by the kernel's thread id; empty where /proc is missing."""
    found: dict[int, float] = {}
    hertz = os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError):
        for entry in _TASKS.iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # the thread ended meanwhile
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = (int(fields[11]) + int(fields[12])) / hertz
    return found


def start() -> None:
    """Watch this process in a daemon thread; for processes that do not count their tasks."""
    threading.Thread(target=_run, name="belay-hot-loops", daemon=True).start()


def _run() -> None:
    detector = HotLoopDetector(BUSY_WINDOW, BUSY_SHARE)
    while True:
        time.sleep(TICK_SECONDS)
        if reason := detector.check(time.monotonic(), time.process_time(), idle=True):
            warn(reason.removesuffix(" without a task"))


def _place(frame: FrameType | None) -> str:
    rows: list[str] = []
    while frame is not None and len(rows) < _FRAMES:
        code = frame.f_code
        rows.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(rows)
