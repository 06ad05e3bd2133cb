"""From a fault in the simulated driver to a viewer of the console, and what two hundred viewers cost the server.

The clock starts before the fault is written to the simulated node and stops when the server-sent event arrives that
shows the chip isolated. Then 200 viewers watch while chips fail: CPU time and memory of `belay server` beside those
with one viewer, in the same run.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import aiohttp

from belay.engine.kube import Kube
from belay.engine.wire.clustermap import STATES
from tests.bench.isolation import _break
from tests.bench.measure import RUNS, Result
from tests.bench.running import cpu_seconds, resident, tree, up

NODES = 20
SAMPLES = 12
"""Per run."""
VIEWERS = 200
WATCHED_SECONDS = 10.0
LATEST = 20.0
_ISOLATED = STATES.index("isolated")


def run() -> list[Result]:
    """In the sandbox."""
    with up(NODES) as running:
        address = next(line.split()[1] for line in running.lines if line.startswith("console: "))
        base = address.removesuffix("/console/")
        pid = next(one for one in tree(running.process.pid) if _is_server(one))
        return asyncio.run(_measured(base, running.kubeconfig, pid))


async def _measured(base: str, kubeconfig: Path, pid: int) -> list[Result]:
    every = Result("fault in the simulated driver → event at a viewer, p99 of all samples", "ms", 500, percentile=99)
    core = Result(f"CPU of the server for {VIEWERS} viewers more, while chips fail", "core", 0.3)
    more = Result(f"memory of the server for {VIEWERS} viewers more", "MiB", 100)
    chance = random.Random(19)
    async with (
        Kube.from_config(str(kubeconfig)) as kube,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        ) as http,
    ):
        await _seen(base, http, kube, "node-20", 7)  # until it is seen, everything has started
        for chip in range(RUNS):
            for number in range(SAMPLES):
                await asyncio.sleep(chance.uniform(0.5, 1.0))
                every.runs.append(1000 * await _seen(base, http, kube, f"node-{number + 1}", chip))
            alone = await _watched(base, http, kube, pid, 1, chip)
            crowd = await _watched(base, http, kube, pid, VIEWERS, chip)
            core.runs.append(max(0.0, crowd[0] - alone[0]))
            more.runs.append(max(0.0, crowd[1] - alone[1]))
    every.remark = f"{len(every.runs)} samples, {NODES} nodes"
    core.remark = "beside one viewer in the same run"
    return [every, core, more]


async def _seen(base: str, http: aiohttp.ClientSession, kube: Kube, node: str, chip: int) -> float:
    """Seconds from a fault to the event that shows its chip isolated."""
    async with http.get(f"{base}/api/v1/changes") as stream:
        async with http.get(f"{base}/api/v1/state") as reply:
            document = await reply.json()
        place = document["nodes"]["name"].index(node)
        rows = enumerate(zip(document["chips"]["node"], document["chips"]["chip"], strict=True))
        wanted = next(at for at, row in rows if row == (place, chip))
        begin = time.monotonic()
        await _break(kube, node, chip)
        async with asyncio.timeout(LATEST):
            async for event in _events(stream):
                states = event.get("patch", {}).get("chips", {}).get("state", {"i": [], "v": []})
                if (wanted, _ISOLATED) in zip(states["i"], states["v"], strict=True):
                    return time.monotonic() - begin
    raise RuntimeError(f"{node}/{chip} was not shown isolated")


async def _events(stream: aiohttp.ClientResponse) -> Any:
    async for line in stream.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


async def _watched(
    base: str, http: aiohttp.ClientSession, kube: Kube, pid: int, viewers: int, turn: int
) -> tuple[float, float]:
    """Cores and MiB of the server while so many watch and a chip fails each second."""

    async def watch() -> None:
        async with http.get(f"{base}/api/v1/changes") as stream:
            async for _ in stream.content.iter_any():
                pass

    watching = [asyncio.create_task(watch()) for _ in range(viewers)]
    await asyncio.sleep(1.0)
    begin, used = time.monotonic(), cpu_seconds(pid)
    number = 0
    while time.monotonic() - begin < WATCHED_SECONDS:
        node, chip = f"node-{13 + number % 7}", 5 + (viewers > 1) + number // 7 % 1
        await _break(kube, node, (chip + turn) % 8)
        number += 1
        await asyncio.sleep(1.0)
    seconds = time.monotonic() - begin
    cores, memory = (cpu_seconds(pid) - used) / seconds, resident(pid)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    return cores, memory


def _is_server(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"server" in command and b"--listen" in command
