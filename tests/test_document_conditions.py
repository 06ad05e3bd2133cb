"""Condition ``Ready`` of Belay's kinds in the cluster: when it is True, and that it is written once."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
import yaml

from belay.engine.load import load
from belay.engine.model.actions import CreateObject, DeleteObject, PatchObject
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.model.refusals import RefusalCause
from belay.engine.model.refused_actions import refusal_key, refused_again
from belay.engine.observe.observed import observe
from belay.engine.observe.watch_events import essence
from belay.engine.plan import plan
from belay.engine.sandbox import definitions
from belay.engine.wire import refusals, sync
from tests.bench import clusters

API = "belay.dev/v1alpha1"
CRDS = [one for one in definitions.shipped() if one["spec"]["group"] == "belay.dev"]
POOL = (
    "NodePool",
    "all",
    {"selector": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}},
)


def files(*documents: tuple[str, str, dict[str, Any]]) -> dict[str, bytes]:
    return {
        f"policies/{kind}-{name}.yaml": yaml.safe_dump(
            {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
        ).encode()
        for kind, name, spec in documents
    }


class World:
    """A cluster with copies of documents, as the engine's own actions leave them."""

    def __init__(self, *documents: tuple[str, str, dict[str, Any]], now: float = 0.0) -> None:
        self.loaded = load(files(*documents), revision="r1")
        self.items = [*clusters.cluster(2, 0), *CRDS]
        self.now = now or observe(self.items).newest_report
        self.step()

    def step(self) -> Plan:
        """Plan, and carry out what concerns Belay's kinds."""
        result = plan(self.loaded.desired, observe(self.items), self.now)
        for action in result.actions:
            if isinstance(action, CreateObject):
                body = msgspec.to_builtins(action.object)
                metadata = {**body["metadata"], "uid": f"u-{action.name}", "generation": 1}
                self.items.append({**body, "metadata": metadata})
            elif isinstance(action, PatchObject) and action.api_version == API:
                (item,) = [
                    one for one in self.items if one["metadata"]["name"] == action.name and one["kind"] != "Node"
                ]
                item["status"] = {**item.get("status", {}), **action.patch["status"]}
        return result

    def ready(self, name: str) -> tuple[str, str]:
        (item,) = [one for one in self.items if one.get("apiVersion") == API and one["metadata"]["name"] == name]
        (row,) = [row for row in item["status"]["conditions"] if row["type"] == "Ready"]
        assert row["observedGeneration"] == item["status"]["observedGeneration"] == 1
        assert row["message"] and row["lastTransitionTime"].endswith("Z")
        return row["status"], row["reason"]


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("NodePool", POOL[2], ("True", "InForce")),
        ("NodePool", {**POOL[2], "suspend": True}, ("True", "Suspended")),
        ("NodePool", {"selector": {"matchLabels": {"a": "b"}}}, ("False", "NoNodes")),
        ("Isolation", {"nodes": ["node-00001"], "reason": "cables"}, ("True", "InForce")),
        (
            "Isolation",
            {"nodes": ["node-00001"], "reason": "cables", "until": "2001-01-01T00:00:00Z"},
            ("False", "Expired"),
        ),
        ("FaultPolicy", {"levels": {"80E18005": "NotHandleFault"}}, ("True", "InForce")),
        ("FaultPolicy", {"mode": "shadow", "levels": {"80E18005": "NotHandleFault"}}, ("True", "Shadow")),
        (
            "SafetyBudget",
            {"limits": [{"actions": ["EvictPod"], "per": "cluster", "max": 1, "window": "1h"}]},
            ("True", "InForce"),
        ),
        (
            "VNPULayout",
            {
                "selector": POOL[2]["selector"],
                "mode": "static",
                "chips": [{"chips": "0", "templates": ["vir10_3c_32g"]}],
            },
            ("False", "NotCut"),
        ),
        (
            "KVLink",
            {
                "prefill": {"clusters": [{"id": 1, "addresses": ["10.0.0.1:1"], "node": "node-00000"}]},
                "decode": {"clusters": [{"id": 2, "addresses": ["10.0.0.2:1"], "node": "node-00001"}]},
            },
            ("False", "NotLinked"),
        ),
        ("SchedulingSettings", {}, ("True", "InForce")),
    ],
)
def test_ready_says_whether_a_document_is_in_force_and_done(
    kind: str, spec: dict[str, Any], expected: tuple[str, str]
) -> None:
    world = World((kind, "mine", spec))
    world.step()
    assert world.ready("mine") == expected
    again = [a for a in world.step().actions if isinstance(a, PatchObject) and a.api_version == API]
    assert again == [], "it is written once"


def test_a_pool_counts_its_nodes() -> None:
    world = World(POOL, ("Isolation", "one", {"nodes": ["node-00001"], "reason": "cables"}))
    world.step()
    (pool,) = [item for item in world.items if item["kind"] == "NodePool"]
    assert (pool["status"]["nodes"], pool["status"]["healthyNodes"]) == (2, 1)


def test_a_document_whose_newer_version_is_refused_is_not_ready() -> None:
    world = World(POOL)
    world.step()
    assert world.ready("all") == ("True", "InForce")
    broken = load(files(("NodePool", "all", {"selectr": {}})), revision="r2").desired.held
    assert broken == ("NodePool/all",)
    world.loaded = dataclasses.replace(world.loaded, desired=dataclasses.replace(world.loaded.desired, held=broken))
    world.step()
    assert world.ready("all") == ("False", "Refused")


def test_a_newer_generation_is_judged_when_it_is_there() -> None:
    world = World(POOL)
    world.step()
    world.loaded = load(files(("NodePool", "all", {**POOL[2], "suspend": True})), revision="r2")
    patches = plan(world.loaded.desired, observe(world.items), world.now).actions
    mine = [a for a in patches if isinstance(a, PatchObject) and a.api_version == API]
    assert [a.evidence.rule for a in mine] == ["sync"], "the status of the old generation is not written beside it"


def test_a_status_that_belay_wrote_wakes_no_pass() -> None:
    body = {"apiVersion": API, "kind": "NodePool", "metadata": {"name": "a", "generation": 1}, "spec": {}}
    assert essence(body) == essence({**body, "status": {"conditions": []}})
    assert essence(body) != essence({**body, "metadata": {"name": "a", "generation": 2}})


def test_an_object_whose_deletion_is_refused_is_not_ready() -> None:
    world = World(POOL, ("Isolation", "i", {"nodes": ["node-00000"], "reason": "r"}))
    (body,) = [one for one in world.items if one["kind"] == "Isolation"]
    key = ObjectKey(API, "Isolation", "", "i")
    inventory = {"inventory.json": sync.inventory_text([key]), "appliedRevision": "r1"}
    metadata = {"name": "belay-sync", "namespace": "belay-system"}
    world.items.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": inventory})
    world.loaded = load(files(POOL), revision="r2")
    (deletion,) = [action for action in world.step().actions if isinstance(action, DeleteObject)]

    refused = refusal_key(deletion)
    assert refused is not None
    now_ms = int(world.now * 1000)
    row = refused_again(deletion, refused, RefusalCause.NOT_ALLOWED, "403 Forbidden", None, now_ms)
    world.items.append(refusals.build("main", [row]))
    result = world.step()
    assert not [action for action in result.actions if isinstance(action, DeleteObject)], "it waits for its next try"
    ready = {one["type"]: one for one in body["status"]["conditions"]}["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "NotDeclared")
    world.now += 10.0
    assert [action for action in world.step().actions if isinstance(action, DeleteObject)]
