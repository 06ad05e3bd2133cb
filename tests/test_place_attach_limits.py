"""Limits of attached volumes per node: CSINode counts, volumes that pods share, and those that are still attached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import listing
from tests.claim_objects import claim, mounting, storage_class
from tests.listing import Item, job, pod
from tests.test_place_volumes import nodes, patches

DRIVER = "csi.example.com"


def csi_node(name: str, count: int | None, driver: str = DRIVER) -> Item:
    row = {"name": driver, "nodeID": name} | ({} if count is None else {"allocatable": {"count": count}})
    return {
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": [row]},
    }  # fmt: skip


def bound(name: str, driver: str = DRIVER) -> list[Item]:
    """A claim that is bound to a volume of the driver."""
    taken = claim(name, status={"phase": "Bound"})
    taken["spec"]["volumeName"] = f"pv-{name}"
    source: dict[str, Any] = {"csi": {"driver": driver, "volumeHandle": f"vol-{name}"}} if driver else {"nfs": {}}
    made = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv-{name}"},
        "spec": {"capacity": {"storage": "10Gi"}} | source, "status": {"phase": "Bound"},
    }  # fmt: skip
    return [taken, made]


def attachment(node: str, name: str) -> Item:
    return {
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": f"csi-{node}-{name}"},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": f"pv-{name}"}},
        "status": {"attached": True},
    }  # fmt: skip


def runs(name: str, on: str, *claims: str) -> Item:
    return pod(name, on=on, spec=mounting(*claims))


def waits(*claims: str, count: int = 1, each: int = 4) -> list[Item]:
    items = job("j", count, each, policy="chip8-node8")
    for rank, item in enumerate(items[1:]):
        item["spec"] |= mounting(claims[rank] if count > 1 else claims[0], *(() if count > 1 else claims[1:]))
    return items


CLASSES = [storage_class()]


@pytest.mark.parametrize(
    ("world", "node"),
    [
        pytest.param([csi_node("n1", 1), runs("a", "n1", "x"), *bound("x"), *bound("data")], "n2", id="full"),
        pytest.param([csi_node("n1", 2), runs("a", "n1", "x"), *bound("x"), *bound("data")], "n1", id="room"),
        pytest.param([csi_node("n1", 1), runs("a", "n1", "data"), *bound("data")], "n1", id="shared"),
        pytest.param([csi_node("n1", None), runs("a", "n1", "x"), *bound("x"), *bound("data")], "n1", id="no-count"),
        pytest.param([csi_node("n1", 1), runs("a", "n1", "x"), *bound("x", ""), *bound("data")], "n1", id="nfs"),
        pytest.param([csi_node("n1", 1, "b"), runs("a", "n1", "x"), *bound("x", "b"), *bound("data")], "n1", id="own"),
        pytest.param([csi_node("n1", 1), attachment("n1", "x"), *bound("x"), *bound("data")], "n2", id="leaving"),
        pytest.param([csi_node("n1", 1), attachment("n1", "data"), *bound("data")], "n1", id="attached-already"),
        pytest.param([csi_node("n1", 0), *bound("data")], "n2", id="none-at-all"),
        pytest.param([csi_node("n1", 1), runs("a", "n1", "w"), claim("w"), *bound("data")], "n2", id="unbound-counts"),
    ],
)
def test_a_node_takes_no_more_volumes_than_its_driver_can_attach(world: list[Item], node: str, tmp_path: Path) -> None:
    # the rest of n1 is exactly what the pod asks for, so it goes there unless the limit keeps it off
    busy = pod("busy", on="n1", chips=[0, 1, 2, 3])
    found = listing.plan([*nodes(n1={}, n2={}), *CLASSES, busy, *world, *waits("data")], tmp_path)
    assert found.nodes == {"j-0": node}


def test_pods_of_one_gang_fill_a_node_up_to_its_limit(tmp_path: Path) -> None:
    world = [*nodes(n1={}, n2={}), *CLASSES, csi_node("n1", 1), csi_node("n2", 1), *bound("a"), *bound("b")]
    found = listing.plan([*world, *waits("a", "b", count=2)], tmp_path)
    assert sorted(found.nodes.values()) == ["n1", "n2"], "both would fit into one node's chips"
    short = [*nodes(n1={}), *CLASSES, csi_node("n1", 1), *bound("a"), *bound("b"), *waits("a", "b", count=2)]
    alone = listing.plan(short, tmp_path)
    assert not alone.bound, "all or nothing"
    assert alone.pending["nodes"] == {"VolumeLimitReached": 1}
    assert "exceed max volume count of driver csi.example.com" in alone.pending["message"]
    assert "fewer" in alone.pending["unblock"]


def test_a_claim_that_waits_for_its_consumer_counts_where_it_will_be_made(tmp_path: Path) -> None:
    limits = [csi_node("n1", 1), csi_node("n2", 1)]
    world = [*nodes(n1={}, n2={}), *CLASSES, *limits, claim("data"), *bound("x"), runs("a", "n1", "x")]
    found = listing.plan([*world, *waits("data")], tmp_path)
    assert [patch["metadata"]["annotations"] for _, _, patch in patches(found)] == [
        {"volume.kubernetes.io/selected-node": "n2"}
    ]


@pytest.mark.parametrize("spec", [None, {}, {"drivers": None}, {"drivers": [3, {"name": "d", "allocatable": "x"}]}])
def test_a_csinode_that_cannot_be_read_sets_no_limit(spec: object, tmp_path: Path) -> None:
    odd = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n1"}, "spec": spec}
    found = listing.plan([*nodes(n1={}), *CLASSES, odd, *bound("data"), *waits("data")], tmp_path)
    assert found.nodes == {"j-0": "n1"}
