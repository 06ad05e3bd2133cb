"""The desk of the recovery services goes on, at its pace, whatever happens to it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

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
