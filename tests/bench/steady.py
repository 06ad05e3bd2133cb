"""What the control plane costs while nothing happens: 1,000 nodes for ten minutes.

Controller, worker, server and Redis as they are deployed; the API server and the benchmark itself are not counted. The
benchmark writes what agents and kubelets write of such a cluster: every node's device report every 300 s, its
``belay-report`` every 60 s and its Node status every 300 s. One run of ten minutes; the samples are its single minutes.
There is no Git repository: with one, a controller reads documents, which takes 13 MiB more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping

from belay.engine.kube import CONFIGMAP, NODE, Kube, KubeError
from belay.engine.model.cluster import AgentChip, AgentReport
from belay.engine.model.times import rfc3339
from belay.engine.wire import names
from belay.engine.wire.orders import build_report
from tests.bench.clusters import node as node_object
from tests.bench.measure import Result
from tests.bench.plant import Plant, plant, report

NODES = 1000
MINUTES = int(os.environ.get("BELAY_BENCH_MINUTES", "10"))


def run() -> list[Result]:
    with plant(NODES) as made:
        return asyncio.run(_run(made))


async def _run(made: Plant) -> list[Result]:
    cpu = Result(f"{NODES:,} nodes steady, {MINUTES} min: CPU of controller, worker, server and Redis", "cores", 0.5)
    used = Result("the same: memory of them all (PSS)", "MiB", 600, percentile=100)
    apiece = Result("the same with `belay server`: CPU of them all in an idle minute", "s", 1)
    whole = Result("the same: memory of them all (RSS)", "MiB", 200)
    async with Kube.from_config(made.kubeconfig) as kube:
        await made.populate(kube)
        made.start("controller", "controller-a")
        made.start("worker", "worker-a")
        made.start("server", "server-a")
        beating = asyncio.create_task(_beat(made, kube))
        try:
            await asyncio.sleep(60.0)  # every node has reported once
            before, begin = made.cpu_seconds(), time.monotonic()
            start, since, earlier = before, begin, made.cpu_by_process()
            for _ in range(MINUTES):
                await asyncio.sleep(60.0)
                now, moment = made.cpu_seconds(), time.monotonic()
                cpu.runs.append((now - before) / (moment - begin))
                used.runs.append(made.mebibytes())
                apiece.runs.append(60 * cpu.runs[-1])
                whole.runs.append(sum(made.resident().values()))
                before, begin = now, moment
            average = (before - start) / (begin - since)
            cpu.remark = f"average of the whole time {average:.2f} cores"
            whole.remark = _by_process(made.resident()) + "; of which imports: " + _by_process(made.imported())
            used_since = {name: seconds - earlier[name] for name, seconds in made.cpu_by_process().items()}
            apiece.remark = _by_process({name: 60 * one / (begin - since) for name, one in used_since.items()}, 2)
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
    return [cpu, used, apiece, whole]


def _by_process(figures: Mapping[str, float], digits: int = 0) -> str:
    return ", ".join(f"{name.removesuffix('-a')} {figure:.{digits}f}" for name, figure in sorted(figures.items()))


async def _beat(made: Plant, kube: Kube) -> None:
    """Write what a quiet cluster writes, spread evenly."""
    turn, begin = 0, time.monotonic()
    while True:
        index = turn % NODES
        minute = turn // NODES
        name = made.nodes[index]
        with contextlib.suppress(KubeError):
            await kube.apply(_agent(name, turn), field_manager="agent")
            if (index + minute) % 5 == 0:
                body = report(name, ())
                await kube.patch(CONFIGMAP, body["metadata"]["name"], {"data": body["data"]}, names.DEVICE_NAMESPACE)
                # as when it was made but for the time: a condition that turns is news, and this cluster is quiet
                (ready,) = node_object(name, index)["status"]["conditions"]
                ready["lastHeartbeatTime"] = rfc3339(time.time())
                await kube.patch_status(NODE, name, {"status": {"conditions": [ready]}})
        turn += 1
        await asyncio.sleep(max(0.0, begin + turn * 60.0 / NODES - time.monotonic()))


def _agent(name: str, seq: int) -> dict[str, object]:
    chips = {number: AgentChip(f"S{number}", 0, None, 0, "") for number in range(8)}
    found = AgentReport(name, "boot", seq, int(time.time() * 1000), 0, chips, 0, "", (), ())
    return build_report(found, "Ascend910-", {})
