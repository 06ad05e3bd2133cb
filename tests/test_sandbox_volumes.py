"""The sandbox's volumes: which claim gets which, and when."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from belay.engine.model.labels import SELECTED_NODE
from belay.engine.sandbox.controllers import volume
from belay.engine.workloads.writes import Reconciled

Json = dict[str, Any]
BY_HAND = "kubernetes.io/no-provisioner"


def claim(name: str = "data", size: str = "1Gi", kind: str = "late", **spec: Any) -> Json:
    body = {"storageClassName": kind, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"namespace": "default", "name": name, "uid": f"u-{name}"}, "spec": body | spec}


def disk(name: str, size: str = "2Gi", kind: str = "late", **spec: Any) -> Json:
    body = {"storageClassName": kind, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}}
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": body | spec}


def storage(mode: str, provisioner: str = "csi.example.com") -> Json:
    return {"provisioner": provisioner, "volumeBindingMode": mode}


def settle(one: Json, kind: Json | None, *disks: Json) -> tuple[Json, dict[str, Json]]:
    """The claim and the volumes once the controllers have nothing to do."""
    one, volumes = copy.deepcopy(one), {disk["metadata"]["name"]: copy.deepcopy(disk) for disk in disks}
    for _ in range(20):
        steps = [volume.reconcile(one, kind, [volumes[name] for name in sorted(volumes)])]
        steps += [volume.offer(each, {("default", "data")}) for each in volumes.values()]
        writes = [write for step in steps for write in step.writes]
        if not writes:
            return one, volumes
        for write in writes:
            if write.verb == "create":
                volumes[write.name] = write.body
                continue
            target = one if write.kind == "PersistentVolumeClaim" else volumes[write.name]
            for field, value in write.body.items():
                old = target.setdefault(field, {})
                old.update({k: {**old.get(k, {}), **v} if isinstance(v, dict) else v for k, v in value.items()})
    raise AssertionError("the controllers never come to rest")


def test_a_claim_of_a_class_by_hand_waits_until_a_scheduler_has_chosen_its_volume() -> None:
    """So that a local volume decides the node, as on a real cluster; no volume is made."""
    late = storage("WaitForFirstConsumer", BY_HAND)
    waiting, volumes = settle(claim(), late, disk("on-node-3"))
    assert "volumeName" not in waiting["spec"]
    assert {name: one["status"]["phase"] for name, one in volumes.items()} == {"on-node-3": "Available"}
    chosen = disk("on-node-3", claimRef={"namespace": "default", "name": "data", "uid": "u-data"})
    bound, volumes = settle(claim(), late, chosen)
    assert bound["spec"]["volumeName"] == "on-node-3"
    assert bound["status"]["phase"] == volumes["on-node-3"]["status"]["phase"] == "Bound"


def test_a_provisioner_waits_for_the_selected_node() -> None:
    late = storage("WaitForFirstConsumer")
    assert "volumeName" not in settle(claim(), late)[0]["spec"]
    marked = claim()
    marked["metadata"]["annotations"] = {SELECTED_NODE: "node-1"}
    assert settle(marked, late)[0]["spec"]["volumeName"] == "pvc-u-data"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (disk("a", size="512Mi"), "too small"),
        (disk("a", kind="other"), "another class"),
        (disk("a", accessModes=["ReadOnlyMany"]), "another access mode"),
        (disk("a", volumeMode="Block"), "another mode"),
        (disk("a", claimRef={"namespace": "default", "name": "other"}), "of another claim"),
    ],
)
def test_a_claim_that_binds_at_once_takes_the_smallest_volume_that_suits(wrong: Json, why: str) -> None:
    at_once = storage("Immediate", BY_HAND)
    assert settle(claim(), at_once, wrong, disk("b", "9Gi"), disk("c", "3Gi"))[0]["spec"]["volumeName"] == "c"
    assert "volumeName" not in settle(claim(), at_once, wrong)[0]["spec"], why
    assert settle(claim(), storage("Immediate"), wrong)[0]["spec"]["volumeName"] == "pvc-u-data", "one is made"


@pytest.mark.parametrize(("policy", "verb"), [("Retain", "status"), ("Delete", "delete")])
def test_a_volume_whose_claim_is_gone_is_released_or_deleted(policy: str, verb: str) -> None:
    held = disk("a", claimRef={"namespace": "default", "name": "data"}, persistentVolumeReclaimPolicy=policy)
    held["status"] = {"phase": "Bound"}
    assert volume.offer(held, {("default", "data")}) == Reconciled()
    (write,) = volume.offer(held, set()).writes
    assert (write.verb, write.body.get("status")) == (verb, {"phase": "Released"} if verb == "status" else None)
