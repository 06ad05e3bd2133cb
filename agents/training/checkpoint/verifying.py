"""Verifies files on the disk without loading them. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from belay.agents.training.checkpoint import blocks, durable, layout, sets, sources, sums
from belay.agents.training.checkpoint.errors import CheckpointError, Damaged, NotThisFormat


@dataclass(frozen=True)
class Verification:
    """The result for a file. ``state``: ``proven`` by sums, ``structure`` (only its map was checked, without sums),
    ``unknown`` (another format without sums), or ``damaged`` with the reason in ``text``.
    """

    path: Path
    size: int
    state: str
    text: str = ""


def files(folder: Path) -> Iterator[Path]:
    """Every file of checkpoints below ``folder``, in order; staging files and sums are not among them."""
    if folder.is_file():
        yield folder
        return
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if n != sums.FOLDER and not n.startswith(sets.REMOVING))
        for name in sorted(names):
            if not name.endswith(durable.STAGING) and name != sets.TRACKER:
                yield Path(place, name)


def verify(path: Path, threads: int = 0, progress: Callable[[int], None] | None = None) -> Verification:
    """Read a whole file and compare it with its sums; without sums check its own map."""
    try:
        source = sources.FileSource(path)
    except OSError as error:
        return Verification(path, 0, "damaged", f"{path} cannot be opened: {error.strerror}")
    try:
        known = sums.read(path)
        if known:
            return _proven(path, source, known, threads or blocks.workers(), progress)
        return _structure(path, source)
    except CheckpointError as error:
        return Verification(path, source.size, "damaged", str(error))
    finally:
        source.close()


def _proven(
    path: Path, source: sources.FileSource, known: list[sums.Sums], threads: int, progress: Callable[[int], None] | None
) -> Verification:
    fitting = [entry for entry in known if entry.size == source.size]
    if not fitting:
        raise Damaged(f"{path} has {source.size} bytes, its sums are of {known[0].size}: truncated or overwritten")
    damaged: list[tuple[int, int]] = []
    for entry in fitting:
        damaged = sources.prove(source, entry, threads, progress)
        if not damaged:
            old = "holds what the last save was to replace" if entry is not known[0] else ""
            return Verification(path, source.size, "proven", old)
    text = ", ".join(f"{start}..{end}" for start, end in damaged[:5])
    raise Damaged(f"{path} is damaged: bytes {text} do not match ({len(damaged)} of {len(fitting[0].values)} blocks)")


def _structure(path: Path, source: sources.FileSource) -> Verification:
    last = sources.read(source, max(0, source.size - sources.TAIL_READ), min(source.size, sources.TAIL_READ))
    try:
        start, length = layout.read_tail(str(path), last, source.size)
    except NotThisFormat:
        return Verification(path, source.size, "unknown", "another format, and no sums are kept")
    layout.read_map(str(path), sources.read(source, start, length), start)
    return Verification(path, source.size, "structure", "no sums are kept: only its own map was checked")
