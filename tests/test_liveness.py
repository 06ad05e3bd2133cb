"""Who is alive: seen by numbers in Redis that change, never by clocks of others, and never without answers of Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

from belay.engine.controller.queues import waiting
from belay.engine.controller.triggers import Triggers
from belay.engine.store import ProcessLiveness, StoreUnavailable, connect, repair
from tests.redis_server import redis_process, redis_url  # noqa: F401

EVERY = 0.4


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """Processes on one Redis, with one clock; a dead one only stops."""

    def __init__(self, client: redis.Redis) -> None:
        self.client, self.time = client, Time()

    def liveness(self, identity: str, kind: Any = "worker") -> ProcessLiveness:
        return ProcessLiveness(self.client, kind, identity, 2.4, clock=self.time)

    def run(self, seconds: float, *lives: ProcessLiveness, watching: tuple[str, ...] = ()) -> None:
        """Let these live for a while; the last of them looks at ``watching``."""
        ends = self.time.now + seconds
        while self.time.now < ends:
            self.time.now += EVERY
            for one in lives:
                one.update(lambda _: watching)


@pytest.fixture
def site(redis_url: str) -> Site:  # noqa: F811
    return Site(connect(redis_url))


def test_a_process_that_stops_is_dead_after_its_silence_and_not_before(site: Site) -> None:
    a, b = site.liveness("a"), site.liveness("b")
    site.run(4.0, a, b, watching=("a",))
    assert not b.is_dead("a")
    site.run(2.0, b, watching=("a",))
    assert not b.is_dead("a")
    site.run(0.8, b, watching=("a",))
    assert b.is_dead("a")
    site.run(5.0, b)  # no one asks for it any more, and it stays dead
    assert b.is_dead("a")
    site.liveness("a").beat()  # the same identity in a new life
    b.update(lambda _: ())
    assert not b.is_dead("a")


def test_one_that_died_before_anybody_looked_is_found_by_what_it_left(site: Site) -> None:
    site.liveness("a").beat()
    b = site.liveness("b")
    site.run(2.0, b, watching=("a",))
    assert not b.is_dead("a")
    site.run(1.2, b, watching=("a",))
    assert b.is_dead("a")


def test_one_without_a_number_is_never_dead_and_kinds_are_apart(site: Site) -> None:
    controller, b = site.liveness("a", "controller"), site.liveness("b")
    controller.beat()
    site.run(10.0, b, watching=("a", "older-version", ""))
    assert not b.is_dead("a") and not b.is_dead("older-version") and not b.is_dead("")


def test_a_flush_kills_none_that_writes_again(site: Site) -> None:
    a, b = site.liveness("a"), site.liveness("b")
    site.run(2.0, a, b, watching=("a",))
    site.client.flushall()
    site.run(4.0, a, b, watching=("a",))
    assert not b.is_dead("a")
    site.client.flushall()
    site.run(4.0, b, watching=("a",))  # but one that does not
    assert b.is_dead("a")


def test_what_a_paused_process_did_not_see_counts_against_none(site: Site) -> None:
    a, b = site.liveness("a"), site.liveness("b")
    site.run(2.0, a, b, watching=("a",))
    site.time.now += 60.0  # both were paused, and b wakes first
    b.update(lambda _: ("a",))
    assert not b.is_dead("a")
    site.run(0.8, b, watching=("a",))
    assert not b.is_dead("a"), "a has half of its silence to show that it lives"
    site.run(0.8, b, watching=("a",))
    assert b.is_dead("a")


def test_without_answers_of_redis_none_is_dead(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = site.liveness("a"), site.liveness("b")
    site.run(2.0, a, b, watching=("a",))

    def away(*_: object) -> Any:
        raise redis.ConnectionError("away")

    with monkeypatch.context() as without:
        without.setattr(site.client, "mget", away)
        site.time.now += 10.0
        with pytest.raises(StoreUnavailable):
            b.read(["a"])
    site.time.now += EVERY
    b.read(["a"])  # of the time without an answer half of the silence counts at most
    site.run(0.8, b, watching=("a",))
    assert not b.is_dead("a")
    site.run(0.8, b, watching=("a",))
    assert b.is_dead("a")
    site.time.now += 2.0  # and what was seen long ago is no news
    assert not b.is_dead("a")


def test_the_silent_are_forgotten(site: Site) -> None:
    a, b = site.liveness("a"), site.liveness("b")
    site.run(1.0, a, b, watching=("a",))
    site.client.delete("belay:life:worker:a")  # as Redis does a minute after its last change
    site.run(70.0, b)
    assert not b.is_dead("a") and not b._seen


def test_a_number_of_a_wrong_type_is_repaired(site: Site) -> None:
    site.client.rpush("belay:life:worker:a", "x")
    b = site.liveness("b")
    b.update(lambda _: ("a",))
    assert repair(site.client) == ["belay:life:worker:a"]


def test_a_process_shows_that_it_lives_and_asks_who_else_works_in_one_message(site: Site) -> None:
    """Six times a second each: messages, and the wake-ups of Redis for them, are what an idle cluster costs."""
    triggers, a = Triggers(site.client), site.liveness("a")
    triggers.mark("main")
    assert triggers.claim("main", "a", 10.0)

    asked: list[Any] = []
    watch = lambda answer: asked.append(triggers.owners_in(answer)) or ()  # noqa: E731
    assert messages(site.client, lambda: a.update(watch, ask=triggers.ask_owners)) == 1
    assert asked == [{"a"}]
    # what the watchdog of a worker asks each second
    assert messages(site.client, lambda: waiting(site.client, takes_writes=True)) == 1


def messages(client: redis.Redis, work: Callable[[], object]) -> int:
    """How often Redis reads from a connection for this work."""
    before = int(client.info("stats")["total_reads_processed"])
    work()
    return int(client.info("stats")["total_reads_processed"]) - before - 1  # the last question


def test_the_thread_lives_until_it_is_stopped(site: Site) -> None:
    import threading

    turned = threading.Event()
    liveness = ProcessLiveness(site.client, "worker", "a", 0.06)
    liveness.start(lambda _: (), turned.set)
    assert site.client.get("belay:life:worker:a") is not None, "written before anything else happens"
    assert turned.wait(30.0)
    liveness.stop()
    thread = next((one for one in threading.enumerate() if one.name == "belay-life"), None)
    if thread is not None:
        thread.join(30.0)
        assert not thread.is_alive()


def test_the_thread_survives_an_absent_redis() -> None:
    import threading

    asked = threading.Event()

    class Away:
        def pipeline(self, *_: object, **__: object) -> None:
            asked.set()
            raise redis.ConnectionError("away")

    liveness = ProcessLiveness(cast(redis.Redis, Away()), "worker", "a", 0.06)
    liveness.start(lambda _: ())
    asked.clear()
    assert asked.wait(30.0)
    asked.clear()
    assert asked.wait(30.0), "one refusal ended it"
    liveness.stop()
