"""Removes checkpoints by count and by age, never the newest complete one, the last whole one, nor one that may still be
written.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from belay.agents.training.checkpoint import durable, sets, sums, verifying
from belay.agents.training.checkpoint.sets import CheckpointSet


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
    """Remove a set: its folder is renamed first, so that no partial set is ever visible. Of a set that is a link, the
    link goes and what it leads to stays: others may use it. Raises ``OSError``.
    """
    if one.folder.is_symlink():
        one.folder.unlink()
        sums.sync_folder(one.folder.parent)
        return
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


@dataclass(frozen=True)
class Pruned:
    """What :func:`prune` removed, or with ``dry`` would remove; ``damaged`` are reasons why complete sets do not count
    as whole, and ``kept`` sets that stay for that.
    """

    removed: list[Path]
    damaged: list[str]
    kept: list[Path]


def prune(
    folder: Path,
    *,
    keep: int | None = None,
    oldest: float | None = None,
    report: Callable[[str], None] | None = None,
    dry: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Pruned:
    """Remove outdated sets and leftovers of ``folder``. ``report`` gets each path, ``progress`` the bytes that were
    proven.

    Before a complete set goes, one that stays is proven by its sums, the newest first. Where all that stay are damaged,
    the newest outdated one without damage stays too; where none is whole, every complete one.
    """
    found = sets.scan(folder)
    gone = outdated(found, keep=keep, oldest=oldest)
    damaged: list[str] = []
    kept: list[CheckpointSet] = []
    if any(one.complete for one in gone):
        complete = sorted((one for one in found if one.complete), key=lambda one: (one in gone, -one.step))
        for one in complete:
            if reason := _damage(one, progress):
                damaged.append(reason)
                continue
            kept = [one] if one in gone else []
            break
        else:
            kept = [one for one in complete if one in gone]
    gone = [one for one in gone if one not in kept]
    removed = []
    for one in gone:
        if report:
            report(str(one.folder))
        if not dry:
            remove(one)
        removed.append(one.folder)
    for path in leftovers(folder):
        if report:
            report(str(path))
        if not dry:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        removed.append(path)
    return Pruned(removed, damaged, [one.folder for one in kept])


def _damage(one: CheckpointSet, progress: Callable[[int], None] | None) -> str:
    """Why a complete set cannot be loaded; empty when it is whole."""
    for path in one.files:
        found = verifying.verify(path, progress=progress)
        if found.state == "damaged":
            return found.text
    return ""
