"""Safety: budgets defer whole gangs, isolations keep protecting, and nothing is ever added."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from belay.engine.documents import Desired, Manifest
from belay.engine.model.actions import (
    Action,
    DeleteObject,
    EvictPod,
    Evidence,
    IsolateChip,
    IsolateNode,
    PartitionChip,
    ResetChips,
)
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey, Origin
from belay.engine.model.history import History
from belay.engine.model.plan import BudgetUse
from tests import worlds
from tests.steps import Steps
from tests.worlds import NOW, decide, desired, document, fault, node, node_report, observed, pod, report


def limits(*rows: dict[str, Any]) -> Desired:
    """The shipped policies with another budget in the place of the shipped one."""
    return desired(document("SafetyBudget", "default", limits=list(rows)))


def limit(kind: str, most: object, per: str = "cluster", window: str = "10m") -> dict[str, Any]:
    return {"actions": kind.split(","), "per": per, "max": most, "window": window}


def job(i: int, count: int = 2) -> list[Pod]:
    """Gang i: its pods on the nodes i*count … ."""
    return [
        pod(
            f"j{i}-{k}",
            node=f"n{i * count + k:02d}",
            chips=[3],
            owner=("AscendJob", f"j{i}"),
            labels={"fault-scheduling": "force"},
            rank=k,
        )
        for k in range(count)
    ]


def world(jobs: int, *, bad: bool = True, **more: Any) -> Observed:
    """Gangs of two pods, the first pod of each on a faulty chip."""
    names = [f"n{i:02d}" for i in range(jobs * 2)]
    pods = [p for i in range(jobs) for p in job(i)]
    reports = [report(n, faults=[fault(3)] if bad and i % 2 == 0 else ()) for i, n in enumerate(names)]
    return observed([node(n) for n in names], reports, pods, **more)


def kinds(scope: Steps, kind: type[Action]) -> list[Any]:
    return [a for a in scope.actions if isinstance(a, kind)]


def put_off(scope: Steps, kind: type[Action]) -> list[Any]:
    return [d for d in scope.deferred if isinstance(d.action, kind)]


def test_a_gang_counts_as_one_and_is_deferred_as_a_whole() -> None:
    scope = decide(world(3), limits(limit("EvictPod", 2)))
    assert sorted({a.budget_unit for a in kinds(scope, EvictPod)}) == ["train/AscendJob/j0", "train/AscendJob/j1"]
    assert [d.action.pod for d in put_off(scope, EvictPod)] == ["j2-0", "j2-1"]
    assert {(d.budget, d.until) for d in put_off(scope, EvictPod)} == {("default", "2026-09-01T08:10:00Z")}
    assert "train/j2-0" not in scope.evicting and "train/AscendJob/j2" not in scope.memory.jobs


def test_isolation_protects_although_the_eviction_waits() -> None:
    scope = decide(world(1), limits(limit("EvictPod", 0)))
    assert kinds(scope, EvictPod) == [] and len(kinds(scope, IsolateChip)) == 1
    assert [d.until for d in put_off(scope, EvictPod)] == [None, None]


def test_what_was_spent_counts_until_its_window_is_over() -> None:
    declared = limits(limit("EvictPod", 1))
    first = decide(world(1), declared)
    assert len(first.memory.budgets) == 1
    history = History(budgets=first.memory.budgets)
    fresh = {n: msgspec.structs.replace(r, update_time=NOW + 599) for n, r in world(1).reports.items()}
    again = msgspec.structs.replace(world(1), history=history, reports=fresh)
    held = decide(again, declared, now=NOW + 599)
    assert kinds(held, EvictPod) == [] and put_off(held, EvictPod)[0].until == "2026-09-01T08:10:00Z"
    free = decide(again, declared, now=NOW + 600)
    assert len(kinds(free, EvictPod)) == 2 and len(free.memory.budgets["default#0/cluster/cluster"]) == 1


def test_what_a_limit_still_allows_is_stated_where_something_was_spent() -> None:
    counted = decide(world(3), limits(limit("EvictPod", 2))).budgets
    assert counted == (BudgetUse("default#0", "cluster/cluster", "EvictPod", 2, 2),)
    share = decide(world(3), limits(limit("EvictPod", "70%")))
    assert [(row.spent, row.allowed) for row in share.budgets] == [(2, 2)], "this pass counted the running jobs"
    quiet = msgspec.structs.replace(world(0), history=History(budgets=share.memory.budgets))
    later = decide(quiet, limits(limit("EvictPod", "70%")), now=NOW + 60).budgets
    assert [(row.spent, row.allowed) for row in later] == [(2, None)], "a pass that evicts nothing does not count them"
    assert decide(quiet, limits(limit("EvictPod", "70%")), now=NOW + 7200).budgets == ()


def test_a_list_takes_the_greater_and_percentages_round_down_to_at_least_one() -> None:
    assert len({a.budget_unit for a in kinds(decide(world(6), limits(limit("EvictPod", [1, "50%"]))), EvictPod)}) == 3
    assert len({a.budget_unit for a in kinds(decide(world(6), limits(limit("EvictPod", [4, "50%"]))), EvictPod)}) == 4
    assert len({a.budget_unit for a in kinds(decide(world(6), limits(limit("EvictPod", "20%"))), EvictPod)}) == 1
    assert kinds(decide(world(6), limits(limit("EvictPod", "0%"))), EvictPod) == []


def test_a_limit_per_pool_counts_each_pool_separately() -> None:
    snapshot = world(4)
    nodes = {
        n: msgspec.structs.replace(v, labels=v.labels | {"zone": "a" if n < "n04" else "b"})
        for n, v in snapshot.nodes.items()
    }
    pools = [document("NodePool", z, selector={"matchLabels": {"zone": z}}) for z in "ab"]
    budget = document("SafetyBudget", "default", limits=[limit("EvictPod", 1, per="pool")])
    scope = decide(msgspec.structs.replace(snapshot, nodes=nodes), desired(*pools, budget))
    assert sorted({a.budget_unit for a in kinds(scope, EvictPod)}) == ["train/AscendJob/j0", "train/AscendJob/j2"]


def test_listed_actions_are_counted_together() -> None:
    idle = [node("x0"), node("x1")]
    both = observed(
        [*world(1).nodes.values(), *idle],
        [*world(1).reports.values(), report("x0", faults=[fault(1)]), report("x1", faults=[fault(1)])],
        world(1).pods.values(),
    )
    scope = decide(both, limits(limit("EvictPod,ResetChips", 2)))
    assert len({a.budget_unit for a in kinds(scope, EvictPod)}) == 1 and len(kinds(scope, ResetChips)) == 1
    assert len(put_off(scope, ResetChips)) == 1
    kept = scope.memory.nodes["x1"].chips
    assert all(row.epoch == 0 and row.resets == () for row in kept.values())


def test_resets_are_limited_to_a_share_of_the_groups() -> None:
    names = [f"n{i:02d}" for i in range(20)]
    idle = observed([node(n) for n in names], [report(n, faults=[fault(2)]) for n in names])
    scope = decide(idle)
    assert len(kinds(scope, ResetChips)) == 4 and len(put_off(scope, ResetChips)) == 16
    assert {d.until for d in put_off(scope, ResetChips)} == {"2026-09-01T09:00:00Z"}


def test_deferred_isolation_takes_no_work_and_its_eviction_waits_with_it() -> None:
    scope = decide(world(2), limits(limit("IsolateChip", 1)))
    assert [a.node for a in kinds(scope, IsolateChip)] == ["n00"]
    assert {d.action.pod for d in put_off(scope, EvictPod)} == {"j1-0", "j1-1"}
    assert {a.budget_unit for a in kinds(scope, EvictPod)} == {"train/AscendJob/j0"}
    assert not scope.nodes["n02"].free & 0b1000
    assert "n02" not in scope.memory.nodes or scope.memory.nodes["n02"].chips[3].isolated == 0


def test_an_isolation_is_done_in_part_when_the_budget_ends_within_it() -> None:
    three = observed([node("n0")], [report("n0", faults=[fault(1), fault(4), fault(6)])])
    scope = decide(three, limits(limit("IsolateChip", 2)))
    assert [a.chips for a in kinds(scope, IsolateChip)] == [("Ascend910-1", "Ascend910-4")]
    assert [d.action.chips for d in put_off(scope, IsolateChip)] == [("Ascend910-6",)]


def test_a_reset_waits_for_the_isolation_of_every_chip_of_its_group() -> None:
    """Only what is out of service may be reset: what keeps a chip's isolation back keeps that back too."""
    idle = observed([node("n0")], [report("n0", faults=[fault(1), fault(4), fault(6)])])
    (whole,) = kinds(decide(idle), ResetChips)
    assert len(whole.chips) == 8 and len(kinds(decide(idle, limits(limit("IsolateChip", 3))), ResetChips)) == 1
    scope = decide(idle, limits(limit("IsolateChip", 2), limit("ResetChips", 1)))
    assert kinds(scope, ResetChips) == []
    (waits,) = put_off(scope, ResetChips)
    (rest,) = put_off(scope, IsolateChip)
    assert rest.action.chips == ("Ascend910-6",) and (waits.budget, waits.until) == (rest.budget, rest.until)
    kept = scope.memory.nodes["n0"].chips
    assert all(row.epoch == 0 and row.resets == () for row in kept.values()), "no attempt is spent"
    assert "default#1/cluster/cluster" not in scope.memory.budgets, "nor any of the budget for resets"


def test_a_reset_on_another_node_does_not_wait() -> None:
    idle = observed([node("n0"), node("n1")], [report("n0", faults=[fault(1)]), report("n1", faults=[fault(2)])])
    scope = decide(idle, limits(limit("IsolateChip", 1)))
    assert [a.node for a in kinds(scope, ResetChips)] == ["n0"]
    assert [d.action.node for d in put_off(scope, ResetChips)] == ["n1"]


def test_a_deferred_node_isolation_is_not_remembered_as_done() -> None:
    bad = [node_report(f"n{i:02d}") for i in range(4)]
    scope = decide(world(2, bad=False, node_reports=bad), limits(limit("IsolateNode", 1, per="superPod")))
    assert [a.node for a in kinds(scope, IsolateNode)] == ["n00"]
    assert scope.memory.nodes["n00"].isolated == "SeparateFault" and "n01" not in scope.memory.nodes
    assert {a.budget_unit for a in kinds(scope, EvictPod)} == set()
    assert len(put_off(scope, EvictPod)) == 4 and all(v.closed for v in scope.nodes.values())


def test_an_unreadable_budget_fails_closed() -> None:
    broken = Desired(
        revision="r1", products=desired().products, fault_tables=desired().fault_tables, budget_broken=True
    )
    scope = decide(world(2, node_reports=[node_report("n03")]), broken)
    assert [type(a).__name__ for a in scope.actions] == ["IsolateChip", "IsolateChip"]
    assert {d.budget for d in scope.deferred} == {"unreadable"} and {d.until for d in scope.deferred} == {None}
    assert any("budget cannot be read" in d.message for d in scope.diagnostics)
    assert scope.memory.budgets == {}


def with_actions(actions: list[Any], inventory: int, declared: Desired | None = None) -> Steps:
    keys = tuple(ObjectKey("v1", "ConfigMap", "d", f"c{i}") for i in range(inventory))
    snapshot = observed([node("n0")], [report("n0")], inventory=keys)
    scope = Steps(declared or desired(), snapshot, NOW).run("views", "grouping", "health", "recover")
    scope.actions.extend(actions)
    return scope.run("safety")


def deletions(count: int) -> list[Any]:
    return [
        DeleteObject(
            api_version="v1",
            object_kind="ConfigMap",
            namespace="d",
            name=f"c{i}",
            reason="Pruned",
            message="gone from Git",
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(("wanted", "inventory", "done"), [(10, 20, 10), (11, 20, 0), (40, 200, 40), (41, 200, 0)])
def test_the_prune_guard_refuses_a_mass_deletion_whole(wanted: int, inventory: int, done: int) -> None:
    kept = Manifest(ObjectKey("v1", "ConfigMap", "d", "kept"), {}, Origin("desired/kept.yaml", 1, 1), "")
    scope = with_actions(deletions(wanted), inventory, dataclasses.replace(desired(), manifests=(kept,)))
    assert len(kinds(scope, DeleteObject)) == done
    assert len(put_off(scope, DeleteObject)) == wanted - done
    assert {d.until for d in put_off(scope, DeleteObject)} <= {None}


def test_cleaning_up_after_jobs_is_no_pruning() -> None:
    old = [msgspec.structs.replace(a, object_kind="Pod", evidence=Evidence(rule="expand")) for a in deletions(50)]
    assert len(kinds(with_actions(old, 20), DeleteObject)) == 50


def test_partitions_can_be_limited() -> None:
    cut = [
        PartitionChip(
            node="n0", chip=f"Ascend910-{i}", templates=(), create=(), destroy=(), epoch=1, reason="x", message="x"
        )
        for i in range(3)
    ]
    scope = with_actions(list(cut), 0, limits(limit("PartitionChip", 2, per="node")))
    assert [a.chip for a in kinds(scope, PartitionChip)] == ["Ascend910-0", "Ascend910-1"]


def test_without_limits_everything_passes() -> None:
    scope = decide(world(30), limits())
    assert len(kinds(scope, EvictPod)) == 60 and scope.deferred == [] and scope.memory.budgets == {}


def test_a_repeated_eviction_counts_from_its_execution() -> None:
    """Decided, never carried out, decided again seven minutes later: the next gang waits from then."""
    tight = limits(limit("EvictPod", 1))
    first = decide(world(2), tight)
    (unit,) = {a.budget_unit for a in kinds(first, EvictPod)}
    again = decide(world(2, history=first.memory.frozen("")), tight, now=NOW + 420)
    assert {a.budget_unit for a in kinds(again, EvictPod)} == {unit}
    later = decide(world(2, history=again.memory.frozen("")), tight, now=NOW + 700)
    assert {a.budget_unit for a in kinds(later, EvictPod)} == {unit}
    assert {d.until for d in put_off(again, EvictPod)} == {"2026-09-01T08:17:00Z"}


def test_history_says_what_was_done_and_by_which_line_of_which_commit() -> None:
    policy = worlds.document("FaultPolicy", "strict", levels={"80E18402": "SeparateNPU"})
    declared = worlds.desired(policy, revision="0123456789abcdef")
    pods = [worlds.pod("j-0", node="n0", chips=[3], owner=("AscendJob", "j"), labels={"fault-scheduling": "force"})]
    broken = [worlds.report("n0", faults=[worlds.fault(3, "80E18402", "NotHandleFault")])]
    scope = worlds.decide(worlds.observed([worlds.node("n0")], broken, pods), declared)
    (line,) = [text for _, text in scope.memory.nodes["n0"].chips[3].timeline]
    assert line == (
        "isolated: SeparateNPU; because of FaultPolicy/strict levels.80E18402 (80E18402) "
        "at policies/000.yaml:1@0123456789ab"
    )
    ((_, job),) = scope.memory.jobs["train/AscendJob/j"].timeline
    assert job.startswith("rescheduled: CardUnhealthy: node n0: Ascend910-3 SeparateNPU (80E18402); the whole job")
    assert job.endswith("FaultPolicy/strict levels.80E18402 (80E18402) at policies/000.yaml:1@0123456789ab")


def test_history_records_the_answer_to_a_reset() -> None:
    first = worlds.decide(worlds.observed([worlds.node("n0")], [worlds.report("n0", faults=[worlds.fault(3)])]))
    seen = worlds.observed(
        [worlds.node("n0")],
        [worlds.report("n0", faults=[worlds.fault(3)])],
        agents=[worlds.agent("n0", done=dict.fromkeys(range(8), (1, "failed: 80C98001 remains")), at=worlds.NOW + 90)],
        standing=[
            worlds.orders("n0", resets={c: worlds.reset_order(1, range(8)) for c in range(8)}, issued=worlds.NOW)
        ],
        history=first.memory.frozen(""),
    )
    scope = worlds.decide(seen, now=worlds.NOW + 91)
    told = [text for _, text in scope.memory.nodes["n0"].chips[3].timeline]
    assert "reset answered: epoch 1 failed: 80C98001 remains" in told
    again = worlds.decide(msgspec.structs.replace(seen, history=scope.memory.frozen("")), now=worlds.NOW + 92)
    assert sum(text.startswith("reset answered") for _, text in again.memory.nodes["n0"].chips[3].timeline) == 1
