"""Sets in object storage (S3 and everything else that fsspec supports). fsspec is optional.

An object appears atomically, a set does not: ``complete.json``, written last, lists every object with its size and
checksums; a set without it is incomplete.

    put("s3://bucket/job", set)                  # a complete set of a folder
    newest("s3://bucket/job")                    # the newest complete step
    get("s3://bucket/job", step, folder)         # back into a folder, verified
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint import durable, sets, sums
from belay.agents.training.checkpoint.errors import CheckpointError, Damaged, Incomplete, Unsupported
from belay.agents.training.checkpoint.sets import CheckpointSet

MARK = "complete.json"
PIECE = 64 << 20


def put(url: str, one: CheckpointSet) -> None:
    """Upload a complete set; an older one of the same step is invalid during the upload.

    Raises :class:`Incomplete` for a set that lacks files, :class:`CheckpointError` when the storage refuses.
    """
    if not one.complete:
        raise Incomplete(f"{one.folder} lacks {'; '.join(one.missing[:5])}: only complete sets are uploaded")
    store, root = _store(url)
    base = f"{root}/{one.folder.name}"
    try:
        if store.exists(f"{base}/{MARK}"):
            store.rm_file(f"{base}/{MARK}")
        listed = {}
        for path in one.files:
            name = path.relative_to(one.folder).as_posix()
            known = [entry for entry in sums.read(path) if entry.size == path.stat().st_size]
            listed[name] = {"size": path.stat().st_size, "sums": _written(known[0]) if known else None}
            store.put_file(str(path), f"{base}/{name}")
        store.pipe_file(f"{base}/{MARK}", json.dumps({"version": 1, "step": one.step, "files": listed}).encode())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{base} was not uploaded: {str(error)[:300]}") from error


def newest(url: str, at_most: int | None = None) -> int | None:
    """The newest step with ``complete.json`` in which every object has its recorded size."""
    found = newest_set(url, at_most)
    return None if found is None else found[0]


def newest_set(url: str, at_most: int | None = None) -> tuple[int, tuple[str, ...]] | None:
    """That step, with the names of its objects; ``None`` without one. Raises :class:`CheckpointError`."""
    store, root = _store(url)
    for step, base in sorted(_steps(store, root), reverse=True):
        if at_most is not None and step > at_most:
            continue
        try:
            files = _mark(store, base)
            if all(store.info(f"{base}/{name}")["size"] == entry["size"] for name, entry in files.items()):
                return step, tuple(sorted(files))
        except (CheckpointError, OSError, KeyError):
            # incomplete, or being replaced: try an older one
            continue
    return None


def get(url: str, step: int, folder: Path) -> Path:
    """Download a set below ``folder``; every file is verified before it gets its name. The folder of the set.

    Raises :class:`Incomplete`, :class:`Damaged` naming the object, ``OSError``.
    """
    store, root = _store(url)
    place = sets.step_folder(folder, step)
    base = f"{root}/{place.name}"
    files = _mark(store, base)
    for name, entry in files.items():
        target = place / name
        if not target.resolve().is_relative_to(place.resolve()):
            raise Damaged(f"{base}/{MARK} names {name!r:.100}, which lies outside its set")
        durable.folder(target.parent)
        _fetch(store, f"{base}/{name}", entry, target)
    return place


def _fetch(store: Any, source: str, entry: dict[str, Any], target: Path) -> None:
    size = entry["size"]
    try:
        # not closed here: the traceback of an error may still refer to it
        view = memoryview(mmap.mmap(-1, max(size, 1)))
        with store.open(source, "rb") as file:
            start = 0
            while start < size and (piece := file.read(min(PIECE, size - start))):
                view[start : start + len(piece)] = piece
                start += len(piece)
        if start != size:
            raise Damaged(f"{source} ends at {start} of {size} bytes")
        if entry.get("sums"):
            _prove(source, view[:size], entry["sums"])
        durable.write(target, view[:size])
    except FileNotFoundError as error:
        raise Incomplete(f"{source} is gone") from error


def _prove(source: str, data: memoryview, kept: dict[str, Any]) -> None:
    hashing, block = sums.function(str(kept["algorithm"]), source), int(kept["block"])
    for number, value in enumerate(kept["values"]):
        if hashing(data[number * block : (number + 1) * block]) != value:
            raise Damaged(f"{source} is damaged: bytes {number * block}..{min(len(data), (number + 1) * block)}")


def _written(known: sums.Sums) -> dict[str, Any]:
    return {"algorithm": known.algorithm, "block": known.block, "values": list(known.values)}


def _steps(store: Any, root: str) -> list[tuple[int, str]]:
    try:
        names = [str(one) for one in store.ls(root, detail=False)]
    except FileNotFoundError:
        return []
    found = []
    for name in names[: sets.ENTRIES]:
        last = name.rstrip("/").rpartition("/")[2]
        if last.startswith("step-") and last[5:].isdecimal():
            found.append((int(last[5:]), f"{root}/{last}"))
    return found


def _mark(store: Any, base: str) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(store.cat_file(f"{base}/{MARK}"))["files"]
        if not all(type(entry["size"]) is int and entry["size"] >= 0 for entry in found.values()):
            raise ValueError("sizes are not numbers")
        return dict(found)
    except FileNotFoundError as error:
        raise Incomplete(f"{base} has no {MARK}: its upload was not finished") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{base}/{MARK} cannot be read: {str(error)[:100]}") from error


def _store(url: str) -> tuple[Any, str]:
    """The storage of a URL, and the folder in it."""
    try:
        import fsspec
    except ImportError as error:
        raise Unsupported("fsspec is not installed: pip install fsspec (and s3fs for S3)") from error
    try:
        store, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise Unsupported(f"{url} cannot be reached: {str(error)[:200]}") from error
    # uploads of other hosts must be visible at once
    store.use_listings_cache = False
    return store, str(root).rstrip("/")
