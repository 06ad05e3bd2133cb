"""Which shards need a pass: a dirty/busy queue in Redis, with the meaning of client-go's workqueue.

A trigger is only a key. A mark while the shard is busy means exactly one more run. No mark is lost: the claim of a dead
worker expires and counts as a mark, and a lost message is sent again. A repeated message finds nothing to claim. All
times are by Redis' clock. Only commands of Redis 6.2.
"""

from __future__ import annotations

from typing import Any, cast

from belay.engine.store.news import KEPT_SECONDS
from belay.engine.store.port import translated
from belay.engine.store.redis_library import redis

# The state of a shard, shared by the scripts, in keys of one hash slot:
#   dirty  sorted set  shard -> when it is due (ms)
#   busy   hash        shard -> "<epoch>:<until ms>:<owner>"
#   sent   hash        shard -> when a message for it was last sent (ms)
#   <shard>:news  list  a word for the shard's controller, which waits for it (engine/store/news.py)
_HEAD = """
local dirty, busy, sent, epochs = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function holder(shard)
  local text = redis.call('HGET', busy, shard)
  if not text then return nil end
  local epoch, untilms, owner = string.match(text, '^(%d+):(%d+):(.*)$')
  if not epoch then  -- not written by us: the shard counts as marked
    redis.call('HDEL', busy, shard)
    redis.call('ZADD', dirty, 'LT', now, shard)
    return nil
  end
  return {epoch = tonumber(epoch), untilms = tonumber(untilms), owner = owner}
end
local function recover(shard)  -- a claim that ran out is a mark: its run may have died half way
  local held = holder(shard)
  if held and held.untilms <= now then
    redis.call('HDEL', busy, shard)
    redis.call('ZADD', dirty, 'LT', now, shard)
    return nil
  end
  return held
end
local function due(shard)
  local at = redis.call('ZSCORE', dirty, shard)
  return at and tonumber(at) <= now
end
local function wake(shard)  -- a list that is none is the repair's affair: it must not stop a mark
  local news = string.sub(dirty, 1, -6) .. shard .. ':news'
  if redis.pcall('LLEN', news) == 0 then
    redis.call('LPUSH', news, '1')
    redis.call('EXPIRE', news, KEPT_SECONDS)
  end
end
""".replace("KEPT_SECONDS", str(KEPT_SECONDS))

_MARK = """
local shard, at = ARGV[1], tonumber(ARGV[2])
if at == 0 then at = now end
redis.call('ZADD', dirty, 'LT', at, shard)
if at <= now then redis.call('HDEL', sent, shard) end
wake(shard)
return 1
"""

_READY = """
local again, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local out, soonest = {-1}, nil
local function expect(at)  -- when another look is worth it
  if not soonest or at < soonest then soonest = at end
end
for _, shard in ipairs(redis.call('HKEYS', busy)) do
  local held = recover(shard)
  if held then expect(held.untilms) end
end
for _, shard in ipairs(redis.call('ZRANGEBYSCORE', dirty, '-inf', now)) do
  if #out > limit then
    expect(now)
    break
  end
  local last = tonumber(redis.call('HGET', sent, shard) or '0') or 0
  if not holder(shard) then
    if last + again <= now then
      last = now
      redis.call('HSET', sent, shard, now)
      out[#out + 1] = shard
    end
    expect(last + again)
  end
end
local first = redis.call('ZRANGEBYSCORE', dirty, '(' .. string.format('%d', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if first[2] then expect(tonumber(first[2])) end
if soonest then out[1] = math.max(0, math.ceil(soonest - now)) end
return out
"""

_CLAIM = """
local shard, owner, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
if recover(shard) or not due(shard) then return false end
redis.call('ZREM', dirty, shard)
redis.call('HDEL', sent, shard)
local epoch = redis.pcall('HINCRBY', epochs, shard, 1)
if type(epoch) ~= 'number' then  -- no number, or the largest one: go on from the clock, which is beyond any count
  epoch = now
  redis.call('HSET', epochs, shard, string.format('%d', epoch))
end
redis.call('HSET', busy, shard, string.format('%d:%d:%s', epoch, now + ttl, owner))
return epoch
"""

_EXTEND = """
local shard, owner, epoch, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local held = holder(shard)
if not held or held.epoch ~= epoch or held.owner ~= owner then return 0 end
redis.call('HSET', busy, shard, string.format('%d:%d:%s', epoch, now + ttl, owner))
return 1
"""

_DONE = """
local shard, owner, epoch = ARGV[1], ARGV[2], tonumber(ARGV[3])
local held = holder(shard)
if held and held.epoch == epoch and held.owner == owner then redis.call('HDEL', busy, shard) end
if holder(shard) or not due(shard) then return 0 end
redis.call('HDEL', sent, shard)
wake(shard)
return 1
"""

_FREE = """
local owner, freed = ARGV[1], 0
for _, shard in ipairs(redis.call('HKEYS', busy)) do
  local held = holder(shard)
  if held and (held.owner == owner or owner == '') then
    redis.call('HDEL', busy, shard)
    redis.call('ZADD', dirty, 'LT', now, shard)
    redis.call('HDEL', sent, shard)
    wake(shard)
    freed = freed + 1
  end
end
return freed
"""


class Triggers:
    """The queue of shards. Every method may raise StoreUnavailable; after a flush of Redis the queue is empty."""

    def __init__(self, client: redis.Redis, prefix: str = "belay") -> None:
        self._client = client
        self._keys = [f"{prefix}:{{triggers}}:{name}" for name in ("dirty", "busy", "sent", "epochs")]
        self._mark, self._ready, self._claim, self._extend, self._done, self._free = (
            client.register_script(_HEAD + body) for body in (_MARK, _READY, _CLAIM, _EXTEND, _DONE, _FREE)
        )

    def mark(self, shard: str, at: float | None = None) -> None:
        """Request a run of ``shard`` now, or at ``at`` (Unix seconds). The earliest of several marks counts."""
        self._run(self._mark, shard, 0 if at is None else max(1, int(at * 1000)))

    def ready(self, *, again: float = 5.0, limit: int = 1000) -> list[str]:
        """Shards that are due and not claimed: send a message for each.

        A shard is returned again only after ``again`` seconds, in case its message was lost.
        """
        return self.look(again=again, limit=limit)[0]

    def look(self, *, again: float = 5.0, limit: int = 1000) -> tuple[list[str], float | None]:
        """What ``ready`` returns, and the seconds until there may be more; None if nothing waits.

        That is when a later mark is due, a message is sent again or a claim ends.
        """
        soonest, *due = cast(list[Any], self._run(self._ready, int(again * 1000), limit))
        later = int(soonest)
        return [_text(shard) for shard in due], later / 1000 if later >= 0 else None

    def claim(self, shard: str, owner: str, ttl: float) -> int | None:
        """Begin a run: its epoch, or None when the shard is claimed or not due.

        Without ``extend`` the claim expires after ``ttl`` seconds, and the shard is due again.
        """
        epoch = self._run(self._claim, shard, owner, int(ttl * 1000))
        return None if epoch is None else int(cast(int, epoch))

    def extend(self, shard: str, owner: str, epoch: int, ttl: float) -> bool:
        """Extend a claim to ``ttl`` seconds from now; False when it is no longer ours: stop."""
        return bool(self._run(self._extend, shard, owner, epoch, int(ttl * 1000)))

    def done(self, shard: str, owner: str, epoch: int) -> bool:
        """End a run; True when the shard was marked meanwhile and must run again now."""
        return bool(self._run(self._done, shard, owner, epoch))

    def free(self, owner: str = "") -> int:
        """Drop the claims of ``owner`` (all claims if empty) and mark their shards. Returns how many."""
        return int(cast(int, self._run(self._free, owner)))

    def ask_owners(self, pipe: Any) -> None:
        """Add to a pipeline the question who has claims; ``owners_in`` reads the answer."""
        pipe.hvals(self._keys[1])

    @staticmethod
    def owners_in(answer: Any) -> set[str]:
        """The identities of the workers that have claims."""
        parts = [_text(value).split(":", 2) for value in answer]
        return {part[2] for part in parts if len(part) == 3}

    def _run(self, script: Any, *arguments: object) -> object:
        with translated():
            return cast(object, script(keys=self._keys, args=list(arguments)))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
