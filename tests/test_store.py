"""The port to Redis, on a real Redis: changed keys only, and a flush at any moment does no harm."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis.asyncio

from belay.engine.errors import BelayError
from belay.engine.store import (
    ActionOutcome,
    BatchResult,
    ObjectWrite,
    PassRecord,
    PassStore,
    RevisionWriter,
    SnapshotWriter,
    StoredRevisions,
    StoredSnapshots,
    StoreUnavailable,
    ValueTooLarge,
    connect,
    connect_async,
    eviction_warning,
    field_of,
)
from belay.engine.store import snapshot as snapshot_module
from tests.redis_server import redis_process, redis_url  # noqa: F401

POD = "v1|Pod|default|a"
Use = Callable[[redis.asyncio.Redis], Coroutine[Any, Any, Any]]


def with_client(url: str, use: Use) -> Any:
    async def main() -> Any:
        client = connect_async(url)
        try:
            return await use(client)
        finally:
            await client.aclose()

    return asyncio.run(main())


def put(url: str, generation: str | None, changed: dict[str, bytes | None], **options: Any) -> tuple[str, bool]:
    async def use(client: redis.asyncio.Redis) -> tuple[str, bool]:
        writer = SnapshotWriter(client)
        current = generation or await writer.begin("main")
        return current, await writer.put("main", current, changed, **options)

    result: tuple[str, bool] = with_client(url, use)
    return result


def test_a_reader_sees_only_what_changed(redis_url: str) -> None:  # noqa: F811
    reader = StoredSnapshots(connect(redis_url))
    generation, _ = put(redis_url, None, {POD: b"1", "v1|Node||n": b"n"}, watermarks={"v1|Pod": "7"}, synced=True)
    first = reader.changes("main")
    assert (first.reset, first.synced, first.changed) == (True, True, {POD: b"1", "v1|Node||n": b"n"})
    assert first.watermarks == {"v1|Pod": "7"}
    put(redis_url, generation, {POD: b"2"})
    assert reader.changes("main").changed == {POD: b"2"}
    put(redis_url, generation, {POD: None})
    second = reader.changes("main")
    assert (second.reset, second.changed) == (False, {POD: None})
    assert reader.changes("main").changed == {}


def test_another_reader_starts_with_everything_and_no_tombstones(redis_url: str) -> None:  # noqa: F811
    generation, _ = put(redis_url, None, {POD: b"1", "v1|Node||n": b"n"})
    put(redis_url, generation, {POD: None})
    assert StoredSnapshots(connect(redis_url)).changes("main").changed == {"v1|Node||n": b"n"}


def test_a_flush_is_a_reset_for_the_reader_and_a_no_for_the_writer(redis_url: str) -> None:  # noqa: F811
    reader = StoredSnapshots(connect(redis_url))
    generation, _ = put(redis_url, None, {POD: b"1"}, synced=True)
    reader.changes("main")
    connect(redis_url).flushall()
    lost = reader.changes("main")
    assert (lost.reset, lost.synced, lost.changed, lost.generation) == (True, False, {}, "")
    assert put(redis_url, generation, {POD: b"2"}) == (generation, False)
    fresh, stored = put(redis_url, None, {POD: b"3"}, synced=True)
    assert stored and fresh != generation
    again = reader.changes("main")
    assert (again.reset, again.synced, again.changed) == (True, True, {POD: b"3"})


def test_synced_and_watermarks_come_only_with_the_last_slice(
    redis_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_module, "FIELDS_PER_WRITE", 2)
    many = {f"v1|Pod|default|p{n}": b"x" for n in range(5)}
    put(redis_url, None, many, watermarks={"v1|Pod": "9"}, synced=True)
    changes = StoredSnapshots(connect(redis_url)).changes("main")
    assert changes.seq == 3
    assert changes.synced and changes.watermarks == {"v1|Pod": "9"} and len(changes.changed) == 5


def test_trimmed_tombstones_make_a_late_reader_read_everything(
    redis_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_module, "_TOMBSTONES", 3)
    reader = StoredSnapshots(connect(redis_url))
    generation, _ = put(redis_url, None, {f"v1|Pod|default|p{n}": b"x" for n in range(6)})
    reader.changes("main")
    put(redis_url, generation, {f"v1|Pod|default|p{n}": None for n in range(5)})
    late = reader.changes("main")
    assert late.reset and late.changed == {"v1|Pod|default|p5": b"x"}
    assert reader.changes("main").changed == {}


def test_random_histories_with_flushes_end_with_equal_copies(redis_url: str) -> None:  # noqa: F811
    chance = random.Random(11)

    async def history(client: redis.asyncio.Redis) -> tuple[dict[str, bytes], dict[str, bytes]]:
        writer, reader = SnapshotWriter(client), StoredSnapshots(connect(redis_url))
        truth: dict[str, bytes] = {}
        copy: dict[str, bytes] = {}
        generation = await writer.begin("main")
        for _ in range(300):
            step: dict[str, bytes | None] = {}
            for _ in range(chance.randrange(4)):
                name = f"v1|Pod|d|p{chance.randrange(12)}"
                step[name] = None if chance.random() < 0.3 else str(chance.random()).encode()
            for name, value in step.items():
                if value is None:
                    truth.pop(name, None)
                else:
                    truth[name] = value
            if chance.random() < 0.05:
                await client.flushall()
            if not await writer.put("main", generation, step):
                generation = await writer.begin("main")
                assert await writer.put("main", generation, dict(truth))
            if chance.random() < 0.4:
                take(copy, reader)
        take(copy, reader)
        return truth, copy

    def take(copy: dict[str, bytes], reader: StoredSnapshots) -> None:
        changes = reader.changes("main")
        if changes.reset:
            copy.clear()
        for name, value in changes.changed.items():
            if value is None:
                copy.pop(name, None)
            else:
                copy[name] = value

    truth, copy = with_client(redis_url, history)
    assert copy == truth and truth


def test_a_blob_is_stored_once_and_only_missing_ones_are_asked_for(redis_url: str) -> None:  # noqa: F811
    async def use(client: redis.asyncio.Redis) -> None:
        writer, reader = RevisionWriter(client), StoredRevisions(connect(redis_url))
        assert reader.current("main") is None
        assert await writer.put_revision("main", "c1", {"a.yaml": "b1", "b.yaml": "b1"}, {"b1": b"one"}, now=0) == set()
        missing = await writer.put_revision("main", "c2", {"a.yaml": "b1", "b.yaml": "b2"}, {}, now=1)
        assert missing == {"b2"}
        first = reader.current("main")
        assert first is not None and first.sha == "c1", "an incomplete revision is not put in force"
        assert await writer.put_revision("main", "c2", first.files | {"b.yaml": "b2"}, {"b2": b"two"}, now=2) == set()
        second = reader.current("main")
        assert second is not None and second.files == {"a.yaml": "b1", "b.yaml": "b2"}
        assert reader.blobs(second.files.values()) == {"b1": b"one", "b2": b"two"}
        await writer.put_revision("main", "c3", {"b.yaml": "b2"}, {}, now=5000)
        assert await writer.expire(now=5000) == 1
        assert reader.blobs(["b1", "b2"]) == {"b2": b"two"}
        await client.flushall()
        assert reader.current("main") is None
        assert await writer.put_revision("main", "c3", {"b.yaml": "b2"}, {}, now=5001) == {"b2"}
        with pytest.raises(ValueTooLarge):
            await writer.put_revision("main", "c4", {"c": "b4"}, {"b4": b"x" * (3 * 1024 * 1024 + 1)}, now=1)

    with_client(redis_url, use)


def record(pass_id: str, batches: int = 2) -> PassRecord:
    return PassRecord(pass_id, "main", 3, "digest", batches, 10.0, 40.0)


def test_a_pass_is_finished_when_every_batch_has_a_result(redis_url: str) -> None:  # noqa: F811
    passes = PassStore(connect(redis_url))
    assert passes.state("main") is None
    passes.start(record("p1"))
    pod = ObjectWrite("v1", "Pod", "default", "a", "8")
    passes.finish(record("p1"), BatchResult(0, [pod], [ActionOutcome(0, "done")]))
    passes.finish(record("p1"), BatchResult(0, [], [ActionOutcome(0, "dropped")]))
    state = passes.state("main")
    assert state is not None and not state.finished
    assert state.writes == [pod] and state.outcomes == [ActionOutcome(0, "done")]
    passes.finish(record("p1"), BatchResult(1))
    state = passes.state("main")
    assert state is not None and state.finished


def test_a_late_result_counts_with_its_writes_but_finishes_nothing_of_the_next_pass(redis_url: str) -> None:  # noqa: F811
    passes = PassStore(connect(redis_url))
    passes.start(record("p1"))
    passes.start(record("p2", batches=1))
    late = ObjectWrite("v1", "Pod", "default", "late", "9")
    passes.finish(record("p1"), BatchResult(0, [late], [ActionOutcome(0, "done")]))
    state = passes.state("main")
    assert state is not None
    assert (state.finished, state.writes, state.outcomes) == (False, [late], [])


def test_relists_are_taken_once_and_heartbeats_are_kept(redis_url: str) -> None:  # noqa: F811
    passes = PassStore(connect(redis_url))
    assert not passes.take_requests("main").relist
    passes.ask_relist("main")
    assert passes.take_requests("main").relist
    assert not passes.take_requests("main").relist
    passes.beat("worker-1", 12.5)
    assert passes.alive() == {"worker-1": 12.5}


def test_eviction_is_warned_about(redis_url: str) -> None:  # noqa: F811
    client = connect(redis_url)
    assert eviction_warning(client) is None
    client.config_set("maxmemory-policy", "allkeys-lru")
    warning = eviction_warning(client)
    client.config_set("maxmemory-policy", "noeviction")
    assert warning is not None and "allkeys-lru" in warning


def test_errors_are_ours_and_hold_no_password() -> None:
    with pytest.raises(StoreUnavailable) as failure:
        PassStore(connect("redis://:hunter2@127.0.0.1:1/0")).take_requests("main")
    assert "hunter2" not in str(failure.value)
    with pytest.raises(BelayError, match="not a Redis URL") as wrong:
        connect("http://user:hunter2@host")
    assert "hunter2" not in str(wrong.value) and "BELAY_REDIS_URL" in str(wrong.value)


def test_fields_name_objects() -> None:
    assert str(field_of("apps/v1|Deployment|default|web")) == "apps/v1|Deployment|default|web"
    with pytest.raises(ValueError, match="unpack"):
        field_of("nonsense")
