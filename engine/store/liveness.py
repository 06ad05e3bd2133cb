"""Which processes are alive: each changes a number in Redis all the time, the others see whether it still changes.

A Lease outlives a dead holder by its whole duration, since the API server may be slow for that long although every
process is alive. A process whose number does not change while Redis answers is dead or cannot work, so others need not
wait. This only saves time: the epochs of Leases keep apart what two processes write at once.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, cast

from belay.engine import log
from belay.engine.store.port import PREFIX, StoreUnavailable, translated
from belay.engine.store.redis_library import redis

_log = log.get("store")
_READS: Final = 6
"""Readings, and changes of the own number, within the time after which a silent process counts as dead."""
_KEPT_SECONDS: Final = 60.0
"""Seconds for which Redis keeps a number that does not change."""
_MOST: Final = 10_000
"""Most processes that one follows."""


class ProcessLiveness:
    """Publishes that this process is alive, and knows which others of its ``kind`` are dead; identities as in Leases.

    A process counts as dead once its number, read before, has not changed for ``silence`` seconds of our monotonic
    clock, if during at least the last half of them we read often and Redis answered each time. One that never wrote a
    number (an older version) never counts as dead. Safe for several threads.
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
        self.every = silence / _READS
        """Seconds between two readings."""
        self._client = client
        self._start = f"{PREFIX}:life:{kind}:"
        self._clock = clock
        self._life, self._number = secrets.token_hex(4), 0
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._read_at = float("-inf")
        self._ending = threading.Event()

    def beat(self, ask: Callable[[Any], None] | None = None) -> Any:
        """Change our number; returns the answer to a question that ``ask`` puts into the same message. Raises
        StoreUnavailable.
        """
        self._number += 1
        kept = int(max(_KEPT_SECONDS, 2 * self.silence) * 1000)
        with translated(), self._client.pipeline(transaction=False) as pipe:
            pipe.set(self._start + self.identity, f"{self._life}:{self._number}", px=kept)
            if ask is not None:
                ask(pipe)
            return pipe.execute()[-1]

    def read(self, names: Iterable[str]) -> None:
        """Read the numbers of these processes, and of those that were read lately. Raises StoreUnavailable."""
        now = self._clock()
        wanted = sorted({*names, *self._seen} - {"", self.identity})[:_MOST]
        found: list[Any] = []
        if wanted:
            try:
                with translated():
                    found = cast(list[Any], self._client.mget([self._start + name for name in wanted]))
            except StoreUnavailable:
                self._read_at = float("-inf")
                raise
        if now - self._read_at > self.silence / 2:  # what happened meanwhile is not known
            least = now - self.silence / 2
            self._seen = {name: (value, max(at, least)) for name, (value, at) in self._seen.items()}
        for name, value in zip(wanted, found, strict=True):
            known = self._seen.get(name)
            if value is not None and (known is None or known[0] != value):
                self._seen[name] = (value, now)
            elif known is not None and now - known[1] > max(_KEPT_SECONDS, 4 * self.silence):
                del self._seen[name]
        self._read_at = now

    def is_dead(self, name: str) -> bool:
        """Whether this process counts as dead."""
        known = self._seen.get(name)
        return (
            known is not None
            and self._read_at - known[1] >= self.silence
            and self._clock() - self._read_at <= self.silence / 2
        )

    def dead(self) -> list[str]:
        """The processes read lately that count as dead."""
        return [name for name in self._seen if self.is_dead(name)]

    def update(
        self,
        watch: Callable[[Any], Iterable[str]],
        then: Callable[[], None] = lambda: None,
        ask: Callable[[Any], None] | None = None,
    ) -> None:
        """Change our number, read those of ``watch``, call ``then``. Raises StoreUnavailable, as it may.

        ``watch`` gets the answer to what ``ask`` puts into the message with our number: six of them a second are most
        of what an idle process says to Redis.
        """
        self.read(watch(self.beat(ask)))
        then()

    def start(
        self,
        watch: Callable[[Any], Iterable[str]],
        then: Callable[[], None] = lambda: None,
        ask: Callable[[Any], None] | None = None,
    ) -> None:
        """Update ``every`` seconds until ``stop``, in a thread: a long computation in the event loop is no death.

        The number changes before this returns, if Redis answers: silence before does not count.
        """
        with contextlib.suppress(StoreUnavailable):
            self.beat()

        def run() -> None:
            away = False
            while not self._ending.wait(self.every):
                try:
                    self.update(watch, then, ask)
                    away = False
                except StoreUnavailable as error:
                    if not away:
                        _log.warning("others cannot see whether this process lives", reason=str(error))
                    away = True

        threading.Thread(target=run, name="belay-life", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon."""
        self._ending.set()
