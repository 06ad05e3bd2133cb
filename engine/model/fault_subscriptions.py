"""Which inference services have a controller that is subscribed to faults, as the serving server of belay last said.

MindIE's controller works around a chip on which a request has to be started again, if it hears of the fault; so a
service that is subscribed keeps its pods for a minute. Without a record, or with an old one, no service counts as
subscribed: its controller hears nothing either while no server serves.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.times import rfc3339

#: How often a record is written again while services are subscribed, and from which age on it counts as old (ms).
REPEAT_MS: Final = 60_000
LASTS_MS: Final = 150_000


class FaultSubscriptions(msgspec.Struct, frozen=True):
    """The record. ``epoch`` is that of the serving server's Lease, ``server`` its identity, ``time_ms`` Unix time."""

    services: frozenset[str] = frozenset()
    time_ms: int = 0
    epoch: int = 0
    server: str = ""

    def is_old(self, now_ms: int) -> bool:
        """Whether the server that wrote it does not serve any more."""
        return now_ms - self.time_ms >= LASTS_MS

    def covers(self, service: str, now_ms: int) -> bool:
        """Whether the service's controller is subscribed."""
        return service in self.services and not self.is_old(now_ms)

    def source_sentence(self) -> str:
        """Who wrote it when. It names no age, with which the status would change in every pass."""
        return f"was last written at {rfc3339(self.time_ms / 1000)} by server {self.server}, epoch {self.epoch}"


NO_SUBSCRIPTIONS: Final = FaultSubscriptions()


__all__ = ["LASTS_MS", "NO_SUBSCRIPTIONS", "REPEAT_MS", "FaultSubscriptions"]
