"""Pods that ask for extended resources of DeviceClasses: a claim is made, named in the pod's status, then as any."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from belay.engine.act.edge import Refused
from belay.engine.act.permitted import check
from belay.engine.model.actions import CreateObject, PatchObject
from belay.engine.wire import objects
from tests import listing
from tests.listing import Item
from tests.test_dra_placement import CLASS, given, patches, world

IMPLICIT = "deviceclass.resource.kubernetes.io/npu.huawei.com"
NAMED = "example.com/npu"
OFFERING = {**CLASS, "spec": {**CLASS["spec"], "extendedResourceName": NAMED}}


def asking(resource: str, *amounts: int, before: int = 0, policy: str = "chip8-node8") -> list[Item]:
    """A job whose pods ask for so many of a resource, each in one container; with an init container for ``before``."""
    items = listing.job("j", len(amounts), 0, policy=policy)
    for item, amount in zip(items[1:], amounts, strict=True):
        (container,) = item["spec"]["containers"]
        container["resources"] = {"limits": {resource: str(amount)}, "requests": {resource: str(amount)}}
        if before:
            first = {"name": "first", "image": "i", "resources": {"limits": {resource: str(before)}}}
            item["spec"]["initContainers"] = [first]
    return items


def claims(found: listing.Answer) -> dict[str, Item]:
    """The claims that are made, by the pods that own them."""
    rows = [a for a in found.body["actions"] if a["kind"] == "CreateObject" and a["objectKind"] == "ResourceClaim"]
    return {row["object"]["metadata"]["ownerReferences"][0]["name"]: row["object"] for row in rows}


def named(found: listing.Answer) -> dict[str, Item]:
    """What the status of pods says of their claims."""
    rows = [a for a in found.body["actions"] if a["kind"] == "PatchObject" and a["objectKind"] == "Pod"]
    said = {row["name"]: row["patch"].get("status", {}).get("extendedResourceClaimStatus") for row in rows}
    return {pod: row for pod, row in said.items() if row}


def stored(body: Mapping[str, Any], uid: str, made: str = "2026-09-01T07:59:50Z") -> Item:
    """The claim as the API server keeps it; made ten seconds before the pass."""
    return {**body, "metadata": {**body["metadata"], "uid": uid, "resourceVersion": "3", "creationTimestamp": made}}


@pytest.mark.parametrize(("resource", "classes"), [(IMPLICIT, CLASS), (NAMED, OFFERING)], ids=["implicit", "named"])
def test_a_gang_gets_its_claims_and_then_its_chips(resource: str, classes: Item, tmp_path: Path) -> None:
    hosts, items = [classes, *world("n1", "n2")[1:]], asking(resource, 8, 8)
    first = listing.plan([*hosts, *items], tmp_path)
    made = claims(first)
    assert sorted(made) == ["j-0", "j-1"] and not first.bound and not named(first)
    for body in made.values():
        (request,) = body["spec"]["devices"]["requests"]
        assert request["exactly"]["deviceClassName"] == "npu.huawei.com" and request["exactly"]["count"] == 8
        assert body["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert "waiting for the ResourceClaim of the pod's extended resources" in str(first.pending)

    there = [stored(body, f"c-{pod}") for pod, body in sorted(made.items())]
    second = listing.plan([*hosts, *there, *items], tmp_path)
    said = named(second)
    assert not claims(second) and sorted(said) == ["j-0", "j-1"] and not second.bound
    mapping = {"containerName": "ascend", "resourceName": resource, "requestName": "container-0"}
    for pod, row in said.items():
        assert row == {"resourceClaimName": made[pod]["metadata"]["name"], "requestMappings": [mapping]}

    for item in items[1:]:
        item["status"] = {"extendedResourceClaimStatus": said[item["metadata"]["name"]]}
    protected = [{**one, "metadata": one["metadata"] | {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
                 for one in there]  # fmt: skip
    third = listing.plan([*hosts, *protected, *items], tmp_path)
    nodes = sorted(devices[0].partition("/")[0] for devices in given(third).values())
    assert nodes == ["n1", "n2"] and not third.bound

    allocated = [one | {"status": patches(third)[one["metadata"]["name"]]["patch"]["status"]} for one in protected]
    fourth = listing.plan([*hosts, *allocated, *items], tmp_path)
    assert sorted(fourth.nodes) == ["j-0", "j-1"] and sorted(fourth.nodes.values()) == ["n1", "n2"]


def test_one_claim_has_a_request_for_each_container_and_init_containers_share_them(tmp_path: Path) -> None:
    items = asking(IMPLICIT, 4, before=2)
    items[1]["spec"]["containers"].append({"name": "side", "image": "i", "resources": {"limits": {IMPLICIT: "1"}}})
    first = listing.plan([*world("n1"), *items], tmp_path)
    (body,) = claims(first).values()
    counts = {row["name"]: row["exactly"]["count"] for row in body["spec"]["devices"]["requests"]}
    assert counts == {"container-0": 4, "container-1": 1}
    said = named(listing.plan([*world("n1"), stored(body, "c"), *items], tmp_path))["j-0"]
    found = {row["containerName"]: row["requestName"] for row in said["requestMappings"]}
    assert found == {"ascend": "container-0", "side": "container-1", "first": "container-0"}


def test_an_api_server_that_drops_the_field_is_not_written_to_for_ever(tmp_path: Path) -> None:
    items = asking(IMPLICIT, 8)
    (body,) = claims(listing.plan([*world("n1"), *items], tmp_path)).values()
    found = listing.plan([*world("n1"), stored(body, "c", "2026-09-01T07:58:50Z"), *items], tmp_path)
    assert not named(found) and not claims(found) and not found.bound
    assert "Kubernetes 1.36 or newer" in str(found.pending)


def test_where_a_device_plugin_offers_the_resource_it_serves_the_pod(tmp_path: Path) -> None:
    classes = {**CLASS, "spec": {**CLASS["spec"], "extendedResourceName": "huawei.com/Ascend910"}}
    found = listing.plan([classes, *world("n1")[1:], *listing.job("p", 1, 8, policy="chip8-node8")], tmp_path)
    assert not claims(found) and found.nodes == {"p-0": "n1"}


def test_pods_of_another_scheduler_are_left_to_it(tmp_path: Path) -> None:
    items = asking(IMPLICIT, 8)
    items[1]["spec"]["schedulerName"] = "default-scheduler"
    found = listing.plan([*world("n1"), *items], tmp_path)
    assert not claims(found) and not named(found) and not found.bound


def test_a_pod_that_another_scheduler_placed_counts_by_its_claim_alone() -> None:
    (item,) = asking(NAMED, 4)[1:]
    item["spec"]["nodeName"] = "n1"
    row = {"containerName": "main", "resourceName": NAMED, "requestName": "container-0-request-0"}
    item["status"] = {
        "phase": "Running",
        "extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [row]},
    }
    pod = objects.pod(item)
    assert NAMED not in pod.requests and [claim for _, claim in pod.resource_claims] == ["c"] and not pod.extended


def test_a_plan_makes_no_other_claims_and_no_other_status(tmp_path: Path) -> None:
    first = listing.plan([*world("n1"), *asking(IMPLICIT, 8)], tmp_path)
    (body,) = claims(first).values()
    common = {"reason": "r", "message": "m", "evidence": {"rule": "r"}, "api_version": "resource.k8s.io/v1"}

    def create(body: Item) -> CreateObject:
        metadata = body["metadata"]
        return CreateObject(
            **common, object_kind="ResourceClaim", namespace=metadata["namespace"], name=metadata["name"], object=body
        )

    check(create(body))
    request = body["spec"]["devices"]["requests"][0]
    admin = {**request, "exactly": {**request["exactly"], "adminAccess": True}}
    config = [{"opaque": {"driver": "npu.huawei.com", "parameters": {}}}]
    wrong = [
        body | {"metadata": {**body["metadata"], "ownerReferences": []}},
        body | {"metadata": {**body["metadata"], "namespace": "kube-system"}},
        body | {"spec": {"devices": {"requests": [admin]}}},
        body | {"spec": {"devices": {"requests": [request], "config": config}}},
        body | {"status": {"allocation": {}}},
    ]
    for one in wrong:
        with pytest.raises(Refused):
            check(create(one))

    pod = {"object_kind": "Pod", "namespace": "train", "name": "j-0", "patch_type": "merge"}
    for patch in ({"status": {"phase": "Running"}}, {"status": {}, "spec": {}}):
        with pytest.raises(Refused):
            check(PatchObject(**{**common, "api_version": "v1"}, **pod, patch=patch))  # type: ignore[arg-type]
