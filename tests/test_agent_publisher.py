"""How often an agent writes one object: a second change follows at once, and over time one write a distance."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from belay.agents.common.client import ApiError
from belay.agents.node.publisher import Publisher
from tests.agent_world import VirtualClock, settle

SPACING, PERIOD = 1.0, 60.0


class Written:
    """A publisher, the moments of its writes, and what it wrote."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.value, self.fails, self.status = 0, False, 0
        self.returned = 0.0
        self.writes: list[tuple[float, int]] = []
        self.publisher = Publisher(
            "report", build=lambda: {"value": self.value}, write=self._write, period=lambda: PERIOD, spacing=SPACING,
            clock=self.clock, chance=random.Random(1),
        )  # fmt: skip

    async def _write(self, body: dict[str, Any]) -> None:
        self.writes.append((self.clock.mono, body["value"]))
        if self.fails:
            raise ApiError(self.status, "away")

    async def change(self) -> None:
        self.value += 1
        self.publisher.update(self.value)
        await settle()


def story(work: Any) -> Written:
    async def run() -> Written:
        written = Written()
        task = asyncio.create_task(written.publisher.run())
        await settle()
        await work(written)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return written

    return asyncio.run(run())


def test_a_change_just_after_another_is_written_at_once() -> None:
    async def work(written: Written) -> None:
        await written.change()
        await written.clock.advance(0.3)
        await written.change()
        await written.clock.advance(5.0)

    (first, second) = story(work).writes
    assert second[0] - first[0] < 0.35 and (first[1], second[1]) == (1, 2)


def test_over_time_changes_are_one_write_a_distance() -> None:
    async def work(written: Written) -> None:
        for _ in range(400):
            await written.change()
            await written.clock.advance(0.05)

    moments = [at for at, _ in story(work).writes]
    assert 20 <= len(moments) <= 22
    for one, third in zip(moments, moments[2:], strict=False):
        assert third - one >= SPACING - 1e-6
    assert min(b - a for a, b in itertools.pairwise(moments)) >= 0.1 - 1e-6


def test_the_newest_of_changes_that_come_together_is_written() -> None:
    async def work(written: Written) -> None:
        for _ in range(50):
            await written.change()
        await written.clock.advance(3.0)

    written = story(work)
    assert written.writes[-1][1] == 50 and len(written.writes) <= 3


def test_a_write_that_fails_is_not_repeated_at_once() -> None:
    async def work(written: Written) -> None:
        written.fails = True
        await written.change()
        await written.clock.advance(0.9)

    assert len(story(work).writes) == 1


@pytest.mark.parametrize("starting", [False, True], ids=["gone", "then starting"])
def test_what_happened_meanwhile_is_written_within_two_seconds_of_the_servers_return(starting: bool) -> None:
    for away in (3.0, 61.0, 900.0):

        async def work(written: Written, away: float = away) -> None:
            written.fails = True
            await written.change()
            await written.clock.advance(away)
            if starting:  # it answers already, but not yet with what was asked for
                written.status = 503
                await written.clock.advance(1.4)
            written.fails = False
            written.returned = written.clock.mono
            await written.clock.advance(2.0)

        written = story(work)
        after = [at for at, _ in written.writes if at >= written.returned]
        assert len(after) == 1 and after[0] - written.returned <= 2.0


def test_what_the_server_refuses_is_tried_ever_more_seldom() -> None:
    async def work(written: Written) -> None:
        written.fails, written.status = True, 403
        await written.change()
        await written.clock.advance(600.0)

    assert len(story(work).writes) < 40
