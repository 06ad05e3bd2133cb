"""Which server serves: one at a time, by a Lease whose holder's name ends in the address to reach it at.

The others hand every call on to it, so that it does not matter where a client's connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

from engine.kube import LEASE, Kube, KubeError, NotFound
from engine.kube import NAMESPACE as NAMESPACES
from engine.lease import NAMESPACE, Lease
from engine.log import get

_log = get("grpc.leader")
NAME: Final = "belay-recovery"
DURATION: Final = 6.0
#: Seconds that a call waits for a server that serves.
PATIENCE: Final = 5.0
#: Seconds in which another server takes over from one that died.
FAILOVER: Final = 2 * DURATION


class Leader:
    """``begin`` takes over with the new epoch and may raise KubeError; ``lose`` gives everything up. An ``abandoned``
    Lease is not given back at the end: it runs out.
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
        """Lead whenever possible, until cancelled; then the Lease is given back."""
        try:
            while True:
                if await self._take():
                    await self._hold()
                else:
                    await self._learn()
                    await asyncio.sleep(self._duration / 6)
        finally:
            self._stop()
            if not self.abandoned:
                await self._give_back()

    async def _give_back(self) -> None:
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._lease.release()

    async def settled(self, seconds: float = PATIENCE) -> bool:
        """Whether it is known who serves, within that time."""
        return await self._comes(lambda: self.leads or bool(self.holder), seconds)

    async def moved_on(self, seconds: float = FAILOVER) -> bool:
        """Whether somebody else (or we) came to serve within that time: the holder that is known does not answer."""
        holder = self.holder
        return await self._comes(lambda: self.leads or self.holder not in ("", holder), seconds)

    async def _comes(self, true: Callable[[], bool], seconds: float) -> bool:
        """Whether ``true`` comes to hold within that time."""
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

    async def _take(self) -> bool:
        try:
            epoch = await self._lease.acquire()
            if epoch is None:
                return False
            await self._begin(epoch)
        except NotFound:
            await self._found()  # nobody has installed Belay's manifests
            return False
        except KubeError as error:
            _log.warning("cannot serve yet", reason=str(error))
            return False
        self.leads, self.holder = True, ""
        self._tell()
        _log.info("serving jobs", epoch=epoch)
        return True

    async def _found(self) -> None:
        """Make the namespace in which the Lease lives."""
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
        _log.warning("another server serves the jobs, or may soon")
        self._stop()

    def _stop(self) -> None:
        if self.leads:
            self.leads = False
            self._lose()
            self._tell()

    async def _learn(self) -> None:
        """Who serves now, as far as the Lease says."""
        try:
            found = await self._kube.get(LEASE, NAME, NAMESPACE)
        except KubeError:
            return
        holder = str(((found or {}).get("spec") or {}).get("holderIdentity") or "").rpartition("@")[2]
        if holder != self.holder:
            self.holder = "" if holder == self.address else holder
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


__all__ = ["DURATION", "Leader"]
