"""Shadow policies: their changes are reported, and nothing else changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.controller.status_writer import StatusWriter
from belay.engine.documents import Desired
from belay.engine.kube import Conflict
from belay.engine.metrics import PassSummary
from belay.engine.metrics.collector import BelayCollector
from belay.engine.model.actions import kind_of
from belay.engine.model.cluster import Observed
from belay.engine.model.history import History, NodeMemory
from belay.engine.model.plan import Plan
from belay.engine.plan import plan
from belay.engine.plan.shadow import MAX_POLICIES
from belay.engine.status.events import shadow_events
from belay.engine.status.status_reader import read_status as read_back
from belay.engine.status.sync_status import SyncState, pool_bodies, sync_body
from tests.properties.test_health_properties import worlds
from tests.worlds import NOW, desired, document, fault, node, observed, pod, report

CODE = "80DE0207"
"""SubHealthFault in the shipped table."""
BARE = desired()


def shadow(name: str = "s", **spec: Any) -> dict[str, Any]:
    return document("FaultPolicy", name, mode="shadow", **spec)


def told(result: Plan) -> list[str]:
    return [f"{c.change} {kind_of(c.action)} {getattr(c.action, 'pod', '') or c.action.chips}" for c in result.shadows]


def sick(level: str = "SubHealthFault", now: float = NOW, history: History | None = None, codes: int = 1) -> Observed:
    """One node with a fault on chip 3, where job j runs."""
    found = [fault(3, CODE, level, at=now - 5)] if codes else []
    job = pod("j-0", node="n", chips=[3], owner=("AscendJob", "j"), labels={"fault-scheduling": "force"}, rank=0)
    return observed([node("n")], [report("n", faults=found, update_time=now - 1)], [job], history=history)


def test_a_stricter_shadow_policy_reports_what_it_would_add() -> None:
    result = plan(desired(shadow(levels={CODE: "SeparateNPU"})), sick(), NOW)
    assert told(result) == ["new EvictPod j-0", "new IsolateChip ('Ascend910-3',)"]
    assert not result.actions and not result.deferred
    said = [d for d in result.diagnostics if d.message.startswith("shadow: would ")]
    assert len(said) == 2 and {d.severity for d in said} == {"info"} and {d.object for d in said} == {"FaultPolicy/s"}
    assert "shadow: would IsolateChip: Ascend910-3 of node n, level SeparateNPU by 80DE0207" in {
        d.message for d in said
    }


def test_a_milder_shadow_policy_reports_what_it_would_avoid() -> None:
    result = plan(desired(shadow(levels={CODE: "NotHandleFault"})), sick("SeparateNPU"), NOW)
    assert told(result) == ["avoided EvictPod j-0", "avoided IsolateChip ('Ascend910-3',)"]
    assert [kind_of(a) for a in result.actions] == ["IsolateChip", "EvictPod"]


def test_a_shadow_policy_without_a_difference_reports_nothing() -> None:
    result = plan(desired(shadow(levels={CODE: "SubHealthFault"})), sick(), NOW)
    assert not result.shadows and not [d for d in result.diagnostics if "shadow" in d.message]


def test_a_shadow_change_names_the_budget_that_defers_it() -> None:
    tight = document("SafetyBudget", "default", limits=[
        {"actions": ["EvictPod"], "per": "cluster", "max": 0, "window": "1h"}
    ])  # fmt: skip
    result = plan(desired(shadow(levels={CODE: "SeparateNPU"}), tight), sick(), NOW)
    assert {kind_of(c.action): c.budget for c in result.shadows} == {"EvictPod": "default", "IsolateChip": ""}


def test_a_change_too_large_to_take_force_is_still_shown_by_its_shadow() -> None:
    """Enforced, this policy would be held back whole (ruling 11); its shadow still reports its changes."""
    rows = [report(f"n{i}", faults=[fault(0, CODE, "SubHealthFault", at=NOW - 5)]) for i in range(6)]
    jobs = [
        pod(f"j{i}-0", node=f"n{i}", chips=[0], owner=("AscendJob", f"j{i}"), labels={"fault-scheduling": "force"})
        for i in range(6)
    ]
    tight = document("SafetyBudget", "default", limits=[
        {"actions": ["EvictPod"], "per": "cluster", "max": 1, "window": "1h"}
    ])  # fmt: skip
    before = plan(desired(tight), observed([node(f"n{i}") for i in range(6)], rows, jobs), NOW)
    world = observed([node(f"n{i}") for i in range(6)], rows, jobs, history=before.history)
    result = plan(desired(tight, shadow(levels={CODE: "SeparateNPU"})), world, NOW)
    kinds = [kind_of(c.action) for c in result.shadows]
    assert kinds.count("IsolateChip") == 6 and kinds.count("EvictPod") == 6
    assert sum(bool(c.budget) for c in result.shadows) == 5, "all but one eviction would wait for the budget"


def test_a_frequency_rule_in_shadow_counts_over_time_and_leaves_the_real_memory_alone() -> None:
    rule = [{"codes": [CODE], "times": 3, "window": "1h", "level": "SeparateNPU", "releaseAfter": "2h"}]
    real, cast = History(), History()
    for number in range(6):
        now = NOW + 300.0 * number
        present = number % 2 == 0
        plain = plan(BARE, sick(now=now, history=real, codes=int(present)), now)
        result = plan(desired(shadow(frequency=rule)), sick(now=now, history=cast, codes=int(present)), now)
        assert plain.actions == result.actions
        one, other = (found.history.nodes.get("n", NodeMemory()) for found in (result, plain))
        # a memory notes which server it is about once there is something to remember
        other = msgspec.structs.replace(other, hardware=one.hardware)
        assert msgspec.structs.replace(one, shadows={}) == other or not one.chips
        expected = ["new EvictPod j-0", "new IsolateChip ('Ascend910-3',)"] if number >= 4 else []
        assert told(result) == expected, f"pass {number}"
        real, cast = plain.history, result.history
    assert cast.nodes["n"].shadows["s"][3].holds[0].kind == "frequency"
    later = NOW + 6 * 300 + 7201
    result = plan(desired(shadow(frequency=rule)), sick(now=later, history=cast, codes=0), later)
    assert told(result) == [], "released"
    later += 60
    result = plan(desired(shadow(frequency=rule)), sick(now=later, history=result.history, codes=0), later)
    assert not any(m.shadows for m in result.history.nodes.values()), "and forgotten"


def test_a_removed_shadow_policy_leaves_nothing_behind() -> None:
    rule = [{"codes": [CODE], "times": 3, "window": "1h", "level": "SeparateNPU", "releaseAfter": "2h"}]
    first = plan(desired(shadow(frequency=rule)), sick(), NOW)
    away = plan(desired(shadow(frequency=rule)), sick(history=first.history, codes=0, now=NOW + 60), NOW + 60)
    assert away.history.nodes["n"].shadows
    gone = plan(BARE, sick(history=away.history, codes=0, now=NOW + 120), NOW + 120)
    assert not any(m.shadows for m in gone.history.nodes.values())


def test_the_number_of_evaluated_shadow_policies_is_bounded() -> None:
    many = [shadow(f"s{i}", levels={CODE: "SeparateNPU"}) for i in range(MAX_POLICIES + 2)]
    result = plan(desired(*many), sick(), NOW)
    assert len({c.policy for c in result.shadows}) == MAX_POLICIES
    assert any("beyond the first 8 are not asked: s8, s9" in d.message for d in result.diagnostics)


LIMITS = document("SafetyBudget", "default", limits=[
    {"actions": ["EvictPod"], "per": "cluster", "max": 1, "window": "10m"},
    {"actions": ["ResetChips"], "per": "pool", "max": 2, "window": "1h"},
])  # fmt: skip
PLAIN = desired(LIMITS)
SHADOWS: list[Desired] = [
    desired(LIMITS, shadow(levels={"80DF8402": "NotHandleFault", "80A18008": "SeparateNPU"})),
    desired(LIMITS, shadow(duration=[
        {"codes": ["80C98001", "81078603"], "timeout": "30s", "recover": "60s", "level": "SeparateNPU"}
    ])),
    desired(LIMITS, shadow(frequency=[
        {"codes": ["80A18008"], "times": 1, "window": "1h", "level": "ManuallySeparateNPU"}
    ], attempts={"reset": {"max": 0, "window": "1h"}})),
    desired(LIMITS, shadow(actions={"RestartNPU": {"training": "keep", "idle": "isolate"}})),
]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.sampled_from(SHADOWS))
def test_plans_with_and_without_a_shadow_are_the_same(snapshot: Observed, intent: Desired) -> None:
    """Over two passes, so that what the first remembers cannot matter either."""
    plain_world, cast_world = snapshot, snapshot
    for now in (NOW, NOW + 30):
        plain, cast = plan(PLAIN, plain_world, now), plan(intent, cast_world, now)
        for field in ("actions", "deferred", "pending", "nodes", "chips", "scores"):
            assert getattr(plain, field) == getattr(cast, field), field
        assert [d for d in cast.diagnostics if "shadow" not in d.message] == list(plain.diagnostics)
        bare = {n: msgspec.structs.replace(m, shadows={}) for n, m in cast.history.nodes.items()}
        kept = {n: m for n, m in bare.items() if m != type(m)()}
        assert kept == {n: m for n, m in plain.history.nodes.items() if m != type(m)()}
        assert cast.history.jobs == plain.history.jobs and cast.history.budgets == plain.history.budgets
        plain_world = msgspec.structs.replace(snapshot, history=plain.history)
        cast_world = msgspec.structs.replace(snapshot, history=cast.history)


def test_status_shows_the_changes_by_shadow_policies() -> None:
    world = sick()
    result = plan(desired(shadow(levels={CODE: "SeparateNPU"})), world, NOW)
    bodies = {b["metadata"]["name"]: b for b in [sync_body(SyncState(), result, world), *pool_bodies(result)]}
    status = read_back(bodies.values())
    assert [(s["policy"], s["change"], s["action"]) for s in status.shadow] == [
        ("s", "new", "EvictPod"), ("s", "new", "IsolateChip"),
    ]  # fmt: skip
    per_pool = json.loads(bodies["belay-pool-default"]["data"]["shadow.json"])
    assert {row["node"] for row in per_pool} == {"n"} and len(per_pool) == 2
    summary = PassSummary.of(result, world, 0.1)
    assert summary.shadow == {"s/new/EvictPod": 1, "s/new/IsolateChip": 1}
    rendered = {
        sample.labels["change"]: sample.value
        for family in BelayCollector(lambda: ({"main": summary}, {})).collect()
        for sample in family.samples
        if sample.name == "belay_shadow"
    }
    assert rendered == {"s/new/EvictPod": 1, "s/new/IsolateChip": 1}


class Events:
    """An API server that takes Events, and knows their names."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.asked = 0

    async def create(self, res: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        name = body["metadata"]["name"]
        if name in self.names:
            raise Conflict(f"{res.kind} {name} exists", status=409, reason="AlreadyExists")
        self.names.append(name)
        return body


def test_events_report_each_shadow_change_once() -> None:
    tree, server = desired(shadow(levels={CODE: "SeparateNPU"})), Events()
    first, later = plan(tree, sick(), NOW), plan(tree, sick(now=NOW + 60), NOW + 60)
    bodies = shadow_events(first.shadows, NOW)
    assert [(b["type"], b["reason"], b["action"], b["involvedObject"]["name"]) for b in bodies] == [
        ("Normal", "ShadowPolicy", "EvictPod", "j-0"), ("Normal", "ShadowPolicy", "IsolateChip", "n"),
    ]  # fmt: skip
    assert bodies[1]["message"].startswith("shadow FaultPolicy s would IsolateChip: Ascend910-3 of node n")

    async def passes(*results: Plan) -> None:
        writer = StatusWriter(server)  # type: ignore[arg-type]
        for result in results:
            await writer.write_shadow_events(result.shadows, result.now)

    asyncio.run(passes(first, later, later))
    assert server.asked == 2 and len(server.names) == 2, "passes that plan the same announce nothing more"
    asyncio.run(passes(later))
    assert server.asked == 4 and len(server.names) == 2, "a new process finds its Events there"
    asyncio.run(passes(plan(desired(shadow(levels={CODE: "RestartNPU"})), sick(), NOW)))
    assert len(server.names) > 2
