"""Following a kind: every difference once, and no hot loop whatever the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from belay.engine.kube import (
    POD,
    Backoff,
    Forbidden,
    Gone,
    KubeError,
    Listing,
    NotFound,
    Reflector,
    Unavailable,
    WatchChange,
)


class Server:
    """Stands in for the client: a world of pods, a history of events, and errors to raise."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        self.rv = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.news = asyncio.Event()
        self.list_error: KubeError | None = None
        self.watch_error: KubeError | None = None
        self.watch_closes = False
        self.lists = 0
        self.watches = 0
        self.versions: Callable[[float], bool] = lambda age: True

    def set(self, name: str, *, quietly: bool = False) -> None:
        self.rv += 1
        kind = "MODIFIED" if name in self.pods else "ADDED"
        self.pods[name] = str(self.rv)
        if not quietly:
            self._tell(kind, name)

    def remove(self, name: str, *, quietly: bool = False) -> None:
        self.rv += 1
        del self.pods[name]
        if not quietly:
            self._tell("DELETED", name)

    def bookmark(self) -> None:
        self.rv += 1
        self._tell("BOOKMARK", "")

    def _tell(self, kind: str, name: str) -> None:
        self.events.append((kind, pod(name, str(self.rv))))
        self.news.set()

    async def may_serve(self, _: Any, age: float) -> bool:
        return self.versions(age)

    async def pages(self, *_: Any, **__: Any) -> AsyncIterator[Listing]:
        self.lists += 1
        if self.list_error is not None:
            raise self.list_error
        names = sorted(self.pods)
        half = len(names) // 2
        self.events.clear()
        version = str(self.rv)
        for part in (names[:half], names[half:]):
            yield Listing([pod(name, self.pods[name]) for name in part], version)
            await asyncio.sleep(0)

    async def watch(
        self, *_: Any, on_open: Callable[[], None] | None = None, **__: Any
    ) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        self.watches += 1
        if self.watch_error is not None:
            raise self.watch_error
        if on_open is not None:
            on_open()
        while not self.watch_closes:
            while self.events:
                yield self.events.pop(0)
            self.news.clear()
            await self.news.wait()


class World:
    """A reflector on a server, with a clock that only the reflector's own pauses move."""

    def __init__(self) -> None:
        self.server = Server()
        self.changes: list[WatchChange] = []
        self.now = 0.0
        self.limit = float("inf")
        self.reflector = Reflector(
            self.server,  # type: ignore[arg-type]
            POD,
            on_change=lambda _, change: self.changes.append(change),
            backoff=Backoff(base=0.5, cap=30.0, floor=0.1, uniform=lambda low, high: high / 2),
            sleep=self.sleep,
            clock=lambda: self.now,
        )

    async def sleep(self, seconds: float) -> None:
        if self.now + seconds > self.limit:
            await asyncio.Event().wait()
        self.now += seconds
        await asyncio.sleep(0)

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    def taken(self) -> list[tuple[str, bool]]:
        told = [(change.key[1], change.obj is not None) for change in self.changes]
        self.changes.clear()
        return told


def pod(name: str, rv: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "d" if name else "", "resourceVersion": rv}}


def run(case: Callable[[World], Any]) -> None:
    async def main() -> None:
        world = World()
        task = asyncio.create_task(world.reflector.run())
        try:
            await case(world)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_list_then_its_changes_and_the_watermark_follows() -> None:
    async def case(world: World) -> None:
        world.server.set("a")
        world.server.set("b")
        await world.settle()
        assert sorted(world.taken()) == [("a", True), ("b", True)]
        assert world.reflector.synced and not world.reflector.stale and world.reflector.watermark == "2"
        world.server.set("a")
        world.server.remove("b")
        world.server.bookmark()
        await world.settle()
        assert world.taken() == [("a", True), ("b", False)]
        assert world.reflector.watermark == "5"

    run(case)


def test_after_410_only_real_differences_are_reported() -> None:
    async def case(world: World) -> None:
        for name in ("same", "changed", "gone"):
            world.server.set(name)
        await world.settle()
        world.changes.clear()
        world.server.set("changed", quietly=True)
        world.server.remove("gone", quietly=True)
        world.server.set("new", quietly=True)
        world.server.watch_error = Gone("too old", status=410)
        world.server.watch_closes = True
        world.server.news.set()
        await world.settle()
        assert world.server.lists > 1
        assert sorted(world.taken()) == [("changed", True), ("gone", False), ("new", True)]

    run(case)


def test_relist_reports_everything_again() -> None:
    async def case(world: World) -> None:
        world.server.set("a")
        await world.settle()
        world.changes.clear()
        world.reflector.relist()
        assert not world.reflector.synced
        await world.settle()
        assert world.taken() == [("a", True)] and world.reflector.synced and world.server.lists == 2

    run(case)


@pytest.mark.parametrize(
    "error", [Unavailable("500", status=500), Forbidden("403", status=403), Gone("410", status=410)]
)
@pytest.mark.parametrize("where", ["list", "watch"])
def test_three_seconds_of_errors_are_a_few_requests(error: KubeError, where: str) -> None:
    async def case(world: World) -> None:
        world.limit = 3.0
        if where == "list":
            world.server.list_error = error
        else:
            world.server.watch_error = error
        await asyncio.sleep(0.05)
        assert 2 <= world.server.lists + world.server.watches <= 12
        if where == "list":
            assert not world.reflector.synced and world.reflector.stale

    run(case)


def test_a_watch_that_closes_at_once_does_not_spin() -> None:
    async def case(world: World) -> None:
        world.limit = 3.0
        world.server.watch_closes = True
        await asyncio.sleep(0.05)
        assert 2 <= world.server.watches <= 12 and world.server.lists == 1

    run(case)


def test_it_recovers_and_is_stale_only_meanwhile() -> None:
    async def case(world: World) -> None:
        world.server.list_error = Unavailable("down", status=503)
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.reflector.stale and not world.reflector.synced
        world.server.list_error = None
        world.server.set("a")
        await world.settle()
        assert not world.reflector.stale and world.reflector.synced and world.taken() == [("a", True)]

    run(case)


def test_a_kind_that_is_not_served_is_an_empty_synced_one() -> None:
    async def case(world: World) -> None:
        world.limit = 3.0
        world.server.list_error = NotFound("no such kind", status=404)
        await asyncio.sleep(0.02)
        assert world.reflector.synced and world.reflector.absent and world.taken() == []

    run(case)


def test_a_kind_of_a_version_that_is_not_served_costs_no_list() -> None:
    async def case(world: World) -> None:
        looks: list[tuple[float, float]] = []

        def versions(age: float) -> bool:
            looks.append((world.now, age))
            return served

        served, world.limit, world.server.versions = False, 600.0, versions
        world.server.list_error = NotFound("no such group", status=404)
        while world.now < 500.0:
            await asyncio.sleep(0)
        assert world.server.lists == 1 and world.reflector.absent and len(looks) > 10
        waits = [after - before + age for (before, _), (after, age) in pairwise(looks)]
        assert max(waits) <= 30.0, "what appears is seen as soon as by a list every 30 s"
        world.reflector.relist()
        await world.settle()
        assert world.reflector.synced, "nothing is known, and that is all there is"
        served, world.server.list_error, world.limit = True, None, float("inf")
        world.server.set("a")
        for _ in range(20):
            await world.settle()
        assert world.taken() == [("a", True)] and not world.reflector.absent

    run(case)


def test_backoff_grows_to_its_cap_and_never_below_its_floor() -> None:
    high = Backoff(base=1.0, cap=8.0, floor=0.1, uniform=lambda low, top: top)
    assert [high.next() for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    high.reset()
    assert high.next() == 1.0
    low = Backoff(base=1.0, cap=8.0, floor=0.1, uniform=lambda bottom, top: bottom)
    assert {low.next() for _ in range(50)} == {0.1}
