"""When to write status: only what changed, and no object more often than its readers expect."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from belay.engine.model.labels import VOLCANO_CONSUMER
from belay.engine.wire import names

#: MindCluster's readers expect no more than one write a second per ConfigMap.
MIN_INTERVAL: Final = 1.0
#: Seconds between republications of what other components read, while there are any (ClusterD's interval).
REPUBLISH: Final = 5.0
#: Belay's own ConfigMaps show an isolation at once, even right after another change.
OWN_INTERVAL: Final = 0.2
#: ClusterD writes statistics of jobs no more often than this.
STATISTIC_INTERVAL: Final = 3.0

_Place = tuple[str, str]


class WriteTracker:
    """Tracks what was written, so that an unchanged body is not sent again.

    Pure bookkeeping: the caller gives the clock and writes. ``due`` returns what to write now; a body that the interval
    holds back is returned by a later call, with its newest content.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[_Place, tuple[str, float]] = {}
        self._digests: dict[_Place, tuple[dict[str, Any], str]] = {}
        self.has_foreign_readers = False
        """Whether other components read the aggregates, which then must be republished."""

    def due(self, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The bodies that changed since they were written, and whose interval has passed."""
        now = self._clock()
        return [body for body in bodies if self._left(body, now) <= 0]

    def next_due(self, bodies: Iterable[dict[str, Any]]) -> float:
        """Seconds until the first held-back body may be written; 0 when there is none."""
        now = self._clock()
        left = [seconds for seconds in (self._left(body, now) for body in bodies) if seconds < math.inf]
        return max(0.0, min(left, default=0.0))

    def _left(self, body: dict[str, Any], now: float) -> float:
        """Seconds until a body is due; infinity while it need not be written."""
        if self._changed(body):
            return _interval(body) - self._since(body, now)
        return REPUBLISH - self._since(body, now) if self.has_foreign_readers and is_foreign(body) else math.inf

    def _changed(self, body: dict[str, Any]) -> bool:
        return self._written.get(_place(body), ("", 0.0))[0] != self._digest(body)

    def _since(self, body: dict[str, Any], now: float) -> float:
        known = self._written.get(_place(body))
        return now - known[1] if known else math.inf

    def _digest(self, body: dict[str, Any]) -> str:
        """The digest of a body, cached for the same body object."""
        place = _place(body)
        known = self._digests.get(place)
        if known is None or known[0] is not body:
            known = self._digests[place] = (body, _digest(body))
        return known[1]

    def record_write(self, body: dict[str, Any]) -> None:
        """Record that a body was written."""
        self._written[_place(body)] = (self._digest(body), self._clock())

    def record_live(self, live: dict[str, Any]) -> None:
        """Record what the cluster holds, e.g. after a restart."""
        self._written[_place(live)] = (_digest(live), self._clock() - MIN_INTERVAL)

    def known(self, body: dict[str, Any]) -> bool:
        """Whether this object's live content is known."""
        return _place(body) in self._written

    def forget(self, body: dict[str, Any]) -> None:
        """Forget an object whose content is unknown, e.g. after a failed write."""
        self._written.pop(_place(body), None)
        self._digests.pop(_place(body), None)


def is_foreign(body: dict[str, Any]) -> bool:
    """Whether other components read the ConfigMap: one of ClusterD's aggregates."""
    return (body["metadata"].get("labels") or {}).get(VOLCANO_CONSUMER) == "true"


def _place(body: dict[str, Any]) -> tuple[str, str]:
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _interval(body: dict[str, Any]) -> float:
    if body["metadata"]["name"] == names.JOB_STATISTIC:
        return STATISTIC_INTERVAL
    return OWN_INTERVAL if body["metadata"].get("namespace") == names.SYSTEM else MIN_INTERVAL


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(body.get("data") or {}, order="sorted")).hexdigest()
