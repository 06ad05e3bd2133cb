"""A node dies: from Kubernetes' word for it to the job's pods bound elsewhere, 100 nodes.

Kubernetes itself waits before it calls a node lost: 40 s after the last sign of its kubelet (50 s since 1.32). Belay
adds no second grace, so what is measured begins with the write of Ready=Unknown and ends when a watch shows every pod
of the job bound, with chips, to nodes that live. The job has four pods of eight chips and restarts as a whole; the
benchmark plays the node controller and the kubelets, which start and end pods at once. API server (the sandbox's),
engine and benchmark share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from belay.engine.kube import NODE, POD, Kube, KubeError, Object, cancel_all
from belay.engine.model.times import rfc3339
from belay.engine.sandbox import definitions
from tests.bench.measure import RUNS, Result
from tests.bench.plant import Plant, plant
from tests.mindcluster import ASCEND_JOB, RESOURCE

NODES = 100
PODS = 4
GRACE = 40.0
PATIENCE = 120.0


def run() -> list[Result]:
    with plant(NODES) as made:
        return asyncio.run(_runs(made))


async def _runs(made: Plant) -> list[Result]:
    lost = Result(f"a node of {NODES} is lost → the job's {PODS} pods bound elsewhere, after Ready=Unknown", "s", 5)
    whole = Result("the same from the death of the node, with Kubernetes' own grace of 40 s", "s", GRACE + 5)
    async with Kube.from_config(made.kubeconfig) as kube:
        await definitions.ensure(kube)
        await made.populate(kube)
        made.start("controller", "controller-a")
        made.start("worker", "worker-a")
        pods = Pods(kube)
        kubelets = asyncio.create_task(pods.follow())
        try:
            await made.settled()
            for number in range(RUNS):
                job = f"job-{number}"  # one each: a job is rescheduled three times in six hours at most
                await kube.create(ASCEND_JOB, _job(job))
                await pods.placed(job)
                await asyncio.sleep(5.0)
                victim = pods.nodes(job)[0]
                pods.dead |= {victim}
                begin = time.monotonic()
                await _lose(kube, victim)
                await pods.placed(job)
                lost.runs.append(time.monotonic() - begin)
                whole.runs.append(lost.runs[-1] + GRACE)
        finally:
            await cancel_all(kubelets)
    return [lost, whole]


class Pods:
    """Follows the job's pods, and starts and ends those on nodes that live, as their kubelets would."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._news = asyncio.Event()
        self.dead: frozenset[str] = frozenset()
        self.bound: dict[str, str] = {}

    def nodes(self, job: str) -> list[str]:
        """The nodes of a job's pods; empty texts of pods that are not bound."""
        return sorted(node for name, node in self.bound.items() if name.startswith(f"{job}-"))

    async def placed(self, job: str) -> None:
        """Until every pod of a job is bound to a node that lives. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.nodes(job)) < PODS or not all(found) or self.dead & set(found):
                self._news.clear()
                await self._news.wait()

    async def follow(self) -> None:
        while True:
            found = await self._kube.list(POD, "default")
            self.bound = {}
            for pod in found.items:
                await self._take("ADDED", pod)
            with contextlib.suppress(KubeError):
                async for kind, pod in self._kube.watch(POD, "default", rv=found.resource_version, seconds=3000):
                    if kind != "BOOKMARK":
                        await self._take(kind, pod)

    async def _take(self, kind: str, pod: Object) -> None:
        name, node = str(pod["metadata"]["name"]), str(pod["spec"].get("nodeName") or "")
        if kind == "DELETED":
            self.bound.pop(name, None)
        else:
            self.bound[name] = node if (pod["metadata"].get("annotations") or {}).get(RESOURCE) else ""
            lives = bool(node) and node not in self.dead
            if lives and pod["metadata"].get("deletionTimestamp"):
                self.bound[name] = ""
                with contextlib.suppress(KubeError):
                    await self._kube.delete(POD, name, "default", grace=0)
            elif lives and (pod.get("status") or {}).get("phase") == "Pending":
                ready = {"type": "Ready", "status": "True"}
                status = {"phase": "Running", "conditions": [ready], "startTime": rfc3339(time.time())}
                with contextlib.suppress(KubeError):
                    await self._kube.patch_status(POD, name, {"status": status}, "default")
        self._news.set()


async def _lose(kube: Kube, node: str) -> None:
    """What Kubernetes' node controller writes once it has waited."""
    now = rfc3339(time.time())
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now}
    await kube.patch_status(NODE, node, {"status": {"conditions": [unknown]}})


def _job(name: str) -> dict[str, Any]:
    amount = {RESOURCE: "8"}
    template = {"metadata": {"labels": {"ring-controller.atlas": "ascend-910b", "fault-scheduling": "force"}}, "spec": {
        "nodeSelector": {"accelerator-type": "module-910b-8"},
        "containers": [{"name": "ascend", "image": "train:1", "resources": {"requests": amount, "limits": amount},
                        "ports": [{"name": "ascendjob-port", "containerPort": 2222}]}],
    }}  # fmt: skip
    one: dict[str, Any] = {"restartPolicy": "Never", "template": template}
    return {
        "apiVersion": ASCEND_JOB.api_version, "kind": "AscendJob",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": {"framework": "pytorch", "ring-controller.atlas": "ascend-910b", "fault-scheduling": "force"},
        },
        "spec": {
            "schedulerName": "volcano", "successPolicy": "AllWorkers",
            "replicaSpecs": {"Master": {"replicas": 1, **one}, "Worker": {"replicas": PODS - 1, **one}},
            "runPolicy": {"schedulingPolicy": {"minAvailable": PODS, "queue": "default"}},
        },
    }  # fmt: skip


__all__ = ["run"]
