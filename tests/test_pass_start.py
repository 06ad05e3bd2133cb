"""When a pass starts after the one before it: as soon as that one's writes are seen, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.controller import loop
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
    async def turn(self) -> AsyncIterator[bool]:
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


def test_a_look_that_takes_long_is_half_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, _, took = one_pass(monkeypatch, 5.0, cost=0.04)
    assert shard.looks <= 3 and took < 0.2
