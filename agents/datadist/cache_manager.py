"""CacheManager: registers memory and moves blocks, or rows of whole caches, between linked clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from belay.agents.datadist.caches import BlocksCacheKey, Cache, CacheDesc, CacheKeyByIdAndIndex, Placement, Registry
from belay.agents.datadist.clusters import UINT32_MAX, UINT64_MAX, whole
from belay.agents.datadist.frames import Blocks, RegionName
from belay.agents.datadist.peer import Peer
from belay.agents.datadist.status import LLMException, LLMStatusCode

REQUEST = 64 << 20  # bytes of blocks in one request; longer transfers are cut
PER_LAYER = 2  # tensors of a layer: keys and values
WHOLE_ROW = -1  # as ``size`` of a transfer
T = TypeVar("T")


class Owner(Protocol):
    """What a CacheManager asks of its LLMDataDist."""

    @property
    def registry(self) -> Registry:
        """The caches of this process. Raises LLMException before ``init``."""

    @property
    def accessible(self) -> bool:
        """Whether caches may be accessed from other clusters at all."""

    @property
    def sync_seconds(self) -> float:
        """Seconds that one transfer may take."""

    def live_peer(self, cluster: int) -> Peer | None:
        """The link to a cluster. Raises LLMException before ``init``."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop of the links."""


@dataclasses.dataclass(frozen=True)
class _Side:
    """What moves on one side of a transfer: rows (or blocks) of the tensors of some layers."""

    rows: Sequence[int]
    layers: range | None


class CacheManager:
    """Registers memory and moves it between linked clusters."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def register_blocks_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[object],
        blocks_cache_key: BlocksCacheKey | None = None,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register tensors: writable buffers, or raw addresses of the placement that ``cache_desc`` names.

        With a key, clusters that link afterwards may read and write it. Raises TypeError, ValueError or LLMException.
        """
        reachable = self._reachable(remote_accessible) and blocks_cache_key is not None
        return self._owner.registry.add(cache_desc, addrs, blocks_cache_key, reachable)

    def register_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[object],
        cache_keys: Sequence[object] = (),
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register tensors whose rows clusters that link afterwards name by ``cache_id`` and index.

        Raises as `register_blocks_cache`, and LLMException for keys of requests, which need the chip's memory pools.
        """
        registry = self._owner.registry
        if cache_keys:
            raise LLMException(
                "keys of requests need the memory pools of the chip: name rows by CacheKeyByIdAndIndex",
                LLMStatusCode.LLM_FEATURE_NOT_ENABLED,
            )
        return registry.add(cache_desc, addrs, None, self._reachable(remote_accessible))

    def allocate_blocks_cache(self, cache_desc: CacheDesc, blocks_cache_key: BlocksCacheKey | None = None) -> Cache:
        """Allocate host memory for ``cache_desc`` and register it."""
        if cache_desc.placement is not Placement.HOST:
            raise LLMException("only host memory is allocated here", LLMStatusCode.LLM_FEATURE_NOT_ENABLED)
        size = cache_desc.blocks * cache_desc.block
        return self.register_blocks_cache(
            cache_desc, [bytearray(size) for _ in range(cache_desc.num_tensors)], blocks_cache_key
        )

    def deallocate_blocks_cache(self, cache: Cache) -> None:
        """Give back what `allocate_blocks_cache` made. Raises TypeError, LLMException for an unknown cache."""
        if not isinstance(cache, Cache):
            raise TypeError(f"cache must be a Cache, not {type(cache).__name__}")
        self.unregister_cache(cache.cache_id)

    def unregister_cache(self, cache_id: int) -> None:
        """Unregister a cache; existing links keep their view of it until they end. Raises LLMException if unknown."""
        if not self._owner.registry.remove(whole("cache_id", cache_id, UINT64_MAX)):
            raise LLMException(f"no cache {cache_id}", LLMStatusCode.LLM_KV_CACHE_NOT_EXIST)

    def copy_blocks(self, cache: Cache, copy_block_info: Mapping[int, Sequence[int]]) -> None:
        """Copy blocks of a registered cache to other places in it: ``{source: [targets]}``."""
        pairs = [(source, target) for source, targets in copy_block_info.items() for target in targets]
        self._copy(cache, cache, pairs)

    def swap_blocks(self, src_cache: Cache, dst_cache: Cache, src_to_dst: Mapping[int, int]) -> None:
        """Copy blocks between two caches of this process: ``{block of the source: block of the target}``."""
        self._copy(src_cache, dst_cache, list(src_to_dst.items()))

    def pull_blocks(
        self,
        src_cache_key: BlocksCacheKey,
        dst_cache: Cache,
        src_blocks: Sequence[int] = (),
        dst_blocks: Sequence[int] = (),
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = PER_LAYER,
    ) -> None:
        """Read ``src_blocks`` of the remote cache into ``dst_blocks`` of the local one.

        Layers are ``tensor_num_per_layer`` tensors each; without ranges all tensors move. Raises TypeError or
        ValueError for bad arguments, LLMException with the code of the remote side or of the link.
        """
        far, near = _Side(src_blocks, src_layer_range), _Side(dst_blocks, dst_layer_range)
        self._move(True, _blocks_key(src_cache_key), dst_cache, far, near, tensor_num_per_layer)

    def push_blocks(
        self,
        dst_cache_key: BlocksCacheKey,
        src_cache: Cache,
        src_blocks: Sequence[int] = (),
        dst_blocks: Sequence[int] = (),
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = PER_LAYER,
    ) -> None:
        """Write ``src_blocks`` of the local cache into ``dst_blocks`` of the remote one. Raises as `pull_blocks`."""
        far, near = _Side(dst_blocks, dst_layer_range), _Side(src_blocks, src_layer_range)
        self._move(False, _blocks_key(dst_cache_key), src_cache, far, near, tensor_num_per_layer)

    def pull_cache(
        self,
        cache_key: CacheKeyByIdAndIndex,
        cache: Cache,
        batch_index: int = 0,
        size: int = WHOLE_ROW,
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = PER_LAYER,
    ) -> None:
        """Read one row of a remote cache into row ``batch_index`` of a local one. Raises as `pull_blocks`."""
        key = _row_key(cache_key, size)
        far, near = _Side([key.batch_index], src_layer_range), _Side([_index(batch_index)], dst_layer_range)
        self._move(True, key, cache, far, near, tensor_num_per_layer)

    def push_cache(
        self,
        dst_cache_key: CacheKeyByIdAndIndex,
        src_cache: Cache,
        src_batch_index: int = 0,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        size: int = WHOLE_ROW,
        tensor_num_per_layer: int = PER_LAYER,
    ) -> None:
        """Write row ``src_batch_index`` of a local cache into one row of a remote one. Raises as `pull_blocks`."""
        key = _row_key(dst_cache_key, size)
        far, near = _Side([key.batch_index], dst_layer_range), _Side([_index(src_batch_index)], src_layer_range)
        self._move(False, key, src_cache, far, near, tensor_num_per_layer)

    def _reachable(self, wanted: bool | None) -> bool:
        if wanted is not None and not isinstance(wanted, bool):
            raise TypeError(f"remote_accessible must be a bool, not {type(wanted).__name__}")
        return wanted is not False and self._owner.accessible

    def _copy(self, source: Cache, target: Cache, pairs: Sequence[tuple[int, int]]) -> None:
        self._hold(source)
        self._hold(target)
        near, far = source.cache_desc, target.cache_desc
        if (near.block, near.num_tensors) != (far.block, far.num_tensors):
            raise ValueError(
                f"the caches differ: {near.num_tensors} tensors with blocks of {near.block} bytes,"
                f" {far.num_tensors} tensors with blocks of {far.block} bytes"
            )

        checked = [
            (whole("source block", one, near.blocks - 1), whole("target block", other, far.blocks - 1))
            for one, other in pairs
        ]
        size = near.block
        for read, written in zip(source.tensors, target.tensors, strict=True):
            for one, other in checked:
                written.write(other * size, read.read(one * size, (one + 1) * size))

    def _hold(self, cache: Cache) -> None:
        if not isinstance(cache, Cache) or not self._owner.registry.holds(cache):
            raise LLMException("the local cache is not registered", LLMStatusCode.LLM_KV_CACHE_NOT_EXIST)

    def _move(
        self, pull: bool, key: BlocksCacheKey | CacheKeyByIdAndIndex, local: Cache, far: _Side, near: _Side, layer: int
    ) -> None:
        owner = self._owner
        self._hold(local)
        desc = local.cache_desc
        near_rows = _numbers("blocks of the local cache", near.rows, desc.blocks)
        far_rows = _numbers("blocks of the remote cache", far.rows, None)
        if len(near_rows) != len(far_rows):
            raise ValueError(f"{len(far_rows)} remote and {len(near_rows)} local blocks are named")
        near_tensors = _tensors("local", near.layers, layer, desc.num_tensors)

        peer = owner.live_peer(key.cluster_id)
        if peer is None:
            raise LLMException(f"cluster {key.cluster_id} is not linked", LLMStatusCode.LLM_NOT_YET_LINK)
        region = peer.regions.get(key.region)
        if region is None:
            raise LLMException(f"{key} was not registered when the link was made", LLMStatusCode.LLM_KV_CACHE_NOT_EXIST)
        if region.block != desc.block:
            raise ValueError(f"remote blocks have {region.block} bytes, local ones {desc.block}")
        _numbers("blocks of the remote cache", far_rows, region.blocks)
        far_tensors = _tensors("remote", far.layers, layer, region.tensors)
        if len(far_tensors) != len(near_tensors):
            raise ValueError(f"{len(far_tensors)} remote and {len(near_tensors)} local tensors are named")

        step = max(1, REQUEST // desc.block)
        work = peer.pull if pull else peer.push
        for far_tensor, near_tensor in zip(far_tensors, near_tensors, strict=True):
            for at in range(0, len(far_rows), step):
                asked = _asked(key.region, far_tensor, far_rows[at : at + step], desc.block)
                code = owner.wait(work(asked, local, [near_tensor], near_rows[at : at + step], owner.sync_seconds))
                if code is not LLMStatusCode.LLM_SUCCESS:
                    raise LLMException(f"blocks of {key} did not move", code)


def _asked(region: RegionName, tensor: int, blocks: list[int], size: int) -> Blocks:
    cluster, model, cache = region
    return Blocks(cluster, model, [tensor], blocks, size, cache)


def _blocks_key(key: object) -> BlocksCacheKey:
    if not isinstance(key, BlocksCacheKey):
        raise TypeError(f"the cache key must be a BlocksCacheKey, not {type(key).__name__}")
    return key


def _row_key(key: object, size: object) -> CacheKeyByIdAndIndex:
    if not isinstance(key, CacheKeyByIdAndIndex):
        raise TypeError(f"the cache key must be a CacheKeyByIdAndIndex, not {type(key).__name__}")
    if size != WHOLE_ROW:
        raise ValueError(f"size must be {WHOLE_ROW}: a whole row moves, not a part of {size!r:.32} bytes")
    return key


def _index(number: object) -> int:
    return whole("batch_index", number, UINT32_MAX)


def _numbers(name: str, numbers: Sequence[int], below: int | None) -> list[int]:
    if not isinstance(numbers, (list, tuple)):
        raise TypeError(f"{name} must be a list, not {type(numbers).__name__}")
    if not numbers:
        raise ValueError(f"{name}: name at least one")
    return [whole(name, number, (below or 1 << 24) - 1) for number in numbers]


def _tensors(side: str, layers: range | None, per_layer: int, tensors: int) -> list[int]:
    if layers is None:
        return list(range(tensors))
    if not isinstance(layers, range):
        raise TypeError(f"the {side} layer range must be a range, not {type(layers).__name__}")
    if whole("tensor_num_per_layer", per_layer, tensors) == 0:
        raise ValueError("tensor_num_per_layer must be at least 1")
    numbers = [layer * per_layer + i for layer in layers for i in range(per_layer)]
    if not numbers or min(numbers) < 0 or max(numbers) >= tensors:
        raise ValueError(f"the {side} {layers} is outside the {tensors} tensors of the cache")
    return numbers
