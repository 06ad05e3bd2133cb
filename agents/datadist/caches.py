"""Registered KV caches: descriptions, keys, and the memory behind them.

Shapes of CacheDesc, BlocksCacheKey, Cache, DataType and Placement follow the public package `llm_datadist`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import dataclasses
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

from belay.agents.datadist.clusters import UINT32_MAX, UINT64_MAX, whole
from belay.agents.datadist.frames import UNKEYED, Region, RegionName
from belay.agents.datadist.status import LLMException, LLMStatusCode

MAX_TENSORS = 4096
MAX_BLOCKS = 1 << 24
MAX_BLOCK = 1 << 32  # bytes of one block


class DataType(IntEnum):
    """Element types; the size in bytes is ``DataType.size``."""

    DT_FLOAT = 0
    DT_FLOAT16 = 1
    DT_INT8 = 2
    DT_INT32 = 3
    DT_UINT8 = 4
    DT_INT16 = 6
    DT_UINT16 = 7
    DT_UINT32 = 8
    DT_INT64 = 9
    DT_UINT64 = 10
    DT_DOUBLE = 11
    DT_BOOL = 12
    DT_BF16 = 27

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _SIZES[self]


_SIZES = {
    DataType.DT_FLOAT: 4, DataType.DT_FLOAT16: 2, DataType.DT_INT8: 1, DataType.DT_INT32: 4, DataType.DT_UINT8: 1,
    DataType.DT_INT16: 2, DataType.DT_UINT16: 2, DataType.DT_UINT32: 4, DataType.DT_INT64: 8, DataType.DT_UINT64: 8,
    DataType.DT_DOUBLE: 8, DataType.DT_BOOL: 1, DataType.DT_BF16: 2,
}  # fmt: skip


class Placement(IntEnum):
    """The location of the memory."""

    HOST = 0
    DEVICE = 1


@dataclasses.dataclass(frozen=True)
class CacheDesc:
    """``num_tensors`` tensors of ``shape``; the first dimension counts blocks.

    Raises TypeError or ValueError that names the field.
    """

    num_tensors: int
    shape: Sequence[int]
    data_type: DataType
    placement: Placement = Placement.DEVICE
    batch_dim_index: int = 0
    seq_len_dim_index: int = -1
    kv_tensor_format: str | None = None

    def __post_init__(self) -> None:
        if whole("num_tensors", self.num_tensors, MAX_TENSORS) == 0:
            raise ValueError("num_tensors must be at least 1")
        if not isinstance(self.shape, (list, tuple)) or not self.shape:
            raise TypeError("shape must be a list or tuple with at least one dimension")
        object.__setattr__(self, "shape", tuple(whole("shape", size, MAX_BLOCK) for size in self.shape))
        if not isinstance(self.data_type, DataType):
            raise TypeError(f"data_type must be a DataType, not {type(self.data_type).__name__}")
        if not isinstance(self.placement, Placement):
            raise TypeError(f"placement must be a Placement, not {type(self.placement).__name__}")
        if self.batch_dim_index != 0:
            raise ValueError(f"batch_dim_index must be 0, not {self.batch_dim_index!r:.32}: blocks come first")
        if not 0 < self.blocks <= MAX_BLOCKS or not 0 < self.block <= MAX_BLOCK:
            raise ValueError(f"shape {self.shape} has no blocks, no bytes, or too many")

    @property
    def blocks(self) -> int:
        """Blocks of each tensor."""
        return self.shape[0]

    @property
    def block(self) -> int:
        """Bytes of one block."""
        size = self.data_type.size
        for dimension in self.shape[1:]:
            size *= dimension
        return size


class BlocksCacheKey:
    """Identify a block cache across clusters: the cluster that registered it, and its model.

    The cluster may be named ``prompt_cluster_id`` or ``cluster_id``.
    """

    def __init__(
        self, prompt_cluster_id: int | None = None, model_id: int = 0, *, cluster_id: int | None = None
    ) -> None:
        named = cluster_id if prompt_cluster_id is None else prompt_cluster_id
        self.cluster_id = whole("prompt_cluster_id", named, UINT64_MAX)
        self.model_id = whole("model_id", model_id, UINT64_MAX)

    @property
    def prompt_cluster_id(self) -> int:
        """The cluster that registered it."""
        return self.cluster_id

    @property
    def region(self) -> RegionName:
        """Its name between ends."""
        return self.cluster_id, self.model_id, 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlocksCacheKey) and self.region == other.region

    def __hash__(self) -> int:
        return hash(self.region)

    def __repr__(self) -> str:
        return f"BlocksCacheKey(prompt_cluster_id={self.cluster_id}, model_id={self.model_id})"


@dataclasses.dataclass(frozen=True)
class CacheKeyByIdAndIndex:
    """Identify one row of a cache of another cluster: by the cache's number there and the row's index."""

    cluster_id: int
    cache_id: int
    batch_index: int = 0

    def __post_init__(self) -> None:
        whole("cluster_id", self.cluster_id, UINT64_MAX)
        whole("cache_id", self.cache_id, UINT64_MAX)
        whole("batch_index", self.batch_index, UINT32_MAX)

    @property
    def region(self) -> RegionName:
        """The name of the cache between ends."""
        return UNKEYED, 0, self.cache_id


class Tensor(Protocol):
    """Memory of one tensor, accessed by byte range."""

    @property
    def address(self) -> int:
        """Where it begins."""

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes from ``start`` to ``end``."""

    def write(self, start: int, data: memoryview) -> None:
        """Write ``data`` at ``start``."""


class HostTensor:
    """Memory of the host: reads and writes without an intermediate copy."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    @property
    def address(self) -> int:
        """Where it begins."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._view))

    def read(self, start: int, end: int) -> memoryview:
        """Return a view of the bytes, not a copy."""
        return self._view[start:end]

    def write(self, start: int, data: memoryview) -> None:
        """Write ``data`` at ``start``."""
        self._view[start : start + len(data)] = data


class DeviceTensor:
    """Device memory at a raw address, copied through the runtime of the chip (`aclrtMemcpy`, libascendcl)."""

    TO_DEVICE, TO_HOST = 1, 2

    def __init__(self, address: int, size: int) -> None:
        self.address, self._size = address, size
        self._runtime = _ascendcl()

    def read(self, start: int, end: int) -> memoryview:
        """Return a copy of the bytes in host memory."""
        buffer = bytearray(end - start)
        target = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        self._copy(ctypes.addressof(target), self.address + start, len(buffer), self.TO_HOST)
        return memoryview(buffer)

    def write(self, start: int, data: memoryview) -> None:
        """Copy ``data`` to the device."""
        source = (ctypes.c_char * len(data)).from_buffer_copy(data)
        self._copy(self.address + start, ctypes.addressof(source), len(data), self.TO_DEVICE)

    def _copy(self, target: int, source: int, size: int, way: int) -> None:
        code = self._runtime.aclrtMemcpy(
            ctypes.c_void_p(target), ctypes.c_size_t(size), ctypes.c_void_p(source), ctypes.c_size_t(size), way
        )
        if code != 0:
            raise LLMException(f"aclrtMemcpy of {size} bytes answered {code}", LLMStatusCode.LLM_FAILED)


def _ascendcl() -> Any:
    try:
        return ctypes.CDLL("libascendcl.so")
    except OSError as error:
        raise LLMException(
            "device addresses need libascendcl.so of CANN on the library path; register host memory"
            " (Placement.HOST) on machines without it",
            LLMStatusCode.LLM_FEATURE_NOT_ENABLED,
        ) from error


def tensor(memory: object, desc: CacheDesc) -> Tensor:
    """Return the memory of one tensor, from a writable buffer or the raw address of one.

    Raises TypeError for anything else, ValueError when it is too small or zero, LLMException for device addresses
    without the chip's runtime.
    """
    size = desc.blocks * desc.block
    if isinstance(memory, int) and not isinstance(memory, bool):
        if whole("address", memory, UINT64_MAX) == 0:
            raise ValueError("address must not be 0")
        if desc.placement is Placement.DEVICE:
            return DeviceTensor(memory, size)
        return HostTensor(memoryview((ctypes.c_char * size).from_address(memory)).cast("B"))
    try:
        view = memoryview(memory).cast("B")  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"a tensor is an address or a writable buffer, not {type(memory).__name__}") from error
    if view.readonly:
        raise TypeError("a tensor must be writable")
    if len(view) < size:
        raise ValueError(f"a tensor of {desc.blocks} blocks needs {size} bytes, the buffer has {len(view)}")
    return HostTensor(view)


@dataclasses.dataclass(frozen=True)
class Cache:
    """A registered cache; ``cache_id`` is its handle in this process."""

    cache_id: int
    cache_desc: CacheDesc
    key: BlocksCacheKey | None
    tensors: tuple[Tensor, ...]
    accessible: bool

    @property
    def tensor_addrs(self) -> list[int]:
        """Where the tensors lie in memory."""
        return [one.address for one in self.tensors]

    def region(self) -> Region | None:
        """The region that peers may read; None for local caches."""
        if not self.accessible:
            return None
        cluster, model, cache = self.key.region if self.key is not None else (UNKEYED, 0, self.cache_id)
        desc = self.cache_desc
        return Region(cluster, model, len(self.tensors), desc.blocks, desc.block, cache)


class Registry:
    """The caches of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._caches: dict[int, Cache] = {}
        self._next = 1

    def add(self, desc: CacheDesc, addrs: Sequence[object], key: BlocksCacheKey | None, accessible: bool) -> Cache:
        """Register memory. Raises TypeError, ValueError, LLMException as `tensor` does, or for a key used twice."""
        if not isinstance(desc, CacheDesc):
            raise TypeError(f"cache_desc must be a CacheDesc, not {type(desc).__name__}")
        if not isinstance(addrs, (list, tuple)):
            raise TypeError(f"addrs must be a list, not {type(addrs).__name__}")
        if len(addrs) != desc.num_tensors:
            raise ValueError(f"cache_desc names {desc.num_tensors} tensors, {len(addrs)} are given")
        if key is not None and not isinstance(key, BlocksCacheKey):
            raise TypeError(f"blocks_cache_key must be a BlocksCacheKey, not {type(key).__name__}")
        tensors = tuple(tensor(memory, desc) for memory in addrs)
        with self._lock:
            if key is not None and any(cache.key == key for cache in self._caches.values()):
                raise ValueError(f"{key} is registered already; unregister it first")
            cache = Cache(self._next, desc, key, tensors, accessible)
            self._next += 1
            self._caches[cache.cache_id] = cache
        return cache

    def remove(self, cache_id: int) -> bool:
        """Remove a cache; False when there is none of that id."""
        with self._lock:
            return self._caches.pop(cache_id, None) is not None

    def snapshot(self) -> dict[RegionName, Cache]:
        """Return the caches that are remotely accessible now, by their names."""
        with self._lock:
            caches = list(self._caches.values())
        return {region.name: cache for cache in caches if (region := cache.region()) is not None}

    def holds(self, cache: Cache) -> bool:
        """Return whether this cache is still registered."""
        with self._lock:
            return self._caches.get(cache.cache_id) is cache
