"""The files of the revision in force, for workers. Each blob is stored once, even if several revisions hold it.

Keys: ``blobs`` (hash, blob id → bytes), ``blobs:used`` (sorted set, blob id → when last used), ``revision:<sha>``
(hash, path → blob id), ``<shard>:revision`` (the one in force). After a loss the revision is put
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from belay.engine.model.wording import counted
from belay.engine.store.keyring import Keyring
from belay.engine.store.port import PREFIX, VALUE_LIMIT, ValueTooLarge, text, translated
from belay.engine.store.redis_library import redis

KEEP_SECONDS = 3600
"""Seconds for which files are kept after the last put."""
_BATCH = 1000


class RevisionRecord(msgspec.Struct, frozen=True):
    """The revision in force: a commit, the blob ids of its files, and the source's findings (JSON)."""

    sha: str
    files: dict[str, str] = {}
    meta: dict[str, Any] = {}


class RevisionWriter:
    """Writes the revision in force and its blobs to Redis; the controller's side."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str = PREFIX, keys: Keyring | None = None) -> None:
        self._client = client
        self._prefix = prefix
        self._keys = keys or Keyring()

    async def put_revision(
        self,
        shard: str,
        sha: str,
        files: Mapping[str, str],
        blobs: Mapping[str, bytes],
        *,
        now: float,
        meta: Mapping[str, Any] | None = None,
        keep: Iterable[str] = (),
    ) -> set[str]:
        """Put a revision in force; returns the ids of blobs that Redis lacks.

        ``blobs`` may hold only the new ones. While any is missing the revision in force stays as it was: put again with
        those blobs. ``keep`` names further blobs to keep (older good versions of broken files); a missing one of them
        holds nothing up. ``now`` in unix seconds. Raises ValueTooLarge for a blob beyond 3 MiB.
        """
        for name, content in blobs.items():
            if len(content) > VALUE_LIMIT:
                raise ValueTooLarge(f"blob {name} has {len(content)} bytes; at most {VALUE_LIMIT} are stored")
        wanted = set(files.values())
        with translated():
            await self._put_blobs(blobs, wanted | set(keep), now)
            missing = await self._missing(wanted | set(keep))
            if not missing & wanted:
                await self._point(shard, sha, files, dict(meta or {}))
        return missing

    async def expire(self, now: float, keep: float = KEEP_SECONDS) -> int:
        """Drop blobs that no revision put within ``keep`` seconds used; returns how many."""
        with translated():
            old = await self._client.zrangebyscore(self._used, "-inf", now - keep)
            for part in _parts(list(old)):
                async with self._client.pipeline(transaction=True) as pipe:
                    pipe.hdel(self._blobs, *part)
                    pipe.zrem(self._used, *part)
                    await pipe.execute()
        return len(old)

    async def _put_blobs(self, blobs: Mapping[str, bytes], wanted: set[str], now: float) -> None:
        for part in _parts(sorted(blobs)):
            async with self._client.pipeline(transaction=False) as pipe:
                for name in part:
                    pipe.hsetnx(self._blobs, name, self._keys.wrap_bytes(f"blob/{name}", blobs[name]))
                await pipe.execute()
        for part in _parts(sorted(wanted | set(blobs))):
            await self._client.zadd(self._used, dict.fromkeys(part, now))

    async def _missing(self, wanted: set[str]) -> set[str]:
        missing: set[str] = set()
        for part in _parts(sorted(wanted)):
            async with self._client.pipeline(transaction=False) as pipe:
                for name in part:
                    pipe.hexists(self._blobs, name)
                there = await pipe.execute()
            missing.update(name for name, has in zip(part, there, strict=True) if not has)
        return missing

    async def _point(self, shard: str, sha: str, files: Mapping[str, str], meta: dict[str, Any]) -> None:
        key = f"{self._prefix}:revision:{sha}"
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.delete(key)
            for part in _parts(sorted(files)):
                pipe.hset(key, mapping={path: files[path] for path in part})
            pipe.expire(key, 2 * KEEP_SECONDS)
            pointer = msgspec.json.encode(_Pointer(sha, meta, len(files), _digest(files)))
            pipe.set(_current(self._prefix, shard), self._keys.wrap_bytes(f"revision/{shard}", pointer))
            await pipe.execute()

    @property
    def _blobs(self) -> str:
        return f"{self._prefix}:blobs"

    @property
    def _used(self) -> str:
        return f"{self._prefix}:blobs:used"


class StoredRevisions:
    """The worker's side. What ``keys`` did not seal counts as lost and is noted in ``damaged``."""

    def __init__(self, client: redis.Redis, prefix: str = PREFIX, keys: Keyring | None = None) -> None:
        self._client = client
        self._prefix = prefix
        self._keys = keys or Keyring()
        self.damaged = ""
        """What had no right seal, for a message; empty after nothing."""

    def current(self, shard: str) -> RevisionRecord | None:
        """The revision in force with its files; None when none is known, or when Redis lost part of it."""
        with translated():
            pointer = cast(bytes | None, self._client.get(_current(self._prefix, shard)))
            if pointer is None:
                return None
            in_force = self._pointer(shard, pointer)
            if in_force is None:
                return None
            found = cast(dict[bytes, bytes], self._client.hgetall(f"{self._prefix}:revision:{in_force.sha}"))
        files = {text(path): text(blob) for path, blob in found.items()}
        if len(files) != in_force.count:
            return None
        if in_force.digest and _digest(files) != in_force.digest:
            self.damaged = f"the files of revision {in_force.sha[:12]}"
            return None
        return RevisionRecord(in_force.sha, files, in_force.meta)

    def blobs(self, ids: Iterable[str]) -> dict[str, bytes]:
        """The contents of the blobs that Redis has; the controller will put missing ones again."""
        found: dict[str, bytes] = {}
        for part in _parts(sorted(set(ids))):
            with translated():
                values = cast(list[bytes | None], self._client.hmget(f"{self._prefix}:blobs", part))
            found.update({name: value for name, value in zip(part, values, strict=True) if value is not None})
        opened = {name: self._keys.unwrap_bytes(f"blob/{name}", value) for name, value in found.items()}
        wrong = [name for name, content in opened.items() if content is None]
        if wrong:  # the controller writes only what is not there
            self.damaged = counted(len(wrong), "file")
            with translated():
                self._client.hdel(f"{self._prefix}:blobs", *wrong)
        return {name: content for name, content in opened.items() if content is not None}

    def _pointer(self, shard: str, value: bytes) -> _Pointer | None:
        """The pointer decoded; None for anything else, which counts as lost."""
        plain = self._keys.unwrap_bytes(f"revision/{shard}", value)
        if plain is None:
            self.damaged = "the revision in force"
            return None
        try:
            return msgspec.json.decode(plain, type=_Pointer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


class _Pointer(msgspec.Struct, frozen=True):
    """The revision in force: its commit, the source's findings, its number of files and their digest."""

    sha: str
    meta: dict[str, Any]
    count: int
    digest: str = ""


def _digest(files: Mapping[str, str]) -> str:
    """SHA-256 over paths and blob ids."""
    return hashlib.sha256(msgspec.json.encode(sorted(files.items()))).hexdigest()


def _current(prefix: str, shard: str) -> str:
    return f"{prefix}:{{{shard}}}:revision"


def _parts(items: list[Any]) -> list[list[Any]]:
    return [items[start : start + _BATCH] for start in range(0, len(items), _BATCH)]
