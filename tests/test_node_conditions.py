"""Conditions of Nodes that fault policies take for faults of the node."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import pytest

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import EvictPod, IsolateNode, ReleaseNode, ResetChips
from belay.engine.model.cluster import NodeCondition
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.plan import plan
from belay.engine.wire import objects
from tests import listing
from tests.golden.stories import sample_files, sample_world
from tests.simworld import World
from tests.worlds import NOW, desired, node, observed, report

KINDS = (EvictPod, IsolateNode, ReleaseNode, ResetChips)


def condition(kind: str, status: str = "True", reason: str = "", *, age: float = 3600.0) -> NodeCondition:
    return NodeCondition(kind, status, reason, NOW - age)


def judged(*conditions: NodeCondition, declared: Desired | None = None) -> Plan:
    live = msgspec.structs.replace(node("n0"), conditions=conditions)
    return plan(declared or desired(), observed([live], [report("n0")]), NOW)


def policy(rows: str) -> Desired:
    head = "apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\nmetadata: {name: ours}\n"
    found = load({"policies/ours.yaml": f"{head}spec: {{conditions: [{rows}]}}\n".encode()}, revision="r")
    assert not [one for one in found.diagnostics if one.severity == "error"], found.diagnostics
    return found.desired


@pytest.mark.parametrize(
    ("given", "state", "level"),
    [
        (condition("KernelDeadlock"), "pre-isolated", "PreSeparateFault"),
        (condition("KernelDeadlock", "False"), "healthy", "NormalNPU"),
        (condition("KernelDeadlock", "Unknown"), "healthy", "NormalNPU"),
        (condition("KernelDeadlock", age=59), "healthy", "NotHandleFault"),
        (condition("KubeletUnhealthy", age=299), "healthy", "NotHandleFault"),
        (condition("KubeletUnhealthy", age=300), "pre-isolated", "PreSeparateFault"),
        (condition("FrequentKubeletRestart"), "healthy", "NotHandleFault"),
        (condition("SomethingElse"), "healthy", "NormalNPU"),
    ],
)  # fmt: skip
def test_the_shipped_policy_judges_the_node_problem_detector(given: NodeCondition, state: str, level: str) -> None:
    (row,) = judged(given).nodes
    assert (row.state, row.level) == (state, level)
    assert (given.type in row.codes) == (level != "NormalNPU")


def test_a_policy_of_ones_own_replaces_the_rows_of_a_type() -> None:
    ours = policy("{type: KernelDeadlock, level: SeparateFault, reasons: [DockerHung], lasting: 0s}")
    for reason, state in (("DockerHung", "isolated"), ("AUFSUmountHung", "healthy")):
        result = judged(condition("KernelDeadlock", reason=reason, age=0), declared=ours)
        assert [row.state for row in result.nodes] == [state]
    isolated = judged(condition("KernelDeadlock", reason="DockerHung"), declared=ours)
    (order,) = [one for one in isolated.actions if isinstance(one, IsolateNode)]
    assert (order.evidence.rule, order.evidence.file) == (
        "FaultPolicy/ours#conditions.KernelDeadlock",
        "policies/ours.yaml",
    )
    assert order.message.endswith(": condition KernelDeadlock=True (DockerHung)")


def test_a_condition_that_is_good_when_true_is_a_fault_when_it_is_not() -> None:
    ours = policy('{type: AcceleratorReady, status: "False", level: PreSeparateFault}')
    assert [row.state for row in judged(condition("AcceleratorReady", "False"), declared=ours).nodes] == [
        "pre-isolated"
    ]
    assert [row.state for row in judged(condition("AcceleratorReady"), declared=ours).nodes] == ["healthy"]


@pytest.mark.parametrize("kind", ["Ready", "DrainInProgress", "MemoryPressure"])
def test_what_belay_judges_itself_is_no_condition_of_a_policy(kind: str) -> None:
    head = "apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\nmetadata: {name: ours}\n"
    text = f"{head}spec: {{conditions: [{{type: {kind}, level: SeparateFault}}]}}\n"
    errors = [
        one for one in load({"policies/ours.yaml": text.encode()}, revision="r").diagnostics if one.severity == "error"
    ]
    assert [f"Belay judges the condition {kind} itself" in one.message for one in errors] == [True]


def test_only_conditions_that_policies_may_judge_are_read() -> None:
    raw = copy.deepcopy(listing.node("n0"))
    stamp = rfc3339(NOW)
    raw["status"]["conditions"] += [
        {"type": "PIDPressure", "status": "True"},
        {"type": "KernelDeadlock", "status": "True", "reason": "DockerHung", "lastTransitionTime": stamp},
    ]
    assert objects.node(raw).conditions == (NodeCondition("KernelDeadlock", "True", "DockerHung", NOW),)


def test_the_page_has_the_shipped_rows() -> None:
    shipped = next(item.document for item in desired().fault_policies if item.document.name == "default")
    page = (Path(__file__).parent.parent / "docs/kubernetes.md").read_text().splitlines()
    for rule in shipped.spec.conditions:
        (row,) = [line for line in page if line.startswith("|") and f"`{rule.type}`" in line]
        assert f"`{rule.level}` | {rule.lasting / 60:.0f}m |" in row


def say(world: World, name: str, status: str) -> None:
    live = copy.deepcopy(world.objects[ObjectKey("v1", "Node", "", name)])
    rest = [row for row in live["status"]["conditions"] if row["type"] != "KernelDeadlock"]
    row = {"type": "KernelDeadlock", "status": status, "reason": "x", "lastTransitionTime": rfc3339(world.now)}
    live["status"]["conditions"] = [*rest, row]
    world.put(live)


def test_a_node_with_a_deadlock_keeps_its_pods_resets_nothing_and_comes_back() -> None:
    world = sample_world(0)
    world.until_quiet()
    say(world, "node-1", "True")
    made = [one for result in world.until_quiet() for one in result.actions if isinstance(one, KINDS)]
    assert [(type(one), one.node) for one in made if isinstance(one, IsolateNode)] == [(IsolateNode, "node-1")]
    assert len(made) == 1, "nothing is evicted, nothing is reset"

    say(world, "node-1", "False")
    made = [one for result in world.until_quiet() for one in result.actions if isinstance(one, KINDS)]
    assert [(type(one), one.node) for one in made if isinstance(one, ReleaseNode)] == [(ReleaseNode, "node-1")]


def test_jobs_leave_a_node_whose_condition_a_policy_calls_a_fault_that_separates() -> None:
    world = sample_world(0)
    world.until_quiet()
    head = b"apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\nmetadata: {name: ours}\n"
    rows = b"spec: {conditions: [{type: KernelDeadlock, level: SeparateFault}]}\n"
    world.push(sample_files() | {"policies/ours.yaml": head + rows})
    where = {name: pod["spec"].get("nodeName") for name, pod in world.pods().items() if name.startswith("pretrain")}
    first = where["pretrain-master-0"]
    say(world, first, "True")
    made = [one for result in world.until_quiet() for one in result.actions if isinstance(one, KINDS)]
    assert {one.reason for one in made if isinstance(one, EvictPod)} == {"NodeUnhealthy"}
    assert not any(isinstance(one, ResetChips) for one in made)
    assert first not in {pod["spec"].get("nodeName") for pod in world.pods().values()}
