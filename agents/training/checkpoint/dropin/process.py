"""``mindio_acp``'s functions that hold no tensors: initialize, preload, flush, register_checker. Needs no torch, which
MindSpore's images lack.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint import settings, wire
from belay.agents.training.checkpoint.client import WriterClient
from belay.agents.training.checkpoint.dropin import checker
from belay.agents.training.checkpoint.errors import CheckpointError, WriterGone

log = logging.getLogger("belay.checkpoint")

PATH_LIMIT = 1024
"""Maximum length of a path for the documented functions, in characters (MindIO ACP)."""
FLUSH_S = 300.0
_guard = threading.Lock()
_clients: dict[int, WriterClient] = {}
_chosen: settings.WriterSettings | None = None


def initialize(server_info: dict[str, str] | None = None) -> int:
    """Start the writing process or connect to the running one: 0, or -1 for unknown keys and when it cannot start."""
    global _chosen
    try:
        _chosen = settings.parse(server_info)
        client = client_of_process()
        client.settings = _chosen
        client.connect()
        return 0
    except (ValueError, WriterGone, OSError) as error:
        log.error("initialize: %s", error)
        return -1


def client_of_process() -> WriterClient:
    """This process's connection to the writing process; a forked child gets its own."""
    with _guard:
        if os.getpid() not in _clients:
            _clients.clear()
            rank = os.environ.get("RANK", "")
            _clients[os.getpid()] = WriterClient(wire.work_folder(), _chosen, f"rank-{rank}" if rank else "")
            atexit.register(_leave, os.getpid())
        return _clients[os.getpid()]


def _leave(pid: int) -> None:
    if pid == os.getpid():
        flush()


def register_checker(
    callback: Callable[[int, Any], object], check_dict: dict[str, int], user_context: Any, timeout_sec: int
) -> int | None:
    """Call ``callback(result, user_context)`` once the folders of ``check_dict`` hold their number of files:
    0, -27 (too many), -110 (not within ``timeout_sec`` 1..3600 seconds). 1, or ``None`` for wrong arguments.
    """
    if not checker.accepts(callback, check_dict, timeout_sec):
        return None
    checker.start(callback, {Path(os.path.realpath(path)): count for path, count in check_dict.items()},
                  user_context, float(timeout_sec))  # fmt: skip
    return 1


def preload(*paths: str) -> int:
    """Take files into memory in the background: 0, or 1 when a path is not a file or no writing process runs."""
    try:
        if not paths or not all(isinstance(path, str) and len(path) <= PATH_LIMIT for path in paths):
            return 1
        client_of_process().ask({"do": "preload", "paths": [os.path.realpath(path) for path in paths]})
        return 0
    except (CheckpointError, OSError) as error:
        log.error("preload: %s", error)
        return 1


def flush() -> int:
    """Wait until all saves are on the storage, at most 10 × 30 s: 0, or 1 when one is not."""
    client = _clients.get(os.getpid())
    if client is None:
        return 0
    try:
        client.wait(None, FLUSH_S)
        return 1 if client.failures() else 0
    except (TimeoutError, CheckpointError) as error:
        log.error("flush: %s", error)
        return 1


def running() -> bool:
    """Whether there is a writing process; starts it if need be."""
    try:
        client_of_process().connect()
        return True
    except (WriterGone, OSError) as error:
        log.warning("%s", error)
        return False


def path_of(path: object) -> Path:
    """The real path. Raises ``TypeError`` for anything that is not a path."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a path must be text, not {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise TypeError("a path must be a non-empty text")
    return Path(os.path.realpath(text))
