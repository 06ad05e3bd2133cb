"""Queues and PodGroups as Volcano keeps them: the default queue, counts, Commands, groups of plain workloads."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.load import load
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from tests.jobs import NOW
from tests.test_jobs_whole_planner import Whole, node

GROUPS = "scheduling.volcano.sh/v1beta1"
CRDS = [
    {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name}.scheduling.volcano.sh"},
    } for name in ("queues", "podgroups")
]  # fmt: skip


def world_of(*objects: dict[str, Any]) -> Whole:
    return Whole(*objects, desired=load({}, revision="r1").desired)


def queue(name: str = "default", **status: Any) -> dict[str, Any]:
    meta = {"name": name, "uid": f"{name}-uid"}
    return {"apiVersion": GROUPS, "kind": "Queue", "metadata": meta, "spec": {"weight": 1}, "status": status}


def group(name: str, phase: str, of: str = "default") -> dict[str, Any]:
    meta = {"name": name, "namespace": "vision"}
    spec = {"minMember": 1, "queue": of}
    return {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": meta, "spec": spec, "status": {"phase": phase}}


def command(action: str, name: str = "c", age: float = 0.0, of: str = "default") -> dict[str, Any]:
    meta = {"name": name, "namespace": "vision", "creationTimestamp": rfc3339(NOW - age)}
    target = {"apiVersion": GROUPS, "kind": "Queue", "name": of, "uid": f"{of}-uid"}
    return {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": meta, "action": action,
            "target": target}  # fmt: skip


def status(world: Whole, name: str = "default") -> dict[str, Any]:
    found: dict[str, Any] = world.find("Queue", name).get("status", {})
    return found


def test_the_default_queue_exists_and_counts_its_groups() -> None:
    world = world_of(*CRDS, group("a", "Inqueue"), group("b", "Inqueue"), group("c", "Inqueue", of="research"))
    world.put(queue("research"))
    world.settle()
    assert world.find("Queue", "default")["spec"] == {"weight": 1}
    assert status(world) == {"state": "Open", "allocated": {}, "inqueue": 2}
    assert status(world, "research") == {"state": "Open", "allocated": {}, "inqueue": 1}


def test_a_cluster_without_queues_gets_none() -> None:
    world = world_of(group("a", "Inqueue"))
    world.settle()
    assert world.kinds("Queue") == []


def test_a_queue_closes_once_its_jobs_are_gone_and_opens_again() -> None:
    world = world_of(*CRDS, queue(), group("a", "Inqueue"), command("CloseQueue"))
    world.settle()
    assert (status(world)["state"], world.kinds("Command")) == ("Closing", [])
    del world.objects[ObjectKey(GROUPS, "PodGroup", "vision", "a")]
    world.settle()
    assert status(world)["state"] == "Closed"
    world.put(command("OpenQueue", "again"))
    world.settle()
    assert (status(world)["state"], world.kinds("Command")) == ("Open", [])


def test_commands_of_a_queue_are_carried_out_in_order_although_one_cannot_be_deleted() -> None:
    world = world_of(*CRDS, queue(), command("CloseQueue", "first", age=60.0), command("OpenQueue", "second"))
    for _ in range(4):
        world.step(skip=lambda action: type(action).__name__ == "DeleteObject")
    assert status(world)["state"] == "Closed", "the second waits for the first to be gone"
    world.settle()
    assert (status(world)["state"], world.kinds("Command")) == ("Open", [])


def test_an_action_that_queues_do_not_know_is_reported() -> None:
    world = world_of(*CRDS, queue(state="Open", allocated={}), command("AbortJob"))
    world.settle()
    assert any("AbortJob" in found and "delete the Command" in found for found in world.diagnostics)
    assert status(world)["state"] == "Open"


def pods_of(kind: str, api: str, owner: str, number: int, **more: Any) -> list[dict[str, Any]]:
    reference = {"apiVersion": api, "kind": kind, "name": owner, "uid": f"{owner}-uid", "controller": True}
    return [
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"{owner}-{i}", "namespace": "vision", "uid": f"{owner}-{i}-uid",
                         "ownerReferences": [reference], "annotations": dict(more), "labels": {}},
            "spec": {"schedulerName": "volcano", "containers": [
                {"name": "c", "resources": {"requests": {"cpu": "500m", "huawei.com/Ascend910": "8"}}}]},
            "status": {"phase": "Pending"},
        } for i in range(number)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "api"),
    [("ReplicaSet", "apps/v1"), ("StatefulSet", "apps/v1"), ("RoleSet", "orchestration.aibrix.ai/v1alpha1")],
)
def test_pods_of_a_plain_workload_get_a_group_of_their_controller(kind: str, api: str) -> None:
    notes = {"scheduling.volcano.sh/queue-name": "default", "volcano.sh/preemptable": "true"}
    world = world_of(*CRDS, *pods_of(kind, api, "web", 2, **notes))
    world.settle()
    made = world.find("PodGroup", "podgroup-web-uid")
    assert made["spec"] == {
        "minMember": 1, "queue": "default", "minResources": {"cpu": "500m", "huawei.com/Ascend910": "8"},
    }  # fmt: skip
    assert made["metadata"]["ownerReferences"][0]["uid"] == "web-uid"
    assert made["metadata"]["annotations"] == {"volcano.sh/preemptable": "true"}
    assert made["status"]["phase"] == "Inqueue"


def alone(name: str, **notes: str) -> dict[str, Any]:
    """A pod without controller."""
    (made,) = pods_of("none", "v1", name, 1, **notes)
    made["metadata"] |= {"name": name, "uid": f"{name}-uid"}
    del made["metadata"]["ownerReferences"]
    return made


def test_a_pod_without_controller_gets_a_group_of_its_own() -> None:
    notes = {"scheduling.volcano.sh/queue-name": "default", "volcano.sh/preemptable": "true"}
    world = world_of(*CRDS, alone("one", **notes), alone("two"), node("node1"))
    world.settle()
    assert sorted(world.kinds("PodGroup")) == ["podgroup-one-uid", "podgroup-two-uid"]
    made = world.find("PodGroup", "podgroup-one-uid")
    assert made["spec"] == {
        "minMember": 1, "queue": "default", "minResources": {"cpu": "500m", "huawei.com/Ascend910": "8"},
    }  # fmt: skip
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": "one-uid", "controller": True}
    ]
    assert made["metadata"]["annotations"] == {"volcano.sh/preemptable": "true"}
    placed = world.pod("one")
    assert placed["spec"]["nodeName"] == "node1"
    assert placed["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "podgroup-one-uid"
    waiting = plan(world.desired, observe(world.objects.values()), world.now).pending
    assert [(entry.kind, entry.name) for entry in waiting] == [("Pod", "two")], "the gang is still that of the pod"


def test_a_group_of_a_former_pod_of_that_name_is_not_taken_over() -> None:
    left = group("podgroup-old-uid", "Running")
    left["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": "old-uid", "controller": True}
    ]
    world = world_of(*CRDS, left, alone("one"))
    world.settle()
    assert "podgroup-one-uid" in world.kinds("PodGroup")


def test_pods_that_name_their_group_get_no_other() -> None:
    own = {"scheduling.k8s.io/group-name": "lws-0"}
    world = world_of(*CRDS, group("lws-0", "Inqueue"), *pods_of("StatefulSet", "apps/v1", "lws", 2, **own))
    world.settle()
    assert world.kinds("PodGroup") == ["lws-0"]


def test_pods_of_a_foreign_controller_start_together() -> None:
    """Three of three, as their annotation asks; before, each pod waited alone for two others."""
    least = {"huawei.com/schedule_minAvailable": "3"}
    world = world_of(*CRDS, *pods_of("RoleSet", "orchestration.aibrix.ai/v1alpha1", "agg", 3, **least))
    for name in ("node1", "node2", "node3"):
        world.put(node(name))
    world.settle()
    bound = [world.pod(name) for name in world.pods() if world.pod(name)["spec"].get("nodeName")]
    assert len(bound) == 3
    assert {pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for pod in bound} == {"podgroup-agg-uid"}


def test_the_group_of_a_replica_set_without_replicas_goes() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet",
             "metadata": {"name": "old", "namespace": "vision", "uid": "old-uid"}, "spec": {"replicas": 0}}  # fmt: skip
    left = group("podgroup-old-uid", "Inqueue")
    left["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "old", "uid": "old-uid", "controller": True}
    ]
    world = world_of(*CRDS, owner, left)
    world.settle()
    assert world.kinds("PodGroup") == []
