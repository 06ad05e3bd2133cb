"""Many faults at once: from a report that is durable in the API to the order that is durable there, 1,500 nodes.

The benchmark writes device reports as agents do, each node once at a random moment within 30 s, and follows all orders
with one watch. The clock of a fault starts when the API server has answered its report's write, and stops when the
watch shows the chip isolated in the node's order; so the watch's way back is in it. Engine, API server and benchmark
share the machine.
"""

from __future__ import annotations

import asyncio
import random

from belay.engine.kube import Kube
from tests.bench.measure import RUNS, Result
from tests.bench.plant import Orders, Plant, plant

NODES = 1500
SECONDS = 30.0
LATEST = 60.0
COUNTS = ((150, 1000.0), (750, 3000.0))
"""How many nodes fail within 30 s, and the goal for the 99th percentile in ms."""
PEERS = {150: "a GPU peer's published P90: 28 s", 750: "a GPU peer's published P90: 419 s"}


def run() -> list[Result]:
    """In the sandbox."""
    return _measure(real=False)


def run_real() -> list[Result]:
    """On a real kube-apiserver. Raises Skipped where there is none."""
    return _measure(real=True)


def _measure(*, real: bool) -> list[Result]:
    with plant(NODES, real=real) as made:
        return asyncio.run(_runs(made))


async def _runs(made: Plant) -> list[Result]:
    results = []
    chance = random.Random(17)
    async with Kube.from_config(made.kubeconfig) as kube:
        await made.populate(kube)
        made.start("controller", "controller-a")
        made.start("worker", "worker-a")
        await made.settled()
        async with Orders(kube).following() as orders:
            await _storm(made, kube, orders, 20, 7, chance)  # not counted: everything has started and is warm
            for count, limit in COUNTS:
                half = Result(f"{count} of {NODES:,} nodes fail within 30 s: fault reported → order durable, p50", "ms")
                most = Result("the same, p99 of all samples", "ms", limit, percentile=99, remark=PEERS[count])
                for _ in range(RUNS):
                    chip = sum(len(result.runs) for result in (*results[::2], half)) % 7
                    samples = await _storm(made, kube, orders, count, chip, chance)
                    half.runs.append(Result("", "ms", runs=samples).value)
                    most.runs += samples
                half.remark = f"{RUNS} runs, {len(most.runs):,} faults; median of the runs' medians"
                results += [half, most]
    return results


async def _storm(made: Plant, kube: Kube, orders: Orders, count: int, chip: int, chance: random.Random) -> list[float]:
    """Milliseconds from each report to its order."""
    free = [name for name in made.nodes if chip not in made.bad.get(name, ())]
    chosen = chance.sample(free, count)

    async def one(name: str) -> float:
        await asyncio.sleep(chance.uniform(0.0, SECONDS))
        reported = await made.break_chip(kube, name, chip)
        return max(0.0, await orders.seen(name, chip, LATEST) - reported) * 1000

    found = await asyncio.gather(*(one(name) for name in chosen))
    await asyncio.sleep(2.0)
    return list(found)
