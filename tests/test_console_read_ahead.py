"""Recorded moments are derived before they are asked for: the nearest first, each once, without hiding an error."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import pytest

from belay.engine.serve.console import failures, read_ahead
from belay.engine.serve.console.answers import Unanswered
from belay.engine.serve.console.read_ahead import ReadAhead

MOMENTS = [f"m{number}" for number in range(40)]


class Looked(asyncio.Event):
    """Says when it is waited for: then nothing is left to derive."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = asyncio.Event()

    async def wait(self) -> Literal[True]:
        if not self.is_set():
            self.quiet.set()
        return await super().wait()


class World:
    """Derives at once; keeps the last ``room`` documents; moments in ``broken`` raise what is listed, one after the
    other, before they are derived.
    """

    def __init__(
        self, room: int = 100, broken: Mapping[str, list[Exception]] = MappingProxyType({}), reach: int | None = None
    ) -> None:
        self.derived: list[str] = []
        self.kept: list[str] = []
        self.moments = MOMENTS
        self._room, self._broken = room, broken
        self.ahead = ReadAhead(
            lambda: self.moments, self._derive, lambda one: one in self.kept, lambda: len(self.kept) < room, reach
        )

    async def _derive(self, identity: str) -> None:
        self.derived.append(identity)
        if errors := self._broken.get(identity):
            raise errors.pop(0)
        self.kept = [*self.kept, identity][-self._room :]

    def until_quiet(self, *looks: str) -> list[str]:
        """What is derived while a viewer looks at these moments, one after the other has become quiet."""

        async def live() -> None:
            self.ahead._looked = looked = Looked()
            task = asyncio.create_task(self.ahead.run())
            for look in looks or ("",):
                looked.quiet.clear()
                if look:
                    self.ahead.look(look)
                await looked.quiet.wait()
                assert not task.done()
            task.cancel()

        asyncio.run(live())
        return self.derived


def test_a_whole_folder_is_derived_from_its_newest_moment_on() -> None:
    assert World().until_quiet() == MOMENTS[::-1]


def test_where_a_folder_grows_only_the_neighbours_of_what_is_looked_at_are_derived() -> None:
    assert World(reach=2).until_quiet() == []
    assert World(reach=2).until_quiet("m20") == ["m20", "m21", "m19", "m22", "m18"]
    assert World(reach=2).until_quiet("m20", "m39")[5:] == ["m39", "m38", "m37"]


def test_what_cannot_be_derived_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "PAUSE_SECONDS", 0.0)
    never = Unanswered(400, "is not a recording")
    world = World(broken={"m38": [never, never]})
    assert world.until_quiet() == MOMENTS[::-1]
    assert "m38" not in world.kept


@pytest.mark.parametrize("status", [429, 503, 504])
def test_what_could_not_be_derived_for_once_is_tried_again_after_the_others(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(read_ahead, "PAUSE_SECONDS", 0.0)
    world = World(broken={"m38": [Unanswered(status, "busy")]})
    assert world.until_quiet() == MOMENTS[::-1]
    assert 0.0 < world.ahead._put_off["m38"] < math.inf
    world.ahead._put_off["m38"] = 0.0  # that time has come
    assert world.until_quiet()[40:] == ["m38"]
    assert set(world.kept) == set(MOMENTS) and not world.ahead._put_off


def test_a_moment_that_was_put_off_is_tried_without_a_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(read_ahead, "RETRY_SECONDS", 0.01)
    world = World(broken={"m38": [Unanswered(503, "busy"), Unanswered(503, "busy")]})

    async def live() -> None:
        task = asyncio.create_task(world.ahead.run())
        while "m38" not in world.kept:
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(live())
    assert world.derived.count("m38") == 3


def test_an_error_that_nothing_foresaw_is_counted_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "PAUSE_SECONDS", 0.0)
    before = failures.counted("document")
    world = World(broken={"m38": [KeyError("x")]})
    assert world.until_quiet() == MOMENTS[::-1]
    assert failures.counted("document") == before + 1


def test_of_moments_that_are_gone_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "PAUSE_SECONDS", 0.0)
    world = World(broken={"m0": [Unanswered(400, "is not a recording")], "m1": [Unanswered(503, "busy")]})
    world.until_quiet()
    assert set(world.ahead._put_off) == {"m0", "m1"}
    world.moments = MOMENTS[1:]
    world.until_quiet()
    assert set(world.ahead._put_off) == {"m1"}


def test_what_there_is_no_room_for_is_derived_only_near_what_is_looked_at() -> None:
    world = World(room=33)
    assert world.until_quiet() == MOMENTS[:6:-1]
    assert world.until_quiet("m0")[33:] == [f"m{number}" for number in range(7)]
