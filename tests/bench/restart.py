"""``kill -9`` of the whole engine at 5,000 nodes, until its next life does the first right thing.

All processes of the engine are killed at once and started again at once; a fault is reported while they are dead. The
clock starts when they are started again and stops when a watch shows the order that isolates the chip. Three cases:
Redis survives, Redis is killed too and comes back empty, and other processes with other names take over, which have to
wait until the Lease of the dead has run out; their clock starts with the kill.
"""

from __future__ import annotations

import asyncio
import time

from belay.engine.kube import Kube
from tests.bench.measure import RUNS, Result
from tests.bench.plant import Orders, Plant, plant

NODES = 5000
LATEST = 90.0
ROLES = ("controller", "worker")


def run() -> list[Result]:
    with plant(NODES) as made:
        return asyncio.run(_runs(made))


async def _runs(made: Plant) -> list[Result]:
    lease = made.settings.lease
    kept = Result(f"kill -9 at {NODES:,} nodes → first order after the restart, Redis surviving", "s", 5.0)
    gone = Result("the same, Redis killed too and empty", "s")
    other = Result("failover to processes of another name", "s", lease + 5.0, remark=f"the Lease lasts {lease:.0f} s")
    kept.remark = "a peer's published figure: 497 s"
    async with Kube.from_config(made.kubeconfig) as kube:
        await made.populate(kube)
        for role in ROLES:
            made.start(role, f"{role}-a")
        await made.settled()
        async with Orders(kube).following() as orders:
            for turn in range(RUNS):
                kept.runs.append(await _again(made, kube, orders, turn, chip=0))
            for turn in range(RUNS):
                gone.runs.append(await _again(made, kube, orders, turn, chip=1, redis=True))
            for turn in range(RUNS):
                other.runs.append(await _over(made, kube, orders, turn))
    return [kept, gone, other]


async def _again(made: Plant, kube: Kube, orders: Orders, turn: int, *, chip: int, redis: bool = False) -> float:
    made.kill(*(f"{role}-a" for role in ROLES))
    if redis:
        made.lose_redis()
    name = made.nodes[turn * 7]
    await made.break_chip(kube, name, chip)
    began = time.monotonic()
    for role in ROLES:
        made.start(role, f"{role}-a")
    took = await orders.seen(name, chip, LATEST) - began
    await made.settled()
    return took


async def _over(made: Plant, kube: Kube, orders: Orders, turn: int) -> float:
    """Those who stand by are of the other name; the dead become those who stand by."""
    now, next_ = ("a", "b") if turn % 2 == 0 else ("b", "a")
    for role in ROLES:
        made.start(role, f"{role}-{next_}")
    await asyncio.sleep(6.0)
    name = made.nodes[turn * 7]
    began = time.monotonic()
    made.kill(*(f"{role}-{now}" for role in ROLES))
    await made.break_chip(kube, name, 2)
    took = await orders.seen(name, 2, LATEST) - began
    await made.settled()
    return took
