"""`belay server` orders a smaller job, then a larger one; the coordinator of `belay train` carries both out."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from belay.agents.training.train.agent.coordinator_host import CoordinatorHost, Outgoing
from belay.agents.training.train.agent.orders import ClusterOrders
from belay.agents.training.train.decide.members import Limits
from belay.engine.kube import POD
from tests.grpc_world import NS, Time, World, play, until

NPROC, RANKS = 8, 16


class Ranks:
    """Both nodes of a job: ranks that do at once what they are ordered. ``host`` is the real coordinator."""

    def __init__(self, orders: ClusterOrders) -> None:
        places = {rank: rank // NPROC for rank in range(RANKS)}
        # no limit but the orders
        limits = Limits(least=1, shrink=500.0, quiet=1e6, busy=1e6)
        self.host = CoordinatorHost(places, limits, lambda _: None, orders=orders.turn)
        self.there = {0, 1}
        for node in (0, 1):
            self.obey(self.host.node_joined(node, [], time.monotonic()))

    def obey(self, out: list[Outgoing]) -> None:
        """Carry out what the coordinator sends to nodes that are there."""
        queue = list(out)
        while queue:
            node, message, _ = queue.pop(0)
            if node not in self.there:
                continue
            body = message if message["t"] == "start" else message.get("m", {})
            generation = body.get("gen", 0)
            if body.get("t") in ("start", "recover"):
                done = -1 if body["t"] == "start" else 3
                ready = {"t": "ready", "gen": generation, "done": done, "shard": "", "checkpoints": False}
                queue += self.said(message["rank"], ready)
            elif body.get("t") == "plan":
                queue += self.said(message["rank"], {"t": "entered", "gen": generation})

    def said(self, rank: int, body: dict[str, object]) -> list[Outgoing]:
        """A rank has sent a message."""
        incarnation = self.host.coordinator.members[rank].incarnation
        return self.host.take([({"t": "rank", "rank": rank, "inc": incarnation, "m": body}, b"")], time.monotonic())

    async def loop(self) -> None:
        """The loop of the node agent."""
        while True:
            self.obey(self.host.tick(time.monotonic()))
            await asyncio.sleep(0.02)

    @property
    def training(self) -> frozenset[int] | None:
        return self.host.coordinator.training()


@pytest.mark.real_time
@pytest.mark.timeout(300)
def test_the_planner_s_orders_to_shrink_and_to_grow_are_carried_out(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job, clock = await world.job(pods=2, chips=NPROC, strategy="elastic-training"), Time()
        async with world.server(clock=clock) as server:
            orders = ClusterOrders(job, f"127.0.0.1:{server.port}", NPROC)
            ranks = Ranks(orders)
            orders.start()
            looping = asyncio.create_task(ranks.loop())

            def state() -> str:
                session = server.registry.find(job)
                return session.conversation.state.value if session is not None else ""

            async def after(seconds: float) -> None:
                clock.pass_by(seconds)
                await server.registry.refresh()

            try:
                assert ranks.training == {0, 1}
                await until(lambda: state() == "INIT", "the job is registered")

                ranks.there = {0}
                ranks.obey(ranks.host.node_lost(1, "silent", time.monotonic()))
                assert ranks.training is None
                await world.kube.delete(POD, "pretrain-worker-1", NS, grace=0)
                await until(lambda: state() == "WaitFaultFlushFinishedState", f"the fault is known, {state()}")
                await until(lambda: len(server.cluster.jobs[job].pods) == 1, "the pod is gone")
                await after(1)
                await until(lambda: state() == "NotifyDecidedStrategyState", f"a smaller job is offered, {state()}")
                await after(20)
                await until(lambda: ranks.training == {0}, "the order to shrink is carried out")
                await until(lambda: state() == "ScaleRunningState", f"the smaller job is reported, {state()}")

                await world.pod("pretrain", 1)
                ranks.there = {0, 1}
                ranks.obey(ranks.host.node_joined(1, [], time.monotonic()))
                await until(lambda: server.cluster.jobs[job].running, "the pod is back")
                await after(5)
                await until(lambda: ranks.training == {0, 1}, "all train")
                await until(lambda: state() == "INIT", f"the larger job is reported, {state()}")
            finally:
                looping.cancel()
                await asyncio.to_thread(orders.close)

    play(tmp_path, story)
