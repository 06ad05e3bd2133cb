"""Pools against the cluster: a product that the nodes' own reports contradict."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from belay.engine.cli import coming
from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import PartitionChip, ResetChips
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.plan import CONTRADICTED, Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import plan
from belay.engine.wire import history
from belay.engine.wire.orders import build_report, parse_report
from tests.worlds import A2_LABELS, NOW, agent, desired, document, fault, node, observed, pod, report

TRAINING = {"matchLabels": {"accelerator-type": "module-910b-8"}}
PLAIN = {key: value for key, value in A2_LABELS.items() if key != "node.kubernetes.io/npu.chip.name"}


def declared(product: str | None = "atlas-800t-a3") -> Desired:
    spec: dict[str, Any] = {"selector": TRAINING} | ({"product": product} if product else {})
    return desired(document("NodePool", "training", **spec))


def cluster(chip_name: str = "910B3", *, count: int = 2, labels: dict[str, str] | None = None, **more: Any) -> Observed:
    """Nodes n0 …, with chip 5 of n0 faulty and idle, whose agents report a model of chip."""
    names = [f"n{i}" for i in range(count)]
    reports = [report(name, faults=[fault(5)] if name == "n0" else ()) for name in names]
    agents = [agent(name, chip_name=chip_name) for name in names]
    return observed([node(name, labels=labels) for name in names], reports, agents=agents, **more)


def errors(result: Plan) -> list[Diagnostic]:
    return [one for one in result.diagnostics if one.severity == "error"]


def destructive(result: Plan) -> list[Any]:
    return [action for action in result.actions if isinstance(action, ResetChips | PartitionChip)]


def test_labels_of_node_feature_discovery_select_a_pool_that_gives_the_product() -> None:
    labels = {"feature.node.kubernetes.io/pci-1200_19e5.present": "true"}
    spec: dict[str, Any] = {"selector": {"matchLabels": labels}, "product": "atlas-800t-a2"}
    pools = desired(document("NodePool", "training", **spec))
    result = plan(pools, cluster("910B3", labels=labels), NOW)
    assert {row.pool for row in result.nodes} == {"training"} and errors(result) == []
    assert errors(plan(desired(document("NodePool", "training", **spec | {"product": "atlas-800t-a3"})),
                       cluster("910B3", labels=labels), NOW)) != []  # fmt: skip


@pytest.mark.parametrize("by", ["driver", "label"])
def test_a_product_that_the_nodes_contradict_is_an_error_and_resets_nothing(by: str) -> None:
    seen = cluster("910B3", labels=PLAIN) if by == "driver" else cluster("")
    result = plan(declared(), seen, NOW)

    assert destructive(result) == []
    (found,) = errors(result)
    assert (found.object, found.file, found.field) == ("NodePool/training", "policies/000.yaml", "spec.product")
    for part in ("pool training", "atlas-800t-a3", "n0 and n1", "910B3", "atlas-800t-a2", "correct spec.product to"):
        assert part in found.message
    ((held, why),) = [(one.action, one.action.message) for one in result.deferred if one.budget == CONTRADICTED]
    assert isinstance(held, ResetChips) and held.node == "n0" and "reports chips 910B3" in why


def test_the_reason_is_shown_where_people_ask_about_the_chip() -> None:
    busy = pod("p", node="n0", chips=[4])
    for pods in ((), (busy,)):
        seen = cluster(pods=pods)
        result = plan(declared(), seen, NOW)
        state = next(chip for chip in result.chips if (chip.node, chip.chip) == ("n0", "Ascend910-5"))
        (said,) = coming.of_chip("n0", 5, state, (), result, seen)
        assert "reports chips 910B3, which product atlas-800t-a3 does not have" in said


@pytest.mark.parametrize(
    ("product", "chip_name"),
    [("atlas-800t-a2", "910B3"), (None, "910B3"), ("atlas-800t-a3", "Ascend910-9382"), ("atlas-800t-a3", "910_9399")],
    ids=["right", "by labels", "another spelling", "a model that no product lists"],
)
def test_a_product_that_is_not_contradicted_is_reset(product: str | None, chip_name: str) -> None:
    result = plan(declared(product), cluster(chip_name, labels=PLAIN), NOW)
    assert errors(result) == []
    assert [action.node for action in destructive(result)] == ["n0"]


def test_labels_that_the_driver_contradicts() -> None:
    a3 = {"accelerator": "huawei-Ascend910", "accelerator-type": "module-a3-16"}
    result = plan(desired(), cluster("910B3", labels=a3), NOW)
    assert destructive(result) == []
    (found,) = errors(result)
    assert "labels say product atlas-800t-a3, but n0 and n1 report chips 910B3" in found.message


def test_another_resource_contradicts_too() -> None:
    result = plan(declared("atlas-300i-pro"), cluster("", labels=PLAIN), NOW)
    assert destructive(result) == []
    assert "report resource huawei.com/Ascend910 of atlas-800t-a2" in errors(result)[0].message


def test_a_contradicted_node_is_not_cut() -> None:
    layout = document(
        "VNPULayout", "cut", pool="training", mode="static", chips=[{"chips": [1], "templates": ["vir10_3c_32g"]}]
    )
    for product, cuts in (("atlas-800t-a2", 2), ("atlas-900-a3-superpod", 0)):
        pool = document("NodePool", "training", selector=TRAINING, product=product)
        seen = cluster()
        clean = {name: report(name) for name in seen.reports}
        result = plan(desired(pool, layout), msgspec.structs.replace(seen, reports=clean), NOW)
        assert len(destructive(result)) == cuts, product
        held = [one for one in result.deferred if one.budget == CONTRADICTED]
        assert len(held) == 2 - cuts and all("reports chips 910B3" in one.action.message for one in held)


def test_an_agent_that_names_another_chip_later_is_noticed_with_a_warm_cache() -> None:
    """Views of clean nodes are kept between passes: the driver's chip is one of their inputs."""
    cache, pool = PlanCache(), declared("atlas-800t-a3")
    seen = observed([node("n0", labels=PLAIN)], [report("n0")], agents=[agent("n0", chip_name="910_9391")])
    for _ in range(2):
        assert errors(plan(pool, seen, NOW, cache=cache)) == []

    other = msgspec.structs.replace(seen, agents={"n0": agent("n0", chip_name="910B3")})
    for _ in range(2):
        warm = plan(pool, other, NOW, cache=cache)
        assert len(errors(warm)) == 1 and warm.digest() == plan(pool, other, NOW).digest()


def test_the_report_of_an_agent_carries_its_chip() -> None:
    written = build_report(agent("n0"), "Ascend910-", {"version": "24.1", "chip": "910B3"})
    assert parse_report(written).chip_name == "910B3"
    odd = build_report(agent("n0"), "Ascend910-", {"chip": ["910B3"]})
    assert parse_report(odd).chip_name == ""


# edits of pools


def pools(*rows: tuple[str, dict[str, str]], extra: tuple[dict[str, Any], ...] = (), revision: str = "r1") -> Desired:
    """Pools by name and labels, and more documents."""
    made = [document("NodePool", name, selector={"matchLabels": labels}) for name, labels in rows]
    return desired(*made, *extra, revision=revision)


def racks(count: int = 8) -> Observed:
    """Nodes n0 … in rack a, healthy."""
    names = [f"n{i}" for i in range(count)]
    return observed([node(n, labels=A2_LABELS | {"rack": "a"}) for n in names], [report(n) for n in names])


def warnings(result: Plan) -> list[Diagnostic]:
    return [one for one in result.diagnostics if one.severity == "warning"]


def after(seen: Observed, result: Plan) -> Observed:
    """The same cluster with the memory that the pass has left."""
    return msgspec.structs.replace(seen, history=result.history)


RACK_A, RACK_B = {"rack": "a"}, {"rack": "b"}
SLOW = document("FaultPolicy", "slow-faults", scope={"pools": ["training"]}, levels={"80C98001": "SubHealthFault"})


def test_a_selector_that_loses_all_its_nodes_is_reported_until_it_is_mended() -> None:
    seen = racks()
    first = plan(pools(("training", RACK_A), extra=(SLOW,)), seen, NOW)
    assert warnings(first) == []

    wrong = pools(("training", {"rack": "aa"}), extra=(SLOW,), revision="r2")
    second = plan(wrong, after(seen, first), NOW + 10)
    later = plan(wrong, after(seen, second), NOW + 400)
    for result in (second, later):
        said = {(one.object, one.field): one.message for one in warnings(result)}
        assert said["FaultPolicy/slow-faults", "spec.scope"].startswith(
            "covers nothing: the cluster has no pool training"
        )
        texts = [one.message for one in warnings(result) if one.object == "NodePool/training"]
        (idle,) = [text for text in texts if text.startswith("matches none of 8 nodes")]
        assert "rack is a there, not aa" in idle
        (left,) = [text for text in texts if text.startswith("8 of 8 nodes left pool training")]
        for part in (
            "revision r2",
            "n0, n1, n2, n3, n4 and 3 more are in no declared pool",
            "FaultPolicy slow-faults no longer",
        ):
            assert part in left

    seen = msgspec.structs.replace(seen, agents={})  # their reports would be old by now
    mended = plan(pools(("training", RACK_A), extra=(SLOW,), revision="r3"), after(seen, later), NOW + 410)
    assert warnings(mended) == [] and mended.history.pool_edit is None


def test_a_pool_that_vanishes_with_its_nodes_is_reported_for_a_day() -> None:
    seen = racks()
    first = plan(pools(("training", RACK_A), ("spare", {"rack": "c"})), seen, NOW)
    gone = pools(("spare", {"rack": "c"}), revision="r2")
    second = plan(gone, after(seen, first), NOW + 10)
    (left,) = [one for one in warnings(second) if one.object == "NodePool/training"]
    assert left.message.startswith("8 of 8 nodes left pool training, which is no longer declared, ")

    next_day = plan(gone, after(seen, second), NOW + 90_000)
    assert [one for one in warnings(next_day) if one.object == "NodePool/training"] == []
    assert next_day.history.pool_edit is None


def test_a_few_nodes_that_move_are_a_note_and_two_edits_count_from_the_first() -> None:
    seen = racks()
    odd = msgspec.structs.replace(
        seen, nodes=dict(seen.nodes) | {"n7": node("n7", labels=A2_LABELS | {"rack": "a", "new": "1"})}
    )
    first = plan(pools(("training", RACK_A)), odd, NOW)
    expression = [{"key": "new", "operator": "DoesNotExist"}]
    split = desired(
        document("NodePool", "training", selector={"matchLabels": RACK_A, "matchExpressions": expression}),
        document("NodePool", "fresh", selector={"matchLabels": {"new": "1"}}),
        revision="r2",
    )
    second = plan(split, after(odd, first), NOW + 10)
    assert warnings(second) == []
    (note,) = [one for one in second.diagnostics if one.object == "NodePool/training"]
    assert note.severity == "info" and note.message.startswith("1 of 8 nodes left pool training")
    assert "n7 is in pool fresh now" in note.message

    third = plan(pools(("fresh", {"new": "1"}), revision="r3"), after(odd, second), NOW + 20)
    texts = [one.message for one in warnings(third) if one.object == "NodePool/training"]
    assert len(texts) == 2 and any(text.startswith("7 of 8 nodes left pool training") for text in texts)


def test_an_edit_that_moves_no_node_and_labels_that_change_are_no_edit() -> None:
    seen = racks()
    first = plan(pools(("training", RACK_A)), seen, NOW)
    same = pools(("training", RACK_A | {"accelerator-type": "module-910b-8"}), revision="r2")
    second = plan(same, after(seen, first), NOW + 10)
    assert [d for d in second.diagnostics if d.object.startswith("NodePool/")] == []

    relabelled = dict(seen.nodes) | {"n0": node("n0", labels=A2_LABELS | RACK_B)}
    third = plan(same, after(msgspec.structs.replace(seen, nodes=relabelled), second), NOW + 20)
    assert third.history.pool_edit is None


def test_policies_and_windows_that_cover_no_node() -> None:
    window = {
        "kind": "deny",
        "schedule": "0 8 * * *",
        "duration": "1h",
        "actions": ["EvictPod"],
        "pools": ["inference"],
    }
    extra = (
        document(
            "FaultPolicy", "by-product", scope={"products": ["atlas-800t-a3"]}, levels={"80C98001": "SubHealthFault"}
        ),
        document("FaultPolicy", "by-node", scope={"nodes": ["n99"]}, levels={"80C98001": "SubHealthFault"}),
        document("FaultPolicy", "good", scope={"nodes": ["n1", "n98"]}, levels={"80C98001": "SubHealthFault"}),
        document("SafetyBudget", "hours", windows=[window]),
        document("NodePool", "inference", selector={"matchLabels": {"rack": "z"}}),
    )
    result = plan(pools(("training", RACK_A), extra=extra), racks(), NOW)
    assert {(one.object, one.field) for one in warnings(result)} == {
        ("FaultPolicy/by-product", "spec.scope"), ("FaultPolicy/by-node", "spec.scope"),
        ("SafetyBudget/hours", "spec.windows[0].pools"), ("NodePool/inference", "spec.selector"),
    }  # fmt: skip
    assert all(one.file.startswith("policies/") and one.line for one in warnings(result))


def test_nodes_of_two_pools_are_named_and_a_policy_of_either_covers_them() -> None:
    declared = pools(("training", RACK_A), ("spare", RACK_A), extra=(SLOW,))
    result = plan(declared, racks(2), NOW)
    assert warnings(result) == []
    twice = [one.message for one in result.diagnostics if "is matched by the pools" in one.message]
    assert len(twice) == 2 and all(f"node n{i} is matched by" in text for i, text in enumerate(sorted(twice)))


def test_the_memory_of_an_edit_survives_its_config_map() -> None:
    seen = racks()
    first = plan(pools(("training", RACK_A)), seen, NOW)
    second = plan(pools(("training", RACK_B), revision="r2"), after(seen, first), NOW + 10)
    assert second.history.pool_edit is not None
    written = {"metadata": {"name": "belay-history"}, "data": history.cluster_data(second.history)}
    assert history.parse_cluster(written).pool_edit == second.history.pool_edit


def test_pools_with_a_warm_cache_are_the_same_plan() -> None:
    cache, declared_pools = PlanCache(), pools(("training", RACK_A), extra=(SLOW,))
    seen = racks()
    for nodes in (
        seen.nodes,
        {**seen.nodes, "n0": node("n0", labels=A2_LABELS | RACK_B)},
        dict(list(seen.nodes.items())[:1]),
    ):
        now = msgspec.structs.replace(seen, nodes=nodes)
        assert plan(declared_pools, now, NOW, cache=cache).digest() == plan(declared_pools, now, NOW).digest()
    none_left = msgspec.structs.replace(seen, nodes={"n0": node("n0", labels=A2_LABELS | RACK_B)})
    warm = plan(declared_pools, none_left, NOW, cache=cache)
    assert {one.object for one in warnings(warm)} == {"NodePool/training", "FaultPolicy/slow-faults"}


# values that cannot be met


def queue_of_jobs(capability: dict[str, Any], *, manifest: bool = False) -> Desired:
    if not manifest:
        return desired(
            document("SchedulingSettings", "settings", queues=[{"name": "research", "capability": capability}])
        )
    body = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "research"},
        "spec": {"capability": capability},
    }
    loaded = load({"desired/queue.yaml": json.dumps(body).encode()}, revision="r1")
    return loaded.desired


@pytest.mark.parametrize("manifest", [False, True], ids=["settings", "Queue"])
def test_a_queue_below_its_use_is_a_warning(manifest: bool) -> None:
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "train", "uid": "u-g"}, "spec": {"minMember": 1, "queue": "research"},
    }  # fmt: skip
    live = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "research"},
        "spec": {"capability": {"huawei.com/Ascend910": 64}}, "status": {"state": "Open"},
    }  # fmt: skip
    member = {"scheduling.k8s.io/group-name": "g"}
    pods = [pod(f"p{i}", node=f"n{i}", chips=range(8), annotations=member) for i in range(2)]
    seen = msgspec.structs.replace(racks(), pods={p.key: p for p in pods})
    objects = observed(objects=[group, live]).objects
    seen = msgspec.structs.replace(seen, objects=objects)

    low = plan(queue_of_jobs({"huawei.com/Ascend910": 4}, manifest=manifest), seen, NOW)
    (found,) = [one for one in warnings(low) if "queue research" in one.message]
    assert (
        "may use 4 huawei.com/Ascend910, but its jobs use 16" in found.message
        and "until 12 are given back" in found.message
    )
    assert found.file and found.field.endswith("capability")

    enough = plan(queue_of_jobs({"huawei.com/Ascend910": 16}, manifest=manifest), seen, NOW)
    assert [one for one in warnings(enough) if "queue research" in one.message] == []


def test_limits_of_zero_are_warnings_at_push() -> None:
    limits = [
        {"actions": ["EvictPod"], "per": "cluster", "max": 0, "window": "1h"},
        {"actions": ["ResetChips"], "per": "pool", "max": [0, "0%"], "window": "1h"},
        {"actions": ["IsolateNode"], "per": "cluster", "max": [0, "1%"], "window": "1h"},
        {"actions": ["DeleteObject"], "per": "cluster", "max": 1, "window": "1h"},
    ]
    body = json.dumps(document("SafetyBudget", "freeze", limits=limits), indent=1).encode()
    found = load({"policies/budget.yaml": body}, revision="r1").diagnostics
    assert [(one.severity, one.object, one.field) for one in found] == [
        ("warning", "SafetyBudget/freeze", "spec.limits[0].max"),
        ("warning", "SafetyBudget/freeze", "spec.limits[1].max"),
    ]  # fmt: skip
    assert "pods on faulty chips and nodes are never rescheduled" in found[0].message and found[0].line > 1
