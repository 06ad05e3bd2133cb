"""``mindio_acp``'s functions: save, load, multi_save, register_checker, convert, preload, flush, initialize.

Results are the documented ones (MindIO ACP, ``06_api/09_mindio``): 1 through memory, 2 through a file handle, 0 through
``torch.save``, -1 when every way failed. Storage problems never raise; wrong types of arguments do.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agents.training.checkpoint import convert as converter
from agents.training.checkpoint import durable, reading, settings, wire
from agents.training.checkpoint.client import WriterClient
from agents.training.checkpoint.dropin import checker
from agents.training.checkpoint.errors import CheckpointError, NotThisFormat, Unsupported, WriterGone
from agents.training.checkpoint.saver import Saver, Way

log = logging.getLogger("belay.checkpoint")

PATH_LIMIT = converter.PATH_LIMIT
FLUSH_S = 300.0
_guard = threading.Lock()
_savers: dict[int, Saver] = {}
_chosen: settings.WriterSettings | None = None


def initialize(server_info: dict[str, str] | None = None) -> int:
    """Start the writing process or connect to the running one: 0, or -1 for unknown keys and when it cannot start."""
    global _chosen
    try:
        _chosen = settings.parse(server_info)
        client = saver_of_process().client
        if client is None:
            return -1
        client.settings = _chosen
        client.connect()
        return 0
    except (ValueError, WriterGone, OSError) as error:
        log.error("initialize: %s", error)
        return -1


def saver_of_process() -> Saver:
    """This process's saver; a forked child gets its own."""
    with _guard:
        if os.getpid() not in _savers:
            _savers.clear()
            rank = os.environ.get("RANK", "")
            client = WriterClient(wire.work_folder(), _chosen, f"rank-{rank}" if rank else "")
            _savers[os.getpid()] = Saver(client)
            atexit.register(_leave, os.getpid())
        return _savers[os.getpid()]


def _leave(pid: int) -> None:
    if pid == os.getpid():
        flush()


def save(obj: object, path: str | os.PathLike[str], open_way: str = "memfs") -> int:
    """Save ``obj``; see the module for results. Raises ``TypeError`` for wrong arguments and for objects that neither
    this format nor torch can store, ``RuntimeError`` for one storage seen as two types.
    """
    target = path_of(path)
    _way(open_way)
    if not _writable(target):
        return int(Way.FAILED)
    return _save(obj, target, (), open_way)


def _save(obj: object, target: Path, links: tuple[Path, ...], open_way: str) -> int:
    through = saver_of_process() if open_way == "memfs" else Saver(None)
    try:
        return int(through.save(obj, target, links).way)
    except (OSError, Unsupported) as error:
        log.warning("%s: %s; trying torch.save", target, error)
    return _by_torch(obj, target)


def _by_torch(obj: object, target: Path) -> int:
    """Save atomically with ``torch.save``, the last way."""
    stage = durable.staging(target)
    try:
        torch.save(obj, stage)
        converter.give_name(stage, target)
        return int(Way.TORCH)
    except (OSError, RuntimeError) as error:
        log.error("%s was not saved: %s", target, str(error)[:300])
        return int(Way.FAILED)
    finally:
        stage.unlink(missing_ok=True)


def multi_save(obj: object, path_list: list[str]) -> int | None:
    """Save once under several names (hard links, or files of their own where links are refused).

    ``None`` without a list or for a path over 1024 characters, 0 for an empty list or without a writing process.
    """
    if not isinstance(path_list, list) or not all(isinstance(path, str | os.PathLike) for path in path_list):
        return None
    paths = [path_of(path) for path in path_list]
    if any(len(str(path)) > PATH_LIMIT for path in paths):
        return None
    if not paths:
        return 0
    if not all(_writable(path) for path in paths):
        return int(Way.FAILED)
    if not running():
        results = [_save(obj, path, (), "fopen") for path in paths]
        return int(Way.FAILED) if int(Way.FAILED) in results else 0
    return _save(obj, paths[0], tuple(paths[1:]), "memfs")


def load(
    path: str | os.PathLike[str], open_way: str = "memfs", map_location: Any = None, weights_only: bool = True
) -> Any:
    """Load from memory, else from storage, else with ``torch.load``.

    Only data is loaded unless ``weights_only=False``. Raises ``ValueError`` for another ``map_location`` than ``None``
    and ``"cpu"``, ``FileNotFoundError``, and ``CheckpointError`` for damaged files.
    """
    if map_location not in (None, "cpu"):
        raise ValueError(f"map_location is {map_location!r:.60}; it must be None or 'cpu'")
    source = path_of(path)
    _way(open_way)
    try:
        if open_way == "memfs":
            return saver_of_process().load(source, weights_only=weights_only)
        return reading.load(source, weights_only=weights_only)
    except NotThisFormat:
        return torch.load(source, map_location="cpu", weights_only=weights_only)


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


def convert(src: str | os.PathLike[str], dst: str | os.PathLike[str]) -> int:
    """Write the ``.mindio`` file ``src`` as torch's zip ``dst``: 0, or -1 with the reason in the log."""
    try:
        source, target = Path(os.fspath(src)), Path(os.fspath(dst))
        if reason := _unfit(source, target):
            raise CheckpointError(reason)
        converter.to_zip(source, target)
        return 0
    except (CheckpointError, OSError, TypeError, ValueError) as error:
        log.error("convert: %s", str(error)[:400])
        return -1


def _unfit(source: Path, target: Path) -> str:
    for path in (source, target):
        if len(str(path)) > PATH_LIMIT:
            return f"a path has {len(str(path))} characters; {PATH_LIMIT} are allowed"
        whole = path.absolute()
        for part in (whole, *whole.parents):
            if part.is_symlink():
                return f"{part} is a symbolic link"
    if not source.is_file():
        return f"{source} is no file"
    if not target.absolute().parent.is_dir():
        return f"{target.parent} is no folder"
    if source.absolute() == target.absolute() or (target.exists() and source.samefile(target)):
        return f"{source} and {target} are the same file"
    return ""


def preload(*paths: str) -> int:
    """Take files into memory in the background: 0, or 1 when a path is not a file or no writing process runs."""
    try:
        if not paths or not all(isinstance(path, str) and len(path) <= PATH_LIMIT for path in paths):
            return 1
        client = saver_of_process().client
        if client is None:
            return 1
        client.ask({"do": "preload", "paths": [os.path.realpath(path) for path in paths]})
        return 0
    except (CheckpointError, OSError) as error:
        log.error("preload: %s", error)
        return 1


def flush() -> int:
    """Wait until all saves are on the storage, at most 10 × 30 s: 0, or 1 when one is not."""
    through = _savers.get(os.getpid())
    if through is None:
        return 0
    try:
        through.flush(FLUSH_S)
        return 1 if through.failed() else 0
    except (TimeoutError, CheckpointError) as error:
        log.error("flush: %s", error)
        return 1


def running() -> bool:
    """Whether there is a writing process; starts it if need be."""
    client = saver_of_process().client
    try:
        if client is not None:
            client.connect()
        return client is not None
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


def _way(open_way: object) -> None:
    if open_way not in ("memfs", "fopen"):
        raise TypeError(f"open_way is {open_way!r:.40}; it must be 'memfs' or 'fopen'")


def _writable(target: Path) -> bool:
    """Check the target before the copy: a missing folder would fail only in the background."""
    if len(str(target)) > PATH_LIMIT:
        log.error("%.80s… has %d characters; %d are allowed", target, len(str(target)), PATH_LIMIT)
        return False
    if not target.parent.is_dir() or target.is_dir():
        log.error(
            "%s cannot be saved: %s", target, "it is a folder" if target.is_dir() else "its folder does not exist"
        )
        return False
    return True
