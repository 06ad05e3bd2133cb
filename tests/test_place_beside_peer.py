"""Where MindCluster's scheduler refuses, forgets or fails, and Belay places: the rows of docs/peer.md about it."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.cluster import Pod
from tests import placing, worlds
from tests.placing import GROUP, POLICY, bindings, gang, nodes_of, scope_of

A3 = {"accelerator": "huawei-Ascend910", "accelerator-type": "module-a3-16"}


def _a3(pods: list[Pod], group: dict[str, Any], count: int, **params: str) -> Any:
    nodes = [worlds.node(f"n{index}", chips=16, labels=A3) for index in range(count)]
    reports = [
        worlds.report(f"n{index}", chips=16, super_pod_id=1, server_index=index) for index in range(count)
    ]  # fmt: skip
    return worlds.observed(nodes, reports, pods, objects=[group], init_params=params)


@pytest.mark.parametrize("policy", ["chip2-node16", "chip2-node16-sp"])
def test_a_pod_without_chips_in_a_job_of_a3_is_placed_with_it(policy: str) -> None:
    pods, group = gang(2, 16, annotations={POLICY: policy})
    notes = {GROUP: "case", "volcano.sh/task-spec": "helper"}
    helper = worlds.pod("case-helper", annotations=notes)
    scope = scope_of(_a3([*pods, helper], group, 2, **{"super-pod-size": "10"}))
    assert set(nodes_of(scope)) == {"case-0", "case-1", "case-helper"}
    assert not bindings(scope)["case-helper"].chips


def test_a_super_pod_may_have_more_nodes_than_its_size_says() -> None:
    pods, group = gang(4, 16, annotations={POLICY: "chip2-node16-sp", "sp-block": "32"})
    scope = scope_of(_a3(pods, group, 6, **{"super-pod-size": "2", "reserve-nodes": "1"}))
    assert len(set(nodes_of(scope).values())) == 4


def test_a_node_without_base_devices_takes_pods_by_its_report() -> None:
    pods, group = gang(1, 8, annotations={POLICY: "chip8-node8"})
    node = worlds.node("n0", base=False)
    scope = scope_of(worlds.observed([node], [worlds.report("n0")], pods, objects=[group]))
    (bound,) = bindings(scope).values()
    assert len(bound.chips) == 8
    assert not any(key.startswith("ascend.kubectl.kubernetes.io") for key in bound.annotations)


def test_an_illegal_pod_of_a_task_is_named_whichever_comes_first() -> None:
    pods, group = gang(3, 16, annotations={POLICY: "chip2-node16-sp", "sp-block": "16"})
    for place in range(3):
        mixed = list(pods)
        requests = {**pods[place].requests, "huawei.com/Ascend910": 3}
        mixed[place] = placing.edited(pods[place], count=3, requests=requests)
        scope = scope_of(_a3(mixed, group, 4, **{"super-pod-size": "10"}))
        assert not scope.actions and scope.pending[0].reason == "InvalidRequest"
        assert "3" in scope.pending[0].message


@pytest.mark.parametrize("kind", ["Ascend310", "Ascend310P"])
def test_broken_chips_of_310_servers_count_when_the_fullest_is_chosen(kind: str) -> None:
    resource, prefix = f"huawei.com/{kind}", f"{kind}-"
    labels = {"accelerator": f"huawei-{kind}"}
    pods, group = gang(1, 1, resource=resource)
    nodes = [worlds.node(name, chips=8, resource=resource, prefix=prefix, labels=labels) for name in ("broken", "well")]
    reports = [
        worlds.report("broken", resource=resource, prefix=prefix, unhealthy=[4, 5, 6, 7], network=None),
        worlds.report("well", resource=resource, prefix=prefix, network=None),
    ]
    busy = worlds.pod("other", node="well", chips=[0, 1, 2], resource=resource, prefix=prefix)
    scope = scope_of(worlds.observed(nodes, reports, [*pods, busy], objects=[group]))
    assert nodes_of(scope) == {"case-0": "well"}, "the other has fewer free chips, because four are broken"
