"""Kubernetes' predicates with their real semantics, and affinity between pods."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.cluster import Taint
from belay.engine.plan.place.nodes import fit
from tests import placing, worlds
from tests.placing import POLICY, edited, gang, nodes_of, scope_of


def _node_affinity(*expressions: dict[str, Any], fields: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions)} | ({"matchFields": fields} if fields else {})
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "none", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "size", "operator": "Gt", "values": ["6"]}, True),
        ({"key": "size", "operator": "Gt", "values": ["7"]}, False),
        ({"key": "size", "operator": "Lt", "values": ["8"]}, True),
        ({"key": "zone", "operator": "Lt", "values": ["8"]}, False),
        ({"key": "zone", "operator": "Like", "values": ["a"]}, False),
    ],
)
def test_node_affinity_operators(expression: dict[str, Any], fits: bool) -> None:
    node = worlds.node("n", labels={"zone": "a", "size": "7"})
    pod = edited(worlds.pod("p"), affinity=_node_affinity(expression))
    assert (fit.static(pod, node) is None) == fits


def test_terms_are_alternatives_and_empty_ones_match_nothing() -> None:
    node = worlds.node("n", labels={"zone": "a"})
    terms = [{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert fit.static(edited(worlds.pod("p"), affinity=affinity), node) is None
    terms.pop()
    assert fit.static(edited(worlds.pod("p"), affinity=affinity), node) is not None


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({}, False),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "w"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_taints(toleration: dict[str, Any], fits: bool) -> None:
    node = worlds.node("n", taints=[Taint("k", "v", "NoSchedule")])
    refusal = fit.static(edited(worlds.pod("p"), tolerations=(toleration,)), node)
    assert (refusal is None) == fits
    if refusal is not None:
        assert refusal.reason == "TaintNotTolerated"


def test_cordon_readiness_and_selector() -> None:
    pod = worlds.pod("p", node_selector={"host-arch": "huawei-arm"})
    reasons = [
        fit.static(pod, node)
        for node in (
            worlds.node("n"),
            worlds.node("n", unschedulable=True),
            worlds.node("n", ready=False),
            worlds.node("n", labels={"host-arch": "huawei-x86"}),
        )
    ]
    assert [refusal and refusal.reason for refusal in reasons] == [
        None, "NodeUnschedulable", "NodeNotReady", "NodeSelectorMismatch",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("allocatable", "reason"),
    [({"cpu": 1500}, "InsufficientCpu"), ({"memory": worlds.GIB}, "InsufficientMemory"), ({"pods": 1}, "TooManyPods")],
)
def test_room_counts_what_the_pass_itself_placed(allocatable: dict[str, int], reason: str) -> None:
    pods, group = gang(2, 1, annotations={POLICY: "chip8-node8"})
    world = worlds.observed([worlds.node("n0", allocatable=allocatable)], [worlds.report("n0")], pods, objects=[group])
    scope = scope_of(world)
    assert not scope.actions and scope.pending[0].nodes == {reason: 1}


def test_extended_resources_and_host_ports() -> None:
    wants = worlds.pod("p", requests={"example.com/fpga": 1})
    scope = scope_of(worlds.world(1, pods=[wants]))
    assert scope.pending[0].nodes == {"InsufficientFpga": 1}
    first = edited(worlds.pod("a", node="n0"), host_ports=(("0.0.0.0", "TCP", 80),))
    same = edited(worlds.pod("b"), host_ports=(("10.0.0.1", "TCP", 80),))
    other = edited(worlds.pod("c"), host_ports=(("10.0.0.1", "UDP", 80),))
    scope = scope_of(worlds.world(1, pods=[first, same, other]))
    assert nodes_of(scope) == {"c": "n0"} and scope.pending[0].nodes == {"PortConflict": 1}


def test_preferred_affinity_and_soft_taints_only_break_ties() -> None:
    wish = {"weight": 10, "preference": {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    pods, group = gang(1, 1, annotations={POLICY: "chip8-node8"})
    pods = [edited(pods[0], affinity=affinity)]
    nodes = [
        worlds.node("n0", taints=[Taint("x", "", "PreferNoSchedule")]),
        worlds.node("n1"),
        worlds.node("n2", labels={**worlds.A2_LABELS, "fast": ""}),
    ]
    reports = [worlds.report(node.name) for node in nodes]
    assert nodes_of(scope_of(worlds.observed(nodes, reports, pods, objects=[group]))) == {"case-0": "n2"}
    fuller = [*pods, placing.busy("n0", [0])]
    assert nodes_of(scope_of(worlds.observed(nodes, reports, fuller, objects=[group]))) == {"case-0": "n0"}


def _between(
    kind: str, labels: dict[str, str], topology: str = "kubernetes.io/hostname", **more: Any
) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": topology, **more}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _zoned(*zones: str) -> Any:
    names = [f"n{i}" for i in range(len(zones))]
    nodes = [
        worlds.node(name, labels={**worlds.A2_LABELS, "zone": zone}) for name, zone in zip(names, zones, strict=True)
    ]
    return nodes, [worlds.report(name) for name in names]


def test_anti_affinity_spreads_a_gang_over_hosts() -> None:
    pods, group = gang(3, 1, annotations={POLICY: "chip8-node8"}, labels={"job": "x"})
    pods = [edited(pod, affinity=_between("podAntiAffinity", {"job": "x"})) for pod in pods]
    nodes, reports = _zoned("a", "a", "b")
    scope = scope_of(worlds.observed(nodes, reports, pods, objects=[group]))
    assert sorted(nodes_of(scope).values()) == ["n0", "n1", "n2"]
    assert set(scope.scores["train/case-2"]) == {"n2"}
    scope = scope_of(worlds.observed(nodes[:2], reports[:2], pods, objects=[group]))
    assert not scope.actions and scope.pending[0].nodes == {"PodAntiAffinityConflict": 2}


def test_a_failed_gang_leaves_no_trace_for_the_next_one() -> None:
    wide, wide_group = gang(3, 1, annotations={POLICY: "chip8-node8"}, labels={"job": "x"}, name="a")
    wide = [edited(pod, affinity=_between("podAntiAffinity", {"job": "x"})) for pod in wide]
    narrow, narrow_group = gang(2, 1, annotations={POLICY: "chip8-node8"}, labels={"job": "x"}, name="b")
    narrow = [edited(pod, affinity=_between("podAntiAffinity", {"job": "x"})) for pod in narrow]
    nodes, reports = _zoned("a", "a")
    world = worlds.observed(nodes, reports, [*wide, *narrow], objects=[wide_group, narrow_group])
    assert sorted(nodes_of(scope_of(world))) == ["b-0", "b-1"]


def test_existing_pods_repel_and_attract_others_by_affinity() -> None:
    nodes, reports = _zoned("a", "a", "b")
    hermit = edited(
        worlds.pod("hermit", node="n0"), affinity=_between("podAntiAffinity", {"app": "web"}, topology="zone")
    )
    web = worlds.pod("web", labels={"app": "web"})
    assert nodes_of(scope_of(worlds.observed(nodes, reports, [hermit, web]))) == {"web": "n2"}
    friend = edited(worlds.pod("friend"), affinity=_between("podAffinity", {"app": "db"}, topology="zone"))
    db = worlds.pod("db", node="n2", labels={"app": "db"})
    assert nodes_of(scope_of(worlds.observed(nodes, reports, [db, friend]))) == {"friend": "n2"}
    assert scope_of(worlds.observed(nodes, reports, [friend])).pending[0].nodes == {"PodAffinityMismatch": 3}


def test_affinity_to_own_labels_starts_anywhere_and_namespaces_limit_it() -> None:
    nodes, reports = _zoned("a", "b")
    pods, group = gang(2, 1, annotations={POLICY: "chip8-node8"}, labels={"job": "x"})
    pods = [edited(pod, affinity=_between("podAffinity", {"job": "x"}, topology="zone")) for pod in pods]
    scope = scope_of(worlds.observed(nodes, reports, pods, objects=[group]))
    assert len(set(nodes_of(scope).values())) == 1
    elsewhere = worlds.pod("db", namespace="other", node="n1", labels={"app": "db"})
    only_here = edited(worlds.pod("p"), affinity=_between("podAntiAffinity", {"app": "db"}, topology="zone"))
    everywhere = edited(
        worlds.pod("q"), affinity=_between("podAntiAffinity", {"app": "db"}, topology="zone", namespaceSelector={})
    )
    scope = scope_of(worlds.observed(nodes, reports, [elsewhere, everywhere]))
    assert nodes_of(scope) == {"q": "n0"}
    busy = edited(elsewhere, node="n0")
    assert nodes_of(scope_of(worlds.observed(nodes, reports, [busy, only_here]))) == {"p": "n1"}
