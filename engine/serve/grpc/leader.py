"""The serving server: one at a time, by a Lease whose holder identity ends in the server's address.

The others relay every call to it, so a client may connect to any server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

from belay.engine.kube import LEASE, Kube, KubeError, NotFound
from belay.engine.kube import NAMESPACE as NAMESPACES
from belay.engine.kube.lease import NAMESPACE, Lease
from belay.engine.log import get
from belay.engine.wire import leases

_log = get("grpc.leader")
NAME: Final = leases.RECOVERY
DURATION: Final = 6.0
#: Seconds for which a call waits for a serving server.
PATIENCE: Final = 5.0
#: Seconds within which another server takes over from a dead one.
FAILOVER: Final = 2 * DURATION


class Leader:
    """``begin`` takes over with the new epoch and may raise KubeError; ``lose`` ends serving. An ``abandoned`` Lease is
    not released at the end: it expires.
    """

    def __init__(
        self,
        kube: Kube,
        identity: str,
        address: str,
        *,
        begin: Callable[[int], Awaitable[None]],
        lose: Callable[[], None],
        duration: float = DURATION,
    ) -> None:
        self.leads = False
        self.abandoned = False
        self.holder = ""
        self.address = address
        self._kube = kube
        self._lease = Lease(kube, NAME, f"{identity}@{address}", duration=duration)
        self._begin, self._lose = begin, lose
        self._duration = duration
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Lead whenever possible, until cancelled; then release the Lease."""
        try:
            while True:
                if await self._acquire():
                    await self._hold()
                else:
                    await self._refresh_holder()
                    await asyncio.sleep(self._duration / 6)
        finally:
            self._stop()
            if not self.abandoned:
                await self._give_back()

    async def _give_back(self) -> None:
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._lease.release()

    async def known(self, seconds: float = PATIENCE) -> bool:
        """Whether the serving server is known within ``seconds``."""
        return await self._holds_within(lambda: self.leads or bool(self.holder), seconds)

    async def replaced(self, seconds: float = FAILOVER) -> bool:
        """Whether another server, or this one, serves within ``seconds``: the known holder does not answer."""
        holder = self.holder
        return await self._holds_within(lambda: self.leads or self.holder not in ("", holder), seconds)

    async def _holds_within(self, true: Callable[[], bool], seconds: float) -> bool:
        """Whether ``true()`` becomes true within ``seconds``."""
        last = time.monotonic() + seconds
        while not true():
            left = last - time.monotonic()
            if left <= 0:
                return False
            changed = self._changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()
        return True

    async def _acquire(self) -> bool:
        try:
            epoch = await self._lease.acquire()
            if epoch is None:
                return False
            await self._begin(epoch)
        except NotFound:
            await self._create_namespace()  # Belay's manifests are not installed
            return False
        except KubeError as error:
            _log.warning("cannot serve yet", reason=str(error))
            return False
        self.leads, self.holder = True, ""
        self._notify()
        _log.info("serving jobs", epoch=epoch)
        return True

    async def _create_namespace(self) -> None:
        """Create the namespace of the Lease."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        try:
            await self._kube.create(NAMESPACES, body)
        except KubeError as error:
            _log.warning("cannot serve yet", reason=f"namespace {NAMESPACE} is missing: {error}")

    async def _hold(self) -> None:
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._duration / 3)
            try:
                async with asyncio.timeout(self._duration / 3):
                    if not await self._lease.renew():
                        break
                renewed = time.monotonic()
            except (KubeError, TimeoutError) as error:
                _log.warning("Lease not renewed", reason=str(error))
                if time.monotonic() - renewed > self._duration:
                    break
        _log.warning("Lease lost, another server serves the jobs or may soon")
        self._stop()

    def _stop(self) -> None:
        if self.leads:
            self.leads = False
            self._lose()
            self._notify()

    async def _refresh_holder(self) -> None:
        """Read the holder from the Lease."""
        try:
            found = await self._kube.get(LEASE, NAME, NAMESPACE)
        except KubeError:
            return
        holder = str(((found or {}).get("spec") or {}).get("holderIdentity") or "").rpartition("@")[2]
        if holder != self.holder:
            self.holder = "" if holder == self.address else holder
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


__all__ = ["DURATION", "Leader"]
