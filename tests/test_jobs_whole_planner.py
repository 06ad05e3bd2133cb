"""A job of 2×8 chips through the whole planner: pushed, placed, hit by a chip fault, moved, ended."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import AnyAction, BindPod, kind_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.wire import deviceinfo
from tests import worlds
from tests.jobs import NOW, POD_GROUP_CRD, World, ascend_job, config_map, manifest

SEEN = {"CreateObject", "CreatePod", "BindPod", "EvictPod", "PatchObject", "DeleteObject", "WriteRankTable"}


def node(name: str) -> dict[str, Any]:
    """A healthy Atlas 800T A2 server."""
    sizes = {"cpu": "192", "memory": "1536Gi", "pods": "110", "huawei.com/Ascend910": "8"}
    base = {f"Ascend910-{i}": {"IP": f"192.168.{i}.{name[-1]}", "SuperDeviceID": i} for i in range(8)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**worlds.A2_LABELS, "kubernetes.io/hostname": name},
                     "annotations": {"baseDeviceInfos": json.dumps(base)}},
        "status": {
            "capacity": sizes, "allocatable": sizes,
            "addresses": [{"type": "InternalIP", "address": f"10.0.0.{name[-1]}"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-08-01T00:00:00Z"}],
        },
    }  # fmt: skip


class Whole(World):
    """A world moved on by the whole planner; what belongs to nodes is only logged."""

    def __init__(self, *objects: dict[str, Any], desired: Desired) -> None:
        super().__init__(*objects, desired=desired)
        self.bad: dict[str, list[int]] = {}

    def report(self) -> None:
        """Every node reports again."""
        for name in self.kinds("Node"):
            bad = self.bad.get(name, [])
            free = ",".join(f"Ascend910-{i}" for i in range(8) if i not in bad)
            faults = [
                deviceinfo.fault_element(
                    "CardUnhealthy", f"Ascend910-{i}", {"80C98001": (int(NOW * 1000), "RestartNPU")}, "RestartNPU"
                )
                for i in bad
            ]
            devices = {
                "huawei.com/Ascend910": free,
                "huawei.com/Ascend910-Unhealthy": ",".join(f"Ascend910-{i}" for i in bad),
                "huawei.com/Ascend910-NetworkUnhealthy": "",
                "huawei.com/Ascend910-Recovering": "",
                "huawei.com/Ascend910-Fault": json.dumps(faults),
            }
            self.put(deviceinfo.build(name, device_list=devices, update_time=int(self.now)))

    def plan(self) -> list[AnyAction]:
        self.report()
        seen = observe(self.objects.values())
        seen = msgspec.structs.replace(seen, history=self.history, inventory=self.inventory)
        made = plan(self.desired, seen, self.now)
        assert made.digest() == plan(self.desired, seen, self.now).digest()
        self.diagnostics = [str(d) for d in made.diagnostics if d.severity != "info"]
        self._next = made.history
        return [action for action in made.actions if kind_of(action) in SEEN]

    def apply(self, action: AnyAction) -> None:
        if isinstance(action, BindPod):
            self.log.append(f"bind Pod {action.pod} to {action.node}")
            body = self.pod(action.pod)
            body["metadata"]["annotations"].update(action.annotations)
            body["spec"]["nodeName"] = action.node
            body["status"] = {"phase": "Running", "podIP": f"172.16.0.{action.node[-1]}"}
            self._touch(body)
        else:
            super().apply(action)


def test_a_job_from_git_lives_through_a_chip_fault() -> None:
    job = ascend_job(labels={"fault-scheduling": "force", "ring-controller.atlas": "ascend-910b"})
    rings = config_map("rings-config-train", {"hccl.json": '{"status":"initializing"}'})
    manifests = tuple(sorted((manifest(job), manifest(rings)), key=lambda m: m.key))
    shipped = load({}, revision="r1").desired
    shipped = Desired(**{**_fields(shipped), "manifests": manifests, "has_git": True})
    world = Whole(POD_GROUP_CRD, *(node(f"node{i}") for i in range(1, 4)), desired=shipped)
    world.settle()
    assert world.diagnostics == []
    assert world.state() == "Running"
    assert {world.pod(p)["spec"]["nodeName"] for p in world.pods()} == {"node1", "node2"}
    first = json.loads(world.find("ConfigMap", "rings-config-train")["data"]["hccl.json"])
    assert [s["server_id"] for s in first["server_list"]] == ["10.0.0.1", "10.0.0.2"]
    assert world.log == [
        "create ConfigMap rings-config-train (Missing)",
        "create AscendJob train (Missing)",
        f"create PodGroup train-{_uid(world)} (PodGroupMissing)",
        "create Service train-master-0 (ServiceMissing)",
        "patch AscendJob train status (JobCreated)",
        "create Pod train-master-0 (PodMissing)",
        "create Pod train-worker-0 (PodMissing)",
        f"patch PodGroup train-{_uid(world)} status (PodGroupInqueue)",
        "bind Pod train-master-0 to node1",
        "bind Pod train-worker-0 to node2",
        "patch AscendJob train status (JobRunning)",
        "write rank table train completed",
        f"patch PodGroup train-{_uid(world)} status (PodGroupRunning)",
    ]
    group = world.find("PodGroup", f"train-{_uid(world)}")["status"]
    assert (group["phase"], group["running"]) == ("Running", 2)
    assert [(c["type"], c["reason"]) for c in group["conditions"]] == [
        ("Scheduled", "tasks in gang are ready to be scheduled")
    ]
    world.log.clear()
    world.bad["node1"] = [4]
    world.step()
    world.bury()
    world.settle()
    assert world.log == [
        "evict Pod train-master-0 (CardUnhealthy)",
        "evict Pod train-worker-0 (CardUnhealthy)",
        "create Pod train-master-0 (PodMissing)",
        "create Pod train-worker-0 (PodMissing)",
        "patch AscendJob train status (JobStatusChanged)",
        "write rank table train initializing",
        f"patch PodGroup train-{_uid(world)} status (PodGroupInqueue)",
        "bind Pod train-master-0 to node3",
        "bind Pod train-worker-0 to node2",
        "patch AscendJob train status (JobStatusChanged)",
        "write rank table train completed",
        f"patch PodGroup train-{_uid(world)} status (PodGroupRunning)",
    ]
    assert {world.pod(p)["metadata"]["labels"]["version"] for p in world.pods()} == {"1"}
    for name in world.pods():
        world.end(name)
    world.settle()
    assert world.state() == "Succeeded"
    assert world.step() == []
    assert ObjectKey("scheduling.volcano.sh/v1beta1", "PodGroup", "vision", f"train-{_uid(world)}") not in world.objects


def _uid(world: World) -> str:
    return str(world.job()["metadata"]["uid"])


def _fields(desired: Desired) -> dict[str, Any]:
    return {name: getattr(desired, name) for name in Desired.__dataclass_fields__}
