"""Binding pods through a real kube-apiserver 1.20, beside the real kube-scheduler binding the same pods.

Nodes are objects only (8 chips each, no kubelet), every pod wants 8 chips, so each gets a node of its own. The pods are
there before the clock starts, and both have read them: Belay's reading is stated apart, the scheduler's is in its
start-up, which is not counted. Belay's clock then runs over the decision (snapshot, plan) and the writes: ledger claim,
fence, batches of 100 with four at a time as the worker runs them, every binding verified by its pod's watch. Celery and
Redis, which carry the messages in between, are left out. The scheduler's clock runs from its first binding to its last
as a watch sees them, its first decision not counted, with its limits raised to 5,000 requests a second. Both have the
same API server, in turns, on etcd without fsync; Belay's first turn, with everything yet to load, is not counted.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from belay.engine.act import Batch, Edge, Fence, PodWatch, SettlingClaims, claim, decode, split
from belay.engine.act import run as act
from belay.engine.controller import garbage_collection
from belay.engine.documents import Desired
from belay.engine.kube import CONFIGMAP, EVENT, NAMESPACE, NODE, POD, Kube, Object, run_many
from belay.engine.kube.lease import shard_lease
from belay.engine.load import load
from belay.engine.model.actions import BindPod
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import Observer
from belay.engine.plan import plan
from belay.engine.settings import Settings
from belay.engine.store import PassRecord
from tests.bench import clusters, crowds
from tests.bench.measure import RUNS, Result, Skipped
from tests.control_planes import closed_ports
from tests.kube_server import real_cluster

SIZES = ((1000, 5.0), (5000, 8.0))
"""Pods and nodes, and how many times the scheduler's rate is to be reached."""
SPACE = "bench"
MESSAGES = 4
"""Batches that a worker runs at a time."""
LATEST = 120.0


def run() -> list[Result]:
    """Both sizes; five runs each of Belay and of the scheduler.

    Raises:
        Skipped: KUBEBUILDER_ASSETS does not name kube-apiserver, etcd and kube-scheduler.
    """
    assets = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent")
    if not (assets / "kube-scheduler").exists():
        raise Skipped("KUBEBUILDER_ASSETS does not name a folder with kube-apiserver, etcd and kube-scheduler")
    results: list[Result] = []
    for count, times in SIZES:
        with (
            tempfile.TemporaryDirectory(prefix="belay-bench-") as folder,
            real_cluster(assets, Path(folder)) as kubeconfig,
        ):
            results += asyncio.run(_measure(count, times, kubeconfig, assets / "kube-scheduler"))
    return results


async def _measure(count: int, times: float, kubeconfig: Path, program: Path) -> list[Result]:
    what = f"{count:,} pods of 8 chips on {count:,} nodes"
    rates = Result(f"{what}, Belay in all", "1/s", at_least=True)
    seconds = {name: Result(f"the same: {name}", "s") for name in ("reading", "decision", "writing", "in all")}
    seconds["reading"].remark = "the list of the waiting pods; a worker holds them already, so it is not in the whole"
    theirs = Result(f"{what}, kube-scheduler 1.20", "1/s")
    ratio = Result(f"{what}: Belay beside the scheduler", "times", times, at_least=True)
    thresholds = garbage_collection.thresholds()
    garbage_collection.settle()
    try:
        async with Kube.from_config(str(kubeconfig)) as kube:
            belay = await _Belay.started(kube, count)
            async with _waiting_pods(kube, count, "belay"):
                await belay.bind()  # as in a worker that has been at work for a while; not counted
            for _ in range(RUNS):  # one after the other in turns: the machine's own pace drifts
                async with _waiting_pods(kube, count, "belay"):
                    for name, value in (await belay.bind()).items():
                        seconds[name].runs.append(value)
                rates.runs.append(count / seconds["in all"].runs[-1])
                async with _waiting_pods(kube, count, "default-scheduler"):
                    theirs.runs.append(count / await _scheduler(kube, kubeconfig, program, count))
                ratio.runs.append(rates.runs[-1] / theirs.runs[-1])
    finally:
        garbage_collection.restore(thresholds)
    ratio.remark = "each run beside the scheduler's that followed it"
    return [rates, *seconds.values(), theirs, ratio]


class _Settled(SettlingClaims):
    """Every binding of a round has been answered before its pods go."""

    def over(self, keys: Iterable[str]) -> set[str]:
        return set(keys)


class _Belay:
    """What a worker holds: the snapshot of the nodes and reports, a client, the shard's epoch."""

    def __init__(self, kube: Kube, observer: Observer, desired: Desired, epoch: int) -> None:
        self._kube, self._observer, self._desired, self._epoch = kube, observer, desired, epoch
        self._pods: list[Object] = []
        self._cache = PlanCache()
        self._settling = _Settled()

    @staticmethod
    async def started(kube: Kube, count: int) -> _Belay:
        """Creates nodes and reports, and takes the shard's Lease."""
        for name in (SPACE, "belay-system"):
            await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        await _all(partial(_node, kube, index) for index in range(count))
        observer = Observer()
        for res in (NODE, CONFIGMAP):
            for item in (await kube.list(res)).items:
                observer.put(item)
        epoch = await shard_lease(kube, "main", "bench").acquire()
        assert epoch is not None
        return _Belay(kube, observer, load({}, has_git=False).desired, epoch)

    async def bind(self) -> dict[str, float]:
        """Binds every waiting pod; seconds of the phases."""
        began = time.perf_counter()
        for gone in self._pods:
            self._observer.delete(_key(gone))
        listing = await self._kube.list(POD, SPACE)
        self._pods = listing.items
        for pod in listing.items:
            self._observer.put(pod)
        read = time.perf_counter()
        seen = self._observer.observed()
        decided_plan = plan(self._desired, seen, time.time(), cache=self._cache)
        decided = time.perf_counter()
        binds = [action for action in decided_plan.actions if isinstance(action, BindPod)]
        assert len(binds) == len(listing.items) and len(binds) == len(decided_plan.actions), decided_plan.pending[:1]
        claimed = await claim(self._kube, "main", binds, seen.pods.values(), time.time(), self._settling)
        assert not claimed.refused
        settings = Settings()
        now = time.time()
        version = listing.resource_version
        record = PassRecord("bench", "main", self._epoch, "", 1, now, now + 30, pods_version=version)
        numbered = list(enumerate(decided_plan.actions))
        texts = split(record, numbered, "", settings.batch, settings.batch_bytes)
        following = PodWatch(self._kube)
        messages, gate = asyncio.Semaphore(MESSAGES), asyncio.Semaphore(settings.in_flight)

        async def message(text: str) -> int:
            async with messages:
                batch: Batch = decode(text)
                edge = Edge(self._kube, "main", Fence(self._kube, "main", self._epoch), pods=following, gate=gate)
                result = await act(edge, batch, settings.in_flight)
                assert {outcome.result for outcome in result.outcomes} == {"done"}, result.outcomes[:3]
                return len(edge.writes)

        written = await asyncio.gather(*map(message, texts))
        assert sum(written) == len(binds)
        ended = time.perf_counter()
        return {
            "reading": read - began,
            "decision": decided - read,
            "writing": ended - decided,
            "in all": ended - read,
        }


async def _scheduler(kube: Kube, kubeconfig: Path, program: Path, count: int) -> float:
    """Seconds from the scheduler's first binding to its last."""
    version = (await kube.list(POD, SPACE)).resource_version
    command = [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--kube-api-qps=5000",
        "--kube-api-burst=5000",
        *closed_ports(program),
    ]
    log = (kubeconfig.parent / "scheduler.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    bound: set[str] = set()
    first = 0.0
    try:
        async with asyncio.timeout(LATEST):
            async for _, pod in kube.watch(POD, SPACE, rv=version):
                if pod["spec"].get("nodeName"):
                    first = first or time.perf_counter()
                    bound.add(pod["metadata"]["name"])
                if len(bound) == count:
                    return time.perf_counter() - first
        raise AssertionError("the watch ended early")
    finally:
        process.terminate()
        process.wait(10)
        log.close()


@asynccontextmanager
async def _waiting_pods(kube: Kube, count: int, scheduler: str) -> AsyncIterator[None]:
    """Pods that wait for this scheduler; they are deleted afterwards, and so are its Events about them."""
    bodies = [_pod(f"pod-{index:05d}", scheduler) for index in range(count)]
    await _all(partial(kube.create, POD, body) for body in bodies)
    await asyncio.sleep(1.0)
    try:
        yield
    finally:
        await _all(partial(kube.delete, POD, body["metadata"]["name"], SPACE, grace=0) for body in bodies)
        told = [event["metadata"]["name"] for event in (await kube.list(EVENT, SPACE)).items]
        await _all(partial(kube.delete, EVENT, name, SPACE) for name in told)


async def _node(kube: Kube, index: int) -> None:
    """A node that is ready, without the taint that admission gives to new ones, and its device report."""
    body = clusters.node(crowds.name_of(index), index)
    status = body.pop("status")
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        body["metadata"].pop(field)
    name = body["metadata"]["name"]
    await kube.create(NODE, body)
    await kube.patch_status(NODE, name, {"status": status})
    await kube.patch(NODE, name, {"spec": {"taints": None}})
    report = clusters.device(name, at=int(time.time()) + 50)
    del report["metadata"]["resourceVersion"]
    await kube.create(CONFIGMAP, report)


def _pod(name: str, scheduler: str) -> Object:
    amount = {"huawei.com/Ascend910": "8"}
    container = {"name": "train", "image": "train:1", "resources": {"limits": amount, "requests": amount}}
    spec = {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": spec}


def _key(pod: Object) -> Any:
    from belay.engine.observe.observed import key_of

    return key_of(pod)


async def _all(calls: Iterable[Callable[[], Any]]) -> None:
    async for outcome in run_many(calls, 64):
        if outcome.error is not None:
            raise outcome.error
