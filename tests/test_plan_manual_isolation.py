"""Chips taken out by hand or for failing too often, and how a person brings them back."""

from __future__ import annotations

from typing import Any

import msgspec

from belay.engine.model.cluster import Observed, Upgrade
from belay.engine.model.history import History
from belay.engine.plan import plan
from belay.engine.status.sync_status import manual_bodies
from belay.engine.wire import manualinfo, names
from tests.worlds import NOW, decide, desired, document, fault, node, observed, pod, report

CODE = "80C98001"
RULE = document(
    "FaultPolicy",
    "often",
    frequency=[{"codes": [CODE], "times": 2, "window": "1h", "level": "SeparateNPU", "releaseAfter": "10m"}],
    levels={CODE: "NotHandleFault"},
)


def listing(namespace: str, name: str, data: dict[str, str]) -> dict[str, Any]:
    meta = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def clusterd(*devices: str) -> dict[str, Any]:
    rows = {name: [manualinfo.ManualEntry("8C084E00", "ManuallySeparateNPU", 1)] for name in devices}
    return listing(manualinfo.NAMESPACE, manualinfo.NAME, manualinfo.build({"n0": rows}))


def world(*faults: Any, history: History | None = None, objects: Any = (), at: float = NOW, **more: Any) -> Observed:
    reports = [report("n0", faults=faults, update_time=at - 1, **more)]
    return observed([node("n0")], reports, history=history, objects=objects)


def state(snapshot: Observed, rule: Any = RULE, *, at: float = NOW) -> tuple[str, History]:
    scope = decide(snapshot, desired(rule), now=at)
    row = next((c for c in scope.chips if c.chip == "Ascend910-3"), None)
    return row.state if row else "healthy", scope.memory.frozen()


def held() -> tuple[History, float]:
    """A chip that broke twice and is well again at the returned time."""
    memory = History()
    for at, faults in ((NOW, 1), (NOW + 60, 0), (NOW + 120, 1), (NOW + 180, 0)):
        there = [fault(3, CODE, "NotHandleFault", at=at - 1)] if faults else []
        now_state, memory = state(world(*there, history=memory, at=at), at=at)
    assert now_state == "isolated"
    return memory, NOW + 180


def test_a_release_window_runs_from_the_recovery_and_not_from_the_upgrade() -> None:
    memory, recovered = held()
    assert memory.nodes["n0"].chips[3].holds[0].until == round((recovered + 600) * 1000)
    for at, expected in ((recovered + 600, "isolated"), (recovered + 601, "healthy")):
        assert state(world(history=memory, at=at), at=at)[0] == expected


def test_a_chip_on_clusterds_list_is_out_until_its_name_is_deleted() -> None:
    assert state(world(objects=[clusterd("Ascend910-3")]))[0] == "manually-isolated"
    assert state(world(objects=[clusterd()]))[0] == "healthy"


def test_an_unreadable_node_on_clusterds_list_is_named_and_takes_nothing_out() -> None:
    broken = listing(manualinfo.NAMESPACE, manualinfo.NAME, {"n0": "[]"})
    found = plan(desired(), world(objects=[broken]), NOW)
    assert not found.chips
    assert any(d.field == "data.n0" for d in found.diagnostics)


def test_a_person_ends_a_frequency_hold_by_deleting_the_name_from_belays_list() -> None:
    memory, at = held()
    result = msgspec.structs.replace(plan(desired(RULE), world(history=memory, at=at), at), history=memory)
    (body,) = manual_bodies(result, world(at=at))
    assert body["metadata"]["name"] == names.MANUAL
    seen, memory = state(world(history=memory, objects=[body], at=at), at=at)
    assert seen == "isolated" and memory.nodes["n0"].chips[3].holds[0].told
    assert state(world(history=memory, at=at), at=at)[0] == "isolated"  # a missing list releases no chip
    emptied = listing(names.SYSTEM, names.MANUAL, manualinfo.build({"n0": {}}))
    assert state(world(history=memory, objects=[emptied], at=at), at=at)[0] == "healthy"


def test_a_hold_that_is_not_yet_on_belays_list_stays() -> None:
    memory, at = held()
    empty = listing(names.SYSTEM, names.MANUAL, {})
    assert state(world(history=memory, objects=[empty], at=at), at=at)[0] == "isolated"


def test_names_added_to_belays_own_list_have_no_effect() -> None:
    row = {"Ascend910-3": [manualinfo.ManualEntry(CODE, "SeparateNPU", 1)]}
    added = listing(names.SYSTEM, names.MANUAL, manualinfo.build({"n0": row}))
    assert state(world(objects=[added]))[0] == "healthy"


def test_deleting_the_name_from_the_reports_key_ends_holds_and_reasons() -> None:
    memory, at = held()
    _, memory = state(world(history=memory, at=at, manual=[3]), at=at)
    assert state(world(history=memory, at=at), at=at)[0] == "healthy"
    reason = Upgrade(3, CODE, "ManuallySeparateNPU", "FaultFrequency", 1)
    edited = msgspec.structs.replace(report("n0"), upgrades=(reason,))
    assert state(observed([node("n0")], [edited]))[0] == "healthy"


def test_a_node_with_an_idle_sub_healthy_chip_is_sub_healthy() -> None:
    scope = decide(world(fault(3, "80CB8002", "SubHealthFault")))
    assert scope.nodes["n0"].state == "sub-healthy"


def test_an_isolated_node_is_shown_with_its_end_and_an_unknown_one_is_named() -> None:
    spec = {"nodes": ["n0", "zz"], "reason": "fan", "until": "2026-09-01T09:00:00Z"}
    result = plan(desired(document("Isolation", "fan", **spec)), world(), NOW)
    said = {d.message for d in result.diagnostics}
    place = "Isolation/fan (fan) at policies/000.yaml:1@r1"
    assert f"node n0 is held: manual, by {place}, until 2026-09-01T09:00:00Z" in said
    assert any("node zz, which does not exist" in text for text in said)


def test_an_upgrade_by_a_rule_for_training_outlives_the_job() -> None:
    rule = {**RULE, "spec": {**RULE["spec"], "scope": {"workloads": ["training"]}}}
    memory, at = History(), NOW
    training = [pod("p", node="n0", chips=[3], owner=("AscendJob", "j"))]
    for present in (True, False, True, False):
        there = [fault(3, CODE, "NotHandleFault", at=at - 1)] if present else []
        snapshot = observed([node("n0")], [report("n0", faults=there, update_time=at - 1)], training, history=memory)
        memory = decide(snapshot, desired(rule), now=at).memory.frozen()
        at += 60
    idle = observed([node("n0")], [report("n0", update_time=at - 1)], history=memory)
    after = decide(idle, desired(rule), now=at)
    assert [(c.chip, c.state) for c in after.chips] == [("Ascend910-3", "isolated")]
    assert after.memory.nodes["n0"].chips[3].holds[0].until > at * 1000


def test_the_memory_of_a_chip_is_kept_while_it_is_idle() -> None:
    rule = {**RULE, "spec": {**RULE["spec"], "scope": {"workloads": ["training"]}}}
    training = [pod("p", node="n0", chips=[3], owner=("AscendJob", "j"))]
    memory, at = History(), NOW
    for pods, present in ((training, True), ([], False), (training, True)):
        there = [fault(3, CODE, "NotHandleFault", at=at - 1)] if present else []
        snapshot = observed([node("n0")], [report("n0", faults=there, update_time=at - 1)], pods, history=memory)
        scope = decide(snapshot, desired(rule), now=at)
        memory = scope.memory.frozen()
        at += 60
    assert [(c.chip, c.state) for c in scope.chips] == [("Ascend910-3", "isolated")]


def test_a_changed_rule_changes_its_holds_and_a_deleted_one_ends_all_but_manual_ones() -> None:
    def with_level(level: str) -> dict[str, Any]:
        return {**RULE, "spec": {**RULE["spec"], "frequency": [{**RULE["spec"]["frequency"][0], "level": level}]}}

    memory, at = held()
    snapshot = world(history=memory, at=at + 1)
    for level, expected in (("SubHealthFault", "sub-healthy"), ("ManuallySeparateNPU", "manually-isolated")):
        assert state(snapshot, with_level(level), at=at + 1)[0] == expected
    none = {**RULE, "spec": {"levels": {CODE: "NotHandleFault"}}}
    assert state(snapshot, none, at=at + 1)[0] == "healthy"
    by_hand = state(snapshot, with_level("ManuallySeparateNPU"), at=at + 1)[1]
    assert state(world(history=by_hand, at=at + 2), none, at=at + 2)[0] == "manually-isolated"


def test_an_unreadable_entry_releases_nothing() -> None:
    """An edit may leave the list unreadable: its last readable content stays in force."""
    before = decide(world(objects=[clusterd("Ascend910-3")]), desired())
    memory = before.memory.frozen()

    def then(text: str) -> tuple[str, list[str]]:
        broken = listing(manualinfo.NAMESPACE, manualinfo.NAME, {"n0": text})
        scope = decide(world(objects=[broken], history=memory), desired())
        row = next((c for c in scope.chips if c.chip == "Ascend910-3"), None)
        assert memory.nodes["n0"].chips[3].holds == scope.memory.nodes["n0"].chips[3].holds or row is None
        return row.state if row else "healthy", [d.field for d in scope.diagnostics if d.severity == "error"]

    assert then('{"Total":["Ascend910-3"') == ("manually-isolated", ["data.n0"])
    assert then('{"Total":["Ascend910 3"]}') == ("manually-isolated", ["data.n0.Total"])
    assert then('{"Total":"Ascend910-3"}') == ("manually-isolated", ["data.n0"])
    assert then('{"Total":[]}') == ("healthy", []), "a list that can be read gives back what it does not name"
    other = listing(manualinfo.NAMESPACE, manualinfo.NAME, {"n1": "{"})
    scope = decide(world(objects=[other], history=memory), desired())
    assert all(c.state == "healthy" for c in scope.chips), "the slip in another node's entry keeps nothing here"
