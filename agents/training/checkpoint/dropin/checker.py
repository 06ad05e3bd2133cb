"""Waits until folders hold a number of complete files, which shows a trainer that all ranks have saved."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint import durable, sums

log = logging.getLogger("belay.checkpoint")

PERIOD_S = 1.0
LONGEST_S = 3600
TOO_MANY = -errno.EFBIG
TIMED_OUT = -errno.ETIMEDOUT
_callback: list[Callable[[int, Any], object]] = []


def accepts(callback: object, check_dict: object, timeout_sec: object) -> bool:
    """Whether the arguments of ``register_checker`` are valid: folders that exist, counts and a time within limits."""
    return (
        callable(callback)
        and isinstance(check_dict, dict)
        and bool(check_dict)
        and all(isinstance(path, str | os.PathLike) and os.path.isdir(path) for path in check_dict)
        and all(type(count) is int and count > 0 for count in check_dict.values())
        and type(timeout_sec) is int
        and 1 <= timeout_sec <= LONGEST_S
    )


def check(counts: Mapping[Path, int]) -> int | None:
    """0 when every folder holds its number of complete files, -27 when one holds more, ``None`` while files are
    missing."""
    due = False
    for folder, wanted in counts.items():
        whole, staged = _count(folder)
        if whole + staged > wanted:
            return TOO_MANY
        due = due or bool(staged) or whole < wanted
    return None if due else 0


def _count(folder: Path) -> tuple[int, int]:
    whole = staged = 0
    for place, folders, names in os.walk(folder):
        # sums are not files of the trainer
        folders[:] = [name for name in folders if name != sums.FOLDER]
        for name in names:
            if os.path.isfile(os.path.join(place, name)) and not os.path.islink(os.path.join(place, name)):
                staged += name.endswith(durable.STAGING)
                whole += not name.endswith(durable.STAGING)
    return whole, staged


def start(
    callback: Callable[[int, Any], object], counts: Mapping[Path, int], context: Any, wait_s: float
) -> threading.Thread:
    """Check every second until there is a result. A process has one callback: the last registered one."""
    _callback[:] = [callback]

    def watch() -> None:
        until = time.monotonic() + wait_s
        while (result := check(counts)) is None:
            if time.monotonic() >= until:
                result = TIMED_OUT
                break
            time.sleep(PERIOD_S)
        try:
            _callback[0](result, context)
        except Exception:
            log.exception("the callback of register_checker failed")

    thread = threading.Thread(target=watch, daemon=True, name="checkpoint-checker")
    thread.start()
    return thread
