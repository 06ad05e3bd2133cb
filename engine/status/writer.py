"""The one writer of status: only what changed, at most once a second per object."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

#: MindCluster's readers expect no more than one write a second per ConfigMap.
MIN_INTERVAL: Final = 1.0


class Ledger:
    """Remembers what was written, so that an unchanged body is never sent again.

    Pure bookkeeping: the caller gives the clock and does the writing. ``pick`` names what to write now;
    a body held back by the interval is picked by a later call, with its newest content.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[tuple[str, str], tuple[str, float]] = {}

    def pick(self, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The bodies that changed since they were written and whose interval has passed."""
        now = self._clock()
        due = []
        for body in bodies:
            digest, at = self._written.get(_place(body), ("", -MIN_INTERVAL))
            if digest != _digest(body) and now - at >= MIN_INTERVAL:
                due.append(body)
        return due

    def held_back(self, bodies: Iterable[dict[str, Any]]) -> bool:
        """Whether a changed body still waits for its interval, so that the caller comes back."""
        return any(self._written.get(_place(body), ("", 0.0))[0] != _digest(body) for body in bodies)

    def written(self, body: dict[str, Any]) -> None:
        """Remember that a body was written."""
        self._written[_place(body)] = (_digest(body), self._clock())

    def learn(self, live: dict[str, Any]) -> None:
        """Take over what the cluster already holds, e.g. after a restart."""
        self._written[_place(live)] = (_digest(live), self._clock() - MIN_INTERVAL)

    def known(self, body: dict[str, Any]) -> bool:
        """Whether this object's live content is known."""
        return _place(body) in self._written

    def forget(self, body: dict[str, Any]) -> None:
        """The last write failed: its outcome is unknown."""
        self._written.pop(_place(body), None)


def _place(body: dict[str, Any]) -> tuple[str, str]:
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(body.get("data") or {}, order="sorted")).hexdigest()
