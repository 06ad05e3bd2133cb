"""Recorded moments are derived before they are asked for: the nearest first, each once, without hiding an error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engine.serve.console import read_ahead
from engine.serve.console.answers import Unanswered
from engine.serve.console.read_ahead import ReadAhead

MOMENTS = [f"m{number}" for number in range(40)]


class World:
    """Derives at once; keeps the last ``room`` documents; moments in ``broken`` cannot be derived."""

    def __init__(self, room: int = 100, broken: Sequence[str] = (), reach: int | None = None) -> None:
        self.derived: list[str] = []
        self.kept: list[str] = []
        self._room, self._broken = room, broken
        self.ahead = ReadAhead(
            lambda: MOMENTS, self._derive, lambda one: one in self.kept, lambda: len(self.kept) < room, reach
        )

    async def _derive(self, identity: str) -> None:
        self.derived.append(identity)
        if identity in self._broken:
            raise Unanswered(400, "is no recording")
        self.kept = [*self.kept, identity][-self._room :]

    def until_quiet(self, *looks: str) -> list[str]:
        """What is derived while a viewer looks at these moments, one after the other has become quiet."""

        async def live() -> None:
            task = asyncio.create_task(self.ahead.run())
            for look in looks or ("",):
                if look:
                    self.ahead.look(look)
                before = -1
                while before != len(self.derived):
                    before = len(self.derived)
                    for _ in range(8):
                        await asyncio.sleep(0.002)
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
    world = World(broken=["m38"])
    assert world.until_quiet() == MOMENTS[::-1]
    assert "m38" not in world.kept


def test_what_there_is_no_room_for_is_derived_only_near_what_is_looked_at() -> None:
    world = World(room=33)
    assert world.until_quiet() == MOMENTS[:6:-1]
    assert world.until_quiet("m0")[33:] == [f"m{number}" for number in range(7)]
