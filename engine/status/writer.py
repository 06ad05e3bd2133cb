"""The one writer of status: only what changed, and no object more often than its readers bear."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from engine.wire import names

#: MindCluster's readers expect no more than one write a second per ConfigMap.
MIN_INTERVAL: Final = 1.0
#: People who watch Belay's own ConfigMaps want to see an isolation at once, also right after another change.
OWN_INTERVAL: Final = 0.2

_Place = tuple[str, str]


class Ledger:
    """Remembers what was written, so that an unchanged body is never sent again.

    Pure bookkeeping: the caller gives the clock and does the writing. ``pick`` names what to write now;
    a body held back by the interval is picked by a later call, with its newest content.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[_Place, tuple[str, float]] = {}
        self._digests: dict[_Place, tuple[dict[str, Any], str]] = {}

    def pick(self, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The bodies that changed since they were written and whose interval has passed."""
        now = self._clock()
        return [body for body in bodies if self._changed(body) and self._since(body, now) >= _interval(body)]

    def wait(self, bodies: Iterable[dict[str, Any]]) -> float:
        """Seconds until the first changed body that is held back may be written; 0 when none is."""
        now = self._clock()
        left = [_interval(body) - self._since(body, now) for body in bodies if self._changed(body)]
        return max(0.0, min(left, default=0.0))

    def _changed(self, body: dict[str, Any]) -> bool:
        return self._written.get(_place(body), ("", 0.0))[0] != self._digest(body)

    def _since(self, body: dict[str, Any], now: float) -> float:
        known = self._written.get(_place(body))
        return now - known[1] if known else math.inf

    def _digest(self, body: dict[str, Any]) -> str:
        """The digest of a body; that of the very body seen last in its place is known."""
        place = _place(body)
        known = self._digests.get(place)
        if known is None or known[0] is not body:
            known = self._digests[place] = (body, _digest(body))
        return known[1]

    def written(self, body: dict[str, Any]) -> None:
        """Remember that a body was written."""
        self._written[_place(body)] = (self._digest(body), self._clock())

    def learn(self, live: dict[str, Any]) -> None:
        """Take over what the cluster already holds, e.g. after a restart."""
        self._written[_place(live)] = (_digest(live), self._clock() - MIN_INTERVAL)

    def known(self, body: dict[str, Any]) -> bool:
        """Whether this object's live content is known."""
        return _place(body) in self._written

    def forget(self, body: dict[str, Any]) -> None:
        """The last write failed: its outcome is unknown."""
        self._written.pop(_place(body), None)
        self._digests.pop(_place(body), None)


def _place(body: dict[str, Any]) -> tuple[str, str]:
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _interval(body: dict[str, Any]) -> float:
    return OWN_INTERVAL if body["metadata"].get("namespace") == names.SYSTEM else MIN_INTERVAL


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(body.get("data") or {}, order="sorted")).hexdigest()
