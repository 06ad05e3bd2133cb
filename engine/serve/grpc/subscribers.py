"""Records which inference services have a controller that is subscribed to faults, for passes to read.

The serving server writes ``belay-fault-subscribers`` when a service begins or ends to be subscribed, and repeats it
every minute while there is one: readers take a record that is not repeated for the word of a dead server, and no
service for subscribed. A controller whose stream ends keeps its place for half a minute, in which it connects again
after a change of the serving server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final

from belay.engine.kube import CONFIGMAP, Conflict, Kube, KubeError, Object
from belay.engine.log import get
from belay.engine.model.fault_subscriptions import NO_SUBSCRIPTIONS, REPEAT_MS, FaultSubscriptions
from belay.engine.serve.grpc.observed_cluster import clock_ms
from belay.engine.wire import faultsubscriptions
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import FAULT_SUBSCRIBERS, SYSTEM

_log = get("grpc.subscribers")
RETURN_SECONDS: Final = 30.0
"""Within this time a controller whose stream ended connects again."""
PERIOD: Final = 5.0
"""Seconds between two looks while nothing changes; several changes within one second are one write."""
_PAUSE: Final = 1.0


class SubscribersRecord:
    """One per server; ``serving_epoch`` gives the epoch of its Lease, None while another one serves. ``subscribed``
    gives the services whose controllers are connected now, ``changed`` is set when they change; ``clock`` gives
    milliseconds since 1970.
    """

    def __init__(
        self,
        kube: Kube,
        identity: str,
        subscribed: Callable[[], Iterable[str]],
        serving_epoch: Callable[[], int | None],
        changed: asyncio.Event,
        *,
        clock: Callable[[], int] = clock_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._identity = kube, identity
        self._subscribed, self._serving_epoch, self._changed = subscribed, serving_epoch, changed
        self._clock, self._monotonic = clock, monotonic
        #: What is recorded, None while that is not known; and when each service was connected last.
        self._recorded: FaultSubscriptions | None = None
        self._seen: dict[str, float] = {}

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._changed.wait()
            await asyncio.sleep(_PAUSE)
            self._changed.clear()
            try:
                await self.step()
            except KubeError as error:
                self._recorded = None
                _log.warning("fault subscribers are not recorded, tried again", reason=str(error))

    async def step(self) -> None:
        """Write the record where it is not what this server knows, or has to be repeated. Raises KubeError."""
        epoch = self._serving_epoch()
        if epoch is None:
            self._recorded = None
            self._seen.clear()
            return

        live = None
        if self._recorded is None or self._recorded.epoch != epoch:
            live = await self._kube.get(CONFIGMAP, FAULT_SUBSCRIBERS, SYSTEM)
            self._expect(_read(live), epoch)
        wanted = self._wanted(epoch)
        if self._is_current(wanted):
            return

        live = live or await self._kube.get(CONFIGMAP, FAULT_SUBSCRIBERS, SYSTEM)
        known = _read(live)
        if known.epoch > epoch and not known.is_old(wanted.time_ms):
            return  # another server serves by now, which this one has yet to notice
        await self._write(live, wanted)

    def _expect(self, known: FaultSubscriptions, epoch: int) -> None:
        """Begin with what another server recorded: the controllers that were connected to it connect again."""
        self._recorded = known
        if known.epoch != epoch and not known.is_old(self._clock()):
            self._seen = dict.fromkeys(known.services, self._monotonic())

    def _wanted(self, epoch: int) -> FaultSubscriptions:
        now = self._monotonic()
        self._seen.update(dict.fromkeys(self._subscribed(), now))
        self._seen = {service: at for service, at in self._seen.items() if now - at < RETURN_SECONDS}
        return FaultSubscriptions(frozenset(self._seen), self._clock(), epoch, self._identity)

    def _is_current(self, wanted: FaultSubscriptions) -> bool:
        known = self._recorded
        if known is None or known.services != wanted.services:
            return False
        if not wanted.services:
            return True  # an empty record cannot grow old
        return known.epoch == wanted.epoch and wanted.time_ms - known.time_ms < REPEAT_MS

    async def _write(self, live: Object | None, wanted: FaultSubscriptions) -> None:
        body = faultsubscriptions.build(wanted)
        self._recorded = None
        try:
            if live is None:
                await self._kube.create(CONFIGMAP, body)
            else:
                await self._kube.replace(CONFIGMAP, {**live, "data": body["data"]})
        except Conflict:
            return  # the next look writes it
        self._recorded = wanted


def _read(live: Object | None) -> FaultSubscriptions:
    """What is recorded; what cannot be read counts as nothing, and is written over."""
    if live is None:
        return NO_SUBSCRIPTIONS
    try:
        return faultsubscriptions.parse(live)
    except WireError:
        return NO_SUBSCRIPTIONS


__all__ = ["PERIOD", "RETURN_SECONDS", "SubscribersRecord"]
