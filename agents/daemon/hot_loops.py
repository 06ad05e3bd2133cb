"""A watch over the agent's CPU time: a log line when it uses a core for minutes, with the place in the code."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

from belay.agents.common.log import Log
from belay.engine.model.hot_loop import BUSY_SHARE, BUSY_WINDOW, HotLoopDetector

_log = Log("hot-loop")
TICK_SECONDS: Final = 5.0
_FRAMES: Final = 6


def start() -> None:
    """Watch this process in a daemon thread."""
    threading.Thread(target=_run, name="hot-loops", daemon=True).start()


def _run() -> None:
    detector = HotLoopDetector(BUSY_WINDOW, BUSY_SHARE)
    while True:
        time.sleep(TICK_SECONDS)
        if reason := detector.check(time.monotonic(), time.process_time(), idle=True):
            main = threading.main_thread().ident or 0
            place = place_of(sys._current_frames().get(main))
            _log.warning("hot loop", reason=reason.removesuffix(" without a task"), place=place)


def place_of(frame: FrameType | None) -> str:
    """Where a thread is, innermost first: ``file:line function < …``."""
    rows: list[str] = []
    while frame is not None and len(rows) < _FRAMES:
        rows.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(rows)
