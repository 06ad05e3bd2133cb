"""All links of one LLMDataDist: made as client, taken as server, kept until unlinked.

Clusters of one call are linked concurrently: a dead peer delays only its own link, by the time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Sequence

from belay.agents.common.log import Log
from belay.agents.datadist import channels, frames, streams
from belay.agents.datadist.caches import Registry
from belay.agents.datadist.channels import TlsFiles
from belay.agents.datadist.clusters import LLMClusterInfo, ip_text
from belay.agents.datadist.frames import BadFrame, Hello, Kind, Region, Welcome
from belay.agents.datadist.peer import CODES, Peer
from belay.agents.datadist.status import LLMStatusCode

log = Log("datadist.links")

MAX_LINKS = 512  # communications of one process (LLM-DataDist interface list, constraints of link_clusters)
HANDSHAKE = 10.0  # seconds after which a half-made link is dropped on the listening side
RETRY = 0.05  # seconds between attempts while time and attempts are left


class WarningLimiter:
    """Limit bursts of warnings, as when a host with hundreds of links restarts: log the first, count the rest."""

    LINES, WINDOW = 20, 10.0

    def __init__(self) -> None:
        self._began, self._lines, self._left_out = -self.WINDOW, 0, 0

    def warn(self, message: str, **facts: object) -> None:
        """Log a line with facts up to the window's limit; the next window's first line counts those dropped."""
        now = time.monotonic()
        if now - self._began >= self.WINDOW:
            self._began, self._lines = now, 0
        self._lines += 1
        if self._lines > self.LINES:
            self._left_out += 1
            return
        if self._left_out:
            facts["left_out_before"], self._left_out = self._left_out, 0
        log.warning(message, **facts)


class Links:
    """The table of links; all coroutines run in one loop."""

    def __init__(
        self,
        cluster: int,
        role: int,
        registry: Registry,
        retries: int,
        total: float = 0.0,
        tls: TlsFiles | None = None,
    ) -> None:
        self._cluster, self.role, self._registry, self._retries = cluster, role, registry, retries
        self._tls = tls
        self._total = total or math.inf
        self.peers: dict[int, Peer] = {}
        self._linking: set[int] = set()
        self._unlinking: set[int] = set()
        self._promised: dict[int, asyncio.Event] = {}
        self._said = WarningLimiter()
        self._accepted: set[int] = set()
        self._servers: list[tuple[socket.socket, asyncio.Task[None]]] = []
        self._greeting: set[asyncio.Task[None]] = set()

    # -- the listening side

    def listen(self, address: tuple[str, int]) -> tuple[str, int]:
        """Listen on (ip, port); port 0 picks a free one. Returns the address in use. Raises OSError."""
        sock = socket.create_server(address, backlog=MAX_LINKS)
        sock.setblocking(False)
        self._servers.append((sock, asyncio.create_task(self._accept(sock))))
        name: tuple[str, int] = sock.getsockname()
        return name

    def stop_listening(self) -> None:
        """Stop listening; links stay."""
        for sock, task in self._servers:
            task.cancel()
            sock.close()
        self._servers.clear()

    async def _accept(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(server)
            except OSError as error:
                self._said.warn("cannot accept a link", error=str(error))
                await asyncio.sleep(0.1)
                continue
            if len(self._greeting) >= 2 * MAX_LINKS:
                sock.close()
                continue
            task = asyncio.create_task(self._greet(sock))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, sock: socket.socket) -> None:
        promised: int | None = None
        settled = asyncio.Event()
        try:
            streams.tune(sock)
            async with asyncio.timeout(HANDSHAKE):
                channel = await channels.channel(sock, self._tls, server=True)
                kind, _, number, length = await streams.read_head(channel)
                if kind is not Kind.HELLO:
                    raise BadFrame(f"{kind.name} before HELLO")
                hello = frames.decode(await streams.read_body(channel, length), Hello)
                code = self._refusal(hello)
                if code is not None:
                    await streams.send(channel, Kind.ANSWER, number, status=CODES.index(code))
                    sock.close()
                    return
                promised = hello.cluster
                self._promised[promised] = settled
                granted = self._registry.snapshot()
                regions = [region for cache in granted.values() if (region := cache.region()) is not None]
                body = frames.encode(Welcome(self._cluster, regions))
                if len(body) > frames.MAX_BODY:
                    raise BadFrame(f"{len(regions)} registered caches are more than one message holds")
                await streams.send(channel, Kind.ANSWER, number, body)
                # the client sends its own caches in a second HELLO-sized frame, so that each side may access both
                kind, _, _, length = await streams.read_head(channel)
                told = frames.decode(await streams.read_body(channel, length), Welcome)
        except (OSError, TimeoutError, BadFrame) as error:
            self._said.warn("a link was not made", error=str(error)[:300])
            sock.close()
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        finally:
            if promised is not None and self._promised.get(promised) is settled:
                del self._promised[promised]
            settled.set()
        # the same cluster links again after a restart: the newest connection replaces the old one
        if (old := self.peers.pop(hello.cluster, None)) is not None:
            old.close("replaced by a newer link")
        self._accepted.add(hello.cluster)
        self._keep(Peer(channel, hello.cluster, told.regions, granted, self._lost))

    def _refusal(self, hello: Hello) -> LLMStatusCode | None:
        if hello.peer != self._cluster or hello.cluster == self._cluster:
            return LLMStatusCode.LLM_LINK_FAILED
        if hello.cluster in self._linking and self._cluster < hello.cluster:
            # both link to each other at once: the connection of the lower cluster number stays
            return LLMStatusCode.LLM_PROCESSING_LINK
        return None if self._room({hello.cluster}) else LLMStatusCode.LLM_CLUSTER_NUM_EXCEED_LIMIT

    def _room(self, wanted: set[int]) -> bool:
        """Return whether these may be linked too; removes broken incoming links to make room."""
        taken = self.peers.keys() | self._linking | self._promised.keys() | wanted
        surplus = len(taken) - MAX_LINKS
        if surplus > 0:
            dead = [
                n for n in self._accepted if n in self.peers and self.peers[n].broken is not None and n not in wanted
            ]
            for number in sorted(dead)[:surplus] if len(dead) >= surplus else ():
                del self.peers[number]
                self._accepted.discard(number)
                surplus -= 1
        return surplus <= 0

    # -- the linking side

    async def link(self, clusters: Sequence[LLMClusterInfo], timeout: float) -> list[LLMStatusCode]:
        """Link clusters; one result for each, in order. Nothing is linked when the call would exceed the limit."""
        wanted = {c.remote_cluster_id for c in clusters if c.remote_cluster_id is not None}
        if not self._room(wanted):
            return [LLMStatusCode.LLM_CLUSTER_NUM_EXCEED_LIMIT] * len(clusters)
        return list(await asyncio.gather(*(self._link(cluster, timeout) for cluster in clusters)))

    async def _link(self, cluster: LLMClusterInfo, timeout: float) -> LLMStatusCode:
        number = cluster.remote_cluster_id
        if number is None or number == self._cluster:
            return LLMStatusCode.LLM_PARAM_INVALID
        if number in self._linking or number in self._unlinking or number in self._promised:
            return LLMStatusCode.LLM_PROCESSING_LINK
        old = self.peers.get(number)
        if old is not None and old.broken is None:
            return LLMStatusCode.LLM_ALREADY_LINK
        self._linking.add(number)
        try:
            async with asyncio.timeout(min(timeout, self._total)):
                return await self._connect(cluster, number)
        except TimeoutError:
            return LLMStatusCode.LLM_WAIT_PROCESS_TIMEOUT
        finally:
            self._linking.discard(number)

    async def _connect(self, cluster: LLMClusterInfo, number: int) -> LLMStatusCode:
        code = LLMStatusCode.LLM_LINK_FAILED
        for attempt in range(self._retries):
            if attempt:
                await asyncio.sleep(RETRY)
            for ip, port in cluster.remote_ip_info_list:
                code = await self._hello(number, (ip_text(ip), port))
                if code is not LLMStatusCode.LLM_LINK_FAILED:
                    return code
        return code

    async def _hello(self, number: int, address: tuple[str, int]) -> LLMStatusCode:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            streams.tune(sock)
            granted = self._registry.snapshot()
            regions: list[Region] = [r for cache in granted.values() if (r := cache.region()) is not None]
            await asyncio.get_running_loop().sock_connect(sock, address)
            channel = await channels.channel(sock, self._tls, server=False)
            await streams.send(channel, Kind.HELLO, 1, frames.encode(Hello(self._cluster, number, self.role)))
            kind, status, _, length = await streams.read_head(channel)
            if kind is not Kind.ANSWER or status >= len(CODES):
                raise BadFrame(f"{kind.name} answered to HELLO")
            if CODES[status] is not LLMStatusCode.LLM_SUCCESS:
                sock.close()
                return CODES[status]
            welcome = frames.decode(await streams.read_body(channel, length), Welcome)
            # both link to each other at once, and the remote side's link was accepted meanwhile: one is enough
            if self.live(number) is not None:
                sock.close()
                return LLMStatusCode.LLM_ALREADY_LINK
            if number in self._promised and number < self._cluster:
                sock.close()
                return LLMStatusCode.LLM_PROCESSING_LINK
            await streams.send(channel, Kind.ANSWER, 1, frames.encode(Welcome(self._cluster, regions)))
        except (OSError, BadFrame) as error:
            sock.close()
            self._said.warn(
                "a link failed", cluster=number, address=f"{address[0]}:{address[1]}", error=str(error)[:300]
            )
            return LLMStatusCode.LLM_LINK_FAILED
        except BaseException:
            sock.close()
            raise
        if (old := self.peers.pop(number, None)) is not None:
            old.close("replaced by a newer link")
        self._accepted.discard(number)
        self._keep(Peer(channel, number, welcome.regions, granted, self._lost))
        return LLMStatusCode.LLM_SUCCESS

    # -- both

    def _keep(self, peer: Peer) -> None:
        self.peers[peer.cluster] = peer
        peer.start()

    def _lost(self, peer: Peer, polite: bool) -> None:
        if self.peers.get(peer.cluster) is not peer:
            return  # unlinked or replaced already
        if polite:
            del self.peers[peer.cluster]
            self._accepted.discard(peer.cluster)
        else:
            self._said.warn("a link broke", cluster=peer.cluster, error=peer.broken)

    async def unlink(self, clusters: Sequence[LLMClusterInfo], timeout: float, force: bool) -> list[LLMStatusCode]:
        """Unlink clusters; one result for each. The local end is closed whatever the remote side answers."""
        return list(await asyncio.gather(*(self._unlink(c.remote_cluster_id, timeout, force) for c in clusters)))

    async def _unlink(self, number: int | None, timeout: float, force: bool) -> LLMStatusCode:
        if number is not None:
            await self.settle(number)
        if number in self._linking or number in self._unlinking:
            return LLMStatusCode.LLM_PROCESSING_LINK
        peer = self.peers.pop(number, None) if number is not None else None
        if peer is None:
            return LLMStatusCode.LLM_NOT_YET_LINK
        self._accepted.discard(peer.cluster)
        code = LLMStatusCode.LLM_SUCCESS
        self._unlinking.add(peer.cluster)
        try:
            if not force:
                code = await peer.ask(Kind.UNLINK, timeout=timeout)
        finally:
            self._unlinking.discard(peer.cluster)
            peer.close("unlinked")
        return code if code is LLMStatusCode.LLM_SUCCESS else LLMStatusCode.LLM_NOTIFY_PROMPT_UNLINK_FAILED

    async def settle(self, number: int) -> None:
        """Wait until a link that the other side is just making is made or given up.

        The client may have its result, and act on it, before this side has read its last frame.
        """
        settled = self._promised.get(number)
        if settled is not None:
            await settled.wait()

    def live(self, number: int) -> Peer | None:
        """Return the link to a cluster, None when it is broken or absent."""
        peer = self.peers.get(number)
        return peer if peer is not None and peer.broken is None else None

    async def end(self) -> None:
        """Stop listening and close all links."""
        self.stop_listening()
        for task in list(self._greeting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for peer in list(self.peers.values()):
            peer.close("finalized")
        self.peers.clear()
