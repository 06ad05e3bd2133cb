"""torch.distributed.checkpoint through the pool: FSDP2 and Megatron's distributed checkpoint use it by one argument.

    dcp.save(state, storage_writer=PoolWriter(folder))
    dcp.async_save(state, storage_writer=PoolWriter(folder), async_stager=stager)     # stager = PoolStager(), kept
    dcp.load(state, storage_reader=PoolReader(folder))

Each rank writes one ``.mindio`` file; ``.metadata`` records the place of each piece in it, so that any number of ranks
can load its part. A set that lacks a file is refused before anything is read, with the name of the file.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as shapes
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from belay.agents.training.checkpoint import blocks, durable, image, pages, sets, sources, sums
from belay.agents.training.checkpoint.errors import Damaged, Incomplete, NotThisFormat
from belay.agents.training.checkpoint.reading import ranges
from belay.agents.training.checkpoint.saver import Saver, saver
from belay.agents.training.checkpoint.sources import FileSource

METADATA_LIMIT = 1 << 30


@dataclass(frozen=True)
class Shard:
    """The place of a piece of state: file, first byte, length; element type and shape of a tensor, or plain bytes."""

    file: str
    start: int
    size: int
    dtype: torch.dtype | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Prefix:
    """The file of a rank; each rank gets it with the global plan."""

    rank: int


class PoolWriter(StorageWriter):  # type: ignore[misc]
    """Writes to ``folder``. A rank's part counts as written once it is on the disk, or with ``wait=False`` in the pool:
    a crash then leaves an incomplete set, which is refused.
    """

    def __init__(self, folder: str | Path, through: Saver | None = None, wait: bool = True) -> None:
        self.folder, self.wait = Path(folder).absolute(), wait
        self.saver = through or saver()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save, in ``checkpoint_id`` if given."""
        if checkpoint_id:
            self.folder = Path(checkpoint_id).absolute()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Create the folder."""
        durable.folder(self.folder)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank the name of its file; an older set in this folder is invalidated first."""
        (self.folder / sets.METADATA).unlink(missing_ok=True)
        return [replace(plan, storage_data=_Prefix(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Save this rank's pieces as one file."""
        name = f"__{plan.storage_data.rank}_0.mindio"
        pieces = [_own_storage(planner.resolve_data(item), item.type) for item in plan.items]
        pending = self.saver.save(pieces, self.folder / name, mode=0o644)
        if self.wait and not pending.durable():
            raise Incomplete(f"{self.folder / name} is not on the disk in time")
        # the same pickle has the same places
        places = {piece.storage._cdata: piece for piece in image.image(pieces).pieces}
        results = []
        for item, piece in zip(plan.items, pieces, strict=True):
            place = places[piece.untyped_storage()._cdata]
            dtype = None if item.type == WriteItemType.BYTE_IO else piece.dtype
            shard = Shard(name, place.start, place.size, dtype, tuple(piece.shape))
            results.append(WriteResult(index=item.index, size_in_bytes=place.size, storage_data=shard))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        """Write ``.metadata`` with the places of all pieces, which completes the set."""
        metadata.storage_data = {one.index: one.storage_data for part in results for one in part}
        metadata.storage_meta = self.storage_meta()
        names = sorted({shard.file for shard in metadata.storage_data.values()})
        sizes = {name: self._size(name) for name in names}
        keeping = self.folder / sums.FOLDER
        durable.folder(keeping)
        text = json.dumps({"version": 1, "shards": sizes}).encode()
        durable.write(keeping / sets.SHARDS, memoryview(bytearray(text)), mode=0o644)
        body = pickle.dumps(metadata)
        durable.write(self.folder / sets.METADATA, memoryview(bytearray(body)), mode=0o644)

    def _size(self, name: str) -> int:
        path = self.folder / name
        if path.exists():
            return path.stat().st_size
        listed = self.saver.client.listed(self.folder) if self.saver.client else {}
        if str(path) not in listed:
            raise Incomplete(f"{path} is not visible to the coordinator: the folder must be shared by all ranks")
        return listed[str(path)]

    def storage_meta(self) -> Any:
        """The folder of this save."""
        return shapes.StorageMeta(checkpoint_id=str(self.folder))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether the id is a path and not a URL of another storage."""
        return "://" not in str(checkpoint_id)


def _own_storage(found: Any, kind: Any) -> Any:
    """The tensor in a storage of its own size."""
    if kind == WriteItemType.BYTE_IO:
        data = bytearray(found.getvalue())
        return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    tensor = found.detach()
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)


class PoolReader(StorageReader):  # type: ignore[misc]
    """Reads sets of :class:`PoolWriter`, verified by their checksums, with any number of ranks."""

    def __init__(self, folder: str | Path, proven: bool = True) -> None:
        self.folder, self.proven = Path(folder).absolute(), proven
        self.shards: dict[Any, Shard] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load, from ``checkpoint_id`` if given."""
        self.shards = {}
        if checkpoint_id:
            self.folder = Path(checkpoint_id).absolute()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """The places of all pieces. Raises :class:`Incomplete` naming every file that the set lacks."""
        one = next((one for one in sets.scan(self.folder.parent) if one.folder == self.folder), None)
        if one is None or one.kind != "dcp":
            raise Incomplete(f"{self.folder} holds no distributed checkpoint ({sets.METADATA} is missing)")
        if one.missing:
            raise Incomplete(f"the checkpoint in {self.folder} is refused, it lacks: {'; '.join(one.missing[:20])}")
        path = self.folder / sets.METADATA
        if path.stat().st_size > METADATA_LIMIT:
            raise Damaged(f"{path} has {path.stat().st_size} bytes; at most {METADATA_LIMIT} are read")
        return _unpickled(path, path.read_bytes())

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Set the places of all pieces."""
        self.shards = metadata.storage_data
        if not all(isinstance(shard, Shard) for shard in self.shards.values()):
            raise NotThisFormat(f"{self.folder} was written by another writer: read it with torch's FileSystemReader")

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plan unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read all pieces of this rank and verify them, and only then change the state. Raises :class:`Damaged`."""
        found = self._fetch({self.shards[item.storage_index] for item in plan.items})
        for item in plan.items:
            shard = self.shards[item.storage_index]
            data = found[shard]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(bytes(data)))
                continue
            whole = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            piece = whole.view(shard.dtype).reshape(shard.shape)
            for axis, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                piece = piece.narrow(axis, start, length)
            target = planner.resolve_tensor(item).detach()
            if target.size() != piece.size():
                raise Damaged(
                    f"{item.storage_index.fqn} has shape {tuple(piece.size())} in {self.folder / shard.file}, "
                    f"{tuple(target.size())} is wanted"
                )
            target.copy_(piece)
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _fetch(self, wanted: set[Shard]) -> dict[Shard, bytearray]:
        found = {shard: bytearray(shard.size) for shard in wanted}
        with pages.Ahead([(sources.address(memoryview(data)), len(data)) for data in found.values()]):
            self._read(found)
        return found

    def _read(self, wanted: dict[Shard, bytearray]) -> None:
        for name in sorted({shard.file for shard in wanted}):
            parts = sorted(
                (shard for shard in wanted if shard.file == name), key=lambda shard: (shard.start, shard.size)
            )
            try:
                source = FileSource(self.folder / name)
            except OSError as error:
                raise Incomplete(f"{self.folder / name} cannot be read: {error.strerror}") from error
            try:
                known = sums.read(self.folder / name) if self.proven else []
                self._gather(source, [(s.start, memoryview(wanted[s])) for s in parts if s.size], known)
            finally:
                source.close()

    def _gather(self, source: FileSource, targets: list[tuple[int, memoryview]], known: list[sums.Sums]) -> None:
        fitting = [entry for entry in known if entry.size == source.size]
        if known and not fitting:
            raise Damaged(f"{source.name} has {source.size} bytes, its sums are of {known[0].size}")
        damaged: list[tuple[int, int]] = []
        contents: list[sums.Sums | None] = [*fitting] or [None]
        for entry in contents:
            damaged = sources.gather(source, targets, entry, blocks.workers(), everything=False)
            if not damaged:
                return
        raise Damaged(f"the shard {source.name} is damaged: {ranges(damaged)}; nothing of it was loaded")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether the id is a path and not a URL of another storage."""
        return "://" not in str(checkpoint_id)


class _DataOnly(pickle.Unpickler):
    """Unpickles torch's descriptions of checkpoints, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == shapes.__name__ and isinstance(found := getattr(shapes, name, None), type):
            return found
        if (module, name) == (Shard.__module__, "Shard"):
            return Shard
        if (module, name) in (("torch", "Size"), ("torch.serialization", "_get_layout"), ("torch", "device")):
            return getattr(torch if module == "torch" else torch.serialization, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in the metadata of a checkpoint")


def _unpickled(path: Path, data: bytes) -> Any:
    try:
        return _DataOnly(io.BytesIO(data)).load()
    except Exception as error:
        raise Damaged(f"{path} cannot be read: {type(error).__name__}: {str(error)[:300]}") from error


class PoolStager:
    """Copies a state in parallel to training, into two host buffers that are kept from save to save, so that one can
    still be written while the other is filled. For ``dcp.async_save(async_stager=…)``.
    """

    should_synchronize_after_execute = False

    def __init__(self) -> None:
        self._kept: list[Any] = [None, None]
        self._turn = 0

    def stage(self, state: Any) -> Any:
        """A copy of ``state`` on the host; the state may change when this returns."""
        from torch.distributed._state_dict_utils import _create_cpu_state_dict

        self._turn = 1 - self._turn
        kept = self._kept[self._turn]
        if kept is None or not _alike(kept, state):
            # pageable memory would make every copy from a device wait
            away = any(of.device.type != "cpu" for _, of in _pairs(state, state))
            kept = self._kept[self._turn] = _create_cpu_state_dict(state, pin_memory=away)
        copies = []
        devices = set()
        for to, of in _pairs(kept, state):
            if of.device.type == "cpu" and to.is_contiguous() and of.is_contiguous():
                copies.append((to.data_ptr(), of.data_ptr(), of.nbytes))
            else:
                to.copy_(of, non_blocking=of.device.type != "cpu")
                devices.add(of.device)
        blocks.copy(copies, blocks.workers())
        for device in devices:
            if device.type != "cpu":
                torch.get_device_module(device).synchronize(device)
        return _rebuilt(kept, state)

    def synchronize_staging(self) -> None:
        """Copies are done when :meth:`stage` returns."""

    def close(self) -> None:
        """Release the buffers."""
        self._kept = [None, None]


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _pairs(kept: Any, state: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(state, torch.Tensor):
        yield _local(kept), _local(state)
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _pairs(kept[key], value)
    elif isinstance(state, list | tuple):
        for left, right in zip(kept, state, strict=True):
            yield from _pairs(left, right)


def _alike(kept: Any, state: Any) -> bool:
    """Whether the kept memory fits: same keys, same shapes and types of tensors."""
    if isinstance(state, torch.Tensor):
        if not isinstance(kept, torch.Tensor) or type(kept) is not type(state):
            return type(state) is torch.nn.Parameter and isinstance(kept, torch.Tensor) and _alike(kept, state.data)
        left, right = _local(kept), _local(state)
        return bool(kept.shape == state.shape and left.shape == right.shape and left.dtype == right.dtype)
    if isinstance(state, dict):
        return (
            isinstance(kept, dict) and kept.keys() == state.keys() and all(_alike(kept[k], v) for k, v in state.items())
        )
    if isinstance(state, list | tuple):
        return isinstance(kept, list | tuple) and len(kept) == len(state) and all(map(_alike, kept, state))
    return True


def _rebuilt(kept: Any, state: Any) -> Any:
    """The kept tensors in the structure of the state, with the present values of everything else."""
    if isinstance(state, torch.Tensor):
        return kept
    if isinstance(state, dict):
        return {key: _rebuilt(kept[key], value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)([_rebuilt(left, right) for left, right in zip(kept, state, strict=True)])
    return copy.deepcopy(state)
