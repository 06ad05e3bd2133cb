"""The API server was away, and a chip failed meanwhile: from its return to the report of the fault.

The real agent on a simulated driver and a virtual clock, which counts in tenths of a second, so the machine's load is
not in it. Each call of the agent fails at once while the server is away; the chip fails at a random moment of that
time. MindCluster's device plugin took 0 to 1.6 s after an outage of 60 s, an earlier Belay up to 39 s: it waited out
its back-off.
"""

from __future__ import annotations

import logging
import random
import tempfile
from pathlib import Path
from typing import Final

from tests.agent_world import FAULT, World, scenario
from tests.bench.measure import Result

OUTAGES: Final = (10, 60, 600)
"""Seconds for which the API server is away."""
TIMES: Final = 20
_TICK: Final = 0.1
_MOST: Final = 120.0


def run() -> list[Result]:
    logging.disable(logging.WARNING)
    try:
        return [_after(seconds) for seconds in OUTAGES]
    finally:
        logging.disable(logging.NOTSET)


def _after(seconds: int) -> Result:
    found = Result(f"API server away for {seconds} s → the fault of that time reported, after its return", "s", 2)
    found.percentile = 100
    for seed in range(TIMES):
        with tempfile.TemporaryDirectory(prefix="belay-bench-") as folder:
            scenario(Path(folder), lambda world, seed=seed: _once(world, seconds, seed, found.runs))  # type: ignore[misc]
    found.remark = f"{TIMES} outages; the largest"
    return found


async def _once(world: World, seconds: int, seed: int, into: list[float]) -> None:
    await world.start(5)
    healthy = seconds * random.Random(seed).random()
    world.cluster.offline = True
    await world.run(healthy)
    world.driver.inject(1, FAULT)
    await world.run(seconds - healthy)

    world.cluster.offline = False
    waited = 0.0
    while world.device.unhealthy == 0 and waited < _MOST:
        await world.run(_TICK)
        waited += _TICK
    into.append(waited)
