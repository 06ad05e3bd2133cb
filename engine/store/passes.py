"""The last pass of each shard: its batches, their writes, and the outcome of every action.

The next pass uses it as its read-your-writes barrier. Losing it is safe: the snapshot is then lost too, and the next
one comes from a consistent list that is read after the loss.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import NamedTuple, TypeVar, cast

import msgspec

from belay.engine.store.keyring import Keyring
from belay.engine.store.news import leave_word
from belay.engine.store.port import PREFIX, text, translated
from belay.engine.store.redis_library import redis
from belay.engine.store.repair import heal

CONTROLLER_BEAT = "controller/"
"""Prefix of controllers' names in ``PassStore.alive``, before the shard."""
_KEEP_SECONDS = 3600
_OUTCOMES_LIMIT = 20_000
_Kind = TypeVar("_Kind")


class ObjectWrite(msgspec.Struct, frozen=True, array_like=True):
    """One written object: its new ``rv``, or ``deleted`` with the ``uid`` that is being deleted."""

    api_version: str
    kind: str
    namespace: str
    name: str
    rv: str
    uid: str = ""
    deleted: bool = False

    @property
    def field(self) -> str:
        """Its field in the snapshot."""
        return f"{self.api_version}|{self.kind}|{self.namespace}|{self.name}"


class ActionOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one action; ``index`` is its place in the plan."""

    index: int
    result: str
    """``done``, ``unchanged``, ``refused`` (a precondition no longer holds), ``failed`` or ``dropped`` (late or
    superseded).
    """
    message: str = ""
    cause: str = ""
    """Why the API server refuses the object itself (``RefusalCause``); empty where it does not."""


class BatchResult(msgspec.Struct, frozen=True):
    """The writes and outcomes of one batch."""

    batch: int
    writes: list[ObjectWrite] = []
    outcomes: list[ActionOutcome] = []
    pass_id: str = ""


class PassRecord(msgspec.Struct, frozen=True):
    """A pass that sent batches to ``act``. ``expires`` in Unix seconds: no batch starts after it.

    ``pods_version`` is the resourceVersion up to which the pass had seen the pods; empty when unknown.
    """

    pass_id: str
    shard: str
    epoch: int
    digest: str
    batches: int
    started: float
    expires: float
    generation: str = ""
    pods_version: str = ""


class PassState(msgspec.Struct, frozen=True):
    """The last pass, as far as it is known."""

    record: PassRecord
    results: list[BatchResult]
    beat: float = 0.0
    """The last heartbeat of its batches, or when the pass began (Unix seconds)."""

    @property
    def finished(self) -> bool:
        """Whether every batch has a result."""
        return {result.batch for result in self._own} >= set(range(self.record.batches))

    @property
    def writes(self) -> list[ObjectWrite]:
        return [write for result in self.results for write in result.writes]

    @property
    def outcomes(self) -> list[ActionOutcome]:
        found: dict[int, ActionOutcome] = {}
        for outcome in (outcome for result in self._own for outcome in result.outcomes):
            if outcome.index not in found or outcome.result != "dropped":  # a repeated task that was dropped
                found[outcome.index] = outcome
        return [found[index] for index in sorted(found)]

    @property
    def _own(self) -> list[BatchResult]:
        return [result for result in self.results if result.pass_id == self.record.pass_id]


class Requests(NamedTuple):
    """What others requested from a shard's controller: to fetch the repository, to list everything again."""

    fetch: bool
    relist: bool


def _purpose(kind: type[object], shard: str) -> str:
    """What the seal of a record of a shard is for."""
    return f"{kind.__name__}/{shard}"


def _number(value: bytes | None) -> float:
    """A number decoded; 0 for anything else."""
    try:
        number = float(value or 0.0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


class PassStore:
    """The records; every method may raise StoreUnavailable.

    Records and results are sealed with ``keys``: one whose seal is not right counts as lost.
    """

    def __init__(self, client: redis.Redis, prefix: str = PREFIX, keys: Keyring | None = None) -> None:
        self._client = client
        self._prefix = prefix
        self._keys = keys or Keyring()

    def start(self, record: PassRecord) -> None:
        """Record a pass before its batches are sent; it replaces the one before."""
        key = self._key(record.shard)
        with translated(), self._client.pipeline(transaction=True) as pipe:
            pipe.delete(key)
            pipe.hset(key, "record", self._sealed(record.shard, record))
            pipe.expire(key, _KEEP_SECONDS)
            pipe.execute()

    def amend(self, record: PassRecord, batches: int) -> None:
        """Set how many results a pass will have: its own, and one per batch."""
        value = self._sealed(record.shard, msgspec.structs.replace(record, batches=batches))
        with translated():
            self._client.hset(self._key(record.shard), "record", value)

    def current(self, shard: str) -> PassRecord | None:
        """The record of the last pass alone."""
        with translated():
            found = cast(bytes | None, self._client.hget(self._key(shard), "record"))
        return None if found is None else self._read(shard, found, PassRecord)

    def carried_out(self, record: PassRecord, batch: int) -> bool:
        """Whether a result of this batch of the pass is recorded."""
        with translated():
            return bool(self._client.hexists(self._key(record.shard), f"done:{record.pass_id}:{batch}"))

    def finish(self, record: PassRecord, result: BatchResult) -> None:
        """Record the result of a batch. A batch that ran twice is recorded twice, and both writes count.

        A result that comes after a newer pass began is kept with that pass for its writes only.
        """
        if len(result.outcomes) > _OUTCOMES_LIMIT:
            result = msgspec.structs.replace(result, outcomes=result.outcomes[:_OUTCOMES_LIMIT])
        key, name = self._key(record.shard), f"batch:{uuid.uuid4().hex}"
        value = self._sealed(record.shard, msgspec.structs.replace(result, pass_id=record.pass_id))
        with translated(), self._client.pipeline(transaction=True) as pipe:
            pipe.hset(key, name, value)
            pipe.hset(key, f"done:{record.pass_id}:{result.batch}", "1")
            pipe.expire(key, _KEEP_SECONDS)
            pipe.execute()

    def state(self, shard: str) -> PassState | None:
        """The last pass and the known state of its batches; None when nothing is recorded (or all was lost)."""
        with translated():
            reply = cast(dict[bytes, bytes], self._client.hgetall(self._key(shard)))
        found = {text(name): value for name, value in reply.items()}
        record = found.pop("record", None)
        if record is None:
            return None
        read = self._read(shard, record, PassRecord)
        if read is None:
            return None
        beat = max(read.started, _number(found.get(f"beat:{read.pass_id}")))
        batches = [
            self._read(shard, value, BatchResult) for name, value in sorted(found.items()) if name.startswith("batch:")
        ]
        return PassState(read, [batch for batch in batches if batch is not None], beat)

    def batch_heartbeat(self, record: PassRecord) -> None:
        """Write a heartbeat of a running batch."""
        with translated():
            self._client.hset(self._key(record.shard), f"beat:{record.pass_id}", repr(self.now()))

    def now(self) -> float:
        """Redis' clock in Unix seconds, by which messages expire, so that machines need not agree on the time."""
        with translated():
            seconds, micros = self._client.time()
        return seconds + micros / 1_000_000

    def clear(self, shard: str) -> None:
        """Forget the last pass: all it wrote has been seen."""
        with translated():
            self._client.delete(self._key(shard))

    # requests to the controller

    def ask_relist(self, shard: str) -> None:
        """Request a fresh consistent list from the controller: a batch ended without a result."""
        self._ask(shard, "relist")

    def ask_fetch(self, shard: str) -> None:
        """Request a fetch from the controller: a webhook was called. If a flush loses the request, the next poll finds
        the revision.
        """
        self._ask(shard, "fetch")

    def _ask(self, shard: str, what: str) -> None:
        with translated(), self._client.pipeline(transaction=False) as pipe:
            pipe.set(f"{self._prefix}:{{{shard}}}:{what}", "1", ex=_KEEP_SECONDS)
            leave_word(pipe, shard, self._prefix)
            pipe.execute()

    def take_requests(self, shard: str) -> Requests:
        """What was requested since the last call."""
        start = f"{self._prefix}:{{{shard}}}"
        with translated(), self._client.pipeline(transaction=False) as pipe:
            pipe.delete(f"{start}:fetch")
            pipe.delete(f"{start}:relist")
            fetch, relist = pipe.execute()
        return Requests(bool(fetch), bool(relist))

    # metrics

    def put_summary(self, shard: str, summary: bytes) -> None:
        """Store the summary of the last pass for /metrics."""
        with translated():
            self._client.hset(f"{self._prefix}:summaries", shard, summary)

    def summaries(self) -> dict[str, bytes]:
        """The summary of each shard's last pass."""
        with translated():
            found = cast(dict[bytes, bytes], self._client.hgetall(f"{self._prefix}:summaries"))
        return {text(shard): value for shard, value in found.items()}

    def count(self, numbers: Mapping[str, int]) -> None:
        """Add to counters (name → number); see ``belay.engine.metrics.counters``."""
        with translated(), self._client.pipeline(transaction=False) as pipe:
            for name, number in numbers.items():
                pipe.hincrby(f"{self._prefix}:counters", name, number)
            pipe.execute()

    def counters(self) -> dict[str, int]:
        """All counters; a flush resets them, as a restart would."""
        with translated():
            found = cast(dict[bytes, bytes], self._client.hgetall(f"{self._prefix}:counters"))
        return {text(name): int(_number(value)) for name, value in found.items()}

    # heartbeats

    def beat(self, name: str, now: float, ttl: float = 30.0) -> None:
        """Write the heartbeat of a process; it expires after ``ttl`` seconds."""
        with translated():
            self._client.set(f"{self._prefix}:alive:{name}", repr(now), px=int(ttl * 1000))

    def alive(self) -> dict[str, float]:
        """The heartbeats by process, in Unix seconds."""
        found: dict[str, float] = {}
        start = f"{self._prefix}:alive:"
        with translated():
            for key in self._client.scan_iter(match=f"{start}*", count=500):
                value = cast(bytes | None, self._client.get(key))
                if value is not None:
                    found[text(key)[len(start) :]] = _number(value)
        return found

    def heal(self) -> None:
        """Delete keys of a wrong type, if a command met one; never raises."""
        heal(self._client, self._prefix)

    def _key(self, shard: str) -> str:
        return f"{self._prefix}:{{{shard}}}:pass"

    def _sealed(self, shard: str, value: PassRecord | BatchResult) -> str:
        return self._keys.wrap(_purpose(type(value), shard), msgspec.json.encode(value).decode())

    def _read(self, shard: str, value: bytes, kind: type[_Kind]) -> _Kind | None:
        """A record decoded; None for anything else, which counts as lost."""
        found = self._keys.unwrap(_purpose(kind, shard), text(value))
        try:
            return None if found is None else msgspec.json.decode(found, type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
