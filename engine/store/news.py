"""What wakes a shard's controller: a word in a list in Redis, for which it waits instead of asking all the time.

A process that leaves work for the controller adds a word, unless one is there. A word may be lost with Redis, so the
controller also looks without one, every few seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, cast

from belay.engine.store.port import PREFIX, translated
from belay.engine.store.redis_library import redis

KEPT_SECONDS: Final = 60
"""Seconds for which Redis keeps a word that no controller takes."""


def news_key(shard: str, prefix: str = PREFIX) -> str:
    """The list, in one hash slot with the queue of shards, whose scripts write into it."""
    return f"{prefix}:{{triggers}}:{shard}:news"


def leave_word(pipe: Any, shard: str, prefix: str = PREFIX) -> None:
    """Add to a pipeline the commands that wake the shard's controller."""
    key = news_key(shard, prefix)
    pipe.lpush(key, "1")
    pipe.ltrim(key, 0, 0)
    pipe.expire(key, KEPT_SECONDS)


class ShardNews:
    """The controller's side."""

    def __init__(self, client: redis.asyncio.Redis, shard: str, prefix: str = PREFIX) -> None:
        self._client = client
        self._key = news_key(shard, prefix)

    async def wait(self, seconds: float) -> bool:
        """Wait for a word, at most so many seconds; whether one came. Raises StoreUnavailable.

        The seconds must be fewer than those after which a silent Redis counts as gone.
        """
        if seconds <= 0:
            return False
        with translated():
            word = await cast(Awaitable[object], self._client.blpop([self._key], timeout=max(0.001, seconds)))
        return word is not None
