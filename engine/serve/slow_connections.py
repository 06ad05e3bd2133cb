"""End connections that make no progress, so that slow or silent callers cannot exhaust the server.

aiohttp bounds neither the time of a request's head nor that of an answer that the client does not read. So every
connection is checked every second: how many requests it has made, and when the current one began.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from belay.engine import log

HEAD_SECONDS: Final = 15.0
"""Longest time without a complete request, also between two."""
ANSWER_SECONDS: Final = 60.0
"""Longest time for one request with its body and its answer."""
MOST_CONNECTIONS: Final = 1_000
"""Most open connections; beyond that the ones that have been idle longest are closed."""
_SWEEP_SECONDS: Final = 1.0
_log = log.get("server")


@dataclass
class _Progress:
    requests: int
    busy: bool
    since: float


class SlowConnections:
    """The progress of each connection. ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        *,
        head: float = HEAD_SECONDS,
        answer: float = ANSWER_SECONDS,
        most: int = MOST_CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._head, self._answer, self._most, self._clock = head, answer, most, clock
        self._known: dict[Any, _Progress] = {}
        self.streaming: Collection[Any] = ()
        """Connections whose answer goes on until the caller leaves, or is still sought: who writes it bounds its time
        itself. The time of a connection that is no more among them counts from then on."""

    def close_overdue(self, connections: Iterable[Any]) -> int:
        """Close the overdue connections; returns how many."""
        now = self._clock()
        present = {connection: self._progress(connection, now) for connection in connections}
        self._known = present
        for connection, progress in present.items():
            if progress.busy and connection in self.streaming:
                progress.since = now
        overdue = [c for c, p in present.items() if now - p.since > (self._answer if p.busy else self._head)]
        rest = [c for c in present if c not in set(overdue)]
        surplus = max(0, len(rest) - self._most)
        waiting = sorted((c for c in rest if not present[c].busy), key=lambda c: present[c].since)
        for connection in [*overdue, *waiting[:surplus]]:
            if (transport := connection.transport) is not None:
                transport.abort()
            del self._known[connection]
        return len(overdue) + len(waiting[:surplus])

    def _progress(self, connection: Any, now: float) -> _Progress:
        requests = int(getattr(connection, "_request_count", 0))
        busy = getattr(connection, "_current_request", None) is not None
        known = self._known.get(connection)
        if known is None or known.requests != requests or known.busy != busy:
            return _Progress(requests, busy, now)
        return known

    async def run(self, connections: Callable[[], Iterable[Any]]) -> None:
        """Close overdue connections every second until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            if ended := self.close_overdue(connections()):
                _log.info("connections without progress closed", connections=ended)
