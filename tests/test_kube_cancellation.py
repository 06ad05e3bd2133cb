"""Tasks end when cancelled, even where a library loses a cancellation."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from belay import engine
from belay.engine.kube import cancel_all, run_all
from belay.engine.sandbox.controllers.queue import WorkQueue


@pytest.mark.parametrize("turns", range(6))
def test_a_queue_loses_no_cancellation_whatever_is_added_just_before(turns: int) -> None:
    """Python 3.11's wait_for did, once in five runs of a sandbox, whose kubelet then hung."""

    async def run() -> None:
        queue: WorkQueue[str] = WorkQueue(time.monotonic)
        queue.add_after("later", 3600.0)  # so that the wait has a limit
        task = asyncio.create_task(forever(queue))
        await asyncio.sleep(0.01)
        queue.add_after("also later", 3600.0)  # wakes it without giving it anything
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
        assert task.cancelled(), "the cancellation was lost"

    async def forever(queue: WorkQueue[str]) -> None:
        while True:
            await queue.get()

    asyncio.run(run())


class Deaf:
    """Work that loses its first cancellations."""

    def __init__(self, deaf: int) -> None:
        self.deaf, self.heard = deaf, 0

    async def run(self) -> None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.heard += 1
                if self.heard > self.deaf:
                    raise


def test_what_runs_together_ends_although_one_lost_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.kube.cancellation._AGAIN_SECONDS", 0.001)

    async def run() -> None:
        before = asyncio.all_tasks()
        works = [Deaf(0), Deaf(1), Deaf(3)]
        inner = run_all(*(work.run() for work in works))
        outer = asyncio.create_task(run_all(inner, Deaf(2).run()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        async with asyncio.timeout(5.0):
            await cancel_all(outer)
        assert outer.cancelled()
        assert asyncio.all_tasks() == before, "a task was left behind"
        assert [work.heard for work in works] == [1, 2, 4]

    asyncio.run(run())


def test_the_first_failure_ends_the_others_and_is_raised_as_it_is() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def run() -> None:
        other = Deaf(0)
        with pytest.raises(ValueError, match="broken"):
            await run_all(other.run(), fail())
        assert other.heard == 1

    asyncio.run(run())


def test_ending_twice_at_once_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.kube.cancellation._AGAIN_SECONDS", 0.001)

    async def run() -> None:
        task = asyncio.create_task(Deaf(3).run())
        await asyncio.sleep(0)
        ending = asyncio.create_task(cancel_all(task))
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert task.cancelled()

    asyncio.run(run())


def test_no_module_uses_functions_that_lose_cancellations() -> None:
    """``asyncio.wait_for`` of Python 3.11; ``asyncio.timeout`` is right."""
    root = Path(engine.__file__).parents[1]
    found = [
        str(path.relative_to(root))
        for folder in ("engine", "agents")
        for path in sorted((root / folder).rglob("*.py"))
        if re.search(r"(?<!`)asyncio\.wait_for\(", path.read_text())
    ]
    assert found == []
