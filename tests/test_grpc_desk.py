"""The desk of the recovery services goes on, at its pace, whatever happens to it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.serve.grpc import cluster as followed
from engine.serve.grpc import desk as room
from engine.serve.grpc.desk import PERIOD, Desk


def test_a_look_that_always_fails_is_told_and_tried_again_at_the_usual_pace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = cast(Any, SimpleNamespace(version=0, listen=lambda wake: None))
    looks, pauses = 0, list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    async def main() -> None:
        nonlocal looks
        desk = Desk(cast(Any, None), cluster, hand=cast(Any, SimpleNamespace()))

        async def pulse() -> None:
            nonlocal looks
            looks += 1
            desk._wake.set()  # there is always something to look at
            raise ValueError("a bug")

        monkeypatch.setattr(desk, "pulse", pulse)
        monkeypatch.setattr(room, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        with pytest.raises(asyncio.CancelledError):
            await desk.run()

    asyncio.run(main())
    assert looks == 3 and pauses == [PERIOD] * 3
    assert [record.getMessage() for record in caplog.records] == ["looking at the jobs failed"] * 3


def test_after_a_snapshot_that_took_long_calls_are_answered_for_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rests, costs = [0.0], list[float](), iter([0.01, 0.5])

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 2:
            raise asyncio.CancelledError

    async def main() -> None:
        cluster = followed.Cluster(cast(Any, None), ())
        cluster._dirty.set()  # there is always something new
        monkeypatch.setattr(cluster, "refresh", lambda: clock.append(clock[-1] + next(costs)))
        monkeypatch.setattr(followed, "time", SimpleNamespace(monotonic=lambda: clock[-1]))
        monkeypatch.setattr(followed, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        with pytest.raises(asyncio.CancelledError):
            await cluster.run()

    asyncio.run(main())
    assert rests == [followed.PACE, pytest.approx(1.0)]
