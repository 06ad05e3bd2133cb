"""What the agents of a cluster write to the API server, per second: the real agent on a virtual clock.

One agent per run lives on a simulated driver through six hours of virtual time; every write request is counted with
the size of its body. Agents do not know of each other, so a cluster's rate is the rate per node times its nodes.
Writes of kubelets and of the engine are not in it. The agent beside it is arithmetic: at every poll two writes of the
mean size.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.node.agent import NodeAgent
from belay.agents.node.settings import Settings
from belay.engine.wire.policy import NodePolicy
from tests.agent_world import NODE, RULES, FakeCluster, VirtualClock
from tests.bench.measure import RUNS, Result, number

HOURS = 6 * 3600.0
QUARTER = 900.0
SIZES = (1_000, 10_000)
SUB_HEALTHY = "20000100"
FAULTS_PER_HOUR = 1
"""Faults per node and hour in the busy hours, each of which goes again after ten minutes."""

Story = Callable[[VirtualClock, SimulatedDriver, random.Random], Awaitable[None]]


def run() -> list[Result]:
    logging.disable(logging.WARNING)
    try:
        quiet, busy, flapping = _means(_quiet, HOURS), _means(_faults, HOURS), _means(_flapping, QUARTER)
    finally:
        logging.disable(logging.NOTSET)
    rows = []
    for nodes in SIZES:
        rows += _rows("nothing happens", nodes, quiet)
        rows += _rows(f"{FAULTS_PER_HOUR} fault per node and hour", nodes, busy)
    return [*rows, *_rows("every node has a chip that flaps 5 times a second", SIZES[0], flapping)]


def _rows(title: str, nodes: int, means: list[tuple[float, float]]) -> list[Result]:
    poll = Settings().poll
    writes = Result(f"{nodes:,} nodes, {title}: writes", "1/s", runs=[nodes * per_second for per_second, _ in means])
    size = Result(f"{nodes:,} nodes, {title}: bytes", "KiB/s", runs=[nodes * size / 1024 for _, size in means])
    if title == "nothing happens":
        each = sum(size for _, size in means) / sum(count for count, _ in means)
        writes.remark = f"an agent that writes both objects at every poll ({poll:.0f} s): {nodes * 2 / poll:,.0f} 1/s"
        size.remark = f"{each / 1024:.2g} KiB a write; that agent: {number(nodes * 2 / poll * each / 1024)} KiB/s"
    return [writes, size]


def _means(story: Story, seconds: float) -> list[tuple[float, float]]:
    """Writes and bytes per second and node, one pair per run."""
    return [asyncio.run(_run(story, seed, seconds)) for seed in range(RUNS)]


async def _run(story: Story, seed: int, seconds: float) -> tuple[float, float]:
    clock = VirtualClock()
    cluster = _Counting(clock)
    with tempfile.TemporaryDirectory(prefix="belay-bench-") as folder:
        driver = SimulatedDriver(NODE, seed=seed, now_ms=clock.now_ms, sleep=clock.sleep)
        agent = NodeAgent(
            NODE,
            driver,
            cluster,
            Path(folder),
            clock=clock,
            policy=NodePolicy("default", RULES),
            chance=random.Random(seed),
        )
        tasks = [asyncio.create_task(agent.run()), asyncio.create_task(story(clock, driver, random.Random(seed)))]
        try:
            await clock.advance(60.0)
            cluster.count = cluster.bytes = 0
            await clock.advance(seconds)
            for task in tasks:
                if task.done():
                    task.result()
            return cluster.count / seconds, cluster.bytes / seconds
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def _quiet(clock: VirtualClock, driver: SimulatedDriver, chance: random.Random) -> None:
    """Nothing happens."""


async def _faults(clock: VirtualClock, driver: SimulatedDriver, chance: random.Random) -> None:
    """Now and then a chip has a fault for ten minutes."""
    while True:
        await clock.sleep(chance.expovariate(FAULTS_PER_HOUR / 3600.0))
        chip = chance.randrange(8)
        driver.inject(chip, SUB_HEALTHY)
        await clock.sleep(600.0)
        driver.clear(chip, SUB_HEALTHY)


async def _flapping(clock: VirtualClock, driver: SimulatedDriver, chance: random.Random) -> None:
    """The worst a chip can do."""
    while True:
        driver.inject(0, SUB_HEALTHY)
        await clock.sleep(0.1)
        driver.clear(0, SUB_HEALTHY)
        await clock.sleep(0.1)


class _Counting(FakeCluster):
    """Counts the write requests and the bytes of their bodies, as the agent's client sends them."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.count = self.bytes = 0

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        self._sent({"metadata": {"labels": body["metadata"].get("labels", {})}, "data": body["data"]})
        await super().put_config_map(body)

    async def replace_config_map(self, body: Mapping[str, Any]) -> None:
        self._sent(body)
        await super().replace_config_map(body)

    async def patch_node(self, node: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        self._sent({"metadata": {"labels": dict(labels), "annotations": dict(annotations)}})
        await super().patch_node(node, labels, annotations)

    def _sent(self, body: Mapping[str, Any]) -> None:
        self.count += 1
        self.bytes += len(json.dumps(body, separators=(",", ":")).encode())
