"""The pods of this node for the device plugin: watched by the agent, or read from kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.kubelet.pods import PodFacts, facts

_log = Log("kubelet")

Read = Callable[[], Awaitable[Sequence[Mapping[str, Any]]]]


class PodCache:
    """The most recently received pods. ``read`` reads them from their source."""

    def __init__(self, read: Read, clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._known: dict[str, PodFacts] | None = None
        self._source: object = None
        self._waiting: set[asyncio.Event] = set()

    @property
    def known(self) -> Mapping[str, PodFacts] | None:
        """The pods by UID, as last received; None before the first receipt."""
        return self._known

    def receive(self, bodies: Sequence[Mapping[str, Any]]) -> bool:
        """Receive the current pods. Returns whether they differ from the last."""
        if bodies is self._source:
            return False
        self._source = bodies
        self._known = _read_all(bodies)
        for event in self._waiting:
            event.set()
        return True

    async def fresh(self) -> Mapping[str, PodFacts]:
        """Read the pods now and keep them."""
        self.receive(await self._read())
        assert self._known is not None
        return self._known

    async def news(self, seconds: float) -> None:
        """Wait until pods are received, at most ``seconds``."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            await self._clock.wait(event, seconds)
        finally:
            self._waiting.discard(event)


def _read_all(bodies: Iterable[Mapping[str, Any]]) -> dict[str, PodFacts]:
    out = {}
    for body in bodies:
        try:
            pod = facts(body)
        except ValueError as error:
            _log.warning("a pod is left out", error=error)
            continue
        out[pod.uid] = pod
    return out
