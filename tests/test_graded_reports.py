"""Fault policies apply to every reader of single codes: process recovery, fault subscribers, job status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.engine.cli.explanation import explain
from belay.engine.documents import Declared, Desired, FaultPolicy, NodePool
from belay.engine.load import load
from belay.engine.model.attribution import fault_ranks, health
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import Origin
from belay.engine.model.history import History
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import plan as decided
from belay.engine.plan.health.graded_reports import GradedReports
from belay.engine.plan.rules import in_force
from belay.engine.serve.grpc import fault_view
from belay.engine.serve.grpc.grading import Grading
from belay.engine.serve.grpc.job_view import impact, places, views
from belay.engine.status import ClusterInfo
from belay.engine.status.bodies import config_map
from belay.engine.status.memory import memory_bodies
from belay.engine.status.rescheduling import fault_npu
from belay.engine.wire import names
from belay.engine.wire.clusterd import fault_pb2 as pb
from belay.engine.wire.history import cluster_data
from tests.grpc_world import Client, World, play, until
from tests.worlds import NOW, fault, node, node_report, observed, pod, report, switch

SHIPPED = load({}).desired


def policy(name: str, **spec: Any) -> Declared[FaultPolicy]:
    body = {"apiVersion": "belay.dev/v1alpha1", "kind": "FaultPolicy", "metadata": {"name": name}, "spec": spec}
    return Declared(FaultPolicy.model_validate(body), Origin("policies/p.yaml", 1))


def pool(name: str, labels: dict[str, str], product: str = "") -> NodePool:
    spec: dict[str, Any] = {"selector": {"matchLabels": labels}} | ({"product": product} if product else {})
    return NodePool.model_validate(
        {"apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}
    )


def world(*policies: Declared[FaultPolicy], pools: tuple[NodePool, ...] = (), **report_of: Any) -> Observed:
    """Node n0 with a pod that trains on all of its chips; chip 3 has code 80C98001 at RestartNPU."""
    labels = {"fault-scheduling": "force"}
    pods = [pod("j-0", node="n0", chips=range(8), owner=("AscendJob", "j"), labels=labels, rank=0)]
    more = {"faults": [fault(3, "80C98001", "RestartNPU")]} | report_of
    seen = observed([node("n0"), node("n1")], [report("n0", **more), report("n1")], pods)
    return msgspec.structs.replace(seen, history=History(policy_revision=in_force.text(policies, pools)))


def levels(seen: Observed) -> list[tuple[int, str]]:
    return [(f.chip, f.level) for f in GradedReports(SHIPPED).of(seen).reports["n0"].faults]


@pytest.mark.parametrize(
    ("spec", "level"),
    [
        ({"levels": {"80C98001": "NotHandleFault"}}, "NotHandleFault"),
        ({"levels": {"80c98001": "SeparateNPU"}}, "SeparateNPU"),
        ({"levels": {"80C98002": "SeparateNPU"}}, "RestartNPU"),
        ({"levels": {"80C98001": "SeparateNPU"}, "mode": "shadow"}, "RestartNPU"),
        ({"levels": {"80C98001": "SeparateNPU"}, "scope": {"nodes": ["n0"]}}, "SeparateNPU"),
        ({"levels": {"80C98001": "SeparateNPU"}, "scope": {"nodes": ["n1"]}}, "RestartNPU"),
        ({"levels": {"80C98001": "SeparateNPU"}, "scope": {"workloads": ["training"]}}, "SeparateNPU"),
        ({"levels": {"80C98001": "SeparateNPU"}, "scope": {"workloads": ["inference"]}}, "RestartNPU"),
        ({"levels": {"80C98001": "SeparateNPU"}, "scope": {"pools": ["default"]}}, "SeparateNPU"),
        ({"levels": {"80C98001": "SeparateNPU"}, "scope": {"pools": ["east"]}}, "RestartNPU"),
    ],
)
def test_codes_have_the_levels_of_the_policies_in_scope(spec: dict[str, Any], level: str) -> None:
    assert levels(world(policy("p", **spec))) == [(3, level)]


def test_pools_and_products_are_known_from_what_is_in_force() -> None:
    labels = dict(node("n0").labels)
    key, value = sorted(labels.items())[0]
    east = pool("east", {key: value}, product="atlas-800t-a2" if "atlas-800t-a2" in SHIPPED.products else "")
    spec = {"levels": {"80C98001": "SeparateNPU"}, "scope": {"pools": ["east"]}}
    assert levels(world(policy("p", **spec), pools=(east,))) == [(3, "SeparateNPU")]
    product = SHIPPED.product_of(labels)
    assert product is not None
    by_product = {"levels": {"80C98001": "SeparateNPU"}, "scope": {"products": [product.name]}}
    assert levels(world(policy("p", **by_product))) == [(3, "SeparateNPU")]
    other = {"levels": {"80C98001": "SeparateNPU"}, "scope": {"products": ["another"]}}
    assert levels(world(policy("p", **other))) == [(3, "RestartNPU")]


def test_a_job_that_only_harmless_codes_hit_is_healthy() -> None:
    seen = world(policy("p", levels={"80C98001": "NotHandleFault"}))
    (view,) = views(seen, PlanCache()).values()
    assert impact(view, seen, PlanCache())[0] == "UnHealthy"
    graded = GradedReports(SHIPPED).of(seen)
    state, ranks = impact(view, graded, PlanCache())
    assert (state, [r.level for r in ranks]) == ("Healthy", ["NotHandleFault"])
    shown = [[node.faultLevel for node in fault_view.of_jobs([view], one)] for one in (seen, graded)]
    assert shown == [["UnHealthy"], ["Healthy"]]


def test_switches_and_boards_are_graded_as_the_planner_does() -> None:
    code = "[0x00f103b0,155907,na,na]"
    lowered = policy("p", levels={code: "NotHandleFault", "00000011": "NotHandleFault"})
    seen = world(lowered, faults=(), switch=switch(codes=(code,)))
    board = node_report("n0", "SeparateFault")
    seen = msgspec.structs.replace(seen, node_reports={"n0": board})
    graded = GradedReports(SHIPPED).of(seen)
    told = graded.reports["n0"].switch
    assert told is not None and (told.node_status, told.level) == ("Healthy", "NotHandleFault")
    assert graded.node_reports["n0"].status == "Healthy"
    (view,) = views(graded, PlanCache()).values()
    here = places(view, graded)
    assert health(here, fault_ranks(here, graded.nodes, graded.reports, graded.node_reports)) == "Healthy"


def test_the_shipped_tables_are_read_once_a_policy_needs_them() -> None:
    calls: list[int] = []

    def shipped() -> Desired:
        calls.append(1)
        return SHIPPED

    grading, seen = GradedReports(shipped), world(policy("p", levels={"80C98001": "NotHandleFault"}))
    plain = world()
    assert grading.of(plain) is plain and not calls
    assert grading.of(seen).reports == GradedReports(SHIPPED).of(seen).reports
    grading.of(msgspec.structs.replace(seen))
    assert len(calls) == 1


def test_the_services_read_policies_only_where_one_sets_levels() -> None:
    """Reading them takes 14 MiB of documents; what the services say is the same."""
    silent = policy("p", actions={"SubHealthFault": {"training": "ignore"}})
    setting = policy("q", levels={"80C98001": "NotHandleFault"})
    grading, seen = Grading(), world(silent)
    assert grading.of(seen) is seen and grading._graded is None
    for text in ("{", "[]", '{"faultPolicies": [1]}', '{"faultPolicies": {"a": 1}}'):
        broken = msgspec.structs.replace(seen, history=History(policy_revision=text))
        assert grading.of(broken) is broken
    graded = grading.of(world(silent, setting))
    assert graded.reports == GradedReports(SHIPPED).of(world(silent, setting)).reports != seen.reports
    assert grading.of(world(silent)).reports == seen.reports, "the policy is gone"


def test_unchanged_reports_stay_the_same_objects() -> None:
    grading, seen = GradedReports(SHIPPED), world(policy("p", levels={"80C98001": "NotHandleFault"}))
    first, again = grading.of(seen), grading.of(msgspec.structs.replace(seen))
    assert first.reports["n0"] is again.reports["n0"] and first.reports["n1"] is seen.reports["n1"]
    plain = world()
    assert GradedReports(SHIPPED).of(plain) is plain
    broken = msgspec.structs.replace(seen, history=History(policy_revision="{"))
    assert grading.of(broken) is broken


def test_the_status_of_the_job_and_its_explanation_say_the_same() -> None:
    seen = world(policy("p", levels={"80C98001": "NotHandleFault"}, scope={"workloads": ["training"]}))
    made = Plan(revision="r", now=NOW, history=seen.history)
    (body,) = [b for b in memory_bodies(made, seen) if b["metadata"]["name"] == "belay-job-train.ascendjob.j"]
    told = json.loads(body["data"]["status.json"])["impact"]
    assert (told["state"], [row["level"] for row in told["faults"]]) == ("Healthy", ["NotHandleFault"])
    assert explain("job", "train/j", made, seen)["impact"] == told


def test_subscribers_and_recovery_get_the_levels_of_the_policies_in_force(tmp_path: Path) -> None:
    async def story(cluster: World) -> None:
        job = await cluster.job(strategy="recover")
        await cluster.report("n1", bad={3: ("80C98001", "RestartNPU")}, at=1_788_249_600_000)
        async with cluster.server() as server:
            client = await Client(server.port, job).join()

            async def level() -> str:
                request = pb.ClientInfo(jobId=job, role="any")
                answer = await client.call("GetFaultMsgSignal", request, pb.FaultQueryResult, service="fault.Fault")
                return str(answer.faultSignal.nodeFaultInfo[0].faultLevel) if answer.faultSignal.nodeFaultInfo else ""

            async def graded(wanted: str) -> None:
                async def found() -> bool:
                    return await level() == wanted

                await until(found, f"the job's faults are {wanted or 'none'}")

            await graded("UnHealthy")
            for word, state in (("SubHealthFault", "SubHealthy"), ("NotHandleFault", "Healthy")):
                kept = History(policy_revision=in_force.text([policy("p", levels={"80C98001": word})], ()))
                body = config_map(names.SYSTEM, names.history_config_map("main"), cluster_data(kept))
                await cluster.kube.apply(body)
                await graded(state)
            await client.close()

    play(tmp_path, story)


NET, BAD_SWITCH = "81078607", "[0x00f103b0,155907,na,na]"


def told(spec: dict[str, Any] | None, **report_of: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The entries of n0 for devices, its board and its switch that other components read after a pass; chip 3 faulty,
    chip 5's parameter plane too, and the scheduler's ``vcjob-fault-npu-cm`` beside the first."""
    policies = [policy("p", **spec)] if spec else []
    text = {
        "FaultCode": [BAD_SWITCH],
        "FaultLevel": "Separate",
        "UpdateTime": 7,
        "NodeStatus": "UnHealthy",
        "FaultTimeAndLevelMap": {f"{BAD_SWITCH}_0_1": {"fault_time": 1, "fault_level": "Separate"}},
    }
    own = msgspec.structs.replace(switch(codes=(BAD_SWITCH,)), text=json.dumps(text))
    faults = [fault(3, "80C98001", "RestartNPU"), fault(5, NET, "PreSeparateNPU", kind="CardNetworkUnhealthy")]
    seen = world(**{"faults": faults, "network": [5], "switch": own} | report_of)
    seen = msgspec.structs.replace(seen, node_reports={"n0": node_report("n0", "SeparateFault")})
    desired = replace(SHIPPED, fault_policies=(*SHIPPED.fault_policies, *policies))
    made = decided(desired, seen, NOW)
    bodies = {b["metadata"]["name"]: b["data"] for b in ClusterInfo().bodies(made, seen, desired)}
    names_ = ("cluster-info-device-0", "cluster-info-node-cm", "cluster-info-switch-0")
    device, board, link = (next(iter(json.loads(bodies[name][name]).values())) for name in names_)
    rows = json.loads(fault_npu(made, seen, desired)["data"]["fault-node"] or "[]")
    device["scheduler"] = rows[0]["NetworkUnhealthyNPU"] if rows else []
    return device, board, link


def shown(device: dict[str, Any], kind: str) -> list[str]:
    rows = json.loads(device["DeviceList"]["huawei.com/Ascend910-Fault"])
    return [row["fault_level"] for row in rows if row["fault_type"] == kind]


@pytest.mark.parametrize(
    ("level", "listed", "word"),
    [
        ("", True, "PreSeparateNPU"),
        ("NotHandleFault", False, "NotHandleFault"),
        ("SubHealthFault", True, "SubHealthFault"),
        ("SeparateNPU", True, "SeparateNPU"),
    ],
)
def test_a_policy_on_a_network_code_reaches_the_list_that_others_read(level: str, listed: bool, word: str) -> None:
    device, _, _ = told({"levels": {NET: level}} if level else None)
    names_ = ["Ascend910-5"] if listed else []
    assert device["DeviceList"]["huawei.com/Ascend910-NetworkUnhealthy"] == ",".join(names_)
    assert device["scheduler"] == names_
    assert shown(device, "CardNetworkUnhealthy") == [word]


def test_a_network_code_that_a_policy_raises_is_listed_even_if_the_report_does_not() -> None:
    quiet = [fault(5, NET, "NotHandleFault", kind="CardNetworkUnhealthy")]
    assert told(None, faults=quiet, network=[])[0]["DeviceList"]["huawei.com/Ascend910-NetworkUnhealthy"] == ""
    device, _, _ = told({"levels": {NET: "SeparateNPU"}}, faults=quiet, network=[])
    assert device["DeviceList"]["huawei.com/Ascend910-NetworkUnhealthy"] == "Ascend910-5"


@pytest.mark.parametrize(
    ("spec", "level", "status", "words"),
    [
        (None, "Separate", "UnHealthy", "SeparateFault"),
        ({"levels": {BAD_SWITCH: "NotHandleFault", "00000011": "NotHandleFault"}}, "NotHandle", "Healthy",
         "NotHandleFault"),
        ({"levels": {BAD_SWITCH: "SubHealthFault", "00000011": "PreSeparateNPU"}}, "SubHealthFault", "SubHealthy",
         "PreSeparateFault"),
        ({"levels": {BAD_SWITCH: "RestartRequest"}}, "RestartRequest", "UnHealthy", "SeparateFault"),
        ({"levels": {BAD_SWITCH: "NotHandleFault"}, "scope": {"nodes": ["n1"]}}, "Separate", "UnHealthy",
         "SeparateFault"),
    ],
)  # fmt: skip
def test_policies_on_switch_and_node_codes_reach_what_others_read(
    spec: dict[str, Any] | None, level: str, status: str, words: str
) -> None:
    _, board, link = told(spec)
    assert (link["FaultLevel"], link["NodeStatus"]) == (level, status)
    assert [row["fault_level"] for row in link["FaultTimeAndLevelMap"].values()] == [level]
    assert [row["FaultLevel"] for row in board["FaultDevList"]] == [words]
    # the node's chips are in use: PreSeparate spares their work
    assert board["NodeStatus"] == ("UnHealthy" if words == "SeparateFault" else "Healthy")


def test_a_switch_that_a_policy_raises_is_reported_as_separate() -> None:
    harmless = {"FaultCode": [BAD_SWITCH], "FaultLevel": "NotHandle", "UpdateTime": 7, "NodeStatus": "Healthy"}
    own = msgspec.structs.replace(switch("NotHandle", codes=(BAD_SWITCH,)), text=json.dumps(harmless))
    _, _, link = told({"levels": {BAD_SWITCH: "SeparateNPU"}}, switch=own)
    assert (link["FaultLevel"], link["NodeStatus"]) == ("Separate", "UnHealthy")


@pytest.mark.parametrize(
    ("spec", "level"),
    [
        ({"levels": {"80C98001": "NotHandleFault"}}, "NotHandleFault"),
        ({"actions": {"RestartNPU": {"training": "ignore"}}}, "NotHandleFault"),
        ({"levels": {"80C98001": "SubHealthFault"}}, "SubHealthFault"),
        ({"levels": {"80C98001": "SubHealthFault"}, "actions": {"SubHealthFault": {"training": "ignore"}}},
         "NotHandleFault"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("beside", [(), (fault(3, NET, "PreSeparateNPU", kind="CardNetworkUnhealthy"),)])
def test_a_fault_that_a_policy_ignores_is_not_reported_as_sub_health(
    spec: dict[str, Any], level: str, beside: tuple[Any, ...]
) -> None:
    device, _, _ = told(spec, faults=[fault(3, "80C98001", "RestartNPU"), *beside])
    assert shown(device, "CardUnhealthy") == [level]
    assert device["DeviceList"]["huawei.com/Ascend910-Unhealthy"] == ""


def test_a_fault_ignored_for_other_work_only_keeps_its_level() -> None:
    for spec in (None, {"actions": {"RestartNPU": {"inference": "ignore"}}}):
        device, _, _ = told(spec, faults=[fault(3, "80C98001", "RestartNPU")])
        assert shown(device, "CardUnhealthy") == ["RestartNPU"]
        assert device["DeviceList"]["huawei.com/Ascend910-Unhealthy"] == "Ascend910-3"


def test_without_a_policy_the_reports_stay_unchanged() -> None:
    assert told({"levels": {"80C98002": "SeparateNPU", "0000001F": "SeparateFault"}}) == told(None)


FLAP = {"codes": ["81078607"], "times": 2, "window": "24h", "level": "SeparateNPU", "releaseAfter": "1h"}
LASTS = {"codes": ["81078607"], "timeout": "60s", "recover": "120s", "level": "PreSeparateNPU"}


@pytest.mark.parametrize(
    ("spec", "level", "listed"),
    [
        (None, "NotHandleFault", False),
        ({"duration": [LASTS]}, "PreSeparateNPU", True),
        ({"duration": [LASTS | {"timeout": "10m", "level": "SeparateNPU"}]}, "NotHandleFault", False),
        ({"duration": [LASTS | {"level": "NotHandleFault"}]}, "NotHandleFault", False),
        ({"frequency": [FLAP | {"times": 1}]}, "SeparateNPU", True),
        ({"frequency": [FLAP]}, "NotHandleFault", False),
    ],
)
def test_windows_on_a_network_code_reach_the_lists_that_others_read(
    spec: dict[str, Any] | None, level: str, listed: bool
) -> None:
    quiet = [fault(5, NET, "NotHandleFault", kind="CardNetworkUnhealthy", at=NOW - 600)]
    device, _, _ = told(spec, faults=quiet, network=[])
    names_ = ["Ascend910-5"] if listed else []
    assert device["DeviceList"]["huawei.com/Ascend910-NetworkUnhealthy"] == ",".join(names_)
    assert device["DeviceList"]["huawei.com/Ascend910-Unhealthy"] == "", "the network plane takes no chip out"
    assert device["scheduler"] == names_
    assert shown(device, "CardNetworkUnhealthy") == [level] and shown(device, "CardUnhealthy") == []
    (row,) = json.loads(device["DeviceList"]["huawei.com/Ascend910-Fault"])
    assert row["fault_time_and_level_map"][NET]["fault_level"] == level


def test_a_network_code_held_for_its_frequency_is_reported_until_its_window_ends() -> None:
    spec = {"frequency": [FLAP]}
    desired = replace(SHIPPED, fault_policies=(*SHIPPED.fault_policies, policy("p", **spec)))
    flap = [fault(5, NET, "NotHandleFault", kind="CardNetworkUnhealthy", at=NOW)]
    moments = [(0.0, flap), (60.0, []), (120.0, [msgspec.structs.replace(flap[0], time_ms=int((NOW + 120) * 1000))])]
    history = History()
    for step, (later, faults) in enumerate([*moments, (180.0, []), (180.0 + 3590, []), (180.0 + 3610, [])]):
        now = NOW + later
        seen = world(faults=faults, network=[], update_time=now - 2, version=str(step))
        made = decided(desired, msgspec.structs.replace(seen, history=history), now)
        history = made.history
        (body,) = [b for b in ClusterInfo().bodies(made, seen, desired) if "device" in b["metadata"]["name"]]
        entry = next(iter(json.loads(body["data"]["cluster-info-device-0"]).values()))["DeviceList"]
        told_ = entry["huawei.com/Ascend910-NetworkUnhealthy"], json.loads(entry["huawei.com/Ascend910-Fault"])
        if step in (2, 3, 4):
            assert told_[0] == "Ascend910-5"
            assert [(r["fault_type"], r["fault_level"]) for r in told_[1]] == [("CardNetworkUnhealthy", "SeparateNPU")]
            assert told_[1][0]["fault_code"] == (NET if step == 2 else "")
        else:
            assert told_[0] == "" and [r["fault_level"] for r in told_[1]] == ["NotHandleFault"] * (step == 0)


def test_the_levels_of_both_planes_are_not_mixed_up() -> None:
    """A harmless code of the chip plane does not get the level of the network plane, nor the other way round."""
    faults = [
        fault(5, "80CD8003", "NotHandleFault"),
        fault(5, NET, "SeparateNPU", kind="CardNetworkUnhealthy"),
        fault(6, "80C98001", "RestartNPU"),
        fault(6, NET, "SeparateNPU", kind="CardNetworkUnhealthy"),
    ]
    device, _, _ = told(None, faults=faults, network=[5, 6])
    rows = json.loads(device["DeviceList"]["huawei.com/Ascend910-Fault"])
    assert [(r["npu_name"], r["fault_type"], r["fault_level"]) for r in rows] == [
        ("Ascend910-5", "CardNetworkUnhealthy", "SeparateNPU"),
        ("Ascend910-6", "CardNetworkUnhealthy", "SeparateNPU"),
        ("Ascend910-5", "CardUnhealthy", "NotHandleFault"),
        ("Ascend910-6", "CardUnhealthy", "RestartNPU"),
    ]
