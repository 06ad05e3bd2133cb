"""Device reports as fast as they come: decoded, compared, handed over through Redis, observed and planned.

The controller's half (watch line → events → snapshot in Redis) and the worker's half (snapshot → observed → plan) run
as two processes with a real Redis between, as deployed; only the API server is left out, whose own ceiling on this
machine lies below the goal. 2,500 nodes with 8 chips each report once a second, a hundredth of them with a change that
matters.
Afterwards every node's newest report has to be in the worker's plan. A burst is ten seconds' worth of reports at once.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.bench.measure import RUNS, Result
from tests.bench.running import memory

NODES = 2500
GOAL = 2500
RATE = 2600
"""Reports a second that are sent; a little above the goal."""
SECONDS = int(os.environ.get("BELAY_BENCH_INGEST_SECONDS", "60"))
SLICES = 20
BURST = 10
START = 1_795_000_000
"""Unix seconds of the first reports; what plans take for now follows the newest."""
"""Parts of a second in which reports arrive together."""


def run() -> list[Result]:
    sustained = Result(
        f"{NODES:,} nodes, {SECONDS} s: reports decoded, compared and planned", "1/s", GOAL, at_least=True
    )
    lag = Result("the same: newest report → in the plan, at the end", "s")
    used = Result("the same: memory of both processes and Redis (PSS)", "MiB", 500)
    lost = Result("the same: reports of which the plan knows neither them nor a newer one", "", 0, percentile=100)
    burst = Result(f"burst of {BURST * NODES:,} reports: fields written to Redis", "", NODES, percentile=100)
    with tempfile.TemporaryDirectory(prefix="belay-bench-") as folder:
        lines = Path(folder) / "lines"
        _write(lines)
        every = [_once(lines, Path(folder) / str(turn)) for turn in range(RUNS)]
    for found in every:
        sustained.runs.append(found["rate"])
        lag.runs.append(found["lag"])
        used.runs.append(found["memory"])
        lost.runs.append(found["lost"])
        burst.runs.append(found["burst"])
    burst.remark = "ten reports of each node coalesce into the newest"
    return [sustained, lag, used, lost, burst]


def _once(lines: Path, folder: Path) -> dict[str, float]:
    from belay.engine.sandbox.redis_process import start_redis

    with start_redis(folder) as server:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        reader = context.Process(target=_worker, args=(server.url, theirs), daemon=True)
        reader.start()
        theirs.close()
        assert ours.recv() == "ready"
        feeder_ours, feeder_theirs = context.Pipe()
        feeder = context.Process(target=_controller, args=(server.url, feeder_theirs, lines), daemon=True)
        feeder.start()
        assert feeder_ours.recv() == "ready"
        feeder_ours.send("go")
        fed = feeder_ours.recv()
        ours.send(NODES + SECONDS * RATE)
        answer = ours.recv()
        used = memory(reader.pid or 0) + memory(feeder.pid or 0) + memory(server.pid)
        burst = feeder_ours.recv() if feeder_ours.send("burst") is None else 0
        for process, pipe in ((reader, ours), (feeder, feeder_ours)):
            pipe.send(None)
            process.join(10)
            process.kill()
    through = fed["reports"] / (answer["seen"] - fed["began"])
    return {
        "rate": min(through, fed["reports"] / fed["took"]),
        "lag": max(0.0, answer["seen"] - fed["ended"]),
        "memory": used,
        "lost": answer["lost"],
        "burst": burst,
    }


def _controller(url: str, pipe: Connection, lines: Path) -> None:
    asyncio.run(_feed(url, pipe, lines))


async def _feed(url: str, pipe: Connection, lines: Path) -> None:
    """What the controller does with watch lines, at the pace at which they come."""
    import orjson

    from belay.engine.kube import CONFIGMAP, NODE, Reflector
    from belay.engine.observe.watch_events import WatchEvents
    from belay.engine.store import SnapshotWriter, connect_async
    from tests.bench.clusters import node as node_object

    events, writer = WatchEvents(), SnapshotWriter(connect_async(url))
    stub: Any = None
    maps = Reflector(stub, CONFIGMAP, on_change=events.receive)
    nodes = Reflector(stub, NODE, on_change=events.receive)
    generation = await writer.begin("main")
    for index in range(NODES):
        nodes._receive("ADDED", node_object(f"node-{index:05d}", index))
    reading = lines.open("rb")

    def take(count: int) -> None:
        for _ in range(count):
            event = orjson.loads(reading.readline())
            maps._receive(event["type"], event["object"])

    async def flush(synced: bool) -> int:
        changes, marks = events.drain()
        changed = {change.field: change.value for change in changes}
        assert await writer.put("main", generation, changed, marks, synced)
        return len(changed)

    take(NODES)
    await flush(True)
    pipe.send("ready")
    assert await asyncio.to_thread(pipe.recv) == "go"
    began, size = time.time(), RATE // SLICES
    for number in range(SECONDS * SLICES):
        take(size)
        await flush(True)
        await asyncio.sleep(max(0.0, began + (number + 1) / SLICES - time.time()))
    ended = time.time()
    pipe.send({"reports": SECONDS * RATE, "took": ended - began, "began": began, "ended": ended})
    assert await asyncio.to_thread(pipe.recv) == "burst"
    take(BURST * NODES)
    pipe.send(await flush(True))
    await asyncio.to_thread(pipe.recv)


def _write(lines: Path) -> None:
    """Watch lines as agents' writes make them, signed, second after second; every hundredth with a faulty chip."""
    from tests.bench.plant import report

    with lines.open("wb") as out:
        for number in range(NODES + SECONDS * RATE + BURST * NODES):
            turn, index = divmod(number, NODES)
            bad = (index % 8,) if turn and (index + turn) % 100 == 0 else ()
            body = report(f"node-{index:05d}", bad, START + turn)
            body["metadata"] |= {"resourceVersion": str(1000 + number), "uid": f"u{index}"}
            out.write(json.dumps({"type": "MODIFIED", "object": body}, separators=(",", ":")).encode() + b"\n")


def _last(index: int, count: int) -> int:
    """The time of a node's last report among the first ``count`` lines."""
    return START + (count - 1 - index) // NODES


def _worker(url: str, pipe: Connection) -> None:
    """What a worker does between two passes' writes: look, plan, look again."""
    from belay.engine.controller.snapshot_reader import SnapshotReader
    from belay.engine.load import load
    from belay.engine.model.plan_cache import PlanCache
    from belay.engine.plan import plan
    from belay.engine.store import PassStore, StoredSnapshots, connect

    client = connect(url)
    copy, passes, desired = (
        SnapshotReader("main", StoredSnapshots(client)),
        PassStore(client),
        load({}, has_git=False).desired,
    )
    pipe.send("ready")
    newest, cache = None, PlanCache()
    while True:
        if copy.refresh(passes, 5.0):
            time.sleep(0.02)
            continue
        seen = copy.observed()
        made = plan(desired, seen, seen.newest_report, cache=cache)
        if newest is None and pipe.poll():
            newest = pipe.recv()
        if newest is not None and len(seen.reports) == NODES:
            assert made.now
            behind = sum(one.update_time < _last(int(name[5:]), newest) for name, one in seen.reports.items())
            if not behind:
                break
    pipe.send({"seen": time.time(), "lost": behind + len(seen.problems)})
    pipe.recv()
