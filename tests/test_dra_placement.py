"""Pods with resource claims: devices chosen with nodes and chips, written into the claims, then bound; taken back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from belay.engine.act.edge import Refused
from belay.engine.act.permitted import check
from belay.engine.model.actions import PatchObject, PatchType
from tests import listing
from tests.listing import Item, node, report

FINALIZER = "resource.kubernetes.io/delete-protection"
CLASS: Item = {
    "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "npu.huawei.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'npu.huawei.com'"}}]},
}  # fmt: skip
OWN = 'device.attributes["npu.huawei.com"]'


def devices(host: str, chips: Iterable[int] = range(8), **more: Any) -> Item:
    """The slice that the agent of a node publishes."""
    rows = [
        {
            "name": f"ascend910-{chip}",
            "attributes": {"physicId": {"int": chip}, "type": {"string": "npu"}, "ring": {"int": chip // 4}},
            "capacity": {"memory": {"value": "64Gi"}},
        }
        for chip in chips
    ]
    pool = {"name": host, "generation": 1, "resourceSliceCount": 1} | more
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{host}-npu.huawei.com-0"},
        "spec": {"driver": "npu.huawei.com", "nodeName": host, "pool": pool, "devices": rows},
    }  # fmt: skip


def claim(name: str, *requests: Mapping[str, Any], finalizer: bool = True, **more: Any) -> Item:
    metadata = {"namespace": "train", "name": name, "uid": f"c-{name}", "resourceVersion": "3"}
    if finalizer:
        metadata["finalizers"] = [FINALIZER]  # type: ignore[assignment]
    asked = [{"name": "npus", "exactly": {"deviceClassName": "npu.huawei.com", "count": 8}}, *requests][
        bool(requests) :
    ]
    spec = {"devices": {"requests": list(asked), **more}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def asking(count: int = 1, *selectors: str, name: str = "npus", **more: Any) -> Item:
    rows = [{"cel": {"expression": text}} for text in selectors]
    return {"name": name, "exactly": {"deviceClassName": "npu.huawei.com", "count": count, "selectors": rows, **more}}


def allocated(item: Item, host: str, chips: Iterable[int], *users: str) -> Item:
    """The claim as it is after its allocation."""
    out = copy.deepcopy(item)
    rows = [{"request": "npus", "driver": "npu.huawei.com", "pool": host, "device": f"ascend910-{n}"} for n in chips]
    field = {"key": "metadata.name", "operator": "In", "values": [host]}
    out["status"] = {
        "allocation": {"devices": {"results": rows}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}},
        "reservedFor": [{"resource": "pods", "name": user, "uid": f"u-train-{user}"} for user in users],
    }
    return out


def gang(*claims: Sequence[str], policy: str = "chip8-node8") -> list[Item]:
    """A PodGroup whose pods have these claims each and ask for no resource."""
    notes = {listing.POLICY: policy} if policy else {}
    items = listing.job("j", len(claims), 0, policy=policy) if policy else listing.job("j", len(claims), 0)
    for item, names in zip(items[1:], claims, strict=True):
        item["metadata"]["annotations"] |= notes
        item["spec"]["resourceClaims"] = [{"name": f"n{i}", "resourceClaimName": one} for i, one in enumerate(names)]
    return items


def world(*hosts: str, **slices: Item) -> list[Item]:
    return [CLASS, *(item for host in hosts for item in (node(host), report(host), slices.get(host) or devices(host)))]


def patches(found: listing.Answer) -> dict[str, Item]:
    rows = [a for a in found.body["actions"] if a["kind"] == "PatchObject" and a["objectKind"] == "ResourceClaim"]
    assert len({row["name"] for row in rows}) == len(rows), "one action a claim"
    return {row["name"]: row for row in rows}


def given(found: listing.Answer) -> dict[str, list[str]]:
    """The devices that each claim gets, as node/device."""
    return {
        name: [f"{one['pool']}/{one['device']}" for one in row["patch"]["status"]["allocation"]["devices"]["results"]]
        for name, row in patches(found).items()
    }


def test_a_claim_is_protected_then_allocated_and_reserved_then_its_pod_is_bound(tmp_path: Path) -> None:
    items, fresh = gang(["c"]), claim("c", finalizer=False)
    first = listing.plan([*world("n1", "n2"), fresh, *items], tmp_path)
    assert patches(first)["c"]["patch"] == {"metadata": {"finalizers": [FINALIZER]}} and not first.bound
    assert patches(first)["c"]["preconditions"].items() >= {"resourceVersion": "3", "uid": "c-c"}.items()
    second = listing.plan([*world("n1", "n2"), claim("c"), *items], tmp_path)
    status = patches(second)["c"]["patch"]["status"]
    assert not second.bound and second.pending["reason"] == "ResourceClaimsNotAllocated"
    assert given(second)["c"] == [f"n1/ascend910-{chip}" for chip in range(8)]
    assert {one["request"] for one in status["allocation"]["devices"]["results"]} == {"npus"}
    assert status["reservedFor"] == [{"resource": "pods", "name": "j-0", "uid": "u-train-j-0"}]
    (term,) = status["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    third = listing.plan([*world("n1", "n2"), claim("c") | {"status": status}, *items], tmp_path)
    assert third.nodes == {"j-0": "n1"} and not patches(third)
    (bind,) = [a for a in third.body["actions"] if a["kind"] == "BindPod"]
    assert bind["chips"] == [f"Ascend910-{chip}" for chip in range(8)]


def test_the_pod_is_bound_to_exactly_the_chips_of_its_claim(tmp_path: Path) -> None:
    item = allocated(claim("c", asking(2)), "n2", [6, 7], "j-0")
    found = listing.plan([*world("n1", "n2"), item, *gang(["c"])], tmp_path)
    (bind,) = [a for a in found.body["actions"] if a["kind"] == "BindPod"]
    assert (bind["node"], bind["chips"]) == ("n2", ["Ascend910-6", "Ascend910-7"])


def test_a_gang_gets_all_of_its_claims_or_none(tmp_path: Path) -> None:
    claims = [claim("a"), claim("b")]
    both = listing.plan([*world("n1", "n2"), *claims, *gang(["a"], ["b"])], tmp_path)
    assert sorted(devices[0].partition("/")[0] for devices in given(both).values()) == ["n1", "n2"]
    one = listing.plan([*world("n1"), *claims, *gang(["a"], ["b"])], tmp_path)
    assert not patches(one) and not one.bound and len(one.pending["pods"]) == 2


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (lambda: [listing.pod("plain", on="n1", chips=[0, 1])], ["n1/ascend910-2", "n1/ascend910-3"]),
        (lambda: [allocated(claim("held", asking(2)), "n1", [0, 1])], ["n1/ascend910-2", "n1/ascend910-3"]),
    ],
)
def test_chips_of_pods_and_of_other_claims_are_not_given(others: Any, expected: list[str], tmp_path: Path) -> None:
    found = listing.plan([*world("n1"), claim("c", asking(2)), *others(), *gang(["c"])], tmp_path)
    assert given(found)["c"] == expected


def test_a_plain_pod_never_gets_the_chips_of_a_claim(tmp_path: Path) -> None:
    """Also of a claim that no pod uses (any more): kubelet may not have taken it back yet."""
    held = allocated(claim("held", asking(4)), "n1", [0, 1, 2, 3])
    fits = listing.plan([*world("n1"), held, *listing.job("p", 1, 4, policy="chip8-node8")], tmp_path)
    (bind,) = [a for a in fits.body["actions"] if a["kind"] == "BindPod"]
    assert bind["chips"] == [f"Ascend910-{chip}" for chip in (4, 5, 6, 7)]
    none = listing.plan([*world("n1"), held, *listing.job("p", 1, 8, policy="chip8-node8")], tmp_path)
    assert not none.bound


def test_faulty_chips_are_not_given(tmp_path: Path) -> None:
    items = [CLASS, node("n1"), report("n1", unhealthy=[0, 2]), devices("n1")]
    found = listing.plan([*items, claim("c", asking(2)), *gang(["c"])], tmp_path)
    assert not {"n1/ascend910-0", "n1/ascend910-2"} & set(given(found)["c"])
    short = listing.plan([*items, claim("c", asking(8)), *gang(["c"])], tmp_path)
    assert not patches(short) and not short.bound


@pytest.mark.parametrize(
    ("requests", "more", "expected"),
    [
        ([asking(2, f"{OWN}.physicId >= 5")], {}, {5, 6, 7}),
        ([asking(1, f"{OWN}.physicId == 6"), asking(1, f"{OWN}.physicId == 1", name="other")], {}, {1, 6}),
        ([asking(4)], {"constraints": [{"matchAttribute": "npu.huawei.com/ring"}]}, {0, 1, 2, 3}),
        ([asking(2)], {"constraints": [{"distinctAttribute": "npu.huawei.com/ring"}]}, None),
        ([asking(allocationMode="All")], {}, set(range(8))),
        ([{"name": "npus", "firstAvailable": [
            {"name": "big", "deviceClassName": "npu.huawei.com", "count": 16},
            {"name": "small", "deviceClassName": "npu.huawei.com", "count": 4}]}], {}, {0, 1, 2, 3}),
    ],
)  # fmt: skip
def test_devices_meet_selectors_constraints_and_alternatives(
    requests: list[Item], more: Item, expected: set[int] | None, tmp_path: Path
) -> None:
    found = listing.plan([*world("n1"), claim("c", *requests, **more), *gang(["c"])], tmp_path)
    chips = {int(name.rpartition("-")[2]) for name in given(found)["c"]}
    if expected is None:
        assert len({chip // 4 for chip in chips}) == 2
    elif len(chips) < len(expected):
        assert chips < expected
    else:
        assert chips == expected


def test_the_other_ring_is_taken_where_the_first_has_too_few(tmp_path: Path) -> None:
    same = {"constraints": [{"matchAttribute": "npu.huawei.com/ring"}]}
    busy = listing.pod("busy", on="n1", chips=[1])
    found = listing.plan([*world("n1"), busy, claim("c", asking(4), **same), *gang(["c"])], tmp_path)
    assert {int(name[-1]) for name in given(found)["c"]} == {4, 5, 6, 7}


@pytest.mark.parametrize(
    ("item", "more", "text"),
    [
        (claim("c", asking(1, f"{OWN}.physicId == 99")), [], "no device of driver npu.huawei.com suits request npus"),
        (claim("c", asking(1, "device.driver.matches('a')")), [], "no device of driver npu.huawei.com suits"),
        (claim("c", asking(1, "device.driver ==")), [], "a selector cannot be read"),
        (
            claim("c", {"name": "x", "exactly": {"deviceClassName": "gpu"}}),
            [],
            "DeviceClass 'gpu', which does not exist",
        ),
        (claim("c", asking(64)), [], "a claim may have 32"),
        (claim("c", asking(1, adminAccess=True)), [], "its namespace lacks the label"),
        (claim("c", asking(1, capacity={"requests": {"memory": "1Gi"}})), [], "a part of a device's capacity"),
    ],
)
def test_a_claim_that_cannot_be_served_says_why(item: Item, more: list[Item], text: str, tmp_path: Path) -> None:
    found = listing.plan([*world("n1"), item, *more, *gang(["c"])], tmp_path)
    assert not found.bound and not patches(found) and found.pending["reason"] == "ResourceClaimNotAllocated"
    assert text in found.pending["message"]


def test_admin_access_shows_used_devices_where_the_namespace_allows_it(tmp_path: Path) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace",
             "metadata": {"name": "train", "labels": {"resource.kubernetes.io/admin-access": "true"}}}  # fmt: skip
    busy = listing.pod("busy", on="n1", chips=list(range(8)))
    item = claim("c", asking(allocationMode="All", adminAccess=True))
    found = listing.plan([*world("n1"), busy, space, item, *gang(["c"], policy="")], tmp_path)
    results = patches(found)["c"]["patch"]["status"]["allocation"]["devices"]["results"]
    assert len(results) == 8 and all(one["adminAccess"] for one in results)


def test_a_pool_whose_slices_are_not_all_there_offers_nothing(tmp_path: Path) -> None:
    half = devices("n1", resourceSliceCount=2)
    found = listing.plan([*world("n1", n1=half), claim("c"), *gang(["c"])], tmp_path)
    assert not patches(found) and "no device of driver" in found.pending["message"]


def test_pods_that_share_a_claim_go_to_its_node(tmp_path: Path) -> None:
    both = listing.plan([*world("n1", "n2"), claim("c"), *gang(["c"], ["c"])], tmp_path)
    users = patches(both)["c"]["patch"]["status"]["reservedFor"]
    assert [one["name"] for one in users] == ["j-0", "j-1"]
    running = listing.pod("r", on="n2")
    running["spec"]["resourceClaims"] = [{"name": "n", "resourceClaimName": "c"}]
    shared = allocated(claim("c"), "n2", range(8), "r")
    later = listing.plan([*world("n1", "n2"), running, shared, *gang(["c"], policy="")], tmp_path)
    assert [one["name"] for one in patches(later)["c"]["patch"]["status"]["reservedFor"]] == ["r", "j-0"]
    shared["status"]["reservedFor"].append({"resource": "pods", "name": "j-0", "uid": "u-train-j-0"})
    bound = listing.plan([*world("n1", "n2"), running, shared, *gang(["c"], policy="")], tmp_path)
    assert bound.nodes == {"j-0": "n2"}


def test_claims_of_a_gang_that_finds_no_place_any_more_are_taken_back(tmp_path: Path) -> None:
    item = allocated(claim("c"), "n1", range(8), "j-0")
    broken = [CLASS, node("n1"), report("n1", unhealthy=[3]), devices("n1")]
    found = listing.plan([*broken, item, *gang(["c"])], tmp_path)
    assert not found.bound
    assert patches(found)["c"]["patch"] == {"status": {"allocation": None, "reservedFor": None}}
    elsewhere = listing.plan([*broken, *world("n2")[1:], claim("c"), *gang(["c"])], tmp_path)
    assert given(elsewhere)["c"][0].startswith("n2/")
    used = allocated(claim("c"), "n1", range(8), "j-0", "someone")
    kept = listing.plan([*broken, used, *gang(["c"])], tmp_path)
    assert not patches(kept), "another pod uses it"


def test_a_fault_on_a_chip_of_a_claim_moves_the_pod_that_uses_it(tmp_path: Path) -> None:
    items = gang(["c"])
    items[1]["spec"]["nodeName"] = "n1"
    items[1]["status"] = {"phase": "Running"}
    item = allocated(claim("c"), "n1", range(8), "j-0")
    found = listing.plan([CLASS, node("n1"), report("n1", unhealthy=[3]), devices("n1"), item, *items], tmp_path)
    used = {row["chip"]: row["usedBy"] for row in found.body["chips"]}
    assert used["Ascend910-3"] == "train/j-0"


def test_a_pod_that_asks_by_resource_and_by_claim_waits(tmp_path: Path) -> None:
    items = listing.job("j", 1, 8, policy="chip8-node8")
    items[1]["spec"]["resourceClaims"] = [{"name": "n", "resourceClaimName": "c"}]
    found = listing.plan([*world("n1"), claim("c"), *items], tmp_path)
    assert not found.bound and "both by resource and by claim" in found.pending["message"]


def patch(body: Item, kind: str = "ResourceClaim") -> PatchObject:
    return PatchObject(
        reason="ClaimAllocated", message="m", api_version="resource.k8s.io/v1", object_kind=kind, namespace="train",
        name="x", patch=body, patch_type=PatchType.MERGE,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        ({"status": {"allocation": None, "reservedFor": None}}, True),
        ({"metadata": {"finalizers": [FINALIZER]}}, True),
        ({"metadata": {"labels": {"a": "b"}}}, False),
        ({"spec": {}}, False),
        ({"status": {"devices": []}}, False),
        ({"status": {"allocation": {}}, "spec": {}}, False),
    ],
)
def test_a_plan_changes_of_claims_only_what_allocates_them(body: Item, allowed: bool) -> None:
    if allowed:
        check(patch(body))
        return
    with pytest.raises(Refused):
        check(patch(body))
    with pytest.raises(Refused):
        check(patch({"status": {}}, "ResourceSlice"))
