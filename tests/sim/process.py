"""Simulated processes: they live, die at any point where they touch the outside, and start again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import redis

from belay.engine.kube import Conflict, KubeError, TooMany, Unavailable
from belay.engine.kube.errors import from_answer
from tests.sim.clock import HERE, LIVES, Machine


class Died(BaseException):
    """The process was killed here: nothing it would still do has any effect."""


class Weather(msgspec.Struct):
    """How often things fail, as chances per point where a process touches the outside; 0 is a calm world.

    ``kill`` ends the process there; ``api`` refuses or loses a call to the API server, ``redis`` one to Redis, ``slow``
    delays one by seconds; ``double``, ``late`` and ``lose`` are for messages. ``stray``: a binding arrives once its
    sender has given up, as late as a server may carry it out.
    """

    kill: float = 0.0
    api: float = 0.0
    redis: float = 0.0
    slow: float = 0.0
    double: float = 0.0
    late: float = 0.0
    lose: float = 0.0
    stray: float = 0.0


STRAYS = 20.0
"""Seconds after which a binding still may be carried out: its sender's limit, the server's, and some on the way."""


class Outside:
    """What all processes share: chance, weather, outages, and the count of points passed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.weather = Weather()
        self.api_down = False
        self.redis_down = False
        self.steps = 0
        self.kill_at = -1
        """The one point at which a process that passes it dies, for sweeps; -1: none."""
        self.deaths: list[tuple[int, str, str]] = []
        self.faults: dict[str, int] = {}

    def count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1


class Process:
    """One process, over all its lives. ``main`` runs one life; ``offset``: by how many s its wall clock is wrong."""

    def __init__(self, name: str, outside: Outside, main: Callable[[Life], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.offset = 0.0
        self.lives = 0
        self.life: Life | None = None
        self._outside = outside
        self._main = main

    @property
    def alive(self) -> bool:
        return self.life is not None and self.life.alive

    def start(self) -> None:
        """Begin a life."""
        self.lives += 1
        life = self.life = Life(self, self._outside)
        token = HERE.set(life)
        try:
            life.task = asyncio.get_running_loop().create_task(self._live(life), name=f"{self.name}/{self.lives}")
        finally:
            HERE.reset(token)

    async def _live(self, life: Life) -> None:
        try:
            await self._main(life)
        except Died:
            return
        except BaseExceptionGroup as group:  # what a task group of the agent makes of it
            if (rest := group.split(Died)[1]) is not None:
                raise rest from None
        finally:
            life.alive = False

    def kill(self, why: str = "killed") -> None:
        """End this life at once; what it still does while it is cancelled has no effect."""
        life = self.life
        if life is not None and life.alive:
            self._outside.deaths.append((self._outside.steps, self.name, why))
            life.alive = False
            life.bury()


class Life(Machine):
    """One life of a process: its tasks keep it as their machine, so that the dead cannot act for the living."""

    def __init__(self, process: Process, outside: Outside) -> None:
        self.process = process
        self.name = process.name
        self.alive = True
        self.task: asyncio.Task[None] | None = None
        self._outside = outside

    @property
    def offset(self) -> float:  # type: ignore[override]
        return self.process.offset

    def bury(self) -> None:
        """Cancel every task of this life until all are gone."""
        loop = asyncio.get_running_loop()

        def again(turn: int) -> None:
            mine = [task for task in asyncio.all_tasks(loop) if LIVES.get(task) is self]
            for task in mine:
                task.cancel()
            if mine and turn < 200:
                loop.call_later(0.001, again, turn + 1)

        loop.call_soon(again, 0)

    # the points

    def gated(self, driver: Any) -> Any:
        """Hardware whose every call is a point before and after: between journal and act, between act and journal."""
        return _Gated(driver, self)

    def _point(self, what: str) -> None:
        """Count; die here if that is decided. A dead process stays dead."""
        if not self.alive:
            raise Died(self.name)
        outside = self._outside
        outside.steps += 1
        weather = outside.weather
        if outside.steps == outside.kill_at or (weather.kill and outside.chance.random() < weather.kill):
            outside.count(f"killed {self.name.split('-')[0]}")
            self.process.kill(what)
            raise Died(self.name)

    async def pass_gate(self, what: str) -> None:
        """A point with nothing to carry out."""
        self._point(what)
        if self._outside.api_down and what == "watch":
            raise Unavailable("the connection broke", reason="NoAnswer")

    async def call_api(self, what: str, call: Callable[[], Any]) -> Any:
        """Carry out a call to the API server, unless the weather has it otherwise."""
        outside, chance = self._outside, self._outside.chance
        self._point(f"before {what}")
        await asyncio.sleep(chance.choice((0.0, 0.001, 0.004)))
        if not self.alive:
            raise Died(self.name)
        if outside.api_down:
            await asyncio.sleep(1.0)
            raise Unavailable(f"{what}: no answer in time", reason="NoAnswer")
        if outside.weather.slow and chance.random() < outside.weather.slow:
            outside.count("slow call")
            await asyncio.sleep(chance.choice((0.2, 2.0, 14.0)))
        lost = False
        if outside.weather.stray and what.endswith("/binding") and chance.random() < outside.weather.stray:
            outside.count("binding astray")
            asyncio.get_running_loop().call_later(chance.uniform(0.0, STRAYS), _carried_out, call)
            await asyncio.sleep(60.0)
            raise Unavailable(f"{what}: no answer in time", reason="NoAnswer")
        if outside.weather.api and chance.random() < outside.weather.api:
            fault = chance.choice(("429", "500", "409", "timeout", "lost", "lost"))
            outside.count(f"API {fault}")
            if fault == "429":
                raise TooMany(f"{what}: 429", status=429, retry_after=chance.choice((0.0, 1.0, 3.0)))
            if fault == "500":
                raise from_answer(500, b"{}", what)
            if fault == "409" and not what.startswith(("GET", "WATCH")):
                raise Conflict(f"{what}: 409 injected", status=409, reason="Conflict")
            if fault == "timeout":
                await asyncio.sleep(5.0)
                raise Unavailable(f"{what}: no answer in time", reason="NoAnswer")
            lost = True
        if not self.alive:
            raise Died(self.name)
        answer = call()
        self._point(f"after {what}")
        if lost:
            raise Unavailable(f"{what}: the answer was lost", reason="NoAnswer")
        return answer

    def call_redis(self, what: str, call: Callable[[], Any]) -> Any:
        """Carry out a Redis command, unless the weather has it otherwise."""
        outside = self._outside
        self._point(f"before redis {what}")
        if outside.redis_down:
            raise redis.ConnectionError("injected: Redis is away")
        failing = outside.weather.redis and outside.chance.random() < outside.weather.redis
        if failing and outside.chance.random() < 0.5:
            outside.count("Redis refused")
            raise redis.ConnectionError("injected: connection reset")
        answer = call()
        if failing:
            outside.count("Redis answer lost")
            raise redis.TimeoutError("injected: no answer")
        return answer

    async def call_redis_later(self, what: str, call: Callable[[], Any]) -> Any:
        """The same for the asynchronous client."""
        await asyncio.sleep(0)
        return self.call_redis(what, call)


def _carried_out(call: Callable[[], Any]) -> None:
    with contextlib.suppress(KubeError):
        call()


class _Gated:
    def __init__(self, driver: Any, life: Life) -> None:
        self._driver = driver
        self._life = life

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._driver, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            await self._life.pass_gate(f"before driver {name}")
            found = await method(*args, **options)
            await self._life.pass_gate(f"after driver {name}")
            return found

        return call
