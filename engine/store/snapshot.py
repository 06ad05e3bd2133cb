"""The observed snapshot: per shard, every object that passes need, as the controller last saw it.

The controller writes changed objects; a worker reads what changed since its last read. Each copy has a *generation*,
made by the controller before a fresh consistent list. When Redis was flushed, or another controller took over, the
generation differs: the writer then lists again, and the reader drops its copy.

Keys, all in one hash slot: ``objects`` (hash, field → bytes), ``log`` (sorted set, field → sequence number of its last
change; deleted fields stay as tombstones until trimmed), ``meta`` (hash: generation, seq, floor, synced,
``rv:<kind>``).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import redis
import redis.asyncio

from engine.store.port import PREFIX, VALUE_LIMIT, text, translated

FIELDS_PER_WRITE = 500
BYTES_PER_WRITE = 4 * 1024 * 1024
_PAGE = 1000
_TOMBSTONES = 20_000

# ARGV: generation, synced ('' keeps, '0', '1'), tombstones kept, n watermarks, (kind, rv)*, (field, '1'|'0', bytes)*
_PUT = """
local objects, log, meta = KEYS[1], KEYS[2], KEYS[3]
if redis.call('HGET', meta, 'generation') ~= ARGV[1] then return -1 end
local marks = tonumber(ARGV[4])
local i = 5 + 2 * marks
if i <= #ARGV then
  local seq = redis.call('HINCRBY', meta, 'seq', 1)
  while i <= #ARGV do
    local field = ARGV[i]
    if ARGV[i + 1] == '1' then
      redis.call('HSET', objects, field, ARGV[i + 2])
      redis.call('ZADD', log, seq, field)
    elseif redis.call('HDEL', objects, field) == 1 then
      redis.call('ZADD', log, seq, field)
      redis.call('HINCRBY', meta, 'gone', 1)
    end
    i = i + 3
  end
end
for m = 0, marks - 1 do redis.call('HSET', meta, 'rv:' .. ARGV[5 + 2 * m], ARGV[6 + 2 * m]) end
if ARGV[2] ~= '' then redis.call('HSET', meta, 'synced', ARGV[2]) end
if tonumber(redis.call('HGET', meta, 'gone') or '0') > tonumber(ARGV[3]) then
  -- forget the tombstones; who has not seen them yet reads everything again
  local floor = tonumber(redis.call('HGET', meta, 'seq') or '0')
  for _, field in ipairs(redis.call('ZRANGE', log, 0, -1)) do
    if redis.call('HEXISTS', objects, field) == 0 then redis.call('ZREM', log, field) end
  end
  redis.call('HSET', meta, 'floor', floor, 'gone', 0)
end
return tonumber(redis.call('HGET', meta, 'seq') or '0')
"""

_BEGIN = """
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('HSET', KEYS[3], 'generation', ARGV[1], 'seq', 0, 'floor', 0, 'synced', '0')
return 1
"""


class Field(msgspec.Struct, frozen=True, order=True):
    """Names an object in the snapshot."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.api_version}|{self.kind}|{self.namespace}|{self.name}"


def field_of(name: str) -> Field:
    """The parts of a field's text; raises ValueError unless there are four."""
    api_version, kind, namespace, plain = name.split("|")
    return Field(api_version, kind, namespace, plain)


class Changes(msgspec.Struct, frozen=True):
    """Changes for a reader. With ``reset`` it first drops everything.

    ``watermarks`` gives, by ``apiVersion|kind[|namespace]``, the resourceVersion up to which the snapshot has seen
    everything. They are read before the objects, so the objects are at least as new. ``synced`` is False until a full
    list is in.
    """

    generation: str
    seq: int
    changed: dict[str, bytes | None]
    reset: bool
    synced: bool
    watermarks: dict[str, str]


def _keys(prefix: str, shard: str) -> list[str]:
    return [f"{prefix}:{{{shard}}}:{name}" for name in ("objects", "log", "meta")]


def _count(value: str | None) -> int:
    """A sequence number; 0 for anything else, so that the reader reads everything again."""
    return int(value) if value is not None and value.isascii() and value.isdecimal() and len(value) < 19 else 0


class SnapshotWriter:
    """The controller's side."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self._put = client.register_script(_PUT)
        self._begin = client.register_script(_BEGIN)

    async def begin(self, shard: str) -> str:
        """Start an empty, unsynced snapshot and return its generation; then list everything again."""
        generation = uuid.uuid4().hex
        with translated():
            await self._begin(keys=_keys(self._prefix, shard), args=[generation])
        return generation

    async def put(
        self,
        shard: str,
        generation: str,
        changed: Mapping[str, bytes | None],
        watermarks: Mapping[str, str] | None = None,
        synced: bool | None = None,
    ) -> bool:
        """Write changes, each slice atomically with its sequence number; watermarks and ``synced`` go with the last
        slice.

        None deletes. The caller checks values with ``fits``. Returns False when the snapshot was lost: ``begin`` again.
        """
        slices = _slices(changed)
        for index, part in enumerate(slices):
            last = index == len(slices) - 1
            arguments: list[Any] = [generation, "" if synced is None or not last else str(int(synced)), _TOMBSTONES]
            marks = dict(watermarks or {}) if last else {}
            arguments.append(len(marks))
            for kind, version in marks.items():
                arguments += [kind, version]
            for name, value in part:
                arguments += [name, "0" if value is None else "1", value or b""]
            with translated():
                if int(await self._put(keys=_keys(self._prefix, shard), args=arguments)) < 0:
                    return False
        return True


def fits(value: bytes) -> bool:
    """Whether a value may be stored."""
    return len(value) <= VALUE_LIMIT


def _slices(changed: Mapping[str, bytes | None]) -> list[list[tuple[str, bytes | None]]]:
    slices: list[list[tuple[str, bytes | None]]] = [[]]
    size = 0
    for name, value in changed.items():
        length = len(value or b"")
        if slices[-1] and (len(slices[-1]) >= FIELDS_PER_WRITE or size + length > BYTES_PER_WRITE):
            slices.append([])
            size = 0
        slices[-1].append((name, value))
        size += length
    return slices


class StoredSnapshots:
    """The worker's side; it keeps its position per shard."""

    def __init__(self, client: redis.Redis, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix
        self._cursor: dict[str, tuple[str, int]] = {}

    def changes(self, shard: str) -> Changes:
        """The changes since this reader's last call for the shard."""
        generation, after = self._cursor.get(shard, ("", 0))
        result = self.changes_after(shard, generation, after)
        self._cursor[shard] = (result.generation, result.seq)
        return result

    def forget(self, shard: str) -> None:
        """Read everything again at the next call."""
        self._cursor.pop(shard, None)

    def changes_after(self, shard: str, generation: str, after: int) -> Changes:
        """The changes after sequence number ``after`` of ``generation``; all objects, with ``reset``, if that is no
        longer known.
        """
        objects, log, meta = _keys(self._prefix, shard)
        for _ in range(3):
            with translated():
                state = self._meta(meta)
                now_generation = state.get("generation", "")
                seq = _count(state.get("seq"))
                reset = now_generation != generation or after < _count(state.get("floor")) or after > seq
                changed = self._read(objects, log, 0 if reset else after)
                if self._meta(meta).get("generation", "") != now_generation:
                    continue  # flushed or restarted during the read: the result is inconsistent
            if reset:
                changed = {name: value for name, value in changed.items() if value is not None}
            marks = {key[3:]: value for key, value in state.items() if key.startswith("rv:")}
            synced = bool(now_generation) and state.get("synced") == "1"
            return Changes(now_generation, seq, changed, reset, synced, marks)
        return Changes("", 0, {}, True, False, {})

    def _meta(self, key: str) -> dict[str, str]:
        reply = cast(dict[bytes, bytes], self._client.hgetall(key))
        return {text(name): text(value) for name, value in reply.items()}

    def _read(self, objects: str, log: str, after: int) -> dict[str, bytes | None]:
        # to the end, not to the sequence number just read, or a field that changed meanwhile would be missing
        changed: dict[str, bytes | None] = {}
        names = cast(list[bytes], self._client.zrangebyscore(log, f"({after}", "+inf"))
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            values = cast(list[bytes | None], self._client.hmget(objects, [text(name) for name in page]))
            changed.update(zip(map(text, page), values, strict=True))
        return changed
