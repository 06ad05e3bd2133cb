"""Equivalent bare pods are read once a pass, without an effect on any plan."""

from __future__ import annotations

import random
from typing import Any

import pytest

from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed, Pod, Taint
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import of
from belay.engine.plan.place.state import Assignment, PlacementState
from belay.engine.plan.recover.outcome import NodeRefusal
from belay.engine.plan.views import init_params
from tests import worlds
from tests.placing import POLICY, bindings, busy, edited, nodes_of, scope_of

KEPT = NodeRefusal("NodeRefused", "NodeRefused: kept")

A2 = {POLICY: "chip8-node8"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
ZONE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"namespace": "train", "name": "data"},
    "spec": {"volumeName": "volume"},
}
VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "volume"},
    "spec": {"nodeAffinity": {"required": ZONE}},
}

#: Ways in which a pod may differ from the others of its template.
TWISTS: tuple[dict[str, Any], ...] = (
    {"labels": {"app": "b"}},
    {"labels": {"tor-affinity": "no-such-schema"}},
    {"annotations": {POLICY: "chip8-node8", "hccl/rankIndex": "3"}},
    {"annotations": {POLICY: "chip4-node4"}},
    {"annotations": {POLICY: "no-such-policy"}},
    {"annotations": {POLICY: "chip8-node8", "huawei.com/schedule_minAvailable": "2"}},
    {"annotations": {POLICY: "chip8-node8", "sp-block": "8"}},
    {"annotations": {POLICY: "chip8-node8", "scheduling.volcano.sh/queue-name": "other"}},
    {"node_selector": {"zone": "b"}},
    {"node_selector": {"accelerator-type": "no-such-server"}},
    {"tolerations": ({"operator": "Exists"},)},
    {"host_ports": (("0.0.0.0", "TCP", 80),)},
    {"affinity": {"nodeAffinity": {REQUIRED: ZONE}}},
    {"claims": ("data",)},
    {"affinity": {"podAntiAffinity": {REQUIRED: [TERM]}}},
    {"requests": {"cpu": 90_000, "memory": 1 << 30, "huawei.com/Ascend910": 2}},
    {"priority": 9},
    {"gates": ("example.org/hold",)},
)


def _world(pods: list[Pod]) -> Observed:
    labels = [{"zone": "a"}, {"zone": "b"}, {"zone": "a", "accelerator-type": "half"}, {"zone": "b"}]
    nodes = [worlds.node(f"n{i}", labels=row) for i, row in enumerate(labels)]
    nodes.append(worlds.node("n4", taints=[Taint("kept", "", "NoSchedule")]))
    return worlds.observed(nodes, [worlds.report(node.name) for node in nodes], pods, objects=[CLAIM, VOLUME])


def _told(scope: Any) -> tuple[Any, ...]:
    acts = [(a.pod, a.node, a.chips, a.annotations, a.evidence) for a in scope.actions if isinstance(a, BindPod)]
    return acts, scope.pending, scope.scores, scope.diagnostics


@pytest.mark.parametrize("seed", range(60))
def test_pods_are_placed_as_if_each_were_the_only_one_of_its_kind(seed: int) -> None:
    """A label or annotation that no rule reads makes every pod unique and changes nothing."""
    dice = random.Random(seed)
    pods = [busy("n0", [0, 1, 5])]
    for index in range(dice.randint(4, 24)):
        count = dice.choice([0, 1, 2, 2, 4, 8])
        pod = worlds.pod(f"p{index:02}", count=count, annotations=dict(A2) if dice.random() < 0.8 else {})
        pods.append(edited(pod, **dice.choice(TWISTS)) if dice.random() < 0.3 else pod)
    labelled = [edited(pod, labels={**pod.labels, "unread": pod.name}) for pod in pods]
    noted = [edited(pod, annotations={**pod.annotations, "unread": pod.name}) for pod in pods]
    more = {
        "refused": {"train/Pod/p01": {"n1": KEPT}, "train/Pod/p03": {}},
        "penalty": {"train/Pod/p02": {"n0": -64, "n1": -1}},
    }
    found = _told(scope_of(_world(pods), **more))
    assert found == _told(scope_of(_world(labelled), **more))
    assert found == _told(scope_of(_world(noted), **more))


def test_a_refusal_of_one_gang_does_not_apply_to_equivalent_ones() -> None:
    pods = [worlds.pod(f"p{index}", count=8, annotations=dict(A2)) for index in range(4)]
    refused = {"train/Pod/p1": {"n1": KEPT, "n2": KEPT}}
    scope = scope_of(worlds.world(3, pods=pods), refused=refused)
    assert nodes_of(scope) == {"p0": "n0", "p2": "n1", "p3": "n2"}
    assert [(entry.name, entry.nodes) for entry in scope.pending] == [
        ("p1", {"NPUResourceShortage": 1, "NodeRefused": 2})
    ]


def test_templates_beyond_the_limit_are_placed_too() -> None:
    pods = [worlds.pod(f"p{n:02}", count=1, annotations=dict(A2), labels={"kind": str(n % 12)}) for n in range(24)]
    assert len(bindings(scope_of(worlds.world(3, pods=pods)))) == 24


def test_a_node_whose_better_chips_are_taken_ranks_behind_its_equal() -> None:
    """One chip is free on each node; on n0 it worked when the nodes were scored and is a repeat offender now."""
    waiting = edited(worlds.pod("p", count=1, annotations=dict(A2)), gates=("example.org/hold",))
    held = [busy("n0", [3]), busy("n0", [0, 1, 2, 5, 6, 7]), busy("n1", range(7))]
    scope = scope_of(worlds.world(2, pods=[*held, waiting]))
    state = PlacementState(scope.scope, init_params(scope.desired, scope.observed))
    state.views.change("n0", repeat_offenders=1 << 3)
    job = of(scope.gangs["train/Pod/p"], scope.desired, scope.observed, state.params, scope.cache)
    assert not isinstance(job, Refusal)
    table = state.table(job, waiting)
    assert table.best() == "n0" and table.chips("n0") == 1 << 4
    state.unassign([Assignment(held[0], "n0", 1 << 3)])
    state.assign(Assignment(held[0], "n0", 1 << 4))
    table = state.table(job, waiting)
    assert (table.scores["n0"], table.best()) == (table.scores["n1"], "n1")
    assert list(table.best_first()) == ["n1", "n0"]
