"""LLMDataDist: links between inference clusters and transfers of KV blocks over them, on TCP.

The interface is that of the public package `llm_datadist` (CANN documentation, LLM-DataDist interface list); only
the transport differs: TCP through the host instead of the chip's HCCS or RoCE, so that it works without either.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from belay.agents.common.log import Log
from belay.agents.datadist import channels
from belay.agents.datadist.cache_manager import CacheManager
from belay.agents.datadist.caches import Registry
from belay.agents.datadist.clusters import UINT64_MAX, LLMClusterInfo, whole
from belay.agents.datadist.config import LLMRole, Options
from belay.agents.datadist.frames import Kind
from belay.agents.datadist.links import Links
from belay.agents.datadist.ordered_links import OrderedLinks
from belay.agents.datadist.peer import Peer
from belay.agents.datadist.status import LLMException, LLMStatusCode

log = Log("datadist")

INT32_MAX = 2**31 - 1
ADVISED_MILLISECONDS = 200

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
        """Start, and listen when ``llm.listenIpInfo`` is set. A second call changes nothing.

        With ``belay.TlsCert``, ``belay.TlsKey`` and ``belay.TlsCa`` (or BELAY_LINKS_CERT, _KEY and _CA in the
        environment) every link is TLS, and both ends hold a certificate of that authority.
        Raises TypeError or ValueError for bad options, LLMException when an address is taken.
        """
        if self._links is not None:
            return
        self._options = Options.read(options)
        tls = channels.TlsFiles.read(options, channels.environment())
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name=f"datadist-{self.cluster_id}", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread
        self._links = Links(
            self.cluster_id,
            int(self._role),
            self._registry,
            self._options.link_retries,
            self._options.link_total,
            tls,
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
        return _overall(self.wait(links.link(clusters, timeout / 1000)))

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
        return _overall(self.wait(links.unlink(clusters, timeout / 1000, force)))

    def keep_links(self, folder: str | Path) -> None:
        """Keep the links that the node's agent orders in ``folder`` (kind KVLink), until ``finalize``.

        Memory must be registered before, as for `link_clusters`. The folder may be created later; one that another
        process keeps is waited for. Raises LLMException before ``init`` or when links are kept already.
        """
        links = self._running()
        if self._keeping is not None:
            raise LLMException("links are kept already", LLMStatusCode.LLM_PARAM_INVALID)
        keeper = OrderedLinks(self.cluster_id, links, Path(folder))
        self._keeping = self.wait(_soon(lambda: asyncio.create_task(keeper.run())))

    def check_link_status(self, remote_cluster_id: int) -> None:
        """Return when the remote side answers. Raises LLMException with the code of the failure."""
        links = self._running()
        number = whole("remote_cluster_id", remote_cluster_id, UINT64_MAX)
        self.wait(links.settle(number))
        peer = links.peers.get(number)
        if peer is None:
            raise LLMException(f"cluster {number} is not linked", LLMStatusCode.LLM_NOT_YET_LINK)
        code = self.wait(peer.ask(Kind.PING, timeout=self._options.sync))
        if code is not LLMStatusCode.LLM_SUCCESS:
            raise LLMException(f"the link to cluster {number} is broken: {peer.broken}", LLMStatusCode.LLM_LINK_FAILED)

    def linked(self) -> dict[int, str | None]:
        """Every link by remote cluster, with the reason when it is broken."""
        return {number: peer.broken for number, peer in sorted(self._running().peers.items())}

    def switch_role(self, role: LLMRole, switch_options: Mapping[str, str] | None = None) -> None:
        """Become ``role``; ``llm.listenIpInfo`` in the options starts listening there, its absence stops listening.

        Raises LLMException: LLM_EXIST_LINK while linked, LLM_FEATURE_NOT_ENABLED where `llm.EnableSwitchRole` says no.
        """
        links = self._running()
        if not isinstance(role, LLMRole):
            raise TypeError(f"role must be an LLMRole, not {type(role).__name__}")
        if not self._options.switch_role:
            raise LLMException("enable_switch_role is off: set it before init", LLMStatusCode.LLM_FEATURE_NOT_ENABLED)
        if links.peers:
            raise LLMException("unlink all clusters before a change of role", LLMStatusCode.LLM_EXIST_LINK)
        options = Options.read(switch_options or {})
        self.wait(_soon(links.stop_listening))
        self.listening = ()
        self._role = role
        links.role = int(role)
        try:
            self._listen(options)
        except OSError as error:
            raise LLMException(f"llm.listenIpInfo: {error}", LLMStatusCode.LLM_PARAM_INVALID) from error

    @property
    def registry(self) -> Registry:
        """The caches of this process. Raises LLMException before ``init``."""
        self._running()
        return self._registry

    @property
    def accessible(self) -> bool:
        """Whether caches may be accessed from other clusters at all."""
        return self._options.accessible

    @property
    def sync_seconds(self) -> float:
        """Seconds that one transfer may take."""
        return self._options.sync

    def live_peer(self, cluster: int) -> Peer | None:
        """The link to a cluster; None when it is broken or absent. Raises LLMException before ``init``."""
        links = self._running()
        self.wait(links.settle(cluster))
        return links.live(cluster)

    def _listen(self, options: Options) -> None:
        links = self._running()
        self.listening = tuple(self.wait(_soon(lambda a=a: links.listen(a))) for a in options.listen)

    def _running(self) -> Links:
        if self._links is None:
            raise LLMException("LLMDataDist is not initialised: call init first")
        return self._links

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop of the links. Raises LLMException before ``init``, and what ``work`` raises."""
        loop = self._loop
        if loop is None:
            work.close()
            raise LLMException("LLMDataDist is not initialised: call init first")
        return asyncio.run_coroutine_threadsafe(work, loop).result()


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
