"""Volumes: claims that wait for their first consumer, missing claims, capacity, and the gang that waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belay.engine.act.edge import Refused
from belay.engine.act.permitted import check
from belay.engine.model.actions import PatchObject, PatchType
from tests import listing
from tests.claim_objects import DRIVER, allocated, capacity, claim, mounting, storage_class, volume
from tests.listing import Item, job, node, report

SELECTED = "volume.kubernetes.io/selected-node"


def nodes(**labels: dict[str, str]) -> list[Item]:
    return [item for name, own in labels.items() for item in (node(name, labels=own), report(name))]


def pods(*claims: str, count: int = 1, each: int = 8) -> list[Item]:
    """A gang whose pod i mounts claim i, or all the only one."""
    items = job("j", count, each, policy="chip8-node8")
    for rank, item in enumerate(items[1:]):
        item["spec"] |= mounting(claims[rank] if len(claims) > 1 else claims[0])
    return items


def patches(found: listing.Answer) -> list[tuple[str, str, dict[str, Any]]]:
    rows = [a for a in found.body["actions"] if a["kind"] == "PatchObject" and a["reason"] == "VolumeChosen"]
    return [(row["objectKind"], row["name"], row["patch"]) for row in rows]


def test_a_local_volume_decides_the_node_and_is_reserved_before_the_pod_is_bound(tmp_path: Path) -> None:
    world = [*nodes(n1={}, n2={}, n3={}), storage_class(provisioner="kubernetes.io/no-provisioner"), claim("data")]
    found = listing.plan([*world, volume("big", "n3", "99Gi"), volume("pv", "n3"), *pods("data")], tmp_path)
    ((kind, name, patch),) = patches(found)
    assert (kind, name) == ("PersistentVolume", "pv"), "the smallest that is large enough"
    reference = patch["spec"]["claimRef"]
    assert (reference["namespace"], reference["name"], reference["uid"]) == ("train", "data", "u-data")
    assert patch["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}
    assert not found.bound and found.pending["reason"] == "VolumesNotBound"
    taken = volume("pv", "n3", claimRef=reference)
    waiting = listing.plan([*world, taken, *pods("data")], tmp_path)
    assert not waiting.bound and not patches(waiting) and waiting.pending["reason"] == "VolumesNotBound"
    bound = claim("data", status={"phase": "Bound"})
    bound["spec"]["volumeName"] = "pv"
    done = listing.plan([*world[:-1], bound, taken, *pods("data")], tmp_path)
    assert done.nodes == {"j-0": "n3"}


def test_a_file_may_leave_out_the_status_of_volumes(tmp_path: Path) -> None:
    plain = volume("pv", "n2")
    del plain["status"]
    world = [*nodes(n1={}, n2={}), storage_class(provisioner="kubernetes.io/no-provisioner"), claim("data")]
    assert [name for _, name, _ in patches(listing.plan([*world, plain, *pods("data")], tmp_path))] == ["pv"]
    released = volume("pv", "n2") | {"status": {"phase": "Released"}}
    assert not patches(listing.plan([*world, released, *pods("data")], tmp_path))


def test_two_pods_never_get_one_volume(tmp_path: Path) -> None:
    base = [*nodes(n1={}, n2={}, n3={}), storage_class(provisioner="kubernetes.io/no-provisioner")]
    world = [*base, claim("a"), claim("b"), volume("v1", "n1"), volume("v2", "n3")]
    found = listing.plan([*world, *pods("a", "b", count=2)], tmp_path)
    assert {name for _, name, _ in patches(found)} == {"v1", "v2"}
    alone = listing.plan([*base, claim("a"), claim("b"), volume("v1"), *pods("a", "b", count=2)], tmp_path)
    assert not patches(alone) and not alone.bound
    assert alone.pending["nodes"]["VolumeNotAvailable"] == 2


def test_a_provisioner_gets_the_node_that_was_chosen(tmp_path: Path) -> None:
    world = [*nodes(n1={}, n2={}), storage_class(), claim("data")]
    found = listing.plan([*world, *pods("data")], tmp_path)
    ((kind, name, patch),) = patches(found)
    assert (kind, name, patch) == ("PersistentVolumeClaim", "data", {"metadata": {"annotations": {SELECTED: "n1"}}})
    (action,) = [a for a in found.body["actions"] if a["kind"] == "PatchObject" and a["name"] == "data"]
    assert action["preconditions"].items() >= {"resourceVersion": "7", "uid": "u-data"}.items()
    marked = claim("data", metadata={"annotations": {SELECTED: "n2"}})
    waiting = listing.plan([*world[:-1], marked, *pods("data")], tmp_path)
    assert not patches(waiting) and waiting.pending["reason"] == "VolumesNotBound"
    busy = listing.pod("busy", on="n2", chips=list(range(8)))
    held = listing.plan([*world[:-1], marked, busy, *pods("data")], tmp_path)
    assert held.pending["nodes"]["VolumeNodeSelected"] == 1, "only the selected node will have the volume"
    gone = claim("data", metadata={"annotations": {SELECTED: "n9"}})
    again = listing.plan([*world[:-1], gone, *pods("data")], tmp_path)
    assert patches(again)[0][2] == {"metadata": {"annotations": {SELECTED: "n1"}}}, "that node is no more"


def test_a_gang_that_shares_a_claim_is_placed_together(tmp_path: Path) -> None:
    world = [*nodes(n1={}, n2={}), storage_class(), claim("data")]
    found = listing.plan([*world, *pods("data", count=2)], tmp_path)
    assert [name for _, name, _ in patches(found)] == ["data"]
    marked = claim("data", metadata={"annotations": {SELECTED: "n1"}})
    waiting = listing.plan([*world[:-1], marked, *pods("data", count=2)], tmp_path)
    assert waiting.pending["reason"] == "VolumesNotBound" and len(waiting.pending["pods"]) == 2


@pytest.mark.parametrize(
    ("topologies", "spaces", "node", "reason"),
    [
        (["b"], [], "n2", ""),
        (["c"], [], "", "VolumeNotAvailable"),
        ([], [("n1", "5Gi"), ("n2", "5Gi")], "", "VolumeSpaceShortage"),
        ([], [("n1", "5Gi"), ("n2", "10Gi")], "n2", ""),
        (["a"], [("n1", "50Gi"), ("n2", "50Gi")], "n1", ""),
        (["b"], [("n1", "50Gi"), ("n2", "5Gi")], "", "VolumeSpaceShortage"),
    ],
)
def test_topology_and_capacity_decide_where_a_volume_can_be_made(
    topologies: list[str], spaces: list[tuple[str, str]], node: str, reason: str, tmp_path: Path
) -> None:
    terms = [{"matchLabelExpressions": [{"key": "zone", "values": [zone]}]} for zone in topologies]
    world = [*nodes(n1={"zone": "a"}, n2={"zone": "b"}), claim("data"), storage_class(allowedTopologies=terms)]
    world += [DRIVER, *(capacity(f"c-{host}", host, size) for host, size in spaces)] if spaces else []
    found = listing.plan([*world, *pods("data")], tmp_path)
    if node:
        assert patches(found)[0][2] == {"metadata": {"annotations": {SELECTED: node}}}
    else:
        assert not patches(found) and found.pending["nodes"] == {reason: 2}


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        ([claim("data", metadata={"deletionTimestamp": listing.STAMP})], "is being deleted"),
        ([claim("data", status={"phase": "Lost"})], "bound to non-existent persistentvolume"),
        ([claim("data", kind="at-once")], "pod has unbound immediate PersistentVolumeClaims"),
    ],
)
def test_a_claim_that_is_not_ready_makes_the_pod_wait_with_the_reason(
    claims: list[Item], text: str, tmp_path: Path
) -> None:
    world = [*nodes(n1={}), storage_class(), *claims]
    found = listing.plan([*world, *pods("data")], tmp_path)
    assert not found.bound and found.pending["reason"] == "VolumeClaimNotReady"
    assert text in found.pending["message"] and "data" in (found.pending["unblock"] or "")


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ([], 'resourceclaim "npu" not found'),
        ([allocated() | {"status": {}}], "is not allocated"),
        ([allocated(user="another")], "is not reserved for pod j-0"),
        ([allocated(host="n2")], ""),
        ([allocated(host="n2", version="v1beta1")], ""),
    ],
)
def test_a_pod_with_resource_claims_is_bound_only_with_an_allocation(
    claims: list[Item], text: str, tmp_path: Path
) -> None:
    items = job("j", 1, 8, policy="chip8-node8")
    items[1]["spec"]["resourceClaims"] = [{"name": "chips", "resourceClaimTemplateName": "whole-node"}]
    world = [*nodes(n1={}, n2={}), *claims]
    waiting = listing.plan([*world, *items], tmp_path)
    assert not waiting.bound and "to be made from its template" in waiting.pending["message"]
    items[1].setdefault("status", {})["resourceClaimStatuses"] = [{"name": "chips", "resourceClaimName": "npu"}]
    found = listing.plan([*world, *items], tmp_path)
    if text:
        assert not found.bound and found.pending["reason"] == "ResourceClaimNotAllocated"
        assert text in found.pending["message"]
    else:
        assert found.nodes == {"j-0": "n2"}


@pytest.mark.parametrize(
    ("true", "text"),
    [
        ((), 'resourceclaim "npu" has device fpga-0 that waits for attached'),
        (("attached",), ""),
        (("other", "broken"), "has device fpga-0 that failed with broken: no light"),
        (("attached", "broken"), "has device fpga-0 that failed with broken: no light"),
    ],
)
def test_a_pod_waits_until_the_devices_of_another_allocator_are_ready_for_it(
    true: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    """Binding conditions: kube-scheduler waits for them before it binds a pod."""
    device = {"driver": "fabric.example.org", "pool": "rack", "device": "fpga-0"}
    rules = {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    said = [{"type": kind, "status": "True", "message": "no light"} for kind in true]
    said.append({"type": "detached", "status": "False", "message": ""})
    item = allocated(host="n2")
    item["status"]["allocation"]["devices"] = {"results": [{**device, **rules}]}
    item["status"]["devices"] = [{**device, "device": "fpga-1"}, {**device, "conditions": said}]

    items = job("j", 1, 8, policy="chip8-node8")
    items[1]["spec"]["resourceClaims"] = [{"name": "chips", "resourceClaimName": "npu"}]
    found = listing.plan([*nodes(n1={}, n2={}), item, *items], tmp_path)
    if text:
        assert not found.bound and text in found.pending["message"]
    else:
        assert found.nodes == {"j-0": "n2"}


@pytest.mark.parametrize(
    ("kind", "patch", "allowed"),
    [
        ("PersistentVolumeClaim", {"metadata": {"annotations": {SELECTED: "n1"}}}, True),
        ("PersistentVolumeClaim", {"metadata": {"annotations": {"other": "x"}}}, False),
        ("PersistentVolumeClaim", {"spec": {"volumeName": "pv"}}, False),
        ("PersistentVolume", {"spec": {"claimRef": {"name": "data"}}}, True),
        ("PersistentVolume", {"spec": {"hostPath": {"path": "/"}}}, False),
    ],
)
def test_a_plan_changes_of_volumes_only_what_binds_them(kind: str, patch: dict[str, Any], allowed: bool) -> None:
    action = PatchObject(
        reason="VolumeChosen", message="m", api_version="v1", object_kind=kind, namespace="", name="x", patch=patch,
        patch_type=PatchType.MERGE,
    )  # fmt: skip
    if allowed:
        check(action)
        return
    with pytest.raises(Refused):
        check(action)
