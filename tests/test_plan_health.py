"""Health: what a report, a policy, a hold or silence makes of chips and nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.model.actions import IsolateChip, IsolateNode, ReleaseChip, ReleaseNode
from belay.engine.model.cluster import Upgrade
from belay.engine.model.fault_subscriptions import NO_SUBSCRIPTIONS, FaultSubscriptions
from belay.engine.model.history import ChipMemory, CodeMemory, History, Hold, NodeMemory
from belay.engine.model.levels import CHIP_LEVELS
from belay.engine.model.times import rfc3339
from belay.engine.plan.views import device_id
from tests.steps import Steps
from tests.worlds import (
    NOW,
    decide,
    desired,
    document,
    fault,
    node,
    node_report,
    observed,
    orders,
    pod,
    report,
    switch,
    world,
)

NET = "CardNetworkUnhealthy"


def chip(scope: Steps, name: str = "n0", index: int = 3) -> tuple[str, str]:
    row = next(r for r in scope.chips if r.node == name and r.chip.endswith(f"-{index}"))
    return row.state, row.level


def one(*faults: Any, pods: Any = (), now: float = NOW, policies: Any = (), **more: Any) -> Steps:
    """One faulty node beside three healthy ones."""
    of_snapshot = ("history", "standing", "agents", "node_reports", "problems", "fault_subscriptions")
    extra = {k: more.pop(k) for k in list(more) if k in of_snapshot}
    nodes = [node("n0"), node("n1"), node("n2"), node("n3")]
    reports = [report("n0", faults=faults, **more), report("n1"), report("n2"), report("n3")]
    return decide(observed(nodes, reports, pods, **extra), desired(*policies), now=now)


def isolations(scope: Steps) -> list[tuple[str, tuple[str, ...], str]]:
    return [(a.node, a.chips, a.level) for a in scope.actions if isinstance(a, IsolateChip)]


def test_healthy_nodes_need_nothing() -> None:
    scope = decide(world(3))
    assert scope.actions == [] and scope.chips == [] and scope.diagnostics == []
    assert scope.memory.nodes == {}
    assert all(v.free == 0xFF and v.closed is None and v.state == "healthy" for v in scope.nodes.values())


@pytest.mark.parametrize("level", CHIP_LEVELS[4:])
def test_levels_that_take_an_idle_chip_out(level: str) -> None:
    scope = one(fault(3, "80C98001", level))
    expected = "manually-isolated" if level == "ManuallySeparateNPU" else "isolated"
    assert chip(scope) == (expected, level)
    assert isolations(scope) == [("n0", ("Ascend910-3",), level)]
    assert not scope.nodes["n0"].free & 0b1000


@pytest.mark.parametrize(("level", "state"), [("NotHandleFault", "healthy"), ("SubHealthFault", "sub-healthy")])
def test_levels_that_leave_a_chip_in_service(level: str, state: str) -> None:
    scope = one(fault(3, "80C98001", level))
    assert chip(scope) == (state, level)
    assert isolations(scope) == [] and scope.nodes["n0"].free == 0xFF


def test_a_pre_separated_chip_keeps_its_task_and_takes_no_new_one() -> None:
    busy = pod("a", node="n0", chips=[3], owner=("AscendJob", "a"), labels={"fault-scheduling": "force"})
    scope = one(fault(3, "80C98001", "PreSeparateNPU"), pods=[busy], unhealthy=[])
    assert chip(scope) == ("isolated", "PreSeparateNPU")
    assert scope.nodes["n0"].hit == 0 and scope.nodes["n0"].unavailable == 0b1000 and scope.evicting == set()


def test_the_level_is_the_worst_of_several_codes() -> None:
    scope = one(fault(3, "80C98001", "RestartNPU"), fault(3, "80DF8402", "SeparateNPU"))
    assert chip(scope) == ("isolated", "SeparateNPU")
    assert next(r.codes for r in scope.chips) == ("80C98001", "80DF8402")


def test_a_network_fault_alone_keeps_the_chip_for_single_pods() -> None:
    scope = one(fault(3, "81078603", "PreSeparateNPU", kind=NET), network=[3])
    assert chip(scope) == ("sub-healthy", "PreSeparateNPU")
    assert next(r.fault_type for r in scope.chips) == (NET,)
    view = scope.nodes["n0"]
    assert view.free == 0xFF and view.network == 0b1000 and isolations(scope) == []


def test_a_link_that_just_went_down_is_suspect_then_pre_separated() -> None:
    early = one(fault(3, "81078603", "NotHandleFault", kind=NET, at=NOW - 10))
    assert chip(early)[0] == "suspect" and early.nodes["n0"].network == 0b1000
    late = one(fault(3, "81078603", "NotHandleFault", kind=NET, at=NOW - 30))
    assert chip(late) == ("sub-healthy", "PreSeparateNPU")


def test_policy_overrides_the_report_and_its_lists() -> None:
    down = document("FaultPolicy", "p", levels={"80c98001": "NotHandleFault"})
    scope = one(fault(3), policies=[down])
    assert chip(scope) == ("healthy", "NotHandleFault") and isolations(scope) == []
    assert scope.nodes["n0"].free == 0xFF
    up = document("FaultPolicy", "p", levels={"80C98001": "SeparateNPU"})
    scope = one(fault(3, level="NotHandleFault"), policies=[up])
    assert chip(scope) == ("isolated", "SeparateNPU")
    action = next(a for a in scope.actions if isinstance(a, IsolateChip))
    assert action.evidence.rule.startswith("FaultPolicy/p") and action.evidence.line == 1


def test_policy_scope_and_shadow_mode() -> None:
    other = document("FaultPolicy", "p", levels={"80C98001": "NotHandleFault"}, scope={"nodes": ["n1"]})
    assert chip(one(fault(3), policies=[other])) == ("isolated", "RestartNPU")
    shadow = document("FaultPolicy", "p", levels={"80C98001": "NotHandleFault"}, mode="shadow")
    scope = one(fault(3), policies=[shadow])
    assert chip(scope) == ("isolated", "RestartNPU")
    told = [d for d in scope.diagnostics if d.severity == "info"]
    assert len(told) == 1 and "NotHandleFault instead of RestartNPU" in told[0].message


def test_actions_per_level_can_be_changed() -> None:
    keep = document("FaultPolicy", "p", actions={"SeparateNPU": {"training": "keep", "idle": "reset"}})
    busy = pod("a", node="n0", chips=[3], owner=("AscendJob", "a"), labels={"fault-scheduling": "force"})
    scope = one(fault(3, "80DF8402", "SeparateNPU"), pods=[busy], policies=[keep])
    assert scope.evicting == set() and chip(scope)[0] == "isolated"


def test_a_listed_chip_without_an_element_is_out() -> None:
    scope = one(unhealthy=[3])
    assert chip(scope) == ("isolated", "SeparateNPU")


def test_the_other_chip_of_a_duo_card_shares_its_level() -> None:
    duo = {"accelerator": "huawei-Ascend310P", "infer-card-type": "card-300i-duo"}
    form: dict[str, Any] = {"resource": "huawei.com/Ascend310P", "prefix": "Ascend310P-"}
    snapshot = observed(
        [node("d", labels=duo, **form)], [report("d", faults=[fault(2)], unhealthy=[2, 3], network=None, **form)]
    )
    scope = decide(snapshot)
    assert chip(scope, "d", 3) == ("isolated", "RestartNPU")
    assert scope.nodes["d"].groups[1] == 0b1100


def test_manual_isolation_by_key_by_document_and_its_end() -> None:
    assert chip(one(manual=[3], unhealthy=[3])) == ("manually-isolated", "ManuallySeparateNPU")
    until = "2026-09-01T08:10:00Z"
    by_hand = document("Isolation", "x", chips=[{"node": "n0", "chips": "3"}], reason="test", until=until)
    scope = one(policies=[by_hand])
    assert chip(scope) == ("manually-isolated", "ManuallySeparateNPU")
    assert isolations(scope) == [("n0", ("Ascend910-3",), "ManuallySeparateNPU")]
    holds = scope.memory.nodes["n0"].chips[3].holds
    assert [(h.kind, h.rule, h.until) for h in holds] == [("manual", "Isolation/x", int(NOW + 600) * 1000)]
    later = decide(world(2), desired(by_hand), now=NOW + 300)
    assert chip(later)[0] == "manually-isolated"
    snapshot = observed([node("n0")], [report("n0", update_time=NOW + 600)])
    over = decide(msgspec.structs.replace(snapshot, history=scope.memory.frozen("")), desired(by_hand), now=NOW + 600)
    assert over.chips == [] and over.memory.nodes["n0"].chips.get(3, ChipMemory()).holds == ()


def test_standing_orders_are_not_repeated_and_stale_ones_are_withdrawn() -> None:
    scope = one(fault(3), standing=[orders("n0", isolate={3: "RestartNPU"})], pods=[pod("p", node="n0", chips=[0])])
    assert isolations(scope) == []
    scope = one(standing=[orders("n0", isolate={3: "RestartNPU", 5: "SeparateNPU"})])
    gone = [(a.chips, a.level) for a in scope.actions if isinstance(a, ReleaseChip)]
    assert gone == [(("Ascend910-3",), "RestartNPU"), (("Ascend910-5",), "SeparateNPU")]
    scope = one(fault(3, level="SeparateNPU"), standing=[orders("n0", isolate={3: "RestartNPU"})])
    assert isolations(scope) == [("n0", ("Ascend910-3",), "SeparateNPU")]
    assert not any(isinstance(a, ReleaseChip) for a in scope.actions)


def test_stale_missing_refused_and_future_reports() -> None:
    stale = one(fault(3), update_time=NOW - 601)
    assert stale.actions == [] and stale.nodes["n0"].state == "unknown"
    assert (stale.nodes["n0"].closed or ("",))[0] == "NodeReportStale"
    fresh = one(fault(3), update_time=NOW - 600)
    assert isolations(fresh)
    missing = decide(observed([node("n0")]))
    assert missing.nodes["n0"].closed == ("NodeReportMissing", "not has(or not same) huawei.com/Ascend910")
    refused = decide(observed([node("n0")], problems={"n0": "CheckCode is wrong"}))
    assert (refused.nodes["n0"].closed or ("",))[0] == "NodeReportRefused"
    assert any("n0" in d.message and "CheckCode" in d.message for d in refused.diagnostics)
    last_good = one(fault(3), problems={"n0": "CheckCode is wrong"})
    assert isolations(last_good) and last_good.nodes["n0"].closed is None
    future = one(update_time=NOW + 3600)
    assert future.nodes["n0"].free == 0xFF and any("ahead" in d.message for d in future.diagnostics)


def test_a_node_without_npus_is_kept_and_open() -> None:
    scope = decide(observed([node("cpu", chips=0)]))
    assert scope.nodes["cpu"].closed is None and scope.nodes["cpu"].state == "healthy" and scope.diagnostics == []


@pytest.mark.parametrize(
    ("level", "state", "closed"),
    [
        ("NotHandleFault", "healthy", None),
        ("PreSeparateFault", "pre-isolated", ("NodePreSeparate", "node health status is PreSeparate")),
        ("SeparateFault", "isolated", ("NodeUnhealthy", "node is unhealthy")),
    ],
)
def test_node_reports(level: str, state: str, closed: tuple[str, str] | None) -> None:
    scope = one(node_reports=[node_report("n0", level)])
    view = scope.nodes["n0"]
    assert (view.state, view.closed) == (state, closed)
    assert bool(view.down) == (level == "SeparateFault")
    assert [a.node for a in scope.actions if isinstance(a, IsolateNode)] == (["n0"] if closed else [])
    assert scope.memory.nodes.get("n0", NodeMemory()).isolated == (level if closed else "")


def test_node_isolation_is_ordered_once_and_released_when_clean() -> None:
    kept = History(nodes={"n0": NodeMemory(isolated="SeparateFault")})
    assert one(node_reports=[node_report("n0")], history=kept).actions == []
    clean = one(history=kept)
    assert [(a.node, a.level) for a in clean.actions if isinstance(a, ReleaseNode)] == [("n0", "SeparateFault")]
    assert clean.memory.nodes["n0"].isolated == ""


@pytest.mark.parametrize(
    ("level", "state"),
    [
        ("NotHandle", "healthy"),
        ("SubHealthFault", "sub-healthy"),
        ("RestartRequest", "isolated"),
        ("Separate", "isolated"),
    ],
)
def test_switch_levels(level: str, state: str) -> None:
    assert one(switch=switch(level)).nodes["n0"].state == state


def test_policies_apply_to_switch_and_node_codes() -> None:
    calm = document(
        "FaultPolicy", "p", levels={"[0x00f1ff09,155912,cpu,na]": "SubHealthFault", "00000011": "PreSeparateFault"}
    )
    assert one(switch=switch("Separate"), policies=[calm]).nodes["n0"].state == "sub-healthy"
    assert one(node_reports=[node_report("n0")], policies=[calm]).nodes["n0"].state == "pre-isolated"


def test_a_node_with_static_vnpus_is_not_called_unstable() -> None:
    form: dict[str, Any] = {"resource": "huawei.com/Ascend310P", "prefix": "Ascend310P-"}
    cut = {"huawei.com/Ascend310P": 0, "huawei.com/Ascend310P-2c": 16}
    snapshot = observed([node("v", allocatable=cut, **form)], [report("v", network=None, **form)])
    assert decide(snapshot).nodes["v"].closed is None


def test_a_manual_node_isolation_names_its_document() -> None:
    scope = one(policies=[document("Isolation", "x", nodes=["n0"], reason="broken fan")])
    action = next(a for a in scope.actions if isinstance(a, IsolateNode))
    assert (action.reason, action.evidence.rule, action.evidence.file) == (
        "Maintenance",
        "Isolation/x",
        "policies/000.yaml",
    )
    assert scope.nodes["n0"].state == "manually-isolated"


def test_the_stress_test_annotation_takes_a_node_out() -> None:
    snapshot = observed([node("n0", annotations={"NodeHealthyStatus": "UnHealthy"})], [report("n0")])
    view = decide(snapshot).nodes["n0"]
    assert view.state == "manually-isolated" and view.down and view.closed == ("NodeUnhealthy", "node is unhealthy")


def not_ready(*ago: float, count: int = 4, debounce: str = "") -> Steps:
    nodes = [
        node(f"n{i}", ready=i >= len(ago), ready_changed=NOW - ago[i] if i < len(ago) else 0) for i in range(count)
    ]
    rows = [report(f"n{i}") for i in range(count)]
    if not debounce:
        return decide(observed(nodes, rows))
    settings = document("SchedulingSettings", "own", notReadyDebounce=debounce)
    return decide(observed(nodes, rows), desired(settings))


def test_a_node_that_is_not_ready_is_a_fault_at_once() -> None:
    """Kubernetes has waited its own grace period before it says NotReady; a second one only where a person asks."""
    for seen in (not_ready(0), not_ready(41), not_ready(-5)):  # another machine's clock may be ahead
        view = seen.nodes["n0"]
        assert view.closed == ("NodeNotReady", "node is not ready") and view.down
        assert view.codes == ("heartbeatTimeOut",) and view.state == "not-ready"


def test_a_debounce_keeps_jobs_on_a_node_that_flaps() -> None:
    young, old = not_ready(90, debounce="90s"), not_ready(91, debounce="90s")
    assert young.nodes["n0"].closed == old.nodes["n0"].closed == ("NodeNotReady", "node is not ready")
    assert young.nodes["n0"].down == "" and old.nodes["n0"].down


def test_a_mass_outage_evicts_nothing() -> None:
    wave = not_ready(100, 110, 159)
    assert all(not v.down for v in wave.nodes.values())
    assert any("more than half" in d.message for d in wave.diagnostics)
    assert set(wave.memory.ready_drops) == {"default"}
    slow = not_ready(100, 200, 300)
    assert sum(bool(v.down) for v in slow.nodes.values()) == 3
    half = not_ready(100, 110)
    assert sum(bool(v.down) for v in half.nodes.values()) == 2


def test_instability_between_report_and_kubernetes_closes_a_node() -> None:
    snapshot = observed([node("n0", allocatable={"huawei.com/Ascend910": 6})], [report("n0")])
    assert decide(snapshot).nodes["n0"].closed == (
        "NodeUnstable",
        "huawei.com/Ascend910 not stable:device-info is 8 but k8s is 6",
    )
    unannotated = pod("p", node="n0", count=8)
    assert (decide(world(1, pods=[unannotated])).nodes["n0"].closed or ("",))[0] == "NodeUnstable"


def test_frequency_holds_survive_recovery_and_expire() -> None:
    rule = {"codes": ["A1"], "times": 2, "window": "24h", "level": "PreSeparateNPU", "releaseAfter": "1h"}
    policy = document("FaultPolicy", "p", frequency=[rule])
    past = CodeMemory(first=1, last=1, present=False, occurrences=(int((NOW - 3600) * 1000),), recovered=1)
    before = History(nodes={"n0": NodeMemory(chips={3: ChipMemory(codes={"A1": past})})})
    hit = one(fault(3, "A1", "NotHandleFault", at=NOW - 5), policies=[policy], history=before)
    assert chip(hit) == ("isolated", "PreSeparateNPU")
    hold = hit.memory.nodes["n0"].chips[3].holds[0]
    assert (hold.kind, hold.rule, hold.until) == ("frequency", "A1", int(NOW * 1000) + 3_600_000)
    gone = one(policies=[policy], history=hit.memory.frozen(""), now=NOW + 60)
    assert chip(gone) == ("isolated", "PreSeparateNPU")
    snapshot = observed([node("n0")], [report("n0", update_time=NOW + 3700)], history=gone.memory.frozen(""))
    end = decide(snapshot, desired(policy), now=NOW + 3700)
    assert end.chips == [] and end.nodes["n0"].free == 0xFF


def test_the_shipped_frequency_rule_isolates_manually_at_the_second_occurrence() -> None:
    past = CodeMemory(first=1, last=1, present=False, occurrences=(int((NOW - 7200) * 1000),), recovered=1)
    before = History(nodes={"n0": NodeMemory(chips={3: ChipMemory(codes={"80A18008": past})})})
    scope = one(fault(3, "80A18008", "RestartNPU", at=NOW - 5), history=before)
    assert chip(scope) == ("manually-isolated", "ManuallySeparateNPU")
    assert scope.memory.nodes["n0"].chips[3].holds[0].until == 0


def test_a_hold_on_attempts_never_keeps_a_clean_chip_out() -> None:
    hold = Hold("attempt-budget", "RestartNPU", since=1, until=int((NOW + 9999) * 1000))
    scope = one(history=History(nodes={"n0": NodeMemory(chips={3: ChipMemory(holds=(hold,))})}))
    assert scope.nodes["n0"].free == 0xFF and scope.chips == []
    assert scope.memory.nodes["n0"].chips == {}


def test_upgrades_of_the_device_plugin_count() -> None:
    listed = msgspec.structs.replace(
        report("n0", unhealthy=[3]), upgrades=(Upgrade(3, "8C084E00", "PreSeparateNPU", "FaultDuration", 1),)
    )
    scope = decide(observed([node("n0")], [listed]))
    assert chip(scope) == ("isolated", "PreSeparateNPU")


def filtered(age: float, subscriptions: FaultSubscriptions = NO_SUBSCRIPTIONS, **labels: str) -> Steps:
    notes = {"huawei.com/schedule.filter.faultLevel": "RestartRequest"} if not labels else {}
    all_labels = {"fault-scheduling": "force"} | labels
    busy = pod("a", node="n0", chips=[3], owner=("AscendJob", "a"), labels=all_labels, annotations=notes)
    raised = fault(3, "80C98000", "RestartRequest", at=NOW - age)
    return one(raised, pods=[busy], fault_subscriptions=subscriptions)


def test_a_filtered_fault_is_suspect_until_its_time_is_over() -> None:
    assert chip(filtered(60)) == ("suspect", "RestartRequest") and filtered(60).evicting == set()
    assert chip(filtered(61)) == ("isolated", "RestartRequest") and filtered(61).evicting == {"train/a"}


def test_a_mindie_server_stays_for_a_minute_only_where_its_controller_hears_of_faults() -> None:
    def server(age: float, record: FaultSubscriptions, service: str = "chat") -> Steps:
        return filtered(age, record, app="mindie-ms-server", jobID=service)

    now_ms = round(NOW * 1000)
    heard = FaultSubscriptions(frozenset({"chat"}), now_ms - 60_000, 7, "server-0")
    kept = server(30, heard)
    assert chip(kept) == ("suspect", "RestartRequest") and kept.evicting == set() and kept.diagnostics == []
    late, deaf, other = server(61, heard), server(30, NO_SUBSCRIPTIONS), server(30, heard, "vision")
    old = server(30, msgspec.structs.replace(heard, time_ms=now_ms - 150_000))
    for scope in (late, deaf, other, old):
        assert chip(scope) == ("isolated", "RestartRequest") and scope.evicting == {"train/a"}
    assert deaf.diagnostics == other.diagnostics == []

    (finding,) = old.diagnostics
    assert (finding.severity, finding.object) == ("info", "ConfigMap/belay-system/belay-fault-subscribers")
    written = rfc3339(NOW - 150)
    assert f"was last written at {written} by server server-0, epoch 7" in finding.message


def test_bus_errors_wait_for_the_uncorrectable_error() -> None:
    assert chip(one(fault(3, "80C98009", "RestartRequest", at=NOW - 2)))[0] == "suspect"
    both = one(fault(3, "80C98009", "SeparateNPU", at=NOW - 100), fault(3, "80E01801", "RestartBusiness", at=NOW - 98))
    assert chip(both) == ("isolated", "RestartBusiness")


def test_pools_shards_and_a_node_in_two_pools() -> None:
    a = document("NodePool", "a", selector={"matchLabels": {"host-arch": "huawei-arm"}})
    b = document("NodePool", "b", selector={"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, shard="two")
    nodes = [node("n0"), node("n1", labels={"zone": "z"})]
    snapshot = observed(nodes, [report("n0"), report("n1")])
    scope = decide(observed([node("n0", labels={"host-arch": "huawei-arm"})], [report("n0")]), desired(a))
    assert scope.nodes["n0"].pool == "a"
    assert list(decide(snapshot, desired(b)).nodes) == ["n0"]
    assert list(decide(snapshot, desired(b), shard="two").nodes) == ["n1"]
    both = observed([node("n0", labels={"host-arch": "huawei-arm", "zone": "z"})], [report("n0")])
    torn = decide(both, desired(a, b))
    assert torn.nodes["n0"].pool == "a" and any(
        "two pools" in d.message or "pools a, b" in d.message for d in torn.diagnostics
    )
    settled = decide(both, desired(b), shard="two").memory.frozen("")
    again = decide(msgspec.structs.replace(both, history=settled), desired(a, b), shard="two")
    assert again.nodes["n0"].pool == "b"


def test_ledger_claims_count_until_the_binding_is_seen() -> None:
    waiting, bound = pod("w", count=1), pod("b", node="n0", chips=[0])
    claims = {"n0/Ascend910-5": waiting.uid, "n0/Ascend910-0": bound.uid, "n0/Ascend910-7": "gone"}
    view = decide(world(1, pods=[waiting, bound], ledger=claims)).nodes["n0"]
    assert view.used == 0b10100001, "a binding may still come for the pod that is gone"
    assert view.used_by == {0: "train/b", 5: "train/w"}
    assert view.requested["huawei.com/Ascend910"] == 2


def test_terminating_pods_hold_their_chips_and_finished_ones_do_not() -> None:
    pods = [pod("t", node="n0", chips=[0], deleting=NOW - 5), pod("f", node="n0", chips=[1], phase="Failed")]
    view = decide(world(1, pods=pods)).nodes["n0"]
    assert view.used == 1


@pytest.mark.parametrize(
    ("name", "chip"),
    [("Ascend910-4", 4), ("Ascend310P-2c-100-1", 1), ("0-vir04", 0), ("3", 3), ("Ascend910", None), ("", None)],
)
def test_the_chip_behind_a_device_name(name: str, chip: int | None) -> None:
    assert device_id(name) == chip


def test_own_free_list_when_availability_is_not_maintained() -> None:
    snapshot = observed(
        [node("n0")], [report("n0", free=[0, 1])], init_params={"self-maintain-available-card": "false"}
    )
    assert decide(snapshot).nodes["n0"].free == 0b11


def test_a_policy_change_that_would_evict_too_much_is_held_back_whole() -> None:
    pods = [
        pod(f"j{i}", node=f"n{i}", chips=[3], owner=("AscendJob", f"j{i}"), labels={"fault-scheduling": "force"})
        for i in range(60)
    ]
    names = [f"n{i}" for i in range(60)]
    faults = [fault(3, "80A18005", "NotHandleFault")]
    before = observed([node(n) for n in names], [report(n, faults=faults) for n in names], pods)
    mild = document("FaultPolicy", "p", levels={"00000001": "NotHandleFault"})
    first = decide(before, desired(mild))
    assert first.actions == []
    world_after = msgspec.structs.replace(before, history=first.memory.frozen(""))
    harsh = document("FaultPolicy", "p", levels={"80A18005": "SeparateNPU"})
    held = decide(world_after, desired(harsh))
    assert held.actions == [] and held.evicting == set()
    said = [d for d in held.diagnostics if d.severity == "error"]
    assert len(said) == 1 and "held back" in said[0].message and "n0/Ascend910-3" in said[0].message
    assert held.memory.policy_revision == first.memory.policy_revision
    narrow = document("FaultPolicy", "p", levels={"80A18005": "SeparateNPU"}, scope={"nodes": ["n7"]})
    eased = decide(msgspec.structs.replace(world_after, history=held.memory.frozen("")), desired(narrow))
    assert eased.evicting == {"train/j7"}
