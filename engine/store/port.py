"""Connections to Redis from a URL, time limits, and one error for all failures."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final, cast

from belay.engine.errors import BelayError
from belay.engine.log import redact
from belay.engine.store import sentinel
from belay.engine.store.redis_library import redis

VALUE_LIMIT = 3 * 1024 * 1024
"""Largest value in bytes; an object in etcd has at most half of this."""
PREFIX = "belay"
_SOCKET_SECONDS = 5.0


class StoreUnavailable(BelayError):
    """Redis gave no usable answer. It is working memory: wait and try again, nothing is lost."""

    code = "StoreUnavailable"


damaged: Final = threading.Event()
"""Set when a key had a wrong type; ``belay.engine.store.repair.heal`` repairs it and clears the event."""


class ValueTooLarge(BelayError):
    """A value is beyond ``VALUE_LIMIT`` and was not stored."""

    code = "ValueTooLarge"


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn every error of the client library into StoreUnavailable."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        if "WRONGTYPE" in str(error):
            damaged.set()
        raise StoreUnavailable(redact(f"Redis: {type(error).__name__}: {str(error)[:200]}")) from error


def connect(url: str) -> redis.Redis:
    """A client for workers (thread-safe, pooled). ``url`` is redis://, rediss://, unix://, or redis+sentinel:// and
    rediss+sentinel:// (`belay.engine.store.sentinel`); raises BelayError for others.
    """
    return cast(redis.Redis, _client(redis.Redis, url))


def connect_async(url: str) -> redis.asyncio.Redis:
    """A client for the controller's event loop."""
    return cast(redis.asyncio.Redis, _client(redis.asyncio.Redis, url))


def _client(kind: Any, url: str) -> Any:
    if sentinel.is_sentinel(url):
        return _behind_sentinels(kind, sentinel.parse(url))
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise BelayError(
            f"{redact(url)!r} is not a Redis URL",
            where="BELAY_REDIS_URL",
            hint="Use redis://HOST:PORT/0, rediss://…, redis+sentinel://HOST,HOST/NAME/0 or unix:///PATH.",
        )
    options: dict[str, Any] = {"socket_timeout": _SOCKET_SECONDS, "socket_connect_timeout": _SOCKET_SECONDS}
    try:
        return kind.from_url(url, **options)
    except (ValueError, redis.RedisError) as error:
        text = f"{redact(url)!r} is not a usable Redis URL: {redact(str(error))}"
        raise BelayError(text, where="BELAY_REDIS_URL") from error


def _behind_sentinels(kind: Any, asked: sentinel.Sentinels) -> Any:
    """A client whose connections go to whichever server the Sentinels call the primary when they are made."""
    timeouts = {"socket_timeout": _SOCKET_SECONDS, "socket_connect_timeout": _SOCKET_SECONDS}
    library: Any = redis.asyncio.sentinel if kind is redis.asyncio.Redis else redis.sentinel
    retry = redis.asyncio.retry.Retry if kind is redis.asyncio.Redis else redis.retry.Retry
    found = library.Sentinel(list(asked.hosts), sentinel_kwargs=asked.asking() | sentinel.patience(retry), **timeouts)
    return found.master_for(asked.name, redis_class=kind, db=asked.db, **timeouts, **asked.login())


def eviction_warning(client: redis.Redis) -> str | None:
    """A warning if Redis may evict keys under memory pressure; None if not, or if unknown.

    Managed services refuse CONFIG; INFO holds the same.
    """
    with translated():
        policy = str(client.info("memory").get("maxmemory_policy") or "")
    if policy in {"", "noeviction"}:
        return None
    return f"Redis runs with maxmemory-policy {policy}: it may drop work at any time. Set maxmemory-policy noeviction."


def require_room(client: redis.Redis) -> None:
    """Write a key that lives for a second. Raises a redis error where Redis takes no writes, as when it is full."""
    client.set(f"{PREFIX}room", "1", ex=1)


def text(value: object) -> str:
    """Return a reply of Redis as text; undecodable bytes are replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
