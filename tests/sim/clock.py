"""Virtual time: an event loop that never waits, and ``time.time``/``time.monotonic`` that show its time.

Every simulated process may have a wall clock of its own (``offset``): machines disagree, and clocks jump.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import time
import uuid
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any
from weakref import WeakKeyDictionary

START = 1_788_249_600.0
"""Unix seconds at which every simulation begins."""


class Clock:
    """Monotonic seconds of the simulation."""

    def __init__(self) -> None:
        self.now = 1000.0

    @property
    def wall(self) -> float:
        """What a clock that never jumped shows, Unix seconds."""
        return START + self.now - 1000.0


class Machine:
    """What a task runs on, for its wall clock. Subclassed by simulated processes."""

    offset = 0.0


HERE: ContextVar[Machine | None] = ContextVar("simulated machine", default=None)
LIVES: WeakKeyDictionary[asyncio.Task[Any], Machine | None] = WeakKeyDictionary()
"""On which machine each task runs."""
_current: list[Clock] = []
_real_time, _real_monotonic = time.time, time.monotonic


def _time() -> float:
    if not _current:
        return _real_time()
    machine = HERE.get()
    return _current[0].wall + (machine.offset if machine else 0.0)


def _monotonic() -> float:
    return _current[0].now if _current else _real_monotonic()


def install() -> None:
    """Make ``time`` show simulated time while a simulation runs. Defaults of arguments are bound at import, so: first
    this, then imports.
    """
    time.time, time.monotonic = _time, _monotonic


def real_seconds() -> float:
    """Monotonic seconds of the real world."""
    return _real_monotonic()


class Standstill(AssertionError):
    """Every task waits for another one."""


class _Selector(selectors.SelectSelector):
    """Nothing ever comes from outside: instead of waiting, time moves."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Standstill("nothing is due any more")
        self._clock.now += max(0.0, timeout)
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """Runs a simulation; what would go to a thread runs at once, so that the order of everything is decided here."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(_Selector(clock))
        self._sim_clock = clock
        self.set_task_factory(_task)

    def time(self) -> float:
        return self._sim_clock.now

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future


_numbers = itertools.count()


class Numbered:
    """Hashes by its number of birth: sets of such things iterate alike in every run."""

    def __hash__(self) -> int:
        found: int | None = getattr(self, "_number", None)
        if found is None:
            found = self._number = next(_numbers)
        return found


class _Task(Numbered, asyncio.Task):  # type: ignore[type-arg]
    __hash__ = Numbered.__hash__


class _Future(Numbered, asyncio.Future):  # type: ignore[type-arg]
    __hash__ = Numbered.__hash__


def _task(loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = _Task(coro, loop=loop, context=context)
    LIVES[task] = context.get(HERE) if context is not None else HERE.get()
    return task


def seed(number: int) -> None:
    """Seed all chance afresh, so that a history does not depend on those before it."""
    global _numbers
    _numbers = itertools.count()
    random.seed(number)
    names = random.Random(f"uuid/{number}")
    uuid.uuid4 = lambda: uuid.UUID(int=names.getrandbits(128), version=4)


def run(clock: Clock, main: Any) -> Any:
    """Run a coroutine on virtual time to its end."""
    loop = SimLoop(clock)
    _current[:] = [clock]
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        rest = asyncio.all_tasks(loop)
        for _ in range(20):
            for task in rest:
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            rest = {task for task in rest if not task.done()}
            if not rest:
                break
        _current.clear()
        asyncio.set_event_loop(None)
        loop.close()
