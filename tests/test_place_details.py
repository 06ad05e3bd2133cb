"""Small rules of placement that users and device plugins rely on: times, ids and texts of single fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from belay.engine.load import load
from belay.engine.model.cluster import Pod
from belay.engine.model.history import History, JobMemory
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from tests import listing, worlds
from tests.placing import POLICY, bindings, chips_of, edited, gang, scope_of

A2 = {POLICY: "chip8-node8"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CONFIGURATION = "ascend.kubectl.kubernetes.io/ascend-910-configuration"


def _world(*pods: Pod, objects: Any = (), nodes: int = 1, **report: Any) -> Any:
    names = [f"n{i}" for i in range(nodes)]
    reports = [worlds.report(name, **report) for name in names]
    return worlds.observed([worlds.node(name) for name in names], reports, pods, objects=objects)


def test_pods_of_one_node_have_different_times() -> None:
    pods, group = gang(3, 2, annotations=A2)
    bound = bindings(scope_of(_world(*pods, objects=[group])))
    times = [int(bound[f"case-{i}"].annotations["predicate-time"]) for i in range(3)]
    assert [time - times[0] for time in times] == [0, 1, 2] and times[0] == int(worlds.NOW) * 10**9


def test_configuration_names_the_super_pod_of_the_report() -> None:
    pods, group = gang(1, 8, annotations=A2)
    (action,) = bindings(scope_of(_world(*pods, objects=[group], super_pod_id=3, server_index=7, rack_id=2))).values()
    body = json.loads(action.annotations[CONFIGURATION])
    assert (body["super_pod_id"], body["server_index"], body["rack_id"]) == (3, "7", 2)


def test_configuration_without_a_super_pod() -> None:
    pods, group = gang(1, 8, annotations=A2)
    (action,) = bindings(scope_of(_world(*pods, objects=[group]))).values()
    body = json.loads(action.annotations[CONFIGURATION])
    assert (body["super_pod_id"], body["server_index"], body["rack_id"]) == (-1, "", -1)


@pytest.mark.parametrize("number", [1, 1.0, True, "1"])
def test_the_configuration_describes_chips_as_the_node_does_now(number: Any, tmp_path: Path) -> None:
    """A cache keyed by value must not serve text of another node, or of the node before, that differs only in
    notation.
    """
    devices = {f"Ascend910-{i}": {"IP": "1.0.0.1", "SuperDeviceID": number} for i in range(8)}
    items = [listing.node("n0", devices=devices), listing.report("n0"), *listing.job("j", 1, 8, policy="chip8-node8")]
    body = json.loads(listing.plan(items, tmp_path).bound["j-0"]["annotations"][CONFIGURATION])
    assert {device["super_device_id"] for device in body["devices"]} == {str(number)}


def test_an_unknown_kind_in_the_plugin_annotation_is_refused() -> None:
    pods, group = gang(1, 1, annotations={"volcano.sh/schedule.plugin": "Ascend999"})
    group["spec"].pop("minResources")
    (entry,) = scope_of(_world(*pods, objects=[group])).pending
    assert entry.reason == "NotSupportPolicy"
    assert "no policy handler registered, NPU type may be invalid" in entry.message


def test_blocks_of_a_distributed_job_are_checked_before_its_pods() -> None:
    pods, group = gang(2, 5, annotations={POLICY: "chip8-node8-sp", "sp-block": "8"}, resource="huawei.com/npu")
    (entry,) = scope_of(_world(*pods, objects=[group])).pending
    assert "distributed super-pod job require npu(10) should be multiple of sp-block" in entry.message


def test_pods_left_over_by_a_started_gang_count_alone() -> None:
    pods, group = gang(3, 4, annotations=A2, least=2)
    scope = scope_of(_world(*pods, objects=[group]))
    (entry,) = scope.pending
    assert sorted(bindings(scope)) == ["case-0", "case-1"] and entry.pods == ("case-2",)
    assert "; require npu num is 4, but cluster npu num is 0; " in entry.message


def test_a_replaced_pod_that_returns_to_its_node_is_annotated() -> None:
    pods, group = gang(2, 4, annotations=A2)
    chips = [f"Ascend910-{i}" for i in range(4)]
    running = edited(pods[0], node="n0", phase="Running", chips=tuple(chips))

    def annotations(**memory: Any) -> dict[str, str]:
        known = JobMemory(uid="u-case", nodes={"0": "n0", "1": "n0"}, **memory)
        world = worlds.observed(
            [worlds.node("n0")], [worlds.report("n0")], [running, pods[1]], objects=[group],
            history=History(jobs={"train/PodGroup/case": known}),
        )  # fmt: skip
        return bindings(scope_of(world))["case-1"].annotations

    assert annotations(evicted={"uid-of-the-old-one": 1})["reschedule-in-place"] == "true"
    assert "reschedule-in-place" not in annotations()


def test_a_terminating_pod_does_not_make_its_job_distributed() -> None:
    pods, group = gang(2, 1, annotations={POLICY: "chip2-node16"}, least=1)
    old = edited(pods[0], node="n0", phase="Running", chips=("Ascend910-0",), deleting=worlds.NOW - 5)
    world = worlds.observed(
        [worlds.node("n0", chips=16)], [worlds.report("n0", chips=16)], [old, pods[1]], objects=[group]
    )
    (action,) = bindings(scope_of(world)).values()
    assert action.chips == ("Ascend910-1",) and action.annotations["distributed-job"] == "false"


def test_a_super_pod_without_room_says_what_would_help() -> None:
    pods, group = gang(2, 16, annotations={POLICY: "chip2-node16-sp", "sp-block": "32"})
    names = ["n0", "n1"]
    reports = [worlds.report(name, chips=16, super_pod_id=i) for i, name in enumerate(names)]
    world = worlds.observed([worlds.node(name, chips=16) for name in names], reports, pods, objects=[group])
    (entry,) = scope_of(world).pending
    assert entry.reason == "TopologyNotMet" and "needs 2 whole free nodes close together" in (entry.unblock or "")
    detail = "node top: super-pod-id: 0, node count: 1 detail: [n0], super-pod-id: 1, node count: 1 detail: [n1], 2/2"
    assert detail in entry.message


def test_a_gang_of_mixed_sizes_finds_the_one_way_to_fit() -> None:
    sizes = [4, 3, 3, 2, 2, 2]
    pods, group = gang(len(sizes), 2, annotations=A2)
    mixed = [
        edited(pod, count=size, requests={**pod.requests, "huawei.com/Ascend910": size})
        for pod, size in zip(pods, sizes, strict=True)
    ]
    scope = scope_of(_world(*mixed, objects=[group], nodes=2))
    held: dict[str, list[int]] = {"n0": [], "n1": []}
    for action in bindings(scope).values():
        held[action.node] += chips_of(action)
    assert {node: sorted(chips) for node, chips in held.items()} == {node: list(range(8)) for node in held}
    assert len(scope.scores) == 6 and not scope.pending


def test_a_mixed_gang_that_cannot_fit_leaves_no_trace() -> None:
    pods, group = gang(3, 5, annotations=A2)
    mixed = [pods[0], pods[1], edited(pods[2], count=6, requests={"huawei.com/Ascend910": 6})]
    scope = scope_of(_world(*mixed, objects=[group], nodes=2))
    assert not scope.actions and not scope.scores and len(scope.pending) == 1
    assert all(view.used == 0 and view.requested.get("pods", 0) == 0 for view in scope.nodes.values())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (
            "affinity",
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": ["x"]}}},
        ),
        ("affinity", {"podAntiAffinity": {REQUIRED: [{"labelSelector": []}]}}),
        ("tolerations", ["x"]),
        ("nodeSelector", {"a": 1}),
        ("priority", "high"),
    ],
)
def test_a_pod_of_a_wrong_shape_is_refused_by_name(field: str, value: Any) -> None:
    raw = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a"}, "spec": {field: value}}
    seen = observe([raw])
    (found,) = seen.diagnostics
    assert not seen.pods and (found.object, found.field) == ("Pod/a/p", f"spec.{field}")


def test_an_unknown_strategy_of_300i_cards_has_no_handler() -> None:
    pods, group = gang(1, 1, resource="huawei.com/Ascend310", labels={"npu-310-strategy": "both"})
    (entry,) = scope_of(_world(*pods, objects=[group])).pending
    assert entry.reason == "NotSupportPolicy" and "neither card nor chip" in entry.message
    assert entry.unblock == "write npu-310-strategy: chip or card"


def test_ascend950_pods_hold_the_chips_behind_their_logic_ids() -> None:
    devices = {f"npu-{i}": {"IP": "", "DeviceID": 7 - i} for i in range(8)}
    node = {
        "apiVersion": "v1", "kind": "Node", "spec": {}, "status": {},
        "metadata": {"name": "n0", "annotations": {"baseDeviceInfos": json.dumps(devices)}},
    }  # fmt: skip
    pod = {
        "apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"},
        "metadata": {"namespace": "a", "name": "p", "annotations": {"huawei.com/npu": "npu-7,npu-6"}},
        "spec": {"nodeName": "n0", "containers": [{"resources": {"limits": {"huawei.com/npu": "2"}}}]},
    }  # fmt: skip
    assert observe([pod, node]).pods["a/p"].chips == ("npu-0", "npu-1")
    node["metadata"]["annotations"] = {}  # type: ignore[index]
    assert observe([pod, node]).pods["a/p"].chips == ("npu-7", "npu-6")


def test_workloads_that_share_a_pod_group_start_together() -> None:
    pods, group = gang(2, 8, annotations=A2, owner=("StatefulSet", "prefill"), owner_api="apps/v1")
    pods[1] = edited(pods[1], owner_name="decode")
    assert sorted(bindings(scope_of(_world(*pods, objects=[group], nodes=2)))) == ["case-0", "case-1"]
    (entry,) = scope_of(_world(*pods, objects=[group])).pending
    assert (entry.kind, entry.name, entry.pods) == ("PodGroup", "case", ("case-0", "case-1"))


def test_scores_name_nodes_after_a_larger_gang_was_tried() -> None:
    def job(name: str, count: int, created: float) -> list[Pod]:
        pods = (worlds.pod(f"{name}-{i}", count=8, owner=("AscendJob", name), created=created) for i in range(count))
        return list(pods)

    world = _world(*job("a", 4, worlds.NOW - 9), *job("b", 2, worlds.NOW), nodes=3)
    result = plan(load({}, revision="r").desired, world, worlds.NOW)
    assert [entry.name for entry in result.pending] == ["a"]
    assert {pod: list(row) for pod, row in result.scores.items()} == {
        "train/b-0": ["n0", "n1", "n2"],
        "train/b-1": ["n1", "n2"],
    }
