"""``mindio_acp``'s functions that hold tensors: save, load, multi_save, convert.

Results are the documented ones (MindIO ACP, ``06_api/09_mindio``): 1 through memory, 2 through a file handle, 0 through
``torch.save``, -1 when every way failed. Storage problems never raise; wrong types of arguments do.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import torch

from belay.agents.training.checkpoint import convert as converter
from belay.agents.training.checkpoint import durable, reading
from belay.agents.training.checkpoint.dropin import process
from belay.agents.training.checkpoint.dropin.process import client_of_process, path_of, running
from belay.agents.training.checkpoint.errors import CheckpointError, NotThisFormat, Unsupported
from belay.agents.training.checkpoint.saver import Saver, Way

log = logging.getLogger("belay.checkpoint")

PATH_LIMIT = process.PATH_LIMIT
_guard = threading.Lock()
_savers: dict[int, Saver] = {}


def saver_of_process() -> Saver:
    """This process's saver; a forked child gets its own."""
    client = client_of_process()
    with _guard:
        if (found := _savers.get(os.getpid())) is None or found.client is not client:
            _savers.clear()
            found = _savers[os.getpid()] = Saver(client)
        return found


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
        return f"{source} is not a file"
    if not target.absolute().parent.is_dir():
        return f"{target.parent} is not a folder"
    if source.absolute() == target.absolute() or (target.exists() and source.samefile(target)):
        return f"{source} and {target} are the same file"
    return ""


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
