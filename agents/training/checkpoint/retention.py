"""Removes checkpoints by count and by age, never the newest complete one nor one that may still be written."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.training.checkpoint import durable, sets, sums
from agents.training.checkpoint.sets import CheckpointSet


def outdated(found: Sequence[CheckpointSet], *, keep: int | None, oldest: float | None) -> list[CheckpointSet]:
    """The sets to remove: beyond the ``keep`` newest complete ones, or last written before the time ``oldest`` (seconds
    since the epoch); and incomplete ones older than the newest complete one. Without a rule no complete set is removed.

    The newest complete set and every set of a later step stay.
    """
    ordered = sorted(found, key=lambda one: one.step, reverse=True)
    complete = [one for one in ordered if one.complete]
    if not complete:
        return []
    gone = []
    for place, one in enumerate(complete[1:], start=1):
        if (keep is not None and place >= max(1, keep)) or (oldest is not None and one.age_of < oldest):
            gone.append(one)
    gone += [one for one in ordered if not one.complete and one.step < complete[0].step]
    return sorted(gone, key=lambda one: one.step)


def remove(one: CheckpointSet) -> None:
    """Remove a set: its folder is renamed first, so that no partial set is ever visible. Raises ``OSError``."""
    hidden = one.folder.with_name(sets.REMOVING + one.folder.name)
    if hidden.exists():
        shutil.rmtree(hidden)
    os.rename(one.folder, hidden)
    sums.sync_folder(one.folder.parent)
    shutil.rmtree(hidden)


def leftovers(folder: Path) -> list[Path]:
    """Remains of interrupted work below ``folder``: staging files without a living writer, partially removed sets."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        for name in [name for name in folders if name.startswith(sets.REMOVING)]:
            found.append(Path(place, name))
            folders.remove(name)
        names = [name for name in files if name.endswith(durable.STAGING)]
        found += [path for name in names if durable.abandoned(path := Path(place, name))]
        found += [Path(place, name) for name in files if name.endswith(".sums.stg") and _old(Path(place, name))]
        if Path(place).name == sums.FOLDER:
            found += [
                Path(place, name)
                for name in files
                if name.endswith(".sums") and not (Path(place).parent / name.removesuffix(".sums")).exists()
            ]
    return sorted(found)


def _old(path: Path) -> bool:
    """Whether a staging file of sums, which is written in an instant and not locked, was left behind."""
    try:
        return time.time() - path.stat().st_mtime > 600
    except OSError:
        return False


def prune(
    folder: Path,
    *,
    keep: int | None = None,
    oldest: float | None = None,
    report: Callable[[str], None] | None = None,
    dry: bool = False,
) -> list[Path]:
    """Remove outdated sets and leftovers of ``folder``; the removed paths (with ``dry`` those to remove)."""
    gone = []
    for one in outdated(sets.scan(folder), keep=keep, oldest=oldest):
        if report:
            report(str(one.folder))
        if not dry:
            remove(one)
        gone.append(one.folder)
    for path in leftovers(folder):
        if report:
            report(str(path))
        if not dry:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        gone.append(path)
    return gone
