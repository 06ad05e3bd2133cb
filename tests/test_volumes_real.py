"""Volumes on a real kube-apiserver whose controller-manager binds them: from an unbound claim to the bound pod."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.act.batch import Batch, run
from belay.engine.act.edge import Edge, Fence
from belay.engine.kube import NAMESPACE, NODE, POD, Kube, NotFound, Object, resource_for
from belay.engine.kube.lease import shard_lease
from belay.engine.load import load
from belay.engine.model.actions import BindPod, PatchObject
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.observe.resources import fetch
from belay.engine.plan import plan
from belay.engine.store import PassRecord
from tests.control_planes import closed_ports
from tests.needs import assets

PATIENCE = 90.0
CLAIM = resource_for("v1", "PersistentVolumeClaim")
VOLUME = resource_for("v1", "PersistentVolume")
CLASS = resource_for("storage.k8s.io/v1", "StorageClass")
CSI_NODE = resource_for("storage.k8s.io/v1", "CSINode")
DRIVER = "csi.tests.belay.dev"


@pytest.fixture
def binder(kubeconfig: str, tmp_path: Path) -> Iterator[str]:
    """The API server with Kubernetes' own binder of volumes."""
    program = assets("kube-controller-manager") / "kube-controller-manager"
    command = [
        str(program), "--kubeconfig", kubeconfig, "--controllers=persistentvolume-binder", "--leader-elect=false",
        *closed_ports(program), "--pvclaimbinder-sync-period=1s",
    ]  # fmt: skip
    with (tmp_path / "controllers.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    yield kubeconfig
    process.terminate()
    process.wait(30)


class Cluster:
    """Two nodes, a namespace and passes of the planner on what the API server holds."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.mark = kube, uuid.uuid4().hex[:6]
        self.namespace, self.nodes = f"vol-{self.mark}", [f"n{i}-{self.mark}" for i in (1, 2)]
        self.desired = load({}, revision="r1").desired
        self.edge: Edge | None = None

    async def start(self) -> None:
        for name in (self.namespace, "belay-system"):
            await self.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in self.nodes:
            head = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            await self.kube.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": head})
            sizes = {"cpu": "8", "memory": "8Gi", "pods": "20"}
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            status = {"capacity": sizes, "allocatable": sizes, "conditions": [ready]}
            await self.kube.patch(NODE, name, {"status": status}, subresource="status")
        epoch = await shard_lease(self.kube, self.mark, "me").acquire()
        assert epoch is not None
        self.edge = Edge(self.kube, self.mark, Fence(self.kube, self.mark, epoch, seconds=0.0))

    async def end(self) -> None:
        for name in self.nodes:
            with contextlib.suppress(NotFound):
                await self.kube.delete(CSI_NODE, name)
            await self.kube.delete(NODE, name)
        await self.kube.delete(POD, "train-0", self.namespace, grace=0)
        await self.kube.delete(VOLUME, f"pv-{self.mark}")
        await self.kube.delete(CLASS, f"late-{self.mark}")
        await self.kube.delete(NAMESPACE, self.namespace)

    async def pass_(self) -> Plan:
        """One pass on a fresh snapshot; its patches of volumes and its bindings are carried out.

        One may be refused, as the binder may be faster: a later pass succeeds.
        """
        made = plan(self.desired, observe(await fetch(self.kube)), time.time())
        wanted = [a for a in made.actions if isinstance(a, PatchObject | BindPod) and self.concerns(a.namespace)]
        assert self.edge is not None
        await run(self.edge, Batch(PassRecord("p", self.mark, 1, "d", 1, 0.0, 30.0), 1, list(enumerate(wanted))))
        return made

    def concerns(self, namespace: str) -> bool:
        return namespace in ("", self.namespace)

    def waits(self, made: Plan) -> str:
        """Why the test's pod waits; empty when it does not."""
        return next((entry.reason for entry in made.pending if entry.namespace == self.namespace), "")

    async def until_bound(self) -> list[str]:
        """Passes until the pod has a node: the reasons for which it waited, each once."""
        reasons: list[str] = []
        ends = time.monotonic() + PATIENCE
        while not (await self.pod())["spec"].get("nodeName"):
            assert time.monotonic() < ends, f"not bound after {PATIENCE} s: {reasons}"
            reason = self.waits(await self.pass_())
            if reason and reason not in reasons:
                reasons.append(reason)
            await asyncio.sleep(0.2)
        return reasons

    async def until_selected(self) -> Object:
        """Passes until a node is selected for the claim, which is returned."""
        ends = time.monotonic() + PATIENCE
        while True:
            await self.pass_()
            claim = await self.kube.get(CLAIM, "data", self.namespace)
            assert claim is not None
            if "volume.kubernetes.io/selected-node" in (claim["metadata"].get("annotations") or {}):
                return claim
            assert time.monotonic() < ends, "no node is selected"
            await asyncio.sleep(0.2)

    async def pod(self) -> Object:
        found = await self.kube.get(POD, "train-0", self.namespace)
        assert found is not None
        return found

    async def create(self, kind: Any, body: Object) -> None:
        await self.kube.create(kind, body)

    async def storage_class(self, provisioner: str) -> str:
        name = f"late-{self.mark}"
        await self.create(CLASS, {
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
        })  # fmt: skip
        return name

    async def attaches_nothing(self, node: str) -> None:
        """The node's driver has no room for another volume."""
        driver = {"name": DRIVER, "nodeID": node, "topologyKeys": [], "allocatable": {"count": 0}}
        head = {"name": node}
        await self.create(CSI_NODE, {
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": head, "spec": {"drivers": [driver]},
        })  # fmt: skip

    async def claim(self, storage: str) -> None:
        await self.create(CLAIM, {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": self.namespace},
            "spec": {"storageClassName": storage, "accessModes": ["ReadWriteOnce"],
                     "resources": {"requests": {"storage": "1Gi"}}},
        })  # fmt: skip

    async def volume(self, storage: str, node: str, reference: Object | None = None) -> None:
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
        await self.create(VOLUME, {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv-{self.mark}"},
            "spec": {
                "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage,
                "local": {"path": "/mnt/disk"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                "persistentVolumeReclaimPolicy": "Retain", **({"claimRef": reference} if reference else {}),
            },
        })  # fmt: skip

    async def train(self) -> None:
        await self.create(POD, {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0", "namespace": self.namespace},
            "spec": {
                "schedulerName": "belay", "containers": [{"name": "c", "image": "i"}],
                "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
            },
        })  # fmt: skip


def test_a_local_volume_is_reserved_bound_and_followed(binder: str) -> None:
    async def case(cluster: Cluster) -> None:
        storage = await cluster.storage_class("kubernetes.io/no-provisioner")
        await cluster.volume(storage, cluster.nodes[1])
        await cluster.train()
        assert cluster.waits(await cluster.pass_()) == "VolumeClaimNotReady", "the claim is missing"
        await cluster.claim(storage)
        assert "VolumesNotBound" in await cluster.until_bound()
        assert (await cluster.pod())["spec"]["nodeName"] == cluster.nodes[1], "the node that has the volume"
        claim = await cluster.kube.get(CLAIM, "data", cluster.namespace)
        assert claim is not None and claim["status"]["phase"] == "Bound"

    _run(binder, case)


def test_a_provisioner_makes_the_volume_on_the_chosen_node(binder: str) -> None:
    async def case(cluster: Cluster) -> None:
        storage = await cluster.storage_class(DRIVER)
        await cluster.claim(storage)
        for name in cluster.nodes:
            await cluster.attaches_nothing(name)
        await cluster.train()
        assert cluster.waits(await cluster.pass_()) == "VolumeLimitReached", "no driver has room"
        await cluster.kube.delete(CSI_NODE, cluster.nodes[1])
        claim = await cluster.until_selected()
        node = claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"]
        assert node == cluster.nodes[1], "the node without a limit"
        assert cluster.waits(await cluster.pass_()) == "VolumesNotBound", "no volume, no binding"
        reference = {"kind": "PersistentVolumeClaim", "namespace": cluster.namespace, "name": "data",
                     "uid": claim["metadata"]["uid"]}  # fmt: skip
        await cluster.volume(storage, node, reference)
        await cluster.until_bound()
        assert (await cluster.pod())["spec"]["nodeName"] == node

    _run(binder, case)


def _run(path: str, case: Any) -> None:
    async def main() -> None:
        async with Kube.from_config(path) as kube:
            cluster = Cluster(kube)
            await cluster.start()
            try:
                await case(cluster)
            finally:
                await cluster.end()

    asyncio.run(main())
