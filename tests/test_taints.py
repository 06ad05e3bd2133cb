"""Taints of nodes: whom they keep off, and what becomes of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from belay.engine.model.cluster import Departure, Taint
from belay.engine.model.taints import (
    OWNERS,
    REMOVING,
    UNSCHEDULABLE,
    closed_by_others,
    departure,
    owner_of,
    untolerated,
)
from belay.engine.wire import objects
from tests import listing, worlds

PAGE = Path(__file__).parent.parent / "docs/kubernetes.md"


@pytest.mark.parametrize("key", sorted(OWNERS))
def test_every_known_taint_has_a_row_in_the_page(key: str) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and f"`{key}`" in line]
    assert len(rows) == 1
    assert ("closed" in rows[0]) == (OWNERS[key].meaning in REMOVING)


def test_the_first_taint_of_a_removal_names_it_and_a_deleted_node_goes_at_once() -> None:
    owned = Taint("dedicated", "npu", "NoSchedule")
    karpenter = Taint("karpenter.sh/disrupted", "", "NoSchedule")
    assert departure((owned,), being_deleted=False) is None
    assert departure((owned,), being_deleted=True) == Departure("its Node is being deleted", now=True, waits=True)
    waits, goes = departure((owned, karpenter), being_deleted=False), departure((karpenter,), being_deleted=True)
    assert waits is not None and goes is not None and (waits.now, goes.now) == (False, True)
    assert "Karpenter" in waits.text and waits.text == goes.text
    leaves = departure((karpenter, Taint("node.kubernetes.io/out-of-service", "", "NoExecute")), being_deleted=True)
    assert goes.waits and leaves is not None and (leaves.now, leaves.waits) == (True, False)


def test_a_node_of_the_cluster_says_that_it_is_being_deleted() -> None:
    raw = listing.node("n0")
    assert objects.node(raw).departure is None
    raw["metadata"]["deletionTimestamp"] = listing.STAMP
    assert objects.node(raw).departure == Departure("its Node is being deleted", now=True, waits=True)


def test_rules_of_readiness_belong_to_their_controller() -> None:
    owner = owner_of(Taint("readiness.k8s.io/network", "", "NoSchedule"))
    assert owner is not None and owner.who == "the Node Readiness Controller"


def test_the_taint_that_follows_a_cordon_is_not_a_second_obstacle() -> None:
    pod = objects.pod(listing.pod("p"))
    cordoned = worlds.node("n", unschedulable=True, taints=[UNSCHEDULABLE])
    assert list(untolerated(pod, cordoned)) == [] and not closed_by_others(pod, cordoned)
    # the controller has yet to take it back
    assert list(untolerated(pod, worlds.node("n", taints=[UNSCHEDULABLE]))) == [UNSCHEDULABLE]
