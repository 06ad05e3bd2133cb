"""LLMDataDist: links between inference clusters and transfers of KV blocks over them, on plain TCP.

The interface is that of the public package `llm_datadist` (CANN documentation, LLM-DataDist interface list); only
the transport differs: TCP through the host instead of the chip's HCCS or RoCE, so that it works without either.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agents.datadist.caches import BlocksCacheKey, Cache, CacheDesc, Placement, Registry
from agents.datadist.clusters import UINT64_MAX, LLMClusterInfo, whole
from agents.datadist.config import LLMRole, Options
from agents.datadist.frames import Blocks, Kind
from agents.datadist.links import Links
from agents.datadist.ordered_links import OrderedLinks
from agents.datadist.status import LLMException, LLMStatusCode
from agents.node.log import Log

log = Log("datadist")

INT32_MAX = 2**31 - 1
ADVISED_MILLISECONDS = 200
REQUEST = 64 << 20  # bytes of blocks in one request; longer transfers are cut
PER_LAYER = 2  # tensors of a layer: keys and values

T = TypeVar("T")


class LLMDataDist:
    """One cluster's end of all its links. Safe to call from several threads; calls block."""

    def __init__(self, role: LLMRole, cluster_id: int) -> None:
        if not isinstance(role, LLMRole):
            raise TypeError(f"role must be an LLMRole, not {type(role).__name__}")
        self._role = role
        self.cluster_id = whole("cluster_id", cluster_id, UINT64_MAX)
        self._options = Options()
        self._links: Links | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._registry = Registry()
        self.listening: tuple[tuple[str, int], ...] = ()
        self.cache_manager = CacheManager(self)

    @property
    def role(self) -> LLMRole:
        """The current role of this cluster."""
        return self._role

    def init(self, options: Mapping[str, str]) -> None:
        """Start, and listen when ``llm.listenIpInfo`` is set.

        Raises TypeError or ValueError for bad options, LLMException when already started or an address is taken.
        """
        if self._links is not None:
            raise LLMException("LLMDataDist is initialised already")
        self._options = Options.read(options)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name=f"datadist-{self.cluster_id}", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread
        self._links = Links(
            self.cluster_id, int(self._role), self._registry, self._options.link_retries, self._options.link_total
        )
        try:
            self._listen(self._options)
        except OSError as error:
            self.finalize()
            raise LLMException(f"llm.listenIpInfo: {error}", LLMStatusCode.LLM_PARAM_INVALID) from error

    def finalize(self) -> None:
        """Close every link and stop; may be called again."""
        links, loop, thread, keeping = self._links, self._loop, self._thread, self._keeping
        self._links = self._loop = self._thread = self._keeping = None
        if links is None or loop is None or thread is None:
            return
        if keeping is not None:
            asyncio.run_coroutine_threadsafe(_ended(keeping), loop).result()
        asyncio.run_coroutine_threadsafe(links.end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        self.listening = ()

    def link_clusters(
        self, clusters: Sequence[LLMClusterInfo], timeout: int = 3000
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        """Link to each of ``clusters`` at the same time, within ``timeout`` milliseconds each (200 or more is advised).

        Memory must be registered before: memory registered later cannot be accessed over these links. At most 512
        links in all. Returns the overall code (the first failure's, else LLM_SUCCESS) and one code per cluster.
        Raises TypeError or ValueError for bad arguments, LLMException before ``init``.
        """
        links = self._running()
        _check_call(clusters, timeout, local=not self._options.local_comm_res)
        if timeout < ADVISED_MILLISECONDS:
            log.warning("a time-out below 200 ms makes links fail that would have been made", timeout_ms=timeout)
        return _overall(self._wait(links.link(clusters, timeout / 1000)))

    def unlink_clusters(
        self, clusters: Sequence[LLMClusterInfo], timeout: int = 3000, force: bool = False
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        """Unlink both ends, or with ``force`` only this one (call it on both sides then).

        The local end is closed in any case; LLM_NOTIFY_PROMPT_UNLINK_FAILED means the remote side was not notified.
        Raises as `link_clusters`.
        """
        links = self._running()
        _check_call(clusters, timeout, local=False, remote=False)
        if not isinstance(force, bool):
            raise TypeError(f"force must be a bool, not {type(force).__name__}")
        return _overall(self._wait(links.unlink(clusters, timeout / 1000, force)))

    def keep_links(self, folder: str | Path) -> None:
        """Keep the links that the node's agent orders in ``folder`` (kind KVLink), until ``finalize``.

        Memory must be registered before, as for `link_clusters`. The folder may be created later; one that another
        process keeps is waited for. Raises LLMException before ``init`` or when links are kept already.
        """
        links = self._running()
        if self._keeping is not None:
            raise LLMException("links are kept already", LLMStatusCode.LLM_PARAM_INVALID)
        keeper = OrderedLinks(self.cluster_id, links, Path(folder))
        self._keeping = self._wait(_soon(lambda: asyncio.create_task(keeper.run())))

    def check_link_status(self, remote_cluster_id: int) -> None:
        """Return when the remote side answers. Raises LLMException with the code of the failure."""
        links = self._running()
        number = whole("remote_cluster_id", remote_cluster_id, UINT64_MAX)
        peer = links.peers.get(number)
        if peer is None:
            raise LLMException(f"cluster {number} is not linked", LLMStatusCode.LLM_NOT_YET_LINK)
        code = self._wait(peer.ask(Kind.PING, timeout=self._options.sync))
        if code is not LLMStatusCode.LLM_SUCCESS:
            raise LLMException(f"the link to cluster {number} is broken: {peer.broken}", LLMStatusCode.LLM_LINK_FAILED)

    def linked(self) -> dict[int, str | None]:
        """Every link by remote cluster, with the reason when it is broken."""
        return {number: peer.broken for number, peer in sorted(self._running().peers.items())}

    def switch_role(self, role: LLMRole, switch_options: Mapping[str, str] | None = None) -> None:
        """Become ``role``; ``llm.listenIpInfo`` in the options starts listening there, its absence stops listening.

        Raises LLMException: LLM_FEATURE_NOT_ENABLED without `llm.EnableSwitchRole`, LLM_EXIST_LINK while linked.
        """
        links = self._running()
        if not isinstance(role, LLMRole):
            raise TypeError(f"role must be an LLMRole, not {type(role).__name__}")
        if not self._options.switch_role:
            raise LLMException("set enable_switch_role before init", LLMStatusCode.LLM_FEATURE_NOT_ENABLED)
        if links.peers:
            raise LLMException("unlink all clusters before a change of role", LLMStatusCode.LLM_EXIST_LINK)
        options = Options.read(switch_options or {})
        self._wait(_soon(links.stop_listening))
        self.listening = ()
        self._role = role
        links.role = int(role)
        try:
            self._listen(options)
        except OSError as error:
            raise LLMException(f"llm.listenIpInfo: {error}", LLMStatusCode.LLM_PARAM_INVALID) from error

    def _listen(self, options: Options) -> None:
        links = self._running()
        self.listening = tuple(self._wait(_soon(lambda a=a: links.listen(a))) for a in options.listen)

    def _running(self) -> Links:
        if self._links is None:
            raise LLMException("LLMDataDist is not initialised: call init first")
        return self._links

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            work.close()
            raise LLMException("LLMDataDist is not initialised: call init first")
        return asyncio.run_coroutine_threadsafe(work, loop).result()


class CacheManager:
    """Registers memory and moves blocks between linked clusters."""

    def __init__(self, owner: LLMDataDist) -> None:
        self._owner = owner

    def register_blocks_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[object],
        blocks_cache_key: BlocksCacheKey | None = None,
        remote_accessible: bool = True,
    ) -> Cache:
        """Register tensors: writable buffers, or raw addresses of the placement that ``cache_desc`` names.

        With a key, clusters that link afterwards may read and write it. Raises TypeError, ValueError or LLMException.
        """
        owner = self._owner
        owner._running()
        return owner._registry.add(cache_desc, addrs, blocks_cache_key, remote_accessible and owner._options.accessible)

    def allocate_blocks_cache(self, cache_desc: CacheDesc, blocks_cache_key: BlocksCacheKey | None = None) -> Cache:
        """Allocate host memory for ``cache_desc`` and register it."""
        if cache_desc.placement is not Placement.HOST:
            raise LLMException("only host memory is allocated here", LLMStatusCode.LLM_FEATURE_NOT_ENABLED)
        size = cache_desc.blocks * cache_desc.block
        return self.register_blocks_cache(
            cache_desc, [bytearray(size) for _ in range(cache_desc.num_tensors)], blocks_cache_key
        )

    def unregister_cache(self, cache_id: int) -> None:
        """Unregister a cache; existing links keep their view of it until they end. Raises LLMException if unknown."""
        if not self._owner._registry.remove(whole("cache_id", cache_id, UINT64_MAX)):
            raise LLMException(f"no cache {cache_id}", LLMStatusCode.LLM_KV_CACHE_NOT_EXIST)

    def pull_blocks(
        self,
        src_cache_key: BlocksCacheKey,
        dst_cache: Cache,
        src_blocks: Sequence[int],
        dst_blocks: Sequence[int],
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = PER_LAYER,
    ) -> None:
        """Read ``src_blocks`` of the remote cache into ``dst_blocks`` of the local one.

        Layers are ``tensor_num_per_layer`` tensors each; without ranges all tensors move. Raises TypeError or
        ValueError for bad arguments, LLMException with the code of the remote side or of the link.
        """
        self._move(
            True, src_cache_key, dst_cache, src_blocks, dst_blocks, src_layer_range, dst_layer_range,
            tensor_num_per_layer,
        )  # fmt: skip

    def push_blocks(
        self,
        dst_cache_key: BlocksCacheKey,
        src_cache: Cache,
        src_blocks: Sequence[int],
        dst_blocks: Sequence[int],
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = PER_LAYER,
    ) -> None:
        """Write ``src_blocks`` of the local cache into ``dst_blocks`` of the remote one. Raises as `pull_blocks`."""
        self._move(
            False, dst_cache_key, src_cache, dst_blocks, src_blocks, dst_layer_range, src_layer_range,
            tensor_num_per_layer,
        )  # fmt: skip

    def _move(
        self, pull: bool, key: BlocksCacheKey, local: Cache, far_blocks: Sequence[int], near_blocks: Sequence[int],
        far_layers: range | None, near_layers: range | None, per_layer: int,
    ) -> None:  # fmt: skip
        owner = self._owner
        links = owner._running()
        if not isinstance(key, BlocksCacheKey):
            raise TypeError(f"the cache key must be a BlocksCacheKey, not {type(key).__name__}")
        if not isinstance(local, Cache) or not owner._registry.holds(local):
            raise LLMException("the local cache is not registered", LLMStatusCode.LLM_KV_CACHE_NOT_EXIST)
        desc = local.cache_desc
        near = _numbers("blocks of the local cache", near_blocks, desc.blocks)
        far = _numbers("blocks of the remote cache", far_blocks, None)
        if len(near) != len(far):
            raise ValueError(f"{len(far)} remote and {len(near)} local blocks are named")
        near_tensors = _tensors("local", near_layers, per_layer, desc.num_tensors)
        peer = links.live(key.prompt_cluster_id)
        if peer is None:
            raise LLMException(f"cluster {key.prompt_cluster_id} is not linked", LLMStatusCode.LLM_NOT_YET_LINK)
        region = peer.regions.get((key.prompt_cluster_id, key.model_id))
        if region is None:
            raise LLMException(f"{key} was not registered when the link was made", LLMStatusCode.LLM_KV_CACHE_NOT_EXIST)
        if region.block != desc.block:
            raise ValueError(f"remote blocks have {region.block} bytes, local ones {desc.block}")
        _numbers("blocks of the remote cache", far, region.blocks)
        far_tensors = _tensors("remote", far_layers, per_layer, region.tensors)
        if len(far_tensors) != len(near_tensors):
            raise ValueError(f"{len(far_tensors)} remote and {len(near_tensors)} local tensors are named")
        step = max(1, REQUEST // desc.block)
        work = peer.pull if pull else peer.push
        for far_tensor, near_tensor in zip(far_tensors, near_tensors, strict=True):
            for at in range(0, len(far), step):
                asked = Blocks(key.prompt_cluster_id, key.model_id, [far_tensor], far[at : at + step], desc.block)
                code = owner._wait(work(asked, local, [near_tensor], near[at : at + step], owner._options.sync))
                if code is not LLMStatusCode.LLM_SUCCESS:
                    raise LLMException(f"blocks of {key} did not move", code)


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


def _check_call(clusters: object, timeout: object, *, local: bool, remote: bool = True) -> None:
    if not isinstance(clusters, (list, tuple)):
        raise TypeError(f"clusters must be a list or tuple of LLMClusterInfo, not {type(clusters).__name__}")
    for number, cluster in enumerate(clusters):
        if not isinstance(cluster, LLMClusterInfo):
            raise TypeError(f"clusters[{number}] must be an LLMClusterInfo, not {type(cluster).__name__}")
    if isinstance(timeout, bool) or not isinstance(timeout, int):
        raise TypeError(f"timeout must be an int of milliseconds, not {type(timeout).__name__}")
    if timeout <= 0:
        raise ValueError("Param timeout should be greater than 0.")
    if timeout > INT32_MAX:
        raise ValueError(f"Param timeout should be at most {INT32_MAX}.")
    if not clusters:
        raise ValueError("clusters: name at least one")
    for number, cluster in enumerate(clusters):
        if cluster.remote_cluster_id is None:
            raise ValueError(f"clusters[{number}].remote_cluster_id is not set")
        if remote and not cluster.remote_ip_info_list:
            raise ValueError(f"clusters[{number}]: append_remote_ip_info was not called")
        if local and not cluster.local_ip_info_list:
            raise ValueError(f"clusters[{number}]: append_local_ip_info was not called, and local_comm_res is not set")


def _overall(codes: list[LLMStatusCode]) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
    failed = (code for code in codes if code is not LLMStatusCode.LLM_SUCCESS)
    return next(failed, LLMStatusCode.LLM_SUCCESS), codes


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _soon(call: Any) -> Any:
    return call()


__all__ = ["CacheManager", "LLMDataDist"]
