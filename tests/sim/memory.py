"""A Redis in memory for simulations: the commands the engine uses, with the same answers, on virtual time.

The Lua scripts are ported by hand; ``tests/test_sim.py`` holds every command and script against a real Redis with
random calls, so that the port cannot drift away.
"""

from __future__ import annotations

import asyncio
import fnmatch
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from belay.engine.controller.triggers import _CLAIM, _DONE, _EXTEND, _FREE, _HEAD, _MARK, _READY
from belay.engine.store import snapshot
from belay.engine.store.news import KEPT_SECONDS

Gate = Callable[[str, Callable[[], Any]], Any]
"""Carries out a call of this name on behalf of a process, unless something fails."""


def raw(value: Any) -> bytes:
    """What Redis keeps of a value."""
    return value if isinstance(value, bytes) else str(value).encode()


class Memory:
    """The data. ``wall`` gives Redis' own clock in Unix seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self.wall = wall
        self.data: dict[str, Any] = {}
        self.expires: dict[str, float] = {}

    def now_ms(self) -> int:
        return int(self.wall() * 1000 + 1e-6)

    def _at(self, key: Any, kind: type | None = None) -> Any:
        name = raw(key).decode()
        if self.expires.get(name, float("inf")) <= self.wall():
            self.delete(name)
        if kind is not None and name not in self.data:
            self.data[name] = kind()
        return self.data.get(name)

    def _drop_empty(self, key: Any) -> None:
        name = raw(key).decode()
        if name in self.data and not isinstance(self.data[name], bytes) and not self.data[name]:
            self.delete(name)

    # keys

    def flushall(self) -> bool:
        self.data.clear()
        self.expires.clear()
        return True

    def delete(self, *keys: Any) -> int:
        found = [name for name in (raw(key).decode() for key in keys) if name in self.data]
        for name in found:
            del self.data[name]
            self.expires.pop(name, None)
        return len(found)

    def expire(self, key: Any, seconds: int) -> bool:
        if self._at(key) is None:
            return False
        self.expires[raw(key).decode()] = self.wall() + seconds
        return True

    def mget(self, keys: list[Any]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def hvals(self, key: Any) -> list[bytes]:
        return list(self.hgetall(key).values())

    def set(self, key: Any, value: Any, ex: int | None = None, px: int | None = None) -> bool:
        name = raw(key).decode()
        self.data[name] = raw(value)
        self.expires.pop(name, None)
        if ex is not None or px is not None:
            self.expires[name] = self.wall() + (ex or 0) + (px or 0) / 1000
        return True

    def get(self, key: Any) -> bytes | None:
        return self._at(key)

    def scan_iter(self, match: str, count: int = 0) -> list[bytes]:
        return [
            name.encode() for name in sorted(self.data) if self._at(name) is not None and fnmatch.fnmatch(name, match)
        ]

    def time(self) -> tuple[int, int]:
        now = self.wall()
        return int(now), int((now - int(now)) * 1_000_000)

    def info(self, section: str = "") -> dict[str, Any]:
        return {"maxmemory_policy": "noeviction"}

    # lists

    def llen(self, key: Any) -> int:
        return len(self._at(key) or ())

    def lpush(self, key: Any, value: Any) -> int:
        rows = self._at(key, list)
        rows.insert(0, raw(value))
        return len(rows)

    def ltrim(self, key: Any, first: int, last: int) -> bool:
        rows = self._at(key)
        if rows is not None:
            rows[:] = rows[first : last + 1]
        self._drop_empty(key)
        return True

    def rpop(self, key: Any) -> bytes | None:
        rows = self._at(key)
        found = rows.pop() if rows else None
        self._drop_empty(key)
        return found

    # hashes

    def hset(self, key: Any, field: Any = None, value: Any = None, mapping: Mapping[Any, Any] | None = None) -> int:
        rows = self._at(key, dict)
        given = dict(mapping or {}) | ({field: value} if field is not None else {})
        new = sum(raw(name) not in rows for name in given)
        rows.update({raw(name): raw(content) for name, content in given.items()})
        return new

    def hsetnx(self, key: Any, field: Any, value: Any) -> int:
        rows = self._at(key, dict)
        if raw(field) in rows:
            return 0
        rows[raw(field)] = raw(value)
        return 1

    def hget(self, key: Any, field: Any) -> bytes | None:
        return (self._at(key) or {}).get(raw(field))

    def hgetall(self, key: Any) -> dict[bytes, bytes]:
        return dict(self._at(key) or {})

    def hkeys(self, key: Any) -> list[bytes]:
        return list(self._at(key) or {})

    def hmget(self, key: Any, fields: list[Any]) -> list[bytes | None]:
        rows = self._at(key) or {}
        return [rows.get(raw(field)) for field in fields]

    def hexists(self, key: Any, field: Any) -> bool:
        return raw(field) in (self._at(key) or {})

    def hdel(self, key: Any, *fields: Any) -> int:
        rows = self._at(key) or {}
        gone = sum(rows.pop(raw(field), None) is not None for field in fields)
        self._drop_empty(key)
        return gone

    def hincrby(self, key: Any, field: Any, amount: int = 1) -> int:
        rows = self._at(key, dict)
        value = int(rows.get(raw(field), b"0")) + amount
        rows[raw(field)] = raw(value)
        return value

    # sorted sets

    def zadd(self, key: Any, mapping: Mapping[Any, float], lt: bool = False) -> int:
        rows = self._at(key, dict)
        new = 0
        for member, score in mapping.items():
            known = rows.get(raw(member))
            new += known is None
            if known is None or not lt or score < known:
                rows[raw(member)] = float(score)
        return new

    def zscore(self, key: Any, member: Any) -> float | None:
        return (self._at(key) or {}).get(raw(member))

    def zrem(self, key: Any, *members: Any) -> int:
        return self.hdel(key, *members)

    def zrangebyscore(self, key: Any, low: Any, high: Any) -> list[bytes]:
        rows = self._at(key) or {}
        ordered = sorted(rows.items(), key=lambda row: (row[1], row[0]))
        return [member for member, score in ordered if _above(score, low) and _below(score, high)]

    # scripts

    def script(self, source: str, keys: list[str], args: list[Any]) -> Any:
        return SCRIPTS[source](self, keys, args)


def _above(score: float, low: Any) -> bool:
    text = raw(low).decode()
    return score > float(text[1:]) if text.startswith("(") else score >= float(text)


def _below(score: float, high: Any) -> bool:
    text = raw(high).decode()
    return score < float(text[1:]) if text.startswith("(") else score <= float(text)


# ---- the scripts of engine/controller/triggers.py


def _holder(memory: Memory, busy: str, shard: Any) -> tuple[int, int, bytes] | None:
    found = memory.hget(busy, shard)
    if found is None:
        return None
    epoch, until, owner = found.split(b":", 2)
    return int(epoch), int(until), owner


def _recover(memory: Memory, keys: list[str], shard: Any) -> bool:
    held = _holder(memory, keys[1], shard)
    if held and held[1] <= memory.now_ms():
        memory.hdel(keys[1], shard)
        memory.zadd(keys[0], {shard: memory.now_ms()}, lt=True)
        return False
    return held is not None


def _due(memory: Memory, keys: list[str], shard: Any) -> bool:
    at = memory.zscore(keys[0], shard)
    return at is not None and at <= memory.now_ms()


def _wake(memory: Memory, keys: list[str], shard: Any) -> None:
    news = f"{keys[0].removesuffix('dirty')}{raw(shard).decode()}:news"
    if memory.llen(news) == 0:
        memory.lpush(news, "1")
        memory.expire(news, KEPT_SECONDS)


def _mark(memory: Memory, keys: list[str], args: list[Any]) -> int:
    at = int(args[1]) or memory.now_ms()
    memory.zadd(keys[0], {args[0]: at}, lt=True)
    if at <= memory.now_ms():
        memory.hdel(keys[2], args[0])
    _wake(memory, keys, args[0])
    return 1


def _ready(memory: Memory, keys: list[str], args: list[Any]) -> list[bytes | int]:
    again, limit, now = int(args[0]), int(args[1]), memory.now_ms()
    moments: list[float] = []
    for shard in memory.hkeys(keys[1]):
        _recover(memory, keys, shard)
        held = _holder(memory, keys[1], shard)
        if held is not None:
            moments.append(held[1])
    out: list[bytes] = []
    for shard in memory.zrangebyscore(keys[0], "-inf", now):
        if len(out) >= limit:
            moments.append(now)
            break
        last = int(memory.hget(keys[2], shard) or b"0")
        if _holder(memory, keys[1], shard) is not None:
            continue
        if last + again <= now:
            last = now
            memory.hset(keys[2], shard, now)
            out.append(shard)
        moments.append(last + again)
    later = memory.zrangebyscore(keys[0], f"({now}", "+inf")
    score = memory.zscore(keys[0], later[0]) if later else None
    if score is not None:
        moments.append(score)
    return [max(0, math.ceil(min(moments) - now)) if moments else -1, *out]


def _claim(memory: Memory, keys: list[str], args: list[Any]) -> int | None:
    shard, owner, ttl = args[0], raw(args[1]).decode(), int(args[2])
    if _recover(memory, keys, shard) or not _due(memory, keys, shard):
        return None
    memory.zrem(keys[0], shard)
    memory.hdel(keys[2], shard)
    epoch = memory.hincrby(keys[3], shard, 1)
    memory.hset(keys[1], shard, f"{epoch}:{memory.now_ms() + ttl}:{owner}")
    return epoch


def _extend(memory: Memory, keys: list[str], args: list[Any]) -> int:
    shard, owner, epoch, ttl = args[0], raw(args[1]), int(args[2]), int(args[3])
    held = _holder(memory, keys[1], shard)
    if held is None or held[0] != epoch or held[2] != owner:
        return 0
    memory.hset(keys[1], shard, f"{epoch}:{memory.now_ms() + ttl}:{owner.decode()}")
    return 1


def _done(memory: Memory, keys: list[str], args: list[Any]) -> int:
    shard, owner, epoch = args[0], raw(args[1]), int(args[2])
    held = _holder(memory, keys[1], shard)
    if held is not None and held[0] == epoch and held[2] == owner:
        memory.hdel(keys[1], shard)
    if _holder(memory, keys[1], shard) is not None or not _due(memory, keys, shard):
        return 0
    memory.hdel(keys[2], shard)
    _wake(memory, keys, shard)
    return 1


def _free(memory: Memory, keys: list[str], args: list[Any]) -> int:
    owner, freed = raw(args[0]), 0
    for shard in memory.hkeys(keys[1]):
        held = _holder(memory, keys[1], shard)
        if held is not None and (held[2] == owner or not owner):
            memory.hdel(keys[1], shard)
            memory.zadd(keys[0], {shard: memory.now_ms()}, lt=True)
            memory.hdel(keys[2], shard)
            _wake(memory, keys, shard)
            freed += 1
    return freed


# ---- the scripts of engine/store/snapshot.py


def _begin(memory: Memory, keys: list[str], args: list[Any]) -> int:
    memory.delete(*keys)
    memory.hset(keys[2], mapping={"generation": args[0], "seq": 0, "floor": 0, "synced": "0"})
    return 1


def _put(memory: Memory, keys: list[str], args: list[Any]) -> int:
    objects, log, meta = keys
    if memory.hget(meta, "generation") != raw(args[0]):
        return -1
    marks = int(args[3])
    rows = args[4 + 2 * marks :]
    if rows:
        seq = memory.hincrby(meta, "seq", 1)
        for at in range(0, len(rows), 3):
            field, there, value = rows[at : at + 3]
            if raw(there) == b"1":
                memory.hset(objects, field, value)
                memory.zadd(log, {field: seq})
            elif memory.hdel(objects, field):
                memory.zadd(log, {field: seq})
                memory.hincrby(meta, "gone", 1)
    for mark in range(marks):
        memory.hset(meta, "rv:" + raw(args[4 + 2 * mark]).decode(), args[5 + 2 * mark])
    if raw(args[1]):
        memory.hset(meta, "synced", args[1])
    if int(memory.hget(meta, "gone") or b"0") > int(args[2]):
        floor = int(memory.hget(meta, "seq") or b"0")
        for field in memory.zrangebyscore(log, "-inf", "+inf"):
            if not memory.hexists(objects, field):
                memory.zrem(log, field)
        memory.hset(meta, mapping={"floor": floor, "gone": 0})
    return int(memory.hget(meta, "seq") or b"0")


SCRIPTS: dict[str, Callable[[Memory, list[str], list[Any]], Any]] = {
    _HEAD + _MARK: _mark,
    _HEAD + _READY: _ready,
    _HEAD + _CLAIM: _claim,
    _HEAD + _EXTEND: _extend,
    _HEAD + _DONE: _done,
    _HEAD + _FREE: _free,
    snapshot._BEGIN: _begin,
    snapshot._PUT: _put,
}


class Client:
    """What ``belay.engine.store.connect`` gives, for one process."""

    def __init__(self, memory: Memory, gate: Gate) -> None:
        self._memory = memory
        self._gate = gate

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._memory, name)
        return lambda *args, **options: self._gate(name, lambda: method(*args, **options))

    def register_script(self, source: str) -> Callable[..., Any]:
        return lambda keys, args: self._gate("script", lambda: self._memory.script(source, keys, args))

    def pipeline(self, transaction: bool = True) -> Pipeline:
        return Pipeline(self._memory, self._gate)


class Pipeline:
    """Commands carried out together."""

    def __init__(self, memory: Memory, gate: Gate) -> None:
        self._memory = memory
        self._gate = gate
        self._calls: list[Callable[[], Any]] = []

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.clear()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._memory, name)
        return lambda *args, **options: self._calls.append(lambda: method(*args, **options))

    def execute(self) -> list[Any]:
        calls, self._calls = self._calls, []
        found: list[Any] = self._gate("pipeline", lambda: [call() for call in calls])
        return found


class AsyncClient:
    """What ``belay.engine.store.connect_async`` gives, for one process."""

    def __init__(self, memory: Memory, gate: Callable[[str, Callable[[], Any]], Awaitable[Any]]) -> None:
        self._memory = memory
        self._gate = gate

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._memory, name)
        return lambda *args, **options: self._gate(name, lambda: method(*args, **options))

    def register_script(self, source: str) -> Callable[..., Awaitable[Any]]:
        return lambda keys, args: self._gate("script", lambda: self._memory.script(source, keys, args))

    def pipeline(self, transaction: bool = True) -> AsyncPipeline:
        return AsyncPipeline(self._memory, self._gate)

    async def blpop(self, keys: list[str], timeout: float) -> bytes | None:
        """Wait for an element of the first list; by looks, so that it comes up to a quarter of a second late."""
        ends = self._memory.wall() + timeout
        while True:
            found: bytes | None = await self._gate("blpop", lambda: self._memory.rpop(keys[0]))
            left = ends - self._memory.wall()
            if found is not None or left <= 0:
                return found
            await asyncio.sleep(min(0.25, left))

    async def aclose(self) -> None:
        """There is nothing to close."""


class AsyncPipeline:
    """Commands carried out together."""

    def __init__(self, memory: Memory, gate: Callable[[str, Callable[[], Any]], Awaitable[Any]]) -> None:
        self._memory = memory
        self._gate = gate
        self._calls: list[Callable[[], Any]] = []

    async def __aenter__(self) -> AsyncPipeline:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._calls.clear()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._memory, name)
        return lambda *args, **options: self._calls.append(lambda: method(*args, **options))

    async def execute(self) -> list[Any]:
        calls, self._calls = self._calls, []
        found: list[Any] = await self._gate("pipeline", lambda: [call() for call in calls])
        return found
