"""A controller that was taken for dead and is not: it makes room, and begins no snapshot over that of its successor."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from belay.engine import freed_memory
from belay.engine.controller.controller import Controller
from belay.engine.controller.triggers import Triggers
from belay.engine.kube import LEASE, Kube
from belay.engine.observe.watch_events import ObjectChange
from belay.engine.settings import Settings
from belay.engine.store import PassStore, connect
from tests.loop_world import Cluster, cluster
from tests.redis_server import redis_process, redis_url  # noqa: F401

__all__ = ["cluster"]
pytestmark = pytest.mark.timeout(300)
LEASE_NAME = "belay-controller-main"


async def until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < ends, what
        await asyncio.sleep(0.05)


def test_a_controller_that_lost_its_lease_begins_no_snapshot(
    redis_url: str,  # noqa: F811
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    # renewals every ten minutes: none of them shows it
    settings = Settings(
        redis_url=redis_url, kubeconfig=cluster.kubeconfig, identity="old", data=str(tmp_path), lease=3000.0
    )
    client = connect(redis_url)

    async def work() -> None:
        async with Kube.from_config(cluster.kubeconfig) as kube:
            old = Controller(settings, kube, lambda shard: None)
            running = asyncio.create_task(old.run())
            await until(lambda: old.ready, "the old controller never led")
            lease = await kube.get(LEASE, LEASE_NAME, "belay-system")
            assert lease is not None
            lease["spec"] |= {"holderIdentity": "new", "leaseTransitions": lease["spec"]["leaseTransitions"] + 1}
            await kube.replace(LEASE, lease)
            before = client.hget("belay:{main}:meta", "generation")
            PassStore(client).ask_relist("main")  # whatever makes it begin again: here a worker asks
            await until(lambda: not old.ready, "the old controller leads on")
            assert client.hget("belay:{main}:meta", "generation") == before
            found = await kube.get(LEASE, LEASE_NAME, "belay-system")
            assert found is not None and found["spec"]["holderIdentity"] == "new"
            old.stop()
            await asyncio.wait_for(running, 60)

    asyncio.run(work())


def test_a_controller_that_still_leads_begins_again(
    redis_url: str,  # noqa: F811
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(redis_url=redis_url, kubeconfig=cluster.kubeconfig, identity="one", data=str(tmp_path))
    client = connect(redis_url)
    held: list[int] = []

    async def work() -> None:
        async with Kube.from_config(cluster.kubeconfig) as kube:
            one = Controller(settings, kube, lambda shard: None)
            inbox = one._snapshot._events._changes
            # what other tests of this process left
            gc.collect()
            others = sum(type(change) is ObjectChange for change in gc.get_objects())

            def count() -> None:
                alive = [change for change in gc.get_objects() if type(change) is ObjectChange]
                held.append(len(alive) - len(inbox) - others)

            monkeypatch.setattr(freed_memory, "give_back", count)
            running = asyncio.create_task(one.run())
            await until(lambda: one.ready, "the controller never led")
            before = client.hget("belay:{main}:meta", "generation")
            client.flushall()

            def again() -> bool:
                return client.hget("belay:{main}:meta", "generation") not in (None, before) and one.ready

            await until(again, "the snapshot did not come again")
            await until(lambda: len(held) == 2, "memory did not go back")  # ready is said while it is still written
            one.stop()
            await asyncio.wait_for(running, 60)

    asyncio.run(work())
    assert held == [0, 0], "memory goes back after each snapshot, and nothing holds what was written any more"


def test_a_leading_controller_waits_for_words_instead_of_asking(
    redis_url: str,  # noqa: F811
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    settings = Settings(
        redis_url=redis_url, kubeconfig=cluster.kubeconfig, identity="one", data=str(tmp_path), resync=60.0
    )
    client = connect(redis_url)
    sent: list[str] = []

    async def work() -> tuple[int, int]:
        async with Kube.from_config(cluster.kubeconfig) as kube:
            one = Controller(settings, kube, sent.append)
            running = asyncio.create_task(one.run())
            await until(lambda: one.ready and bool(sent), "the controller never led")
            assert Triggers(client).claim("main", "a worker", 60.0)
            idle = 8  # four looks a second; what still changes at the start marks the shard, which is no look
            for _ in range(5):
                asked = questions(client)
                await asyncio.sleep(2.0)
                idle = min(idle, questions(client) - asked)
                if idle <= 2:
                    break

            sent.clear()
            await asyncio.to_thread(Triggers(client).free, "a worker")
            began = time.monotonic()
            await until(lambda: bool(sent), "a mark of another process woke no controller")
            assert time.monotonic() - began < 1.5
            one.stop()
            await asyncio.wait_for(running, 60)
            return idle, len(sent)

    idle, messages = asyncio.run(work())
    assert idle <= 2 and messages == 1


def questions(client: Redis) -> int:
    """How often the queue of shards was asked so far, by script."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))
