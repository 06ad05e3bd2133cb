"""Views of assessed nodes: plans are the same, byte for byte, with and without reused views."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import Observer, key_of
from belay.engine.plan import node_cache, plan
from belay.engine.plan.health import node_faults
from tests import listing, worlds
from tests.bench import clusters, crowds
from tests.bench.clusters import NOW
from tests.placing import busy, with_settings
from tests.steps import Steps

NODES = 24
ISOLATION = b"""
apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {name: by-hand}
spec: {nodes: [node-00003], chips: [{node: node-00004, chips: [1]}], reason: test}
"""


@pytest.fixture(scope="module")
def desired() -> Desired:
    return load({}, has_git=False).desired


def world() -> Observer:
    observer = Observer()
    for part in (crowds.a3(NODES), crowds.running(30, NODES), crowds.mixed_jobs(6)):
        for item in part:
            observer.put(item)
    return observer


def kept_views(desired: Desired, seen: Observed, now: float, cache: PlanCache) -> int:
    """How many nodes of a pass are served from what is kept."""
    scope = Steps(desired, seen, now, cache=cache).run("views")
    return sum(view.assessed is not None for view in scope.nodes.values())


def test_unchanged_nodes_are_served_and_changed_ones_are_not(desired: Desired) -> None:
    observer = world()
    seen = observer.observed()
    cache = PlanCache()
    assert kept_views(desired, seen, NOW, cache) == 0
    plan(desired, seen, NOW, cache=cache)
    assert kept_views(desired, seen, NOW, cache) == NODES
    observer.put(crowds.a3_device(5, faulty=2))
    assert kept_views(desired, observer.observed(), NOW, cache) == NODES - 1
    assert kept_views(desired, observer.observed(), NOW + 601, cache) == 0, "their reports are stale by then"
    other = load({"policies/x.yaml": ISOLATION}, has_git=True).desired
    assert kept_views(other, observer.observed(), NOW, cache) == 0, "other declarations may say other things"


def test_a_node_whose_driver_names_other_reset_groups_is_assessed_again(desired: Desired) -> None:
    def with_agent(groups: tuple[tuple[int, ...], ...], at: float = NOW) -> Observed:
        report = msgspec.structs.replace(worlds.agent(crowds.name_of(5), chips=16, at=at), reset_groups=groups)
        return msgspec.structs.replace(seen, agents={report.node: report})

    seen, cache = world().observed(), PlanCache()
    pairs = tuple((c, c + 1, c + 8, c + 9) for c in range(0, 8, 2))
    for before, after, same in (((), pairs, False), (pairs, pairs, True), (pairs, (), False)):
        plan(desired, with_agent(before), NOW, cache=cache)
        assert kept_views(desired, with_agent(before, NOW + 60), NOW, cache) == NODES, "a heartbeat changes nothing"
        assert kept_views(desired, with_agent(after), NOW, cache) == NODES - (not same)
        plan(desired, with_agent(after), NOW, cache=cache)


def test_placement_does_not_leak_into_the_next_pass(desired: Desired) -> None:
    seen = world().observed()
    cache = PlanCache()
    first = plan(desired, seen, NOW, cache=cache)
    assert first.actions, "the world holds waiting jobs"
    for _ in range(3):
        assert plan(desired, seen, NOW, cache=cache).digest() == first.digest()


def test_isolated_nodes_and_chips_are_assessed_again(desired: Desired) -> None:
    other = load({"policies/x.yaml": ISOLATION}, has_git=True).desired
    seen, cache = world().observed(), PlanCache()
    for _ in range(2):
        found = plan(other, seen, NOW, cache=cache)
        assert {state.node: state.state for state in found.nodes}["node-00003"] == "manually-isolated"
        assert any(chip.node == "node-00004" and chip.state == "manually-isolated" for chip in found.chips)


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_give_the_plans_of_a_fresh_process(desired: Desired, seed: int) -> None:
    chance, observer, now, cache = random.Random(seed), world(), NOW, PlanCache()
    for _ in range(25):
        index = chance.randrange(NODES)
        name = crowds.name_of(index)
        match chance.randrange(9):
            case 0:
                observer.put(crowds.a3_device(index, faulty=chance.randrange(16), at=int(now)))
            case 1:
                observer.put(crowds.a3_device(index, at=int(now)))
            case 2:
                ready = clusters.node(name, index, 16)
                ready["metadata"]["labels"] = {"kubernetes.io/hostname": name} | crowds.A3_LABELS
                if chance.random() < 0.5:
                    changed = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-09-01T08:00:00Z"}
                    ready["status"]["conditions"] = [changed]
                observer.put(ready)
            case 3:
                now += chance.choice((1, 30, 400))
            case 4:
                for item in crowds.running(NODES, NODES):
                    if item["kind"] == "Pod" and item["spec"]["nodeName"] == name:
                        item["status"]["phase"] = chance.choice(("Running", "Succeeded"))
                        observer.put(item)
            case 5:
                observer.delete(ObjectKey("v1", "Node", "", name))
            case 6:
                for item in crowds.running(NODES, NODES):
                    if item["kind"] == "Pod" and item["spec"]["nodeName"] == name:
                        observer.delete(key_of(item))
            case 7:
                for item in crowds.mixed_jobs(6):
                    if item["kind"] == "Pod" and chance.random() < 0.2:
                        if chance.random() < 0.5:
                            item = item | {"spec": item["spec"] | {"nodeName": name}, "status": {"phase": "Running"}}
                        observer.put(item) if chance.random() < 0.8 else observer.delete(key_of(item))
            case _:
                broken = crowds.a3_device(index, at=int(now))
                broken["data"]["DeviceInfoCfg"] = "{"
                observer.put(broken)
        seen = observer.observed()
        assert plan(desired, seen, now, cache=cache).digest() == plan(desired, seen, now).digest()


def test_manual_holds_and_public_faults_leave_kept_views_unchanged(desired: Desired) -> None:
    observer, cache = world(), PlanCache()
    plan(desired, observer.observed(), NOW, cache=cache)
    manual = f'{{"Total": ["Ascend910-1"], "Detail": {{"Ascend910-1": [{{"LastSeparateTime": {int(NOW * 1000)}}}]}}}}'
    fault = {
        "faultId": "fault-00000001", "faultType": "NPU", "faultCode": "220001001", "faultTime": int(NOW * 1000) - 9000,
        "assertion": "occur", "influence": [{"nodeName": crowds.name_of(7), "deviceIds": [3]}],
    }  # fmt: skip
    message = {
        "id": "message-0001", "timestamp": int(NOW * 1000) - 9000, "version": "1.0", "resource": "CCAE",
        "faults": [fault],
    }  # fmt: skip
    told = listing.config_map("cluster-system", "told", {"PublicFault": json.dumps(message)})
    told["metadata"]["labels"] = {"mc-consumer-publicfault": "true"}
    kept = {name: (entry.view.__copy__(), entry.view) for name, entry in cache[node_cache._VIEWS].items()}
    for body in (listing.config_map("cluster-system", "clusterd-manual-info-cm", {crowds.name_of(6): manual}), told):
        observer.put(body)
        seen = observer.observed()
        found = plan(desired, seen, NOW, cache=cache)
        assert found.digest() == plan(desired, seen, NOW).digest()
    out = {(chip.node, chip.chip): chip.state for chip in found.chips if chip.state.endswith("isolated")}
    assert out == {
        (crowds.name_of(6), "Ascend910-1"): "manually-isolated", (crowds.name_of(7), "Ascend910-3"): "isolated",
    }  # fmt: skip
    assert kept and all(before == after for before, after in kept.values())


def test_pods_of_another_scheduler_are_placed_once_it_is_ours(desired: Desired) -> None:
    """Nothing of a gang that could not be placed is remembered as placed."""
    waiting = worlds.pod("p", count=1, annotations={"huawei.com/schedule_policy": "chip8-node8"}, scheduler="theirs")
    seen, cache = worlds.world(1, pods=[waiting]), PlanCache()
    first = plan(desired, seen, worlds.NOW, cache=cache)
    assert not any(isinstance(action, BindPod) for action in first.actions)
    ours = with_settings(schedulerNames=["theirs"])
    second = plan(ours, seen, worlds.NOW, cache=cache)
    assert [action.pod for action in second.actions if isinstance(action, BindPod)] == ["p"]


def test_a_node_removed_after_its_last_pod_evicts_nothing(desired: Desired) -> None:
    """Else so many would be missed here that nothing would be done for the pod of the node that broke away."""
    crowd = [worlds.pod(f"crowd-{index}", node="n3") for index in range(24)]
    pods = [*crowd, *(busy(f"n{index}", [0]) for index in range(3))]
    cache = PlanCache()
    plan(desired, worlds.world(4, pods=pods), worlds.NOW, cache=cache)
    plan(desired, worlds.world(4, pods=pods[:25]), worlds.NOW, cache=cache)
    left = worlds.observed([worlds.node("n3")], [worlds.report("n3")], pods[:25])
    scope = Steps(desired, left, worlds.NOW, cache=cache)
    assert node_faults.missing_nodes(scope.facts) == ({"n0"}, False)
