"""The move from MindCluster to Belay on a real control plane, step by step, forth and back: ``make moving``.

The steps are those of docs/migrating.md. Jobs run throughout; a witness looks at every pod all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from belay.agents.daemon.run import run_agent
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.node.settings import Settings
from belay.engine.cli.migration import Migration, examine
from belay.engine.kube import CONFIGMAP, POD, Kube, Object
from belay.engine.sandbox import definitions
from belay.engine.wire import deviceinfo
from tests.kube_server import real_cluster, wipe
from tests.loop_world import Cluster, Loop, until
from tests.mindcluster import ASCEND_JOB, POD_GROUP, RESOURCE, SCHEDULING, MindCluster, play
from tests.needs import assets
from tests.redis_server import start_redis

CHIPS = 8
FAULT = "80C98001"
PATIENCE = 25.0


class Witness:
    """Sees every pod of jobs: its uid never changes, and no chip has two owners."""

    def __init__(self) -> None:
        self.uids: dict[str, set[str]] = {}
        self.broken: list[str] = []
        self.looks = 0

    def look(self, pods: list[Object]) -> None:
        owners: dict[str, str] = {}
        self.looks += 1
        for pod in pods:
            meta, node = pod["metadata"], pod["spec"].get("nodeName")
            if meta["namespace"] != "default":
                continue
            self.uids.setdefault(meta["name"], set()).add(meta["uid"])
            for chip in filter(None, (meta.get("annotations") or {}).get(RESOURCE, "").split(",")) if node else ():
                other = owners.setdefault(f"{node}/{chip}", meta["name"])
                if other != meta["name"]:
                    self.broken.append(f"{node}/{chip} has two owners: {other} and {meta['name']}")


class Move:
    """A cluster that moves: MindCluster's stand-ins, Belay's controller and worker, and agents where they took over."""

    def __init__(self, folder: Path, kubeconfig: str, redis_url: str, nodes: int) -> None:
        self.folder, self.nodes = folder, [f"node-{number + 1}" for number in range(nodes)]
        self.cluster = Cluster(folder, Path(kubeconfig))
        run = self.cluster.run
        run(definitions.ensure(self.cluster.kube))
        run(wipe(self.cluster.kube, (POD, ASCEND_JOB, POD_GROUP)))
        self.theirs = MindCluster(self.cluster.kube, self.nodes, CHIPS)
        self.witness = Witness()
        self.jobs: list[str] = []
        self._stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        run(self.theirs.add_nodes())
        run(self.theirs.start(*SCHEDULING, "clusterd", *(f"device-plugin/{node}" for node in self.nodes)))
        self._played = asyncio.run_coroutine_threadsafe(self._play(kubeconfig), self._loop)
        self.belay = Loop(self.cluster, redis_url, folder / "data")
        self._agents: dict[str, tuple[asyncio.Event, Any]] = {}

    async def _play(self, kubeconfig: str) -> None:
        async with Kube.from_config(kubeconfig) as kube:
            self.theirs.kube = kube
            watching = asyncio.create_task(self._watch(kube))
            await play(self.theirs, self._stop)
            await watching

    async def _watch(self, kube: Kube) -> None:
        while not self._stop.is_set():
            self.witness.look((await kube.list(POD)).items)
            await asyncio.sleep(0.03)

    def close(self) -> None:
        for node in list(self._agents):
            self.end_agent(node)
        self.belay.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._played.result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self.cluster.close()

    # what people do

    def start(self, *components: str) -> None:
        asyncio.run_coroutine_threadsafe(self.theirs.start(*components), self._loop).result(PATIENCE)

    def stop(self, *components: str) -> None:
        asyncio.run_coroutine_threadsafe(self.theirs.stop(*components), self._loop).result(PATIENCE)

    def start_agent(self, node: str) -> None:
        """`belay agent` on a node, on a driver that shows the node's chips."""
        stop = asyncio.Event()
        driver = SimulatedDriver(
            node,
            SERVER_MODELS["atlas-800t-a2"],
            now_ms=lambda: int(time.time() * 1000),
            sleep=asyncio.sleep,
            scale=0.01,
        )
        work = run_agent(
            node, journal_dir=self.folder / node, driver=driver, kubeconfig=self.cluster.kubeconfig,
            settings=Settings(scale=0.02), stop=stop,
        )  # fmt: skip
        self._agents[node] = (stop, asyncio.run_coroutine_threadsafe(work, self._loop))

    def end_agent(self, node: str) -> None:
        stop, running = self._agents.pop(node)
        self._loop.call_soon_threadsafe(stop.set)
        running.result(PATIENCE)

    def submit(self, name: str, workers: int = 1) -> None:
        """An AscendJob, applied by its user; each pod asks for one chip."""
        amount = {RESOURCE: "1"}
        template = {"metadata": {"labels": {"ring-controller.atlas": "ascend-910b"}}, "spec": {
            "nodeSelector": {"accelerator-type": "module-910b-8"},
            "containers": [{"name": "ascend", "image": "train:1", "resources": {"requests": amount, "limits": amount},
                            "ports": [{"name": "ascendjob-port", "containerPort": 2222}]}],
        }}  # fmt: skip
        replicas = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}}
        if workers:
            replicas["Worker"] = {"replicas": workers, "restartPolicy": "Never", "template": template}
        labels = {"framework": "pytorch", "ring-controller.atlas": "ascend-910b"}
        self.cluster.create(ASCEND_JOB, {
            "apiVersion": ASCEND_JOB.api_version, "kind": "AscendJob",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {"schedulerName": "volcano", "successPolicy": "AllWorkers", "replicaSpecs": replicas,
                     "runPolicy": {"schedulingPolicy": {"minAvailable": 1 + workers, "queue": "default"}}},
        })  # fmt: skip
        self.jobs.append(name)
        try:
            until(lambda: self._running(name) == 1 + workers, PATIENCE, f"job {name}, all of its pods running,")
        except AssertionError as late:
            raise AssertionError(f"{late}; Belay says: {self._said(name)}") from late

    def _said(self, job: str) -> str:
        """What the job's status and its pods say, for a test that failed."""
        status = self.cluster.get(CONFIGMAP, f"belay-job-default.ascendjob.{job}", "belay-system") or {}
        pods = [pod["metadata"]["name"] for pod in self.cluster.pods() if job in pod["metadata"]["name"]]
        return f"{status.get('data', {}).get('status.json', 'nothing')[:1500]}, pods {pods}"

    def _running(self, job: str) -> int:
        pods = [pod for pod in self.cluster.pods() if pod["metadata"].get("labels", {}).get("job-name") == job]
        return sum(pod.get("status", {}).get("phase") == "Running" for pod in pods)

    # what they see

    def roles(self) -> dict[str, str]:
        found = self.cluster.get(CONFIGMAP, "belay-sync", "belay-system")
        return json.loads((found or {}).get("data", {}).get("roles.json", "{}"))

    def role(self, name: str, ours: bool) -> None:
        until(lambda: (self.roles().get(name, "") == "on") is ours and name in self.roles(), PATIENCE, f"role {name}")

    def aggregated(self, node: str, code: str) -> bool:
        """Whether ``cluster-info-device-*`` shows a code on a node."""
        maps = self.cluster.run(self.cluster.kube.list(CONFIGMAP, "mindx-dl")).items
        texts = [t for m in maps for key, t in (m.get("data") or {}).items() if key.startswith("cluster-info-device-")]
        return any(code in json.loads(t).get(f"mindx-dl-deviceinfo-{node}", {}).get("DeviceList", {}).get(
            f"{RESOURCE}-Fault", "") for t in texts if t)  # fmt: skip

    def theirs_stands(self) -> bool:
        """Whether ``cluster-info-device-0`` is as ClusterD wrote it last."""
        found = self.cluster.get(CONFIGMAP, "cluster-info-device-0", "mindx-dl")
        return (found or {}).get("data", {}).get("cluster-info-device-0") == self.theirs.aggregated

    def reported(self, node: str) -> tuple[int, bool]:
        """When the device report was made, and whether its CheckCode is right."""
        found = self.cluster.get(CONFIGMAP, f"mindx-dl-deviceinfo-{node}", "kube-system")
        assert found is not None
        outer = json.loads(found["data"]["DeviceInfoCfg"])
        return outer["DeviceInfo"]["UpdateTime"], deviceinfo.check_code(outer["DeviceInfo"]) == outer["CheckCode"]

    def examined(self) -> Migration:
        """What `belay migrate check` says now."""
        kinds = (POD, CONFIGMAP)
        items = [item for kind in kinds for item in self.cluster.run(self.cluster.kube.list(kind)).items]
        named = [{**item, "kind": "Pod" if "spec" in item else "ConfigMap"} for item in items]
        return examine(named)

    def unchanged(self) -> None:
        """No pod of any job changed, none is missing, and no chip ever had two owners."""
        assert not self.witness.broken, self.witness.broken[:5]
        assert {name: len(uids) for name, uids in self.witness.uids.items() if len(uids) != 1} == {}
        left = {pod["metadata"]["name"] for pod in self.cluster.pods() if pod["metadata"]["namespace"] == "default"}
        assert left == set(self.witness.uids), "a pod is gone"
        assert self.witness.looks > 10

    # the move

    def scheduling(self, forth: bool, name: str) -> None:
        """Step 1: scheduling and jobs."""
        (self.stop if forth else self.start)(*SCHEDULING)
        for role in ("schedule", "expandAscendJob", "expandVolcanoJob"):
            self.role(role, forth)
        self.submit(name)
        self.unchanged()

    def clusterd(self, forth: bool, node: str, code: str) -> None:
        """Step 2: ClusterD. What a node reports afterwards reaches the readers of ``cluster-info-*``."""
        (self.stop if forth else self.start)("clusterd")
        self.role("aggregate", forth)
        self.theirs.bad[node] = {CHIPS - 1: (code, "NotHandleFault")}
        self.theirs._reported.clear()
        until(lambda: self.aggregated(node, code), PATIENCE, f"{code} in cluster-info-device-*")
        until(lambda: self.theirs_stands() is not forth, PATIENCE, "the other writer")
        self.unchanged()

    def node(self, node: str, forth: bool) -> None:
        """Step 3: one node's device plugin and agent."""
        before, _ = self.reported(node)
        if forth:
            self.stop(f"device-plugin/{node}")
            self.start_agent(node)
            until(lambda: self.cluster.get(CONFIGMAP, f"belay-report-{node}", "belay-nodes"), PATIENCE, "its report")
        else:
            self.end_agent(node)
            self.start(f"device-plugin/{node}")
        until(lambda: self.reported(node) > (before, False) and self.reported(node)[1], PATIENCE, f"{node} reports")
        self.unchanged()


def story(move: Move, rounds: int = 1) -> None:
    """The whole move; each step is taken back ``rounds`` times before it is taken for the last time."""
    for role in ("schedule", "expandAscendJob", "aggregate"):
        move.role(role, False)
    move.submit("before", workers=2)
    found = move.examined()
    assert {row.component for row in found.components} == {
        "volcano-scheduler", "volcano-controller", "ascend-operator", "clusterd", "ascend-device-plugin"
    }  # fmt: skip
    assert [step.step for step in found.steps] == [1, 2, 3] and not found.unknown, found.unknown
    for number in range(rounds):
        move.scheduling(True, f"ours-{number}")
        move.scheduling(False, f"theirs-{number}")
    move.scheduling(True, "ours")
    for number in range(rounds):
        move.clusterd(True, move.nodes[0], f"8{number:03}0001")
        move.clusterd(False, move.nodes[0], f"8{number:03}0002")
    move.clusterd(True, move.nodes[0], "80FF0003")
    for _ in range(rounds):
        move.node(move.nodes[0], True)
        move.node(move.nodes[0], False)
    for node in move.nodes:
        move.node(node, True)
    move.submit("after")
    found = move.examined()
    assert found.components == () and not found.unknown, found
    move.unchanged()


@contextlib.contextmanager
def moving(folder: Path, kubeconfig: str, redis_url: str, nodes: int) -> Iterator[Move]:
    move = Move(folder, kubeconfig, redis_url, nodes)
    try:
        yield move
    finally:
        move.close()


def main(say: Callable[[str], object] = sys.stdout.write) -> int:
    """The long form: NODES= (8), ROUNDS= (10) are read from the environment."""
    nodes, rounds = int(os.environ.get("NODES", "8")), int(os.environ.get("ROUNDS", "10"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with start_redis(folder / "redis") as redis, real_cluster(assets("etcd", "kube-apiserver"), folder) as path:
            began = time.monotonic()
            with moving(folder, str(path), redis.url, nodes) as move:
                story(move, rounds)
                pods, looks = len(move.witness.uids), move.witness.looks
    say(f"{nodes} nodes, each step taken back {rounds} times in {time.monotonic() - began:.0f} s: "
        f"{pods} pods as they were in {looks} looks, no chip with two owners\n")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
