"""Stand-ins for MindCluster's components, as a cluster sees them: pods with their labels, images and flags, and what
those pods read and write, in MindCluster's formats. They decide nothing cleverly; they are there to be moved away from.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable
from typing import Final

from belay.engine.kube import CONFIGMAP, NODE, POD, Conflict, Kube, KubeError, NotFound, Object, resource_for
from belay.engine.model.times import rfc3339
from tests.worlds import device_report

ASCEND_JOB = resource_for("mindxdl.gitee.com/v1", "AscendJob")
POD_GROUP = resource_for("scheduling.volcano.sh/v1beta1", "PodGroup")
RESOURCE: Final = "huawei.com/Ascend910"
_LOG: Final = "-logFile=/var/log/mindx-dl/x.log -logLevel=0"
#: component → namespace, labels, image, arguments, as its manifest deploys it.
MANIFESTS: Final[dict[str, tuple[str, dict[str, str], str, str]]] = {
    "volcano-scheduler": (
        "volcano-system", {"app": "volcano-scheduler"}, "volcanosh/vc-scheduler:v1.9.0-v26.1.0",
        "/vc-scheduler --scheduler-conf=/volcano.scheduler/volcano-scheduler.conf --leader-elect=false",
    ),
    "volcano-controller": (
        "volcano-system", {"app": "volcano-controller"}, "volcanosh/vc-controller-manager:v1.9.0-v26.1.0",
        "/vc-controller-manager --leader-elect=false",
    ),
    "ascend-operator": (
        "mindx-dl", {"app": "controller-manager"}, "ascend-operator:v26.1.0",
        f"/usr/local/bin/ascend-operator --enableGangScheduling=true {_LOG}",
    ),
    "clusterd": (
        "mindx-dl", {"app": "clusterd"}, "clusterd:v26.1.0", f"/usr/local/bin/clusterd {_LOG} -useProxy=false",
    ),
    "device-plugin": (
        "kube-system", {"name": "ascend-device-plugin-ds"}, "ascend-k8sdeviceplugin:v26.1.0",
        f"device-plugin -volcanoType=true {_LOG}",
    ),
}  # fmt: skip
SCHEDULING: Final = ("volcano-scheduler", "volcano-controller", "ascend-operator")


class MindCluster:
    """The components that run; each works in ``tick`` while its pod is there."""

    def __init__(self, kube: Kube, nodes: Iterable[str], chips: int) -> None:
        self.kube, self.nodes, self.chips = kube, tuple(nodes), chips
        self.bad: dict[str, dict[int, tuple[str, str]]] = {}
        self.aggregated = ""
        """What ClusterD wrote last."""
        self._live: set[str] = set()
        self._reported: dict[str, float] = {}

    async def start(self, *components: str) -> None:
        """Deploy components; ``device-plugin/NODE`` is one node's."""
        for component in components:
            name, _, node = component.partition("/")
            namespace, labels, image, args = MANIFESTS[name]
            await self.kube.create(POD, {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": component.replace("/", "-"), "namespace": namespace, "labels": labels},
                "spec": {"nodeName": node or "elsewhere", "containers": [
                    {"name": name, "image": image, "command": ["/bin/bash", "-c", "--"], "args": [args]}
                ]},
            })  # fmt: skip
            await self._run(component.replace("/", "-"), namespace)
            self._live.add(component)

    async def stop(self, *components: str) -> None:
        """Scale components to nothing: the process ends, then its pod goes."""
        for component in components:
            self._live.discard(component)
            self._reported.pop(component, None)
            namespace = MANIFESTS[component.partition("/")[0]][0]
            await self.kube.delete(POD, component.replace("/", "-"), namespace, grace=0)

    async def _run(self, name: str, namespace: str) -> None:
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "startTime": rfc3339(time.time()),
        }
        await self.kube.patch_status(POD, name, {"status": status}, namespace)

    async def tick(self) -> None:
        """One look of every component and kubelet. What was lost to another writer is done at the next look."""
        for component in sorted(self._live):
            with contextlib.suppress(Conflict, NotFound):
                await self._work(component)
        for pod in (await self.kube.list(POD)).items:
            if pod["spec"].get("nodeName") in self.nodes and pod.get("status", {}).get("phase") == "Pending":
                with contextlib.suppress(KubeError):
                    await self._run(pod["metadata"]["name"], pod["metadata"]["namespace"])

    async def _work(self, component: str) -> None:
        name, _, node = component.partition("/")
        match name:
            case "ascend-operator":
                for job in (await self.kube.list(ASCEND_JOB, "default")).items:
                    await self._expand(job)
            case "volcano-scheduler":
                await self._schedule()
            case "clusterd":
                await self._aggregate()
            case "device-plugin":
                await self._report(node)
            case _:
                assert name == "volcano-controller", "it has nothing to do for AscendJobs"

    async def _report(self, node: str) -> None:
        """Every five minutes, and at the start: the newest state of the node's chips."""
        if time.time() - self._reported.get(f"device-plugin/{node}", 0.0) < 300:
            return
        now = int(time.time())
        body = device_report(node, self.chips, self.bad.get(node, {}), now, at=now * 1000)
        await self.kube.apply(body, field_manager="device-plugin")
        self._reported[f"device-plugin/{node}"] = time.time()

    async def _aggregate(self) -> None:
        """ClusterD's ``cluster-info-device-0``: reports of all nodes as one document."""
        entries = {}
        for node in self.nodes:
            found = await self.kube.get(CONFIGMAP, f"mindx-dl-deviceinfo-{node}", "kube-system")
            if found is not None:
                outer = json.loads(found["data"]["DeviceInfoCfg"])
                entries[f"mindx-dl-deviceinfo-{node}"] = {
                    **outer["DeviceInfo"], "CmName": f"mindx-dl-deviceinfo-{node}", "SuperPodID": outer["SuperPodID"],
                    "ServerIndex": outer["ServerIndex"],
                }  # fmt: skip
        self.aggregated = text = json.dumps(entries, separators=(",", ":"), sort_keys=True)
        name = "cluster-info-device-0"
        old = await self.kube.get(CONFIGMAP, name, "mindx-dl")
        if old is None:
            await self.kube.create(
                CONFIGMAP,
                {"apiVersion": "v1", "kind": "ConfigMap", "data": {name: text},
                 "metadata": {"name": name, "namespace": "mindx-dl", "labels": {"mx-consumer-volcano": "true"}}},
                field_manager="clusterd",
            )  # fmt: skip
        elif old["data"].get(name) != text:
            await self.kube.patch(CONFIGMAP, name, {"data": {name: text}}, "mindx-dl", field_manager="clusterd")

    async def _expand(self, job: Object) -> None:
        """The operator: PodGroup, then pods of every replica type with the operator's names, labels and owner."""
        meta = job["metadata"]
        owner = {"apiVersion": ASCEND_JOB.api_version, "kind": "AscendJob", "name": meta["name"], "uid": meta["uid"],
                 "controller": True, "blockOwnerDeletion": True}  # fmt: skip
        group, specs = f"{meta['name']}-{meta['uid']}", job["spec"]["replicaSpecs"]
        count = sum(spec["replicas"] for spec in specs.values())
        if await self.kube.get(POD_GROUP, group, meta["namespace"]) is None:
            await self.kube.create(POD_GROUP, {
                "apiVersion": POD_GROUP.api_version, "kind": "PodGroup",
                "metadata": {"name": group, "namespace": meta["namespace"], "labels": meta.get("labels", {}),
                             "ownerReferences": [owner]},
                "spec": {"minMember": count, "queue": "default"},
            })  # fmt: skip
        rank = 0
        for kind, spec in specs.items():
            for index in range(spec["replicas"]):
                name = f"{meta['name']}-{kind.lower()}-{index}"
                if await self.kube.get(POD, name, meta["namespace"]) is None:
                    await self.kube.create(POD, self._pod(job, owner, group, kind, index, rank, spec["template"]))
                rank += 1

    def _pod(
        self, job: Object, owner: Object, group: str, kind: str, index: int, rank: int, template: Object
    ) -> Object:
        meta = job["metadata"]
        labels = {
            **template.get("metadata", {}).get("labels", {}),
            "group-name": "mindxdl.gitee.com", "job-name": meta["name"], "training.kubeflow.org/job-name": meta["name"],
            "training.kubeflow.org/operator-name": "ascendjob-controller",
            "replica-type": kind.lower(), "training.kubeflow.org/replica-type": kind.lower(),
            "replica-index": str(index), "training.kubeflow.org/replica-index": str(index), "version": "0",
            **({"training.kubeflow.org/job-role": "master"} if kind == "Master" else {}),
        }  # fmt: skip
        annotations = {
            "scheduling.k8s.io/group-name": group, "volcano.sh/task-spec": kind.lower(), "hccl/rankIndex": str(rank)
        }  # fmt: skip
        return {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"{meta['name']}-{kind.lower()}-{index}", "namespace": meta["namespace"],
                         "labels": labels, "annotations": annotations, "ownerReferences": [owner]},
            "spec": {**template["spec"], "schedulerName": "volcano", "restartPolicy": "Never"},
        }  # fmt: skip

    async def _schedule(self) -> None:
        """Volcano: whole chips of the first node with enough free ones, as annotations first and a Binding then."""
        pods = (await self.kube.list(POD)).items
        used: dict[str, set[str]] = {}
        for pod in pods:
            if node := pod["spec"].get("nodeName"):
                text = (pod["metadata"].get("annotations") or {}).get(RESOURCE, "")
                used.setdefault(node, set()).update(filter(None, text.split(",")))
        for pod in pods:
            meta, spec = pod["metadata"], pod["spec"]
            count = int(spec["containers"][0].get("resources", {}).get("requests", {}).get(RESOURCE, 0))
            if spec.get("nodeName") or spec.get("schedulerName") != "volcano" or not count:
                continue
            for node in self.nodes:
                bad = self.bad.get(node, {})
                chips = [f"Ascend910-{i}" for i in range(self.chips) if i not in bad]
                free = [chip for chip in chips if chip not in used.get(node, set())]
                if len(free) < count:
                    continue
                chosen = free[:count]
                noted = {"metadata": {"annotations": {
                    RESOURCE: ",".join(chosen), "huawei.com/AscendReal": ",".join(chosen),
                    "predicate-time": str(time.time_ns()),
                }}}  # fmt: skip
                await self.kube.patch(POD, meta["name"], noted, meta["namespace"], field_manager="vc-scheduler")
                await self.kube.bind(meta["namespace"], meta["name"], meta["uid"], node)
                used.setdefault(node, set()).update(chosen)
                break

    async def add_nodes(self) -> None:
        """Healthy A2 servers as kubelet and the device plugin register them."""
        from tests.worlds import A2_LABELS

        sizes = {"cpu": "192", "memory": "1536Gi", "pods": "110", RESOURCE: str(self.chips)}
        for node in self.nodes:
            devices = {f"Ascend910-{i}": {"IP": f"10.1.0.{i}", "SuperDeviceID": i} for i in range(self.chips)}
            labels = {"kubernetes.io/hostname": node, "kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64",
                      **A2_LABELS}  # fmt: skip
            await self.kube.create(NODE, {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node, "labels": labels, "annotations": {"baseDeviceInfos": json.dumps(devices)}},
            })  # fmt: skip
            ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
            status = {"capacity": sizes, "allocatable": sizes, "conditions": ready,
                      "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}  # fmt: skip
            await self.kube.patch_status(NODE, node, {"status": status})
            # the API server taints a new node; the node controller, which does not run here, takes that back
            await self.kube.patch(NODE, node, {"spec": {"taints": None}})


async def play(cluster: MindCluster, stop: asyncio.Event, every: float = 0.1) -> None:
    """Let the components work until ``stop``."""
    while not stop.is_set():
        await cluster.tick()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), every)
