"""Checkpoints as sets of files in a folder, and whether each is complete. Needs no torch.

DIR/step-000000100/rank-00003-of-00008.mindio      Belay's own: the name says how many belong together
DIR/iter_0000100/mp_rank_01/model_optim_rng.pt      Megatron: complete as far as the tracker file says
DIR/latest_checkpointed_iteration.txt               that tracker file
DIR/anything-100/.metadata                          torch.distributed.checkpoint: shards named in .belay/shards.json
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from belay.agents.training.checkpoint import durable, sums
from belay.agents.training.checkpoint.errors import Damaged

TRACKER = "latest_checkpointed_iteration.txt"
METADATA = ".metadata"
SHARDS = "shards.json"
REMOVING = ".removing-"
ENTRIES = 100_000
"""Maximum number of names read of one folder."""
DEPTH = 16
"""Levels of folders below a set that are looked at."""
_STEP = re.compile(r"step-(\d{9,15})")
_RANK = re.compile(r"rank-(\d{5,7})-of-(\d{5,7})\.mindio")
_ITERATION = re.compile(r"iter_(\d{7,12})")
_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_MODEL_PARALLEL = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")


@dataclass(frozen=True)
class CheckpointSet:
    """Files that belong together: ``kind`` is belay, megatron or dcp; ``missing`` lists why it is incomplete."""

    kind: str
    step: int
    folder: Path
    world_size: int
    files: tuple[Path, ...]
    size: int
    age_of: float
    missing: tuple[str, ...] = ()
    in_memory: bool = False

    @property
    def complete(self) -> bool:
        """Whether every file exists with the size recorded with its sums."""
        return not self.missing


@dataclass
class _Files:
    """The files of a set: sizes by path, staging files, problems."""

    sizes: dict[Path, int] = field(default_factory=dict)
    newest: float = 0.0
    troubles: list[str] = field(default_factory=list)
    memory: int = 0


def step_folder(folder: Path, step: int) -> Path:
    """The folder of the set of ``step``."""
    return folder / f"step-{step:09d}"


def rank_file(folder: Path, step: int, rank: int, world_size: int) -> Path:
    """The file of one rank in that set."""
    return step_folder(folder, step) / f"rank-{rank:05d}-of-{world_size:05d}.mindio"


def scan(
    folder: Path, memory: Mapping[str, int] | None = None, ranks: frozenset[int] | None = None
) -> list[CheckpointSet]:
    """All sets in ``folder``, newest step first.

    ``memory`` maps paths to sizes of files that are only in memory yet: they count as present. With ``ranks``, a set of
    Belay's is complete with the files of these ranks, for folders that only one host sees.
    """
    memory = memory or {}
    tracked = tracker(folder)
    names = {path.name for path in _entries(folder) if path.is_dir()}
    for path in memory:
        if Path(path).parent.parent == folder:
            names.add(Path(path).parent.name)
    found = []
    for name in names:
        place = folder / name
        if match := _STEP.fullmatch(name):
            found.append(_own(place, int(match[1]), memory, ranks))
        elif (place / METADATA).exists() or (place / sums.FOLDER / SHARDS).exists():
            number = _NUMBER.search(name)
            found.append(_distributed(place, int(number[1]) if number else 0))
        elif match := _ITERATION.fullmatch(name):
            found.append(_megatron(place, int(match[1]), tracked))
    return sorted(found, key=lambda one: (one.step, one.folder.name), reverse=True)


def tracker(folder: Path) -> int | None:
    """The iteration in Megatron's tracker file; ``None`` without one, or when it contains no number."""
    try:
        with open(folder / TRACKER, encoding="ascii", errors="replace") as file:
            text = file.read(64).strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _entries(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= ENTRIES:
                    return
                yield Path(entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _inspect(place: Path, memory: Mapping[str, int], deep: bool) -> _Files:
    found = _Files()
    _walk(place, DEPTH if deep else 0, found)
    for text, size in memory.items():
        path = Path(text)
        if path.parent == place:
            found.sizes.setdefault(path, size)
            found.memory += 1
    return found


def _walk(place: Path, depth: int, found: _Files) -> None:
    for path in _entries(place):
        if path.name == sums.FOLDER or path.name.startswith(REMOVING):
            continue
        try:
            state = path.stat()
        except OSError:
            continue
        if path.is_dir():
            if depth:
                _walk(path, depth - 1, found)
        elif path.name.endswith(durable.STAGING):
            found.newest = max(found.newest, state.st_mtime)
        else:
            found.sizes[path] = state.st_size
            found.newest = max(found.newest, state.st_mtime)
            if trouble := _size_trouble(path, state.st_size):
                found.troubles.append(trouble)


def _size_trouble(path: Path, size: int) -> str | None:
    try:
        known = sums.read(path)
    except Damaged as error:
        return str(error)
    if known and size not in [entry.size for entry in known]:
        return f"{path.name} has {size} bytes instead of {known[0].size}"
    return None


def _own(place: Path, step: int, memory: Mapping[str, int], ranks: frozenset[int] | None) -> CheckpointSet:
    found = _inspect(place, memory, False)
    present: dict[int, set[int]] = {}
    for path in found.sizes:
        if match := _RANK.fullmatch(path.name):
            present.setdefault(int(match[2]), set()).add(int(match[1]))
    missing = list(found.troubles)
    if not present:
        missing.append("no rank has a file yet")
    if len(present) > 1:
        missing.append(f"files of sets of {' and '.join(map(str, sorted(present)))} ranks lie together")
    world = max(present, default=0)
    # a name may claim millions of ranks: those that are absent are counted, not listed
    expected: range | frozenset[int] = range(world) if ranks is None else ranks
    there = present.get(world, set())
    absent = len(expected) - sum(rank in expected for rank in there)
    ordered = expected if isinstance(expected, range) else sorted(expected)
    first = islice((rank for rank in ordered if rank not in there), 20)
    missing += [rank_file(place.parent, step, rank, world).name for rank in first]
    if absent > 20:
        missing.append(f"and {absent - 20} more ranks")
    wanted = [rank_file(place.parent, step, rank, world) for rank in sorted(present.get(world, set()))]
    in_memory = bool(wanted) and found.memory >= len(wanted)
    return _made("belay", step, place, world, found, missing, in_memory)


def _megatron(place: Path, step: int, tracked: int | None) -> CheckpointSet:
    found = _inspect(place, {}, True)
    missing = list(found.troubles)
    if tracked is None or step > tracked:
        missing.append(f"{TRACKER} says {'nothing' if tracked is None else tracked}")
    ranks = [match.groups() for path in found.sizes if (match := _MODEL_PARALLEL.fullmatch(path.parent.name))]
    for index in range(3):
        seen = {int(parts[index]) for parts in ranks if parts[index] is not None}
        gaps = islice((number for number in range(max(seen, default=-1) + 1) if number not in seen), 10)
        missing += [f"mp_rank with number {gap} at place {index + 1}" for gap in gaps]
    if not found.sizes:
        missing.append("no files")
    return _made("megatron", step, place, len(set(ranks)) or 1, found, missing)


def _distributed(place: Path, step: int) -> CheckpointSet:
    found = _inspect(place, {}, True)
    missing = list(found.troubles)
    shards: dict[str, int] = {}
    try:
        with open(place / sums.FOLDER / SHARDS, encoding="utf-8") as file:
            shards = {str(name): int(size) for name, size in json.loads(file.read(sums.LIMIT))["shards"].items()}
    except FileNotFoundError:
        # written by torch's own writer: its metadata is all there is to go by
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        missing.append(f"{sums.FOLDER}/{SHARDS} cannot be read: {str(error)[:100]}")
    if not (place / METADATA).exists():
        missing.append(METADATA)
    sizes = {str(path.relative_to(place)): size for path, size in found.sizes.items()}
    for name, size in sorted(shards.items()):
        if name not in sizes:
            missing.append(name)
        elif sizes[name] != size:
            missing.append(f"{name} has {sizes[name]} bytes instead of {size}")
    return _made("dcp", step, place, len(shards) or len(sizes) - 1, found, missing)


def _made(
    kind: str, step: int, place: Path, world: int, found: _Files, missing: list[str], in_memory: bool = False
) -> CheckpointSet:
    return CheckpointSet(
        kind, step, place, world, tuple(sorted(found.sizes)), sum(found.sizes.values()), found.newest,
        tuple(missing[:50]), in_memory,
    )  # fmt: skip
