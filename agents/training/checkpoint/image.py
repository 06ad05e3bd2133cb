"""An object in the form of its file: structure, storages in their memory, trailer. Nothing is copied here.

The pickle has protocol 2 and torch's persistent ids ``('storage', torch.<T>Storage, key, location, numel)``; keys count
up from "0" in order of appearance; views share their storage. Runs in ranks: the only files of this room that import
torch are this one, ``devices``, ``reading``, ``convert``, ``saver`` and the front ends above them.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch

from belay.agents.training.checkpoint import blocks, devices, layout
from belay.agents.training.checkpoint.devices import Copies, DeviceCopy
from belay.agents.training.checkpoint.errors import Unsupported


@dataclass(frozen=True)
class Piece:
    """One storage of an image: its place in the file, and the storage on its device."""

    start: int
    size: int
    storage: Any


@dataclass(frozen=True)
class Image:
    """The content of a file: ``structure`` at 0, the ``pieces``, the ``trailer`` (map and tail); ``size`` bytes in
    all."""

    structure: bytes
    pieces: list[Piece]
    trailer: bytes
    size: int

    @property
    def kinds(self) -> list[str]:
        """Kinds of devices that hold pieces: ``cuda``, ``npu``; empty when all lie on the host."""
        return sorted({piece.storage.device.type for piece in self.pieces} - {"cpu"})

    def marks(self) -> dict[Any, Any]:
        """What copies from devices must wait for: the work in the streams of the calling thread."""
        return devices.marks(piece.storage for piece in self.pieces)

    def fill(
        self, address: int, threads: int = 0, *, after: dict[Any, Any] | None = None, pinned: bool = False,
        slice_bytes: int = blocks.SLICE,
    ) -> None:  # fmt: skip
        """Write the file's bytes to memory at ``address``, which has room for ``size`` of them.

        Host memory is copied by parallel threads, ``slice_bytes`` at a time, while devices copy in streams of their
        own, after what :meth:`marks` returned (default: now). ``pinned``: devices may write to this memory themselves
        (:func:`devices.pin`). When this raises, no device writes to that memory any more.
        """
        copies, away = [], []
        for piece in self.pieces:
            if piece.storage.device.type == "cpu":
                copies.append((address + piece.start, piece.storage.data_ptr(), piece.size))
            else:
                away.append(DeviceCopy(address + piece.start, piece.storage, piece.size))
        begun = Copies(away, after or {}, pinned)
        try:
            for position, text in ((0, self.structure), (self.size - len(self.trailer), self.trailer)):
                _bytes_at(address + position, len(text))[:] = text
            blocks.copy(copies, threads or blocks.workers(), slice_bytes)
            begun.finish()
        except BaseException:
            begun.settle()
            raise

    def chunks(self) -> list[memoryview]:
        """The bytes of the file in order, without copies of storages in host memory."""
        parts = [memoryview(self.structure)]
        for piece in self.pieces:
            host = piece.storage if piece.storage.device.type == "cpu" else piece.storage.cpu()
            if piece.size:
                parts.append(bytes_of(host, piece.size))
        parts.append(memoryview(self.trailer))
        return parts


def image(obj: object) -> Image:
    """The image of any picklable object with tensors, or of bytes.

    Raises :class:`Unsupported` naming the class for what cannot be stored, and ``RuntimeError`` when one storage is
    seen with two element types, as ``torch.save`` does.
    """
    if isinstance(obj, bytes):
        return _finish(obj, [], layout.bytes_map(len(obj)))
    structure, storages = _pickled(obj)
    sizes = [storage.nbytes() for storage in storages]
    structure += layout.padding(len(structure), sum(sizes))
    pieces, start = [], len(structure)
    for storage, size in zip(storages, sizes, strict=True):
        pieces.append(Piece(start, size, storage))
        start += size
    return _finish(structure, pieces, layout.tensors_map(len(structure), sizes))


def _finish(structure: bytes, pieces: list[Piece], pickled_map: bytes) -> Image:
    start = len(structure) + sum(piece.size for piece in pieces)
    trailer = pickled_map + layout.tail(start, len(pickled_map))
    return Image(structure, pieces, trailer, start + len(trailer))


def _pickled(obj: object) -> tuple[bytes, list[Any]]:
    storages: list[Any] = []
    keys: dict[int, str] = {}
    kinds: dict[int, tuple[torch.dtype, int]] = {}
    last: list[str] = [""]

    def persistent_id(found: object) -> tuple[str, Any, str, str, int] | None:
        if isinstance(found, torch.Tensor):
            last[0] = f"{type(found).__module__}.{type(found).__qualname__}"
            return None
        if isinstance(found, torch.storage.TypedStorage):
            storage, dtype, numel = found._untyped_storage, found.dtype, found._size()
            kind = getattr(torch, found._pickle_storage_type())
        elif isinstance(found, torch.UntypedStorage):
            storage, dtype, numel, kind = found, torch.uint8, found.nbytes(), torch.UntypedStorage
        else:
            return None
        if storage.device.type == "meta":
            raise Unsupported("a tensor on the device 'meta' has no data to save: load or initialise it first")
        address = storage.data_ptr()
        if address and kinds.setdefault(address, (dtype, 0))[0] != dtype:
            raise RuntimeError(
                "cannot save tensors or storages that view the same data as different types: "
                f"{kinds[address][0]} and {dtype}"
            )
        # one object for each key, as torch has: the pickle then names it again by its memo
        key = keys.get(storage._cdata)
        if key is None:
            key = keys[storage._cdata] = str(len(storages))
            storages.append(storage)
        return "storage", kind, key, _location(storage), numel

    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=2)
    pickler.persistent_id = persistent_id  # type: ignore[method-assign]
    try:
        pickler.dump(obj)
    except (pickle.PicklingError, AttributeError, TypeError, NotImplementedError) as error:
        seen = f" (the last tensor was a {last[0]})" if last[0] not in ("", "torch.Tensor") else ""
        raise Unsupported(f"an object cannot be stored: {str(error)[:300]}{seen}") from error
    return buffer.getvalue(), storages


def _location(storage: Any) -> str:
    """``cpu``, ``npu:0``, ``cuda:0``."""
    device = storage.device
    return "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"


def _bytes_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def bytes_of(storage: Any, size: int) -> memoryview:
    """A view that keeps the storage alive."""
    array: Any = (ctypes.c_ubyte * size).from_address(storage.data_ptr())
    array._storage = storage
    return memoryview(array).cast("B")
