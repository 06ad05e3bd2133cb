"""When a pass starts: once the writes of the one before are seen, and when that one wanted it; on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from belay.engine.controller import loop
from belay.engine.controller.queues import RECONCILE
from belay.engine.controller.worker import SOON_SECONDS, Worker
from belay.engine.settings import Settings
from belay.engine.store import StoreUnavailable
from tests.sim.clock import Clock, run


class LateShard:
    """A shard whose snapshot shows the writes of its last pass ``after`` seconds from now."""

    name = "main"

    def __init__(self, clock: Clock, after: float, cost: float = 0.0) -> None:
        self.again: list[float] = []
        self.looks = 0
        self.passes: list[float] = []
        self._clock, self._due, self._cost = clock, clock.now + after, cost

    @contextlib.asynccontextmanager
    async def claim_pass(self) -> AsyncIterator[bool]:
        yield True

    def refresh(self) -> str:
        self.looks += 1
        self._clock.now += self._cost
        return "" if self._clock.now >= self._due else "its writes are not seen yet"

    def requeue(self, seconds: float) -> None:
        self.again.append(seconds)


def one_pass(patch: pytest.MonkeyPatch, after: float, cost: float = 0.0) -> tuple[LateShard, str, float]:
    """The shard, what the pass said, and how many seconds it took."""
    clock = Clock()
    shard = LateShard(clock, after, cost)
    begin = clock.now

    async def planned(_: Any) -> str:
        return "planned"

    patch.setattr(loop, "_pass", planned)
    said = run(clock, asyncio.wait_for(loop.reconcile(shard), 60.0))  # type: ignore[arg-type]
    return shard, said, clock.now - begin


def test_a_pass_starts_when_the_writes_before_it_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for after in (0.0, 0.03, 0.09):
        shard, said, took = one_pass(monkeypatch, after)
        assert (said, shard.again) == ("planned", [])
        assert took <= after + loop.LOOK_SECONDS + 0.001


def test_a_pass_that_waits_in_vain_ends_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, said, took = one_pass(monkeypatch, 5.0)
    assert said == "waiting: its writes are not seen yet" and shard.again == [loop.WAIT_SECONDS]
    assert abs(took - loop.WAIT_SECONDS) < 0.001
    assert shard.looks <= 2 + loop.WAIT_SECONDS / loop.LOOK_SECONDS


def test_a_look_that_takes_long_is_a_fifth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, _, took = one_pass(monkeypatch, 5.0, cost=0.01)
    assert shard.looks <= 3 and took < 0.15


class Due:
    """What a worker asks of Redis: which shards are due."""

    def __init__(self, *shards: str) -> None:
        self.shards = list(shards)

    def ready(self) -> list[str]:
        return self.shards


def worker_of(due: Any, sent: list[tuple[float, str, str]]) -> Worker:
    """A worker without connections, whose shard `main` has just asked for its next pass."""
    made = Worker.__new__(Worker)
    made.passes, made.settings = Mock(), Settings(identity="test")
    made.triggers, made.keys = due, Mock(wrap=lambda task, text: text)
    made._soon, made._shards = {}, {"main": Mock(again=False, due_in=0.1)}
    made._send = lambda task, text: sent.append((asyncio.get_running_loop().time(), task, text))
    return made


def test_a_pass_that_is_wanted_on_time_does_not_wait_for_the_controllers_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def done(_: Any) -> str:
        return "0 actions"

    monkeypatch.setattr("belay.engine.controller.worker.reconcile", done)
    sent: list[tuple[float, str, str]] = []
    due = Due("main")
    made = worker_of(due, sent)

    async def case() -> None:
        await made.run_pass("main")
        await asyncio.sleep(0.04)
        await made.run_pass("main")  # it asks again: one message is enough
        await asyncio.sleep(1.0)
        assert [(round(at - 1000, 3), task, text) for at, task, text in sent] == [(0.1, RECONCILE, "main")]
        made._shards["main"].due_in = None
        await made.run_pass("main")
        made._shards["main"].due_in = SOON_SECONDS  # the controller is in time for that
        await made.run_pass("main")
        await asyncio.sleep(1.0)
        assert len(sent) == 1
        made._shards["main"].due_in = 0.1
        due.ready = Mock(side_effect=StoreUnavailable("away"))  # type: ignore[method-assign]
        await made.run_pass("main")
        await asyncio.sleep(1.0)
        assert len(sent) == 1 and not made._soon

    run(Clock(), case())
