"""What the last pass of each shard set in motion: its batches, what they wrote, and what became of every action.

The next pass reads it as its read-your-writes barrier. Losing it is safe: the snapshot is then lost too, and the next
one comes from a consistent list that was read after the loss.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import cast

import msgspec
import redis

from engine.store.port import PREFIX, text, translated

CONTROLLER_BEAT = "controller/"
"""What the names of controllers begin with in ``PassStore.alive``; the shard follows."""
_KEEP_SECONDS = 3600
_OUTCOMES_LIMIT = 20_000


class Write(msgspec.Struct, frozen=True, array_like=True):
    """One object that was written: its new ``rv``, or ``deleted`` with the ``uid`` that is to vanish."""

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
    """What became of one action of the plan; ``index`` is its place there."""

    index: int
    result: str
    """``done``, ``unchanged``, ``refused`` (a precondition no longer holds), ``failed`` or ``dropped`` (late or
    superseded).
    """
    message: str = ""


class BatchResult(msgspec.Struct, frozen=True):
    """What one batch did."""

    batch: int
    writes: list[Write] = []
    outcomes: list[ActionOutcome] = []
    pass_id: str = ""


class PassRecord(msgspec.Struct, frozen=True):
    """A pass that sent batches to ``act``. ``expires`` in unix seconds: afterwards no batch of it starts any more.

    ``pods_version`` is the resourceVersion up to which the pass had seen the pods; empty when that is not known.
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
    """The last pass as far as it is known."""

    record: PassRecord
    results: list[BatchResult]
    beat: float = 0.0
    """When a batch of it last gave a sign of life (unix seconds), at least when the pass began."""

    @property
    def finished(self) -> bool:
        """Whether every batch said what it did."""
        return {result.batch for result in self._own} >= set(range(self.record.batches))

    @property
    def writes(self) -> list[Write]:
        return [write for result in self.results for write in result.writes]

    @property
    def outcomes(self) -> list[ActionOutcome]:
        found: dict[int, ActionOutcome] = {}
        for outcome in (outcome for result in self._own for outcome in result.outcomes):
            if outcome.index not in found or outcome.result != "dropped":  # a doubled, dropped task says nothing
                found[outcome.index] = outcome
        return [found[index] for index in sorted(found)]

    @property
    def _own(self) -> list[BatchResult]:
        return [result for result in self.results if result.pass_id == self.record.pass_id]


class PassStore:
    """The records; every method may raise StoreUnavailable."""

    def __init__(self, client: redis.Redis, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix

    def start(self, record: PassRecord) -> None:
        """Record a pass before its batches are sent; it replaces the one before."""
        key = self._key(record.shard)
        with translated(), self._client.pipeline(transaction=True) as pipe:
            pipe.delete(key)
            pipe.hset(key, "record", msgspec.json.encode(record).decode())
            pipe.expire(key, _KEEP_SECONDS)
            pipe.execute()

    def amend(self, record: PassRecord, batches: int) -> None:
        """Say how many accounts a pass will give in the end (its own and one per batch)."""
        text = msgspec.json.encode(msgspec.structs.replace(record, batches=batches)).decode()
        with translated():
            self._client.hset(self._key(record.shard), "record", text)

    def current(self, shard: str) -> PassRecord | None:
        """The record of the last pass alone."""
        with translated():
            found = cast(bytes | None, self._client.hget(self._key(shard), "record"))
        return None if found is None else msgspec.json.decode(found, type=PassRecord)

    def finish(self, record: PassRecord, result: BatchResult) -> None:
        """Record what a batch did. A batch that ran twice is recorded twice, and its writes count both times.

        Batch -1 holds writes of the pass itself. A result that comes after a newer pass began is kept with that one for
        its writes alone.
        """
        if len(result.outcomes) > _OUTCOMES_LIMIT:
            result = msgspec.structs.replace(result, outcomes=result.outcomes[:_OUTCOMES_LIMIT])
        key, name = self._key(record.shard), f"batch:{uuid.uuid4().hex}"
        value = msgspec.json.encode(msgspec.structs.replace(result, pass_id=record.pass_id))
        with translated(), self._client.pipeline(transaction=True) as pipe:
            pipe.hset(key, name, value.decode())
            pipe.expire(key, _KEEP_SECONDS)
            pipe.execute()

    def state(self, shard: str) -> PassState | None:
        """The last pass and what is known of its batches; None when nothing is recorded (or all was lost)."""
        with translated():
            reply = cast(dict[bytes, bytes], self._client.hgetall(self._key(shard)))
        found = {text(name): value for name, value in reply.items()}
        record = found.pop("record", None)
        if record is None:
            return None
        read = msgspec.json.decode(record, type=PassRecord)
        beat = max(read.started, float(found.get(f"beat:{read.pass_id}") or 0.0))
        batches = [value for name, value in sorted(found.items()) if name.startswith("batch:")]
        return PassState(read, [msgspec.json.decode(value, type=BatchResult) for value in batches], beat)

    def pulse(self, record: PassRecord) -> None:
        """Say that a batch of the pass is being worked on."""
        with translated():
            self._client.hset(self._key(record.shard), f"beat:{record.pass_id}", repr(self.now()))

    def now(self) -> float:
        """Redis' own clock in unix seconds: what messages expire by, so that machines need not agree on the time."""
        with translated():
            seconds, micros = self._client.time()
        return seconds + micros / 1_000_000

    def clear(self, shard: str) -> None:
        """Forget the last pass: all it wrote has been seen."""
        with translated():
            self._client.delete(self._key(shard))

    # asking the controller

    def ask_relist(self, shard: str) -> None:
        """Ask the controller for a fresh consistent list (a batch ended without saying what it wrote)."""
        with translated():
            self._client.set(f"{self._prefix}:{{{shard}}}:relist", "1", ex=_KEEP_SECONDS)

    def take_relist(self, shard: str) -> bool:
        """Whether a fresh list was asked for since the last call."""
        with translated():
            return bool(self._client.delete(f"{self._prefix}:{{{shard}}}:relist"))

    def ask_fetch(self, shard: str) -> None:
        """Ask the controller to look for a new revision now (a webhook was called). One that a flush swallows costs
        no more than the wait for the next poll.
        """
        with translated():
            self._client.set(f"{self._prefix}:{{{shard}}}:fetch", "1", ex=_KEEP_SECONDS)

    def take_fetch(self, shard: str) -> bool:
        """Whether a look for a new revision was asked for since the last call."""
        with translated():
            return bool(self._client.delete(f"{self._prefix}:{{{shard}}}:fetch"))

    # numbers

    def put_summary(self, shard: str, summary: bytes) -> None:
        """Keep the last pass in numbers, for /metrics."""
        with translated():
            self._client.hset(f"{self._prefix}:summaries", shard, summary)

    def summaries(self) -> dict[str, bytes]:
        """The last pass of each shard in numbers."""
        with translated():
            found = cast(dict[bytes, bytes], self._client.hgetall(f"{self._prefix}:summaries"))
        return {text(shard): value for shard, value in found.items()}

    def count(self, numbers: Mapping[str, int]) -> None:
        """Add to counters."""
        with translated(), self._client.pipeline(transaction=False) as pipe:
            for name, number in numbers.items():
                pipe.hincrby(f"{self._prefix}:counters", name, number)
            pipe.execute()

    def counters(self) -> dict[str, int]:
        """All counters; a flush starts them anew, as a restart would."""
        with translated():
            found = cast(dict[bytes, bytes], self._client.hgetall(f"{self._prefix}:counters"))
        return {text(name): int(value) for name, value in found.items()}

    # who is alive

    def beat(self, name: str, now: float, ttl: float = 30.0) -> None:
        """Say that a process lives; forgotten after ``ttl`` seconds."""
        with translated():
            self._client.set(f"{self._prefix}:alive:{name}", repr(now), px=int(ttl * 1000))

    def alive(self) -> dict[str, float]:
        """Which processes said so, and when (unix seconds)."""
        found: dict[str, float] = {}
        start = f"{self._prefix}:alive:"
        with translated():
            for key in self._client.scan_iter(match=f"{start}*", count=500):
                value = cast(bytes | None, self._client.get(key))
                if value is not None:
                    found[text(key)[len(start) :]] = float(value)
        return found

    def _key(self, shard: str) -> str:
        return f"{self._prefix}:{{{shard}}}:pass"
