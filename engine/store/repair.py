"""Delete keys of a wrong type from Redis.

Redis is working memory: lost data is written again from Kubernetes and Git. Every command on a key of the wrong
type fails, so the key counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from belay.engine import log
from belay.engine.store.port import PREFIX, StoreUnavailable, damaged, text, translated
from belay.engine.store.redis_library import redis

_log = log.get("store")
_MOST: Final = 200_000
"""Most keys that one repair checks."""
_QUEUES: Final = {
    "plan": "list", "act": "list", "unacked": "hash", "unacked_index": "zset", "unacked_mutex": "string",
    "_kombu.binding.plan": "set", "_kombu.binding.act": "set",
    "_kombu.binding_permanent.plan": "set", "_kombu.binding_permanent.act": "set",
}  # fmt: skip
_LAST_PART: Final = {
    "dirty": "zset", "busy": "hash", "sent": "hash", "epochs": "hash", "pass": "hash", "relist": "string",
    "fetch": "string", "summaries": "hash", "counters": "hash", "objects": "hash", "log": "zset", "meta": "hash",
    "blobs": "hash", "used": "zset", "revision": "string", "news": "list",
}  # fmt: skip
#: The keys of a snapshot are deleted together: one without its objects would describe an empty cluster.
_SNAPSHOT: Final = ("objects", "log", "meta")


def expected(key: str, prefix: str = PREFIX) -> str | None:
    """The type that one of our keys must have; None for other keys."""
    if key in _QUEUES:
        return _QUEUES[key]
    if not key.startswith(f"{prefix}:"):
        return None
    if key.startswith((f"{prefix}:alive:", f"{prefix}:life:")):
        return "string"
    if key.startswith(f"{prefix}:revision:"):
        return "hash"
    return _LAST_PART.get(key.rpartition(":")[2])


def repair(client: redis.Redis, prefix: str = PREFIX) -> list[str]:
    """Delete the keys of a wrong type; returns their names, sorted. Raises StoreUnavailable."""
    wrong: list[str] = []
    with translated():
        for key in _keys(client, prefix):
            wanted = expected(key, prefix)
            if wanted is not None and text(client.type(key)) not in (wanted, "none"):
                client.delete(*_together(key))
                wrong.append(key)
    for key in sorted(wrong)[:20]:
        _log.warning("key of a wrong type deleted from Redis", key=key[:200])
    return sorted(wrong)


def heal(client: redis.Redis, prefix: str = PREFIX) -> list[str]:
    """Repair once after a command met a key of a wrong type; does nothing otherwise. Never raises."""
    if not damaged.is_set():
        return []
    damaged.clear()
    try:
        return repair(client, prefix)
    except StoreUnavailable:
        damaged.set()
        return []


def _together(key: str) -> list[str]:
    start, _, last = key.rpartition(":")
    return [f"{start}:{name}" for name in _SNAPSHOT] if last in _SNAPSHOT else [key]


def _keys(client: redis.Redis, prefix: str) -> Iterator[str]:
    yield from _QUEUES
    for number, key in enumerate(cast(Any, client.scan_iter(match=f"{prefix}:*", count=1000))):
        if number >= _MOST:
            return
        yield text(key)
