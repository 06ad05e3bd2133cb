"""Reads a checkpoint file into an object: checks the layout, unpickles the structure as data, reads storages in
parallel to their final memory, and verifies checksums on the way.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from belay.agents.training.checkpoint import background, blocks, layout, pages, sources, sums, unpickling
from belay.agents.training.checkpoint.errors import Damaged
from belay.agents.training.checkpoint.layout import Contents
from belay.agents.training.checkpoint.sources import FileSource, MemorySource, Source
from belay.agents.training.checkpoint.sums import Sums


def contents(source: Source) -> Contents:
    """The checked record map of a file.

    Raises :class:`NotThisFormat` for a file without the flag, :class:`Damaged` for one that contradicts itself.
    """
    first = min(source.size, sources.TAIL_READ)
    last = sources.read(source, source.size - first, first)
    start, length = layout.read_tail(source.name, last, source.size)
    if length + layout.TAIL.size <= len(last):
        data = last[-length - layout.TAIL.size : -layout.TAIL.size]
    else:
        data = sources.read(source, start, length)
    return layout.read_map(source.name, data, start)


def load(path: Path, *, weights_only: bool = True, proven: bool = True, mapped: bool = False, threads: int = 0) -> Any:
    """The object in the file ``path``.

    ``proven`` compares every byte with the checksums beside the file, if there are any. ``mapped`` does not wait for
    memory for tensors: they are a private mapping of the file, as by ``torch.load(mmap=True)``, which is copied in the
    background (:mod:`background`). The file must not be cut short or written in place while they live (Belay never
    does). Without ``proven`` nothing is read before it is used, and nothing is copied. Raises what :func:`contents`
    raises, :class:`Unsupported` for content that is not data, ``OSError``.
    """
    source = FileSource(path)
    try:
        known = sums.read(path) if proven else []
        fitting = [entry for entry in known if entry.size == source.size]
        if mapped:
            return _mapped(source, fitting, bool(known), weights_only, proven, threads)
        return from_source(source, fitting, bool(known), weights_only, threads)
    finally:
        source.close()


def from_source(
    source: Source, known: list[Sums], must: bool = False, weights_only: bool = True, threads: int = 0
) -> Any:
    """The object in ``source``, verified by one of the contents ``known``; ``must`` refuses a file that matches
    none."""
    _check_size(source, known, must)
    found = contents(source)
    threads = threads or blocks.workers()
    if found.length is not None:
        data = bytearray(found.length)
        _fetch(source, [(0, memoryview(data))] if data else [], known, threads)
        return bytes(data)
    where, size = found.records[layout.STRUCTURE]
    structure = sources.read(source, where, size)
    storages = _Storages(source.name, found)
    result = unpickling.load(source.name, structure, storages.make, weights_only)
    targets = storages.targets()
    with pages.Ahead([(sources.address(view), len(view)) for _, view in targets]):
        _fetch(source, targets, known, threads)
    if known and structure != sources.read(source, where, size):
        raise Damaged(f"{source.name} was changed while it was read")
    return result


def _check_size(source: Source, known: list[Sums], must: bool) -> None:
    if must and not known:
        raise Damaged(f"{source.name} has {source.size} bytes, its checksums are of another size: truncated")


def _fetch(source: Source, targets: list[tuple[int, memoryview]], known: list[Sums], threads: int) -> None:
    if not known:
        sources.gather(source, targets, None, threads)
        return
    damaged: list[tuple[int, int]] = []
    for entry in known:
        damaged = sources.gather(source, targets, entry, threads)
        if not damaged:
            return
    raise Damaged(f"{source.name} is damaged: {ranges(damaged)} do not match the checksums kept beside it")


def ranges(damaged: list[tuple[int, int]]) -> str:
    """``bytes 0..8388608`` and so on, at most five of them."""
    text = ", ".join(f"{start}..{end}" for start, end in damaged[:5])
    return f"bytes {text}" + (f" and {len(damaged) - 5} more blocks" if len(damaged) > 5 else "")


class _Storages:
    """Creates empty storages for persistent ids, and records the data to read into them."""

    def __init__(self, name: str, found: Contents, memory: mmap.mmap | None = None, begin: int = 0) -> None:
        self.name, self.records, self.memory, self.begin = name, found.records, memory, begin
        self.made: dict[str, Any] = {}

    def make(self, pid: Any) -> Any:
        """The storage for ``('storage', type, key, location, numel)``, checked against its record."""
        try:
            _, kind, key, _, numel = pid
            dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            need = numel * torch._utils._element_size(dtype)
            start, size = self.records[f"data/{key}"]
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise Damaged(f"{self.name}: a tensor refers to {str(pid)[:120]}, which the record map lacks") from error
        if need != size:
            raise Damaged(f"{self.name}: storage {key} needs {need} bytes, its record has {size}")
        if key not in self.made:
            self.made[key] = self._storage(start, size, torch._utils._element_size(dtype))
        return torch.storage.TypedStorage(wrap_storage=self.made[key], dtype=dtype, _internal=True)

    def targets(self) -> list[tuple[int, memoryview]]:
        """(start, memory) of every storage that is still to be read, in order of the file."""
        found = []
        for key, storage in self.made.items():
            start, size = self.records[f"data/{key}"]
            if size:
                array: Any = (ctypes.c_ubyte * size).from_address(storage.data_ptr())
                array._storage = storage
                found.append((start, memoryview(array).cast("B")))
        return sorted(found, key=lambda target: target[0])

    def _storage(self, start: int, size: int, element: int) -> Any:
        if self.memory is None:
            return torch.UntypedStorage(size)
        if not size:
            return torch.UntypedStorage(0)
        view = torch.frombuffer(self.memory, dtype=torch.uint8, count=size, offset=self.begin + start)
        # records are not padded: unaligned ones are copied
        return (view if start % element == 0 else view.clone()).untyped_storage()


def _mapped(source: FileSource, known: list[Sums], must: bool, weights_only: bool, proven: bool, threads: int) -> Any:
    _check_size(source, known, must)
    found = contents(source)
    if found.length is not None or not _aligned(found):
        return from_source(source, known, must, weights_only, threads)
    mapped = sources.MappedFile(source)
    # no targets: the blocks are compared where they lie
    _fetch(mapped, [], known, threads or blocks.workers())
    if proven and not known:
        # nothing to compare with, but what cannot be read must be an error now and not the end of the process later
        sources.read_all(mapped, threads or blocks.workers())
    where, size = found.records[layout.STRUCTURE]
    storages = _Storages(source.name, found, mapped.memory)
    result = unpickling.load(source.name, sources.read(mapped, where, size), storages.make, weights_only)
    if proven:
        background.own(mapped.memory, source.name)
    return result


def _aligned(found: Contents) -> bool:
    """Whether tensors can lie where their file has them. Files that others wrote are seldom so."""
    return found.records[layout.STRUCTURE][1] % 4 == 0


def from_mapping(
    memory: mmap.mmap, start: int, size: int, name: str, release: Callable[[], None], weights_only: bool = True
) -> Any:
    """The object in ``size`` bytes from ``start`` of a private mapping, whose tensors lie there.

    ``release`` is called once, when the origin of the mapping may change: not before the tensors have memory of their
    own. Raises what :func:`load` raises, with ``release`` called.
    """
    try:
        source = MemorySource(name, memoryview(memory)[start : start + size])
        found = contents(source)
        if found.length is None and _aligned(found):
            where, length = found.records[layout.STRUCTURE]
            storages = _Storages(name, found, memory, start)
            result = unpickling.load(name, sources.read(source, where, length), storages.make, weights_only)
        else:
            result = from_source(source, [], weights_only=weights_only)
    except BaseException:
        release()
        raise
    background.own(memory, name, release)
    return result
