"""The device plugin: answers to Allocate, events of the driver, and what the agent costs with it.

Allocate is asked over kubelet's socket by a kubelet of memory in the agent's own process: choosing the pod, comparing
kubelet's books, writing the ledger to the disk, and both ends of the gRPC call are in it. An event is raised in the
compiled stand-in of the driver and is over when the device report in the API (the sandbox's server, in this process)
shows it; events come more than a second apart, because a report is written once a second at most. CPU and memory are
those of an agent alone with a kubelet of memory beside it, 8 chips, a poll of 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import time
from pathlib import Path

from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.engine.kube import CONFIGMAP, NODE
from tests.bench.agentcost import cost, program
from tests.bench.measure import Result
from tests.kubelet_world import Kubelet, Node
from tests.loop_world import Cluster

ALLOCATIONS = 500
EVENTS = 60
FAULT = "80C98001"
REPORT = "mindx-dl-deviceinfo-bench"


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="bb") as folder:
        return [asyncio.run(_allocations()), *asyncio.run(_agent(Path(folder)))]


async def _allocations() -> Result:
    found = Result("Allocate, p99", "ms", 20, percentile=99, remark=f"{ALLOCATIONS} pods of 1 to 8 chips")
    chance = random.Random(1)
    async with Node() as node:
        for number in range(ALLOCATIONS):
            chips = sorted(chance.sample(range(8), chance.choice([1, 2, 4, 8])))
            name = f"p{number}"
            body = node.pod(name, [f"Ascend910-{chip}" for chip in chips], time=number + 1)
            await node.seen(name)
            answer = await node.kubelet.admit(body)
            found.runs.append(node.kubelet.took * 1000)
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == ",".join(map(str, chips))
            node.finish(name, "Succeeded")
            node.delete(name)
    return found


async def _agent(folder: Path) -> list[Result]:
    event = Result("driver event → device report in the API, p99", "ms", 300, percentile=99)
    kubelet = Kubelet(folder / "k")
    await kubelet.start()
    with contextlib.closing(Cluster(folder)) as cluster:
        await asyncio.to_thread(
            cluster.ensure, NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bench"}}
        )
        standin = Standin.create(folder / "state")
        arguments = [
            "-m", "belay.agents.daemon", "--node", "bench", "--driver", f"dcmi:{build(folder / 'lib')}",
            "--state-dir", str(folder / "agent"), "--kubeconfig", cluster.kubeconfig, "--rank-tables", "",
            "--device-plugin", "-volcanoType=true", "--kubelet-dir", str(folder / "k"),
            "--pod-resources", str(kubelet.pod_socket),
        ]  # fmt: skip
        with program(arguments, standin) as running:
            while not kubelet.devices:
                await asyncio.sleep(0.1)
            costs = await cost(running.pid, "device plugin")
            for number in range(EVENTS):
                event.runs.append(1000 * await asyncio.to_thread(_event, cluster, standin, number))
                await asyncio.sleep(1.1 + (number % 7) / 20)
            event.remark = f"{EVENTS} faults that come and go"
    await kubelet.stop()
    return [event, *costs]


def _event(cluster: Cluster, standin: Standin, number: int) -> float:
    """Seconds from a fault on a chip to the report that shows it; afterwards it is gone again."""
    chip = number % 8
    begin = time.perf_counter()
    standin.raise_code(chip, FAULT)
    while f'"npu_name":"Ascend910-{chip}"' not in _report(cluster):
        if time.perf_counter() - begin > 20:
            raise RuntimeError("the device report does not show the fault")
        time.sleep(0.002)
    took = time.perf_counter() - begin
    standin.clear_code(chip, FAULT)
    while f'"npu_name":"Ascend910-{chip}"' in _report(cluster):
        time.sleep(0.05)
    return took


def _report(cluster: Cluster) -> str:
    found = cluster.get(CONFIGMAP, REPORT, "kube-system")
    if found is None:
        return ""
    lists = json.loads(found["data"]["DeviceInfoCfg"])["DeviceInfo"]["DeviceList"]
    return str(lists["huawei.com/Ascend910-Fault"])
