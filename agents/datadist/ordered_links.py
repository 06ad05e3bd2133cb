"""Maintain the links that the node's agent orders: make, monitor, remake and end them.

The orders of one process are in its folder on the node (``links.json``, engine/wire/links.py), its answer beside them
(``report.json``). Each link has its own task, so that a dead peer affects no other link. A link that is no longer
ordered is ended if this module made it; links of the application itself stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from belay.agents.common import hostfiles
from belay.agents.common.log import Log
from belay.agents.datadist.clusters import LLMClusterInfo
from belay.agents.datadist.links import Links
from belay.agents.datadist.peer import Peer
from belay.agents.datadist.status import LLMStatusCode
from belay.engine.model.links import BROKEN, FAILED, LINKED, LINKING, EndOrders, EndReport, LinkOrder, LinkReport
from belay.engine.wire import links as wire
from belay.engine.wire.errors import WireError

log = Log("datadist.keeper")

#: Seconds between two readings of the orders, and between two pings of a link.
PERIOD: Final = 1.0
PING: Final = 5.0
#: Seconds before linking is tried again: doubled with every failure, spread by half, at most the ceiling.
FIRST_PAUSE: Final = 0.5
PAUSE_CEILING: Final = 30.0
#: Seconds after which an established link starts over with the first pause when it breaks.
STEADY: Final = 10.0
#: A latency is reported again when it has changed by this factor.
TOLD_FACTOR: Final = 2.0
_SMOOTHING: Final = 0.25


class OrderedLinks:
    """The ordered links of one process. Await ``run`` in the loop of its links; tests set ``now_ms`` and ``chance``."""

    def __init__(
        self,
        cluster: int,
        links: Links,
        folder: Path,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        chance: random.Random | None = None,
    ) -> None:
        self._cluster, self._links, self._folder = cluster, links, folder
        self._now_ms, self._chance = now_ms, chance or random.Random()
        self._tended: dict[int, tuple[LinkOrder, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._made: dict[int, Peer] = {}
        self._states: dict[int, LinkReport] = {}
        self._problem = ""
        self._holder = ""
        self._seen: bytes | None = None
        self._written = ""
        self._lock: int | None = None

    async def run(self) -> None:
        """Keep what is ordered until cancelled; the links stay then. Errors of the folder are retried."""
        failing = False
        try:
            while True:
                try:
                    if await asyncio.to_thread(self._hold):
                        self._take(await asyncio.to_thread(self._read))
                        await asyncio.to_thread(self._report)
                    failing = False
                except OSError as error:
                    if not failing:
                        log.warning("orders for links cannot be followed", folder=self._folder, error=error)
                    failing = True
                await asyncio.sleep(PERIOD)
        finally:
            tasks = [task for _, task in self._tended.values()] + list(self._ending)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._lock is not None:
                os.close(self._lock)

    # ---- the folder

    def _hold(self) -> bool:
        """Lock the folder for this process, again after it was recreated. Returns whether it exists."""
        place = self._folder / wire.LOCK_FILE
        if self._lock is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock), os.stat(place, follow_symlinks=False)):
                    return True
            os.close(self._lock)
            self._lock, self._written, self._seen = None, "", None
        try:
            number = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            return False  # the agent has not created it yet
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            raise OSError("another process keeps the links of this folder") from None
        self._lock = number
        return True

    def _read(self) -> bytes | None:
        handle = hostfiles.open_folder(self._folder)
        try:
            return hostfiles.read(handle, wire.ORDERS_FILE, wire.MAX_FILE)
        finally:
            os.close(handle)

    def _report(self) -> None:
        states = tuple(self._states[number] for number in sorted(self._states))
        text = wire.end_report_text(EndReport(self._cluster, self._holder, True, states, self._problem))
        if text == self._written:
            return
        handle = hostfiles.open_folder(self._folder)
        try:
            hostfiles.replace(handle, wire.REPORT_FILE, text.encode(), durable=False)
        finally:
            os.close(handle)
        self._written = text

    # ---- the orders

    def _take(self, content: bytes | None) -> None:
        """Follow the newest orders; if they cannot be read, the last valid ones stay in force."""
        if content == self._seen and self._seen is not None:
            return
        if content is None:
            if self._seen is not None or not self._holder:
                self._seen, self._problem = None, ""
                self._follow({})
            return
        self._seen = content
        try:
            if len(content) > wire.MAX_FILE:
                raise WireError(str(self._folder), wire.ORDERS_FILE, f"is longer than {wire.MAX_FILE} bytes")
            orders = wire.parse_end(str(self._folder), content.decode())
        except (WireError, UnicodeDecodeError) as error:
            self._problem = f"orders are ignored: {error}"
            return
        self._holder, self._problem = orders.holder, ""
        if orders.cluster != self._cluster:
            self._problem = f"the orders are for cluster {orders.cluster}, this process is cluster {self._cluster}"
            orders = EndOrders(self._cluster, orders.holder)
        self._follow({order.cluster: order for order in orders.links})

    def _follow(self, wanted: dict[int, LinkOrder]) -> None:
        for number, (order, task) in list(self._tended.items()):
            new = wanted.get(number)
            if new is not None and _same_link(new, order):
                self._tended[number] = (new, task)
                continue
            del self._tended[number]
            task.cancel()
            self._states.pop(number, None)
            self._end(number, order.timeout_ms / 1000, task)
        for number, order in wanted.items():
            if number not in self._tended:
                task = asyncio.create_task(self._tend(order))
                task.add_done_callback(_log_failure)
                self._tended[number] = (order, task)

    def _end(self, number: int, timeout: float, tending: asyncio.Task[None]) -> None:
        async def end() -> None:
            await asyncio.gather(tending, return_exceptions=True)
            made = self._made.pop(number, None)
            if made is not None and self._links.peers.get(number) is made:
                info = LLMClusterInfo()
                info.remote_cluster_id = number
                await self._links.unlink([info], timeout, force=made.broken is not None)

        ending = asyncio.create_task(end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    # ---- one link

    async def _tend(self, order: LinkOrder) -> None:
        """Make and maintain one link. Returns only for an order that cannot be followed."""
        number, timeout, tries = order.cluster, order.timeout_ms / 1000, 0
        try:
            info = _info(order)
        except (RuntimeError, ValueError) as error:
            self._state(number, FAILED, error=str(error))
            return
        await self._after_ending(number)
        self._state(number, LINKING)
        while True:
            peer = self._links.live(number)
            if peer is None:
                (code,) = await self._links.link([info], timeout)
                peer = self._links.live(number)
                if code is LLMStatusCode.LLM_SUCCESS and peer is not None:
                    self._made[number] = peer
                elif peer is None:
                    tries += 1
                    before = self._states[number].state
                    self._state(number, BROKEN if before == BROKEN else FAILED, tries=tries, error=code.name)
                    await asyncio.sleep(self._pause(tries))
                    continue
            began = time.monotonic()
            await self._watch(peer, timeout)
            tries = 0 if time.monotonic() - began >= STEADY else tries + 1
            self._state(number, BROKEN, tries=tries, error=peer.broken or "")
            # many links of one peer break at the same moment
            await asyncio.sleep(self._pause(tries) if tries else self._chance.uniform(0, FIRST_PAUSE / 2))

    async def _after_ending(self, number: int) -> None:
        """Wait until the link of an older order has ended."""
        while (made := self._made.get(number)) is not None and self._links.peers.get(number) is made and self._ending:
            await asyncio.wait(list(self._ending))

    async def _watch(self, peer: Peer, timeout: float) -> None:
        """Return when the link has ended."""
        latency: float | None = None
        while (seconds := await peer.ping(timeout)) is not None:
            latency = seconds if latency is None else latency + _SMOOTHING * (seconds - latency)
            self._state(peer.cluster, LINKED, latency=latency)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING * self._chance.uniform(0.8, 1.2)):
                    await peer.over.wait()

    def _pause(self, tries: int) -> float:
        return min(PAUSE_CEILING, FIRST_PAUSE * 2.0 ** min(tries - 1, 10)) * self._chance.uniform(0.5, 1.0)

    def _state(self, number: int, state: str, *, latency: float | None = None, tries: int = 0, error: str = "") -> None:
        before = self._states.get(number)
        latency_ms = None if latency is None else float(f"{latency * 1000:.2g}")
        since = self._now_ms()
        if before is not None and before.state == state:
            since = before.since_ms
            if latency_ms and before.latency_ms and 1 / TOLD_FACTOR < latency_ms / before.latency_ms < TOLD_FACTOR:
                latency_ms = before.latency_ms
        self._states[number] = LinkReport(number, state, latency_ms, since, tries, error[: wire.MAX_ERROR])


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log the exception that ended the task of a link."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a link is tended no more", error=repr(error))


def _info(order: LinkOrder) -> LLMClusterInfo:
    info = LLMClusterInfo()
    info.remote_cluster_id = order.cluster
    for address in order.addresses:
        ip, _, port = address.rpartition(":")
        if not port.isascii() or not port.isdigit():
            raise ValueError(f"{address!r:.80} is not an ip:port")
        info.append_remote_ip_info(ip, int(port))
    return info


def _same_link(one: LinkOrder, other: LinkOrder) -> bool:
    """Return whether both orders name the same link, whichever KVLinks they come from."""
    return msgspec.structs.replace(one, links=()) == msgspec.structs.replace(other, links=())
