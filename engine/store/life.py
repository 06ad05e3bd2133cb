"""Which processes live: each changes a number in Redis all the time, the others see whether it still changes.

A Lease outlives a dead holder by its whole duration, since the API server may be slow for that long without anybody
being dead. A process whose number stands still while Redis answers is dead or cannot work, so others need not wait.
This only saves time: what two of them write at once, the epochs of Leases keep apart.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, cast

import redis

from engine import log
from engine.store.port import PREFIX, StoreUnavailable, translated

_log = log.get("store")
_LOOKS: Final = 6
"""Looks, and changes of the own number, within the time after which a silent process counts as dead."""
_KEPT_SECONDS: Final = 60.0
"""Seconds for which Redis keeps a number that does not change."""
_MOST: Final = 10_000
"""Most processes that one follows."""


class Life:
    """The life of one process, and what it sees of others of its ``kind``; identities are those of Leases.

    A process counts as dead once its number, seen before, has not changed for ``silence`` seconds of our monotonic
    clock, and for at least the last half of them we looked often and Redis answered each time. One that never wrote a
    number (an older version) never does. Safe for several threads.
    """

    def __init__(
        self,
        client: redis.Redis,
        kind: Literal["controller", "worker"],
        identity: str,
        silence: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity, self.silence = identity, silence
        self.every = silence / _LOOKS
        """Seconds between two looks."""
        self._client = client
        self._start = f"{PREFIX}:life:{kind}:"
        self._clock = clock
        self._life, self._number = secrets.token_hex(4), 0
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._looked = float("-inf")
        self._ending = threading.Event()

    def beat(self) -> None:
        """Change our number. Raises StoreUnavailable."""
        self._number += 1
        with translated():
            kept = int(max(_KEPT_SECONDS, 2 * self.silence) * 1000)
            self._client.set(self._start + self.identity, f"{self._life}:{self._number}", px=kept)

    def look(self, names: Iterable[str]) -> None:
        """Look at the numbers of these processes, and of those that were looked at lately. Raises StoreUnavailable."""
        now = self._clock()
        wanted = sorted({*names, *self._seen} - {"", self.identity})[:_MOST]
        found: list[Any] = []
        if wanted:
            try:
                with translated():
                    found = cast(list[Any], self._client.mget([self._start + name for name in wanted]))
            except StoreUnavailable:
                self._looked = float("-inf")
                raise
        if now - self._looked > self.silence / 2:  # what happened meanwhile is not known
            least = now - self.silence / 2
            self._seen = {name: (value, max(at, least)) for name, (value, at) in self._seen.items()}
        for name, value in zip(wanted, found, strict=True):
            known = self._seen.get(name)
            if value is not None and (known is None or known[0] != value):
                self._seen[name] = (value, now)
            elif known is not None and now - known[1] > max(_KEPT_SECONDS, 4 * self.silence):
                del self._seen[name]
        self._looked = now

    def ended(self, name: str) -> bool:
        """Whether this process counts as dead."""
        known = self._seen.get(name)
        return (
            known is not None
            and self._looked - known[1] >= self.silence
            and self._clock() - self._looked <= self.silence / 2
        )

    def turn(self, watch: Callable[[], Iterable[str]], then: Callable[[], None] = lambda: None) -> None:
        """Change our number, look at what ``watch`` names, call ``then``. Raises StoreUnavailable, as both may."""
        self.beat()
        self.look(watch())
        then()

    def start(self, watch: Callable[[], Iterable[str]], then: Callable[[], None] = lambda: None) -> None:
        """Take a turn ``every`` seconds until ``stop``, in a thread: a long computation in the event loop is no death.

        The number changes before this returns, if Redis answers: the silence of a former life says nothing of this one.
        """
        with contextlib.suppress(StoreUnavailable):
            self.beat()

        def run() -> None:
            away = False
            while not self._ending.wait(self.every):
                try:
                    self.turn(watch, then)
                    away = False
                except StoreUnavailable as error:
                    if not away:
                        _log.warning("others cannot see whether this process lives", reason=str(error))
                    away = True

        threading.Thread(target=run, name="belay-life", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon."""
        self._ending.set()
