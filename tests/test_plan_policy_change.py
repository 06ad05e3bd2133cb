"""A change of policy that alone would disrupt too much is held back whole; node faults and jobs count, too."""

from __future__ import annotations

from typing import Any

import msgspec

from belay.engine.model.actions import IsolateNode
from belay.engine.model.cluster import Observed
from belay.engine.plan import plan
from belay.engine.status.conditions import StatusCondition, conditions, standing
from tests.worlds import NOW, decide, desired, document, fault, node, node_report, observed, pod, report

CODE = "0100000D"
HARSH = document("FaultPolicy", "p", levels={CODE: "SeparateFault"})


def nodes(count: int) -> Observed:
    names = [f"n{i}" for i in range(count)]
    hardware = [node_report(name, "NotHandleFault", codes=[CODE]) for name in names]
    return observed([node(n) for n in names], [report(n) for n in names], node_reports=hardware)


def changed(before: Observed, policy: dict[str, Any]) -> Any:
    first = decide(before)
    assert first.actions == []
    return decide(msgspec.structs.replace(before, history=first.memory.frozen("")), desired(policy))


def test_a_policy_that_isolates_more_nodes_than_allowed_is_held_back() -> None:
    scope = changed(nodes(5), HARSH)  # the shipped budget: two, or a quarter, per super pod
    assert scope.actions == [] and scope.deferred == []
    (said,) = [d for d in scope.diagnostics if d.severity == "error"]
    assert "held back" in said.message and "n0, n1, n2, n3, n4" in said.message


def test_a_revision_whose_policy_is_held_back_is_not_in_force() -> None:
    before = nodes(5)
    known = msgspec.structs.replace(before, history=decide(before).memory.frozen(""))
    result = plan(desired(HARSH), known, NOW)
    everything = StatusCondition("Applied", "True", "Everything")
    (applied,) = conditions([], everything, result, standing(result, known, ()))
    assert (applied.status, applied.reason) == ("False", "HeldBack")
    assert applied.message.startswith("FaultPolicy/p: ") and "the previous version stays in force" in applied.message


def test_a_policy_within_the_budget_acts() -> None:
    assert sum(isinstance(a, IsolateNode) for a in changed(nodes(2), HARSH).actions) == 2


def test_jobs_that_are_not_rescheduled_do_not_hold_a_policy_back() -> None:
    names = [f"n{i}" for i in range(20)]
    pods = [pod(f"j{i}", node=n, chips=[3], owner=("AscendJob", f"j{i}")) for i, n in enumerate(names)]
    reports = [report(n, faults=[fault(3, "80A18005", "NotHandleFault")]) for n in names]
    policy = document("FaultPolicy", "p", levels={"80A18005": "SeparateNPU"})
    scope = changed(observed([node(n) for n in names], reports, pods), policy)
    assert len(scope.actions) == 20 and not scope.evicting
