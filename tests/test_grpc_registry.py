"""The registry of recovery sessions keeps its pace whatever fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from belay.engine.model.cluster import AgentReport
from belay.engine.serve.grpc import observed_cluster
from belay.engine.serve.grpc.recovery import registry as room
from belay.engine.serve.grpc.recovery.registry import PERIOD, Registry
from belay.engine.wire import deviceinfo
from belay.engine.wire.orders import build_report
from tests.grpc_world import World, play, until


def test_a_refresh_that_always_fails_is_logged_and_retried_at_the_usual_pace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = cast(Any, SimpleNamespace(version=0, on_refresh=lambda wake: None))
    looks, pauses = 0, list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    async def main() -> None:
        nonlocal looks
        registry = Registry(cast(Any, None), cluster, writer=cast(Any, SimpleNamespace()))

        async def pulse() -> None:
            nonlocal looks
            looks += 1
            registry._wake.set()  # there is always something to look at
            raise ValueError("a bug")

        monkeypatch.setattr(registry, "refresh", pulse)
        monkeypatch.setattr(room, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        with pytest.raises(asyncio.CancelledError):
            await registry.run()

    asyncio.run(main())
    assert looks == 3 and pauses == [PERIOD] * 3
    assert [record.getMessage() for record in caplog.records] == ["refresh of the sessions failed"] * 3


def test_after_a_snapshot_that_took_long_calls_are_answered_for_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rests, costs = [0.0], list[float](), iter([0.01, 0.5])

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 2:
            raise asyncio.CancelledError

    async def main() -> None:
        cluster = observed_cluster.ObservedCluster(cast(Any, None), ())
        cluster._signal.news()  # there is always something new
        monkeypatch.setattr(cluster, "refresh", lambda: clock.append(clock[-1] + next(costs)))
        monkeypatch.setattr(observed_cluster, "time", SimpleNamespace(monotonic=lambda: clock[-1]))
        monkeypatch.setattr(observed_cluster, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        with pytest.raises(asyncio.CancelledError):
            await cluster.run()

    asyncio.run(main())
    assert rests == [observed_cluster.MIN_INTERVAL, pytest.approx(1.0)]


def test_heartbeats_alone_make_no_snapshot_at_once() -> None:
    """A thousand nodes send twenty a second: four snapshots of the cluster were made for them each second."""

    def device(free: int, now: float) -> dict[str, Any]:
        listed = {"huawei.com/Ascend910": ",".join(f"Ascend910-{chip}" for chip in range(free))}
        body = deviceinfo.build("n0", device_list=listed, update_time=int(now))
        return {"apiVersion": "v1", "kind": "ConfigMap", **body}

    async def main() -> None:
        cluster = observed_cluster.ObservedCluster(cast(Any, None), ())

        async def due() -> bool:
            waiting = asyncio.ensure_future(cluster._signal.wait(3600))
            for _ in range(5):
                await asyncio.sleep(0)
            done = waiting.done()
            waiting.cancel()
            return done

        cluster.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "status": {}})
        cluster.put(device(8, 1000))
        assert await due()
        cluster.refresh()
        for second in range(1001, 1010):
            cluster.put(device(8, second))
            assert not await due()
        cluster.refresh()
        assert cluster.observed.reports["n0"].update_time == 1009, "the newest report is kept all the same"
        cluster.put(device(7, 1010))
        assert await due(), "a chip fewer"

    asyncio.run(main())


def test_what_agents_say_of_themselves_is_not_followed(tmp_path: Path) -> None:
    """It is most of what changes in a quiet cluster, and no service reads it."""

    async def story(world: World) -> None:
        await world.kube.apply(build_report(AgentReport("n0", "boot", 1, 1, 0, {}, 0, "", (), ()), "Ascend910-", {}))
        async with world.server() as server:
            await world.node("n0")
            await until(lambda: "n0" in server.cluster.observed.reports, "the device report is seen")
            assert not server.cluster.observed.agents

    play(tmp_path, story)
