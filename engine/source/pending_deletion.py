"""A deletion that waits for a person: the commits that confirm it, and what was declared before."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from belay.engine.source.repository import GitSource

ASK_AGAIN_SECONDS: Final = 30.0
"""Seconds after which a repository that could not answer is asked again."""


class ConfirmationState(NamedTuple):
    """``confirmed``: digests of deletions; ``earlier``: files before the deletion that differ now, path and blob id."""

    confirmed: tuple[str, ...] = ()
    earlier: dict[str, str] = {}


class PendingDeletion:
    """Queries a repository once for each revision since the deletion began to wait.

    ``base`` is the revision before the deletion, or the one in force; ``waits``: whether a deletion waits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.base, self.waits = "", False
        self._clock = clock
        self._asked: tuple[str, str, bool] = ("", "", False)
        self._state = ConfirmationState()
        self._until = math.inf

    def ask(self, source: GitSource, tip: str) -> ConfirmationState:
        """Return the state up to a revision; blocks."""
        if not tip or not self.base or self.base == tip:
            return ConfirmationState()
        asked = (self.base, tip, self.waits)
        if self._asked != asked or self._clock() >= self._until:
            confirmed = source.confirmations(self.base, tip)
            self._state = ConfirmationState(confirmed or (), source.earlier(self.base, tip) if self.waits else {})
            self._asked, self._until = asked, math.inf if confirmed is not None else self._clock() + ASK_AGAIN_SECONDS
        return self._state
