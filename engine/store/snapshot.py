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
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from belay.engine.store.keyring import Keyring
from belay.engine.store.port import PREFIX, VALUE_LIMIT, text, translated
from belay.engine.store.redis_library import redis
from belay.engine.store.snapshot_seal import SEAL, SnapshotSeal

FIELDS_PER_WRITE = 500
BYTES_PER_WRITE = 1024 * 1024
_PAGE = 1000
_TOMBSTONES = 20_000
_READS = 8
"""Most reads in a row while the controller writes."""
_GENERATIONS = 64
"""Most generations that a reader remembers to have left."""

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


_NOTHING = Changes("", 0, {}, True, False, {})
"""No snapshot: lost, or not to be believed."""


def _keys(prefix: str, shard: str) -> list[str]:
    return [f"{prefix}:{{{shard}}}:{name}" for name in ("objects", "log", "meta")]


def _count(value: str | None) -> int:
    """A sequence number; 0 for anything else, so that the reader reads everything again."""
    return int(value) if value is not None and value.isascii() and value.isdecimal() and len(value) < 19 else 0


class _Written:
    """What the writer knows of a snapshot, to seal it."""

    def __init__(self, seal: SnapshotSeal | None) -> None:
        self.seal = seal
        self.seq = 0
        self.synced = False
        self.watermarks: dict[str, str] = {}


class SnapshotWriter:
    """Writes the snapshot of one shard to Redis; the controller's side."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str = PREFIX, keys: Keyring | None = None) -> None:
        self._prefix = prefix
        self._keys = keys or Keyring()
        self._written: dict[str, _Written] = {}
        self._put = client.register_script(_PUT)
        self._begin = client.register_script(_BEGIN)

    async def begin(self, shard: str) -> str:
        """Start an empty, unsynced snapshot and return its generation; then list everything again."""
        generation = uuid.uuid4().hex
        with translated():
            await self._begin(keys=_keys(self._prefix, shard), args=[generation])
        key = self._keys.signing
        self._written[shard] = _Written(SnapshotSeal(key, shard, generation) if key is not None else None)
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
        written = self._written.get(shard) or _Written(None)
        if written.seal is not None and (
            written.seal.generation != generation or self._keys.signing != written.seal.key
        ):
            return False  # another key signs now: the snapshot is sealed again from its beginning
        for index, part in enumerate(slices):
            last = index == len(slices) - 1
            arguments: list[Any] = [generation, "" if synced is None or not last else str(int(synced)), _TOMBSTONES]
            marks = dict(watermarks or {}) if last else {}
            if written.seal is not None:
                marks[SEAL] = _sealed(written, part, marks, synced if last else None)
            arguments.append(len(marks))
            for kind, version in marks.items():
                arguments += [kind, version]
            for name, value in part:
                arguments += [name, "0" if value is None else "1", value or b""]
            with translated():
                if int(await self._put(keys=_keys(self._prefix, shard), args=arguments)) < 0:
                    return False
        return True


def _sealed(
    written: _Written, part: list[tuple[str, bytes | None]], marks: Mapping[str, str], synced: bool | None
) -> str:
    """The seal of the snapshot as it will be after this write."""
    assert written.seal is not None
    written.seal.put(dict(part))
    written.seq += bool(part)
    written.watermarks |= marks
    written.synced = written.synced if synced is None else synced
    return written.seal.text(written.seq, written.synced, written.watermarks)


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
    """The worker's side; it keeps its position per shard.

    With ``keys`` a complete snapshot must bear the seal of one of them, and never goes back to what this reader has
    left; otherwise it counts as lost and is noted in ``damaged``.
    """

    def __init__(self, client: redis.Redis, prefix: str = PREFIX, keys: Keyring | None = None) -> None:
        self._client = client
        self._prefix = prefix
        self._keys = keys or Keyring()
        self._cursor: dict[str, tuple[str, int]] = {}
        self._seals: dict[str, SnapshotSeal] = {}
        self._newest: dict[str, tuple[str, int]] = {}
        self._left: dict[str, deque[str]] = {}
        self._refused: dict[str, tuple[str, str]] = {}
        self.damaged: dict[str, str] = {}
        """Shard → why its snapshot counts as lost."""

    def changes(self, shard: str) -> Changes:
        """The changes since this reader's last call for the shard."""
        if self._keys.signing is None:
            result = self.changes_after(shard, *self._cursor.get(shard, ("", 0)))
        elif self._still_refused(shard):
            return _NOTHING
        else:  # without the tags of the copy, changes alone cannot be checked
            known = self._cursor.get(shard, ("", 0)) if shard in self._seals else ("", 0)
            result = self._verified(shard, self.changes_after(shard, *known))
        self._cursor[shard] = (result.generation, result.seq)
        result.watermarks.pop(SEAL, None)
        return result

    def forget(self, shard: str) -> None:
        """Read everything again at the next call."""
        self._cursor.pop(shard, None)

    def _verified(self, shard: str, result: Changes) -> Changes:
        """The changes, read on until they agree with their seal; while the controller writes on, unsynced."""
        changed, reset = dict(result.changed), result.reset
        for _ in range(_READS):
            if why := self._goes_back(shard, result):
                return self._lost(shard, why, result)
            if result.reset:
                changed, reset = dict(result.changed), True
                self._seals.pop(shard, None)
            changed |= result.changed
            told = result.watermarks.get(SEAL, "")
            seal = self._seals.get(shard)
            if seal is None and (key := self._keys.named(told[:8])) is not None:
                seal = self._seals[shard] = SnapshotSeal(key, shard, result.generation)
                seal.put(changed)
            elif seal is not None:
                seal.put(result.changed)
            whole = msgspec.structs.replace(result, changed=changed, reset=reset)
            if not result.synced:
                return whole  # nothing is concluded from it yet
            if seal is not None and seal.holds(told, result.seq, True, result.watermarks):
                self._newest[shard] = (result.generation, result.seq)
                return whole
            if self._rests(shard, result):
                return self._lost(shard, "no key of BELAY_BATCH_KEY_FILE sealed the snapshot as it is", result)
            result = self.changes_after(shard, result.generation, result.seq)
        return msgspec.structs.replace(whole, synced=False)

    def _rests(self, shard: str, result: Changes) -> bool:
        """Whether the controller has written nothing since these changes were read."""
        with translated():
            state = self._meta(_keys(self._prefix, shard)[2])
        same = state.get("generation", "") == result.generation and _count(state.get("seq")) == result.seq
        return same and state.get(f"rv:{SEAL}", "") == result.watermarks.get(SEAL, "")

    def _still_refused(self, shard: str) -> bool:
        """Whether the snapshot is the one refused before: it is not read again until the controller writes."""
        refused = self._refused.get(shard)
        if refused is None:
            return False
        with translated():
            state = self._meta(_keys(self._prefix, shard)[2])
        if (state.get("generation", ""), state.get(f"rv:{SEAL}", "")) == refused:
            return True
        del self._refused[shard]
        return False

    def _goes_back(self, shard: str, result: Changes) -> str:
        """Why this is older than what was read before; empty when it is not."""
        generation, seq = self._newest.get(shard, ("", 0))
        left = self._left.setdefault(shard, deque(maxlen=_GENERATIONS))
        if generation and result.generation and result.generation != generation and generation not in left:
            left.append(generation)
        if result.generation in left:
            return "the snapshot is an earlier generation"
        if result.generation == generation and result.seq < seq:
            return f"the snapshot went back from {seq} to {result.seq}"
        return ""

    def _lost(self, shard: str, why: str, result: Changes) -> Changes:
        self.damaged[shard] = why
        self._refused[shard] = result.generation, result.watermarks.get(SEAL, "")
        self._seals.pop(shard, None)
        self._cursor.pop(shard, None)
        return _NOTHING

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
        return _NOTHING

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
