"""The dirty/busy queue, on a real Redis."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path

import pytest

from belay.engine.controller.triggers import Triggers
from belay.engine.store import PassStore, ShardNews, StoreUnavailable, connect, connect_async, repair
from belay.engine.store.news import news_key
from tests.redis_server import redis_process, redis_url, start_redis  # noqa: F401

pytestmark = pytest.mark.real_time


@pytest.fixture
def triggers(redis_url: str) -> Triggers:  # noqa: F811
    return Triggers(connect(redis_url))


def test_a_marked_shard_is_ready_once_and_claimed_by_one(triggers: Triggers) -> None:
    triggers.mark("main")
    assert triggers.ready() == ["main"]
    assert triggers.ready() == []
    assert triggers.claim("main", "a", 10) == 1
    assert triggers.claim("main", "b", 10) is None
    assert triggers.done("main", "a", 1) is False
    assert triggers.claim("main", "b", 10) is None


def test_a_mark_while_busy_means_exactly_one_more_run(triggers: Triggers) -> None:
    triggers.mark("main")
    first = triggers.claim("main", "a", 10)
    assert first is not None
    for _ in range(5):
        triggers.mark("main")
    assert triggers.ready() == []
    assert triggers.done("main", "a", first) is True
    second = triggers.claim("main", "a", 10)
    assert second == first + 1
    assert triggers.done("main", "a", second) is False


def test_a_dead_workers_claim_counts_as_a_mark(triggers: Triggers) -> None:
    triggers.mark("main")
    epoch = triggers.claim("main", "dead", 0.01)
    assert epoch is not None
    _until(lambda: triggers.ready() == ["main"])
    assert triggers.claim("main", "b", 10) == epoch + 1
    assert triggers.extend("main", "dead", epoch, 10) is False
    assert triggers.done("main", "dead", epoch) is False
    assert triggers.claim("main", "c", 10) is None, "the late 'done' of the dead must not free the living"


def test_a_lost_message_is_handed_out_again(triggers: Triggers) -> None:
    triggers.mark("main")
    assert triggers.ready(again=0.05) == ["main"]
    _until(lambda: triggers.ready(again=0.05) == ["main"])


def test_a_delayed_mark_waits_and_an_earlier_one_overtakes_it(triggers: Triggers) -> None:
    triggers.mark("main", at=time.time() + 3600)
    assert triggers.ready() == []
    assert triggers.claim("main", "a", 10) is None
    triggers.mark("main", at=time.time() + 0.1)
    assert triggers.ready() == []
    _until(lambda: triggers.ready() == ["main"])
    assert triggers.claim("main", "a", 10) == 1


def test_a_delayed_mark_survives_a_run(triggers: Triggers) -> None:
    triggers.mark("main")
    epoch = triggers.claim("main", "a", 10)
    assert epoch is not None
    triggers.mark("main", at=time.time() + 0.1)
    assert triggers.done("main", "a", epoch) is False
    _until(lambda: triggers.ready() == ["main"])


def test_extend_keeps_the_claim(triggers: Triggers) -> None:
    triggers.mark("main")
    epoch = triggers.claim("main", "a", 0.05)
    assert epoch is not None
    assert triggers.extend("main", "a", epoch, 60)
    time.sleep(0.06)
    assert triggers.claim("main", "b", 10) is None


def test_after_a_restart_nothing_waits_for_old_claims(triggers: Triggers) -> None:
    for shard in ("one", "two"):
        triggers.mark(shard)
        triggers.claim(shard, f"host-{shard}", 3600)
    assert triggers.free("host-one") == 1
    assert triggers.ready() == ["one"]
    assert triggers.free() == 1
    assert triggers.ready() == ["two"]


def test_a_flush_at_any_moment_raises_nothing(triggers: Triggers, redis_url: str) -> None:  # noqa: F811
    triggers.mark("main")
    epoch = triggers.claim("main", "a", 10)
    assert epoch is not None
    connect(redis_url).flushall()
    assert triggers.extend("main", "a", epoch, 10) is False
    assert triggers.done("main", "a", epoch) is False
    triggers.mark("main")
    assert triggers.claim("main", "b", 10) is not None


def test_a_restarted_redis_gets_its_scripts_again_and_a_dead_one_is_named(tmp_path: Path) -> None:
    with start_redis(tmp_path) as first:
        triggers = Triggers(connect(first.url))
        triggers.mark("main")
    with pytest.raises(StoreUnavailable):
        triggers.mark("main")
    with start_redis(tmp_path):
        triggers.mark("main")
        assert triggers.ready() == ["main"]


def test_six_hundred_marks_over_forty_keys_leave_none_stale(redis_url: str) -> None:  # noqa: F811
    """What celery-singleton got wrong on 27 of 40 keys: a request during a run must lead to a run that begins after
    it.
    """
    wanted: dict[str, int] = {f"shard-{n}": 0 for n in range(40)}
    seen: dict[str, int] = dict.fromkeys(wanted, 0)
    running: dict[str, int] = dict.fromkeys(wanted, 0)
    lock = threading.Lock()
    marked = threading.Event()
    overlaps: list[str] = []

    def work(name: str) -> None:
        queue = Triggers(connect(redis_url))
        chance = random.Random(name)
        while True:
            quiet = marked.is_set()
            shards = queue.ready(again=0.2, limit=2)
            if not shards and quiet and not _left(queue):
                return
            for shard in shards:
                epoch = queue.claim(shard, name, 30)
                while epoch is not None:
                    with lock:
                        running[shard] += 1
                        if running[shard] > 1:
                            overlaps.append(shard)
                        state = wanted[shard]
                    time.sleep(chance.uniform(0, 0.004))
                    with lock:
                        seen[shard] = max(seen[shard], state)
                        running[shard] -= 1
                    again = queue.done(shard, name, epoch)
                    epoch = queue.claim(shard, name, 30) if again else None

    def _left(queue: Triggers) -> bool:
        client = connect(redis_url)
        return bool(client.zcard("belay:{triggers}:dirty")) or bool(client.hlen("belay:{triggers}:busy"))

    workers = [threading.Thread(target=work, args=(f"worker-{n}",), daemon=True) for n in range(4)]
    for worker in workers:
        worker.start()
    marker, chance = Triggers(connect(redis_url)), random.Random(7)
    for number in range(600):
        shard = f"shard-{chance.randrange(40)}"
        with lock:
            wanted[shard] = number + 1
        marker.mark(shard)
    marked.set()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert {shard for shard in wanted if seen[shard] != wanted[shard]} == set()
    assert overlaps == []


def _until(condition: object, seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends, "it did not come about in time"
        time.sleep(0.01)


def test_a_look_says_when_the_next_is_worth_it(triggers: Triggers) -> None:
    assert triggers.look()[1] is None
    now = time.time()
    triggers.mark("west", now + 100)
    triggers.mark("east", now + 50)
    assert 40 < _look_in(triggers) <= 50.1

    triggers.mark("main")
    assert triggers.ready(again=3.0) == ["main"]
    assert 2 < _look_in(triggers, again=3.0) <= 3, "the message may be lost"
    triggers.claim("main", "a", 20)
    assert 19 < _look_in(triggers) <= 20, "the worker may die"


def test_what_is_left_for_a_controller_wakes_it_once(triggers: Triggers, redis_url: str) -> None:  # noqa: F811
    """By words: while none comes, it asks Redis nothing."""
    passes = PassStore(connect(redis_url))

    async def words() -> list[bool]:
        client = connect_async(redis_url)
        news, found = ShardNews(client, "main"), []
        for leave in (
            lambda: [triggers.mark("main") for _ in range(3)],
            lambda: triggers.mark("main", time.time() + 100),
            lambda: triggers.free() if triggers.claim("main", "dead", 10) else None,
            lambda: passes.ask_fetch("main"),
            lambda: [passes.ask_relist("main") for _ in range(2)],
            lambda: triggers.mark("west"),
        ):
            await asyncio.to_thread(leave)
            found.append(await news.wait(0.2))
            assert not await news.wait(0.02)
        await client.aclose()
        return found

    assert asyncio.run(words()) == [True, True, True, True, True, False]


def test_a_waiting_controller_is_woken_at_once(triggers: Triggers, redis_url: str) -> None:  # noqa: F811
    async def waited() -> bool:
        client = connect_async(redis_url)
        waiting = asyncio.create_task(ShardNews(client, "main").wait(4.0))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(triggers.mark, "main")
        try:
            async with asyncio.timeout(2.0):
                return await waiting
        finally:
            await client.aclose()

    assert asyncio.run(waited())


def test_a_word_of_a_wrong_type_stops_no_mark_and_is_repaired(triggers: Triggers, redis_url: str) -> None:  # noqa: F811
    client = connect(redis_url)
    client.set(news_key("main"), "x")
    triggers.mark("main")
    assert triggers.ready() == ["main"]
    assert repair(client) == [news_key("main")]


def _look_in(triggers: Triggers, again: float = 5.0) -> float:
    found = triggers.look(again=again)[1]
    assert found is not None
    return found
