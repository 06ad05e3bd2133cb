"""Bodies of status ConfigMaps and Events, and the writer that sends only what changed."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

import msgspec
import pytest

from belay.engine.cli import answers
from belay.engine.cli.explanation import explain
from belay.engine.cli.narrative import narrate
from belay.engine.cli.waiting import job_standing
from belay.engine.controller.status_writer import StatusWriter
from belay.engine.kube import NotFound
from belay.engine.model.actions import (
    BindPod,
    CreatePod,
    DeleteObject,
    EvictPod,
    Evidence,
    IsolateChip,
    Owner,
    PatchObject,
    Preconditions,
)
from belay.engine.model.causes import Cause, CauseKind
from belay.engine.model.cluster import Observed, SwitchFault
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.history import ChipMemory, History, JobMemory, NodeMemory, RescheduleRecord
from belay.engine.model.plan import ChipState, Deferred, NodeState, Pending, Plan, RepeatOffender
from belay.engine.observe.observed import observe
from belay.engine.plan import plan as decided
from belay.engine.status import (
    ClusterInfo,
    StatusCondition,
    SyncState,
    WriteTracker,
    forgotten,
    memory_bodies,
    status_bodies,
)
from belay.engine.status.bodies import MAX_BYTES
from belay.engine.status.events import events
from belay.engine.status.mindcluster import device_list
from belay.engine.status.rescheduling import scheduler_bodies
from belay.engine.status.status_reader import read_status
from belay.engine.status.sync_status import pool_bodies
from belay.engine.wire import history, names, sync
from tests import worlds
from tests.worlds import NOW

JOB = "train/AscendJob/j"


def named(bodies: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    return {body["metadata"]["name"]: body["data"] for body in bodies}


def plan_of(**changes: Any) -> Plan:
    return msgspec.structs.replace(Plan(revision="abc", now=NOW), **changes)


def broken(node: str = "n0", chip: int = 3) -> ChipState:
    return ChipState(node, f"Ascend910-{chip}", "isolated", "RestartNPU", ("80C98001",), ("CardUnhealthy",), None)


def test_only_memories_that_changed_are_written() -> None:
    same, before, after = NodeMemory(chips={1: ChipMemory(epoch=2)}), NodeMemory(vnpu_epoch=5), NodeMemory(vnpu_epoch=9)
    seen = worlds.observed(history=History(nodes={"same": same, "moved": before, "gone": before}))
    bodies = named(memory_bodies(plan_of(history=History(nodes={"same": same, "moved": after})), seen))
    assert sorted(bodies) == ["belay-history-gone", "belay-history-moved"]
    blank = {"metadata": {"name": "belay-history-gone"}, "data": bodies["belay-history-gone"]}
    assert history.parse_node(blank) == ("gone", NodeMemory())


def test_a_jobs_status_shows_where_it_runs_and_why_it_waits() -> None:
    pods = [worlds.pod(f"j-{i}", node=f"n{i}", chips=range(8), owner=("AscendJob", "j"), rank=i) for i in range(2)]
    data = named(memory_bodies(plan_of(history=History(jobs={JOB: JobMemory(uid="u")})), worlds.world(2, pods=pods)))
    status = json.loads(data["belay-job-train.ascendjob.j"]["status.json"])
    assert data["belay-job-train.ascendjob.j"]["phase"] == "Running"
    assert status["placement"]["j-1"] == {
        "node": "n1", "chips": [f"Ascend910-{c}" for c in range(8)], "phase": "Running",
    }  # fmt: skip
    wait = Pending("AscendJob", "train", "j", ("j-0",), "NPUResourceShortage", "no chips", {"busy": 2}, "evict k")
    data = named(memory_bodies(plan_of(pending=(wait,)), worlds.observed()))
    status = json.loads(data["belay-job-train.ascendjob.j"]["status.json"])
    assert data["belay-job-train.ascendjob.j"]["phase"] == "Pending"
    assert status["pending"] == {"reason": "NPUResourceShortage", "message": "no chips", "nodes": {"busy": 2},
                                 "unblock": "evict k"}  # fmt: skip
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Placed": "False", "Ready": "False"}


@pytest.mark.parametrize(
    ("api", "kind", "key"),
    [
        ("mindxdl.gitee.com/v1", "AscendJob", "AscendJob"),
        ("batch.volcano.sh/v1alpha1", "Job", "Job"),
        ("batch/v1", "Job", "Job.batch"),
        ("apps/v1", "Deployment", "Deployment"),
    ],
)
def test_a_job_whose_pods_are_not_made_yet_is_not_finished(api: str, kind: str, key: str) -> None:
    raw: dict[str, Any] = {
        "apiVersion": api, "kind": kind, "metadata": {"namespace": "train", "name": "j"}, "spec": {"replicas": 1},
    }  # fmt: skip
    remembered = History(jobs={f"train/{key}/j": JobMemory(uid="u")})

    def phases(*objects: dict[str, Any]) -> tuple[str, str, bool]:
        plan, seen = plan_of(history=remembered), worlds.observed(objects=objects)
        (data,) = named(memory_bodies(plan, seen)).values()
        (row,) = answers.jobs(plan, seen).rows
        body = {"metadata": {"name": names.job_config_map("train", key, "j")}, "data": data}
        return data["phase"], row["phase"], job_standing(read_status([body]), "train/j", "running").reached

    assert phases(raw) == ("Pending", "Pending", False), "before its first pod, and while a gang is made again"
    assert phases() == ("Finished", "Finished", True), "its object is gone"
    raw["spec"]["replicas"] = 0
    assert phases(raw)[0] == "Finished", "it is to have none"
    raw |= {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert phases(raw)[0] == "Succeeded"


def test_a_job_that_failed_is_not_ready_and_the_way_to_run_it_again_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = "Job <train/j> has failed because has pod failed."
    job = {
        "apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "metadata": {"namespace": "train", "name": "j"},
        "status": {"conditions": [
            {"type": "Running", "status": "False", "message": "runs"},
            {"type": "Failed", "status": "True", "reason": "JobFailed", "message": said},
        ]},
    }  # fmt: skip
    pods = [
        worlds.pod("j-0", node="n0", chips=range(8), owner=("AscendJob", "j")),
        worlds.pod("j-1", node="n1", chips=range(8), owner=("AscendJob", "j"), phase="Failed", exit_code=137),
    ]
    seen = worlds.world(2, pods=pods, objects=[job])
    data = named(memory_bodies(plan_of(), seen))["belay-job-train.ascendjob.j"]
    (ready,) = [c for c in json.loads(data["status.json"])["conditions"] if c["type"] == "Ready"]
    assert (data["phase"], ready["status"], ready["reason"], ready["message"]) == ("Failed", "False", "Failed", said)
    read = read_status([{"metadata": {"name": "belay-job-train.ascendjob.j"}, "data": data}])
    assert [(job.failure["reason"], job.failure["message"]) for job in read.jobs] == [("Failed", said)]
    (row,) = answers.jobs(plan_of(), seen).rows
    assert (row["phase"], row["reason"]) == ("Failed", said)
    body = explain("job", "train/j", plan_of(), seen)
    assert [(pod["pod"], pod["exit codes"]) for pod in body["failedPods"]] == [("j-1", [137])]
    narrate("job", body, sys.stdout, None)
    text = capsys.readouterr().out
    assert "AscendJob train/j has failed: 1 of its pods still runs" in text and said in text
    assert "kubectl delete -n train ascendjob j" in text and "keep 8 chips" in text


def test_a_removed_job_leaves_no_config_map() -> None:
    seen = worlds.observed(history=History(jobs={JOB: JobMemory(), "a/Job/kept": JobMemory()}))
    assert forgotten(plan_of(history=History(jobs={"a/Job/kept": JobMemory()})), seen) == [
        "belay-job-train.ascendjob.j"
    ]


def test_sync_holds_revisions_conditions_findings_and_inventory() -> None:
    key = ObjectKey("v1", "ConfigMap", "default", "a")
    gone = DeleteObject(reason="Pruned", message="deleting a", api_version="v1", object_kind="ConfigMap",
                        namespace="default", name="a")  # fmt: skip
    state = SyncState(
        attempted="new",
        applied="old",
        conditions=(StatusCondition("Ready", "False", "BadDocuments", "1 error"),),
        diagnostics=(Diagnostic("error", "", "desired/a.yaml", 9, 17, "spec.x", "must be a number"),),
        inventory=(key,),
        roles={"schedule": "on", "expand_ascend_job": "off"},
    )
    plan = plan_of(deferred=(Deferred(gone, "prune", None),))
    data = named(status_bodies(plan, worlds.observed(), state, None))["belay-sync"]
    assert (data[sync.ATTEMPTED], data[sync.APPLIED]) == ("new", "old")
    assert json.loads(data["conditions.json"])[0]["reason"] == "BadDocuments"
    assert "desired/a.yaml:9:17" in data["summary"]
    assert json.loads(data["roles.json"]) == {"expandAscendJob": "off", "schedule": "on"}, "as people write them"
    assert json.loads(data["deferred.json"]) == [
        {"action": "DeleteObject", "what": "deleting a", "budget": "prune", "until": None}
    ]
    assert sync.parse_inventory({"data": data}) == (key,)


def test_too_many_findings_are_cut_with_a_count() -> None:
    many = tuple(Diagnostic("error", "", f"f{i}", 1, 1, "", "x" * 900) for i in range(3000))
    data = named(status_bodies(plan_of(), worlds.observed(), SyncState(diagnostics=many), None))["belay-sync"]
    assert sum(map(len, data.values())) < MAX_BYTES
    assert "diagnostics" in data["leftOut"]


def test_a_pool_lists_what_is_not_plainly_healthy_with_its_history() -> None:
    nodes = (
        NodeState("n0", "p", "healthy", "NormalNPU", ()),
        NodeState("n1", "p", "isolated", "SeparateFault", ("0A",)),
    )
    memory = {"n0": NodeMemory(chips={3: ChipMemory(timeline=((int(NOW) * 1000, "isolated: RestartNPU"),))})}
    plan = plan_of(nodes=nodes, chips=(broken(),), history=History(nodes=memory))
    data = named(status_bodies(plan, worlds.observed(), SyncState(), None))["belay-pool-p"]
    assert json.loads(data["nodes"]) == {"healthy": 1, "isolated": 1}
    assert [n["node"] for n in json.loads(data["nodes.json"])] == ["n1"]
    chip = json.loads(data["chips.json"])[0]
    assert chip["faultType"] == ["CardUnhealthy"]
    assert chip["history"] == [{"time": "2026-09-01T08:00:00Z", "what": "isolated: RestartNPU"}]


def test_a_pool_is_not_written_because_failures_decay() -> None:
    def pool(failures: float) -> dict[str, Any]:
        offender = RepeatOffender("n0", "Ascend910-3", failures, 2.0, False)
        plan = plan_of(nodes=(NodeState("n0", "training", "healthy", "NormalNPU", ()),), repeat_offenders=(offender,))
        return named(pool_bodies(plan))["belay-pool-training"]

    assert pool(0.999995) == pool(0.999981) != pool(0.98)
    assert json.loads(pool(0.999995)["lemons.json"])[0]["failures"] == 1.0


def test_the_aggregate_shows_what_was_isolated_and_its_readers_can_parse_it() -> None:
    seen = worlds.world(2)
    data = named(ClusterInfo().bodies(plan_of(chips=(broken(),)), seen))
    devices = json.loads(data["cluster-info-device-0"]["cluster-info-device-0"])
    first = devices["mindx-dl-deviceinfo-n0"]
    assert first["CmName"] == "mindx-dl-deviceinfo-n0"
    assert first["DeviceList"]["huawei.com/Ascend910-Unhealthy"] == "Ascend910-3"
    assert "Ascend910-3" not in first["DeviceList"]["huawei.com/Ascend910"].split(",")
    assert json.loads(first["DeviceList"]["huawei.com/Ascend910-Fault"])[0]["fault_level"] == "RestartNPU"
    assert devices["mindx-dl-deviceinfo-n1"]["DeviceList"]["huawei.com/Ascend910-Unhealthy"] == ""
    assert list(first["DeviceList"]) == sorted(first["DeviceList"])


def test_aggregates_are_sharded_by_size_and_a_surplus_shard_is_blanked() -> None:
    info = ClusterInfo()
    large = observe([])
    reports = {f"n{i:05d}": worlds.report(f"n{i:05d}") for i in range(3000)}
    nodes = {name: worlds.node(name) for name in reports}
    large = msgspec.structs.replace(large, nodes=nodes, reports=reports)
    shards = {k: v[k] for k, v in named(info.bodies(plan_of(), large)).items() if k.startswith("cluster-info-device")}
    assert len(shards) > 1
    assert all(len(text.encode()) <= MAX_BYTES for text in shards.values())
    assert sum(len(json.loads(text)) for text in shards.values()) == 3000
    fewer = named(info.bodies(plan_of(), worlds.world(1)))
    assert len(json.loads(fewer["cluster-info-device-0"]["cluster-info-device-0"])) == 1
    assert {fewer[name][name] for name in shards if name != "cluster-info-device-0"} == {""}
    none = named(info.bodies(plan_of(), observe([])))
    assert {none[name][name] for name in (*shards, "cluster-info-node-cm")} == {""}


def test_heartbeats_of_agents_alone_write_no_aggregate() -> None:
    """Of a thousand nodes some report has always a new time: the aggregates, and a pass, were due each second."""
    info, clock = ClusterInfo(), [0.0]
    tracker = WriteTracker(lambda: clock[0])

    def written(seen: Observed, seconds: float) -> set[str]:
        clock[0] = seconds
        bodies = info.bodies(msgspec.structs.replace(plan_of(), now=NOW + seconds), seen)
        due = tracker.due(bodies)
        for body in due:
            tracker.record_write(body)
        assert tracker.next_due(bodies) == 0, "nothing is held back"
        return {body["metadata"]["name"] for body in due if "-device-" in body["metadata"]["name"]}

    def later(seen: Observed, seconds: float, **changes: Any) -> Observed:
        report = seen.reports["n1"]
        again = {"update_time": NOW + seconds, "resource_version": str(seconds), **changes}
        return msgspec.structs.replace(seen, reports=seen.reports | {"n1": msgspec.structs.replace(report, **again)})

    seen = worlds.world(3)
    assert written(seen, 0) == {"cluster-info-device-0"}
    for second in (2, 10, 30, 59):
        assert written(later(seen, second), second) == set()
    beaten = later(seen, 60)
    assert written(beaten, 60) == {"cluster-info-device-0"}, "readers call a report stale after minutes"
    changed = later(beaten, 62, free=beaten.reports["n1"].free & ~1)
    assert written(changed, 62) == {"cluster-info-device-0"}, "what changed is written at once"


def test_network_lists_are_left_out_where_the_report_has_none() -> None:
    report = worlds.report("n0", network=None)
    assert not any(key.endswith("-NetworkUnhealthy") for key in device_list(report, ()))


@pytest.mark.parametrize(
    ("resource", "network", "keys"),
    [
        ("Ascend910", (), {"", "-Unhealthy", "-NetworkUnhealthy", "-Recovering", "-Fault"}),
        ("npu", (), {"", "-Unhealthy", "-NetworkUnhealthy", "-Recovering", "-Fault"}),
        ("Ascend310P", None, {"", "-Unhealthy", "-Fault"}),
        # the device plugin writes the faults of 310 chips under the key of 310P ones
        ("Ascend310", None, {"", "-Unhealthy", "P-Fault"}),
    ],
)
def test_the_aggregate_has_the_keys_of_the_node_s_own_report(
    resource: str, network: tuple[int, ...] | None, keys: set[str]
) -> None:
    own = worlds.report("n0", network=network, faults=[worlds.fault(3)], unhealthy=[3])
    own = msgspec.structs.replace(own, resource=f"huawei.com/{resource}", prefix=f"{resource}-")
    lists = device_list(own, (broken(),))
    assert set(lists) == {f"huawei.com/{resource}{key}" for key in keys}
    (fault,) = json.loads(next(value for key, value in lists.items() if key.endswith("-Fault")))
    assert (fault["npu_name"], lists[f"huawei.com/{resource}-Unhealthy"]) == (f"{resource}-3", f"{resource}-3")


RIDES_OUT = {"huawei.com/schedule.filter.faultLevel": "RestartNPU:600"}


@pytest.mark.parametrize(
    ("at", "notes", "levels", "listed", "told"),
    [
        (NOW - 500, {}, {}, True, [("80C98001,80E18402", "RestartNPU")]),
        (NOW - 500, RIDES_OUT, {}, False, [("80E18402", "NotHandleFault")]),
        (NOW - 601, RIDES_OUT, {}, True, [("80C98001,80E18402", "RestartNPU")]),
        (NOW - 500, {}, {"80C98001": "SubHealthFault"}, False, [("80C98001,80E18402", "SubHealthFault")]),
        (NOW - 500, {}, {"80E18402": "SeparateNPU"}, True, [("80C98001,80E18402", "SeparateNPU")]),
    ],
)
def test_a_scheduler_beside_belay_gets_the_levels_of_jobs_and_policies(
    at: float, notes: dict[str, str], levels: dict[str, str], listed: bool, told: list[tuple[str, str]]
) -> None:
    faults = [worlds.fault(3, at=at), worlds.fault(3, "80E18402", "NotHandleFault", at=at)]
    pod = worlds.pod("j-0", node="n0", chips=range(8), owner=("AscendJob", "j"), annotations=notes)
    seen = worlds.observed([worlds.node("n0")], [worlds.report("n0", faults=faults, unhealthy=[3])], [pod])
    desired = worlds.desired(worlds.document("FaultPolicy", "own", levels=levels)) if levels else worlds.desired()
    made = decided(desired, seen, NOW)
    shard = named(ClusterInfo().bodies(made, seen))["cluster-info-device-0"]["cluster-info-device-0"]
    lists = json.loads(shard)["mindx-dl-deviceinfo-n0"]["DeviceList"]
    assert lists["huawei.com/Ascend910-Unhealthy"] == ("Ascend910-3" if listed else "")
    rows = json.loads(lists["huawei.com/Ascend910-Fault"])
    assert [(row["fault_code"], row["fault_level"]) for row in rows] == told
    (node,) = json.loads(named(scheduler_bodies(made, seen))["vcjob-fault-npu-cm"]["fault-node"])
    assert node["UnhealthyNPU"] == (["Ascend910-3"] if listed else [])


def test_faulty_nodes_and_retries_are_written_in_the_schedulers_form() -> None:
    """Byte for byte as in the reference's sample of this ConfigMap."""
    faults = [
        worlds.fault(4, "A8028801", "SeparateNPU"),
        worlds.fault(0, "81078603", "PreSeparateNPU", kind="CardNetworkUnhealthy"),
    ]
    report = worlds.report("n0", faults=faults, network=[0], update_time=1744182212.0)
    pod = worlds.pod("j-0", node="n0", chips=[1], owner=("AscendJob", "j"), labels={"fault-retry-times": "3"})
    seen = worlds.observed([worlds.node("n0")], [report], [pod])
    chips = (
        ChipState("n0", "Ascend910-0", "sub-healthy", "PreSeparateNPU", ("81078603",), ("CardNetworkUnhealthy",), None),
        ChipState("n0", "Ascend910-4", "isolated", "SeparateNPU", ("A8028801",), ("CardUnhealthy",), None),
    )
    plan = plan_of(nodes=(NodeState("n0", "p", "healthy", "NormalNPU", ()),), chips=chips)
    data = named(scheduler_bodies(plan, seen))["vcjob-fault-npu-cm"]
    assert data["fault-node"] == (
        '[{"FaultDeviceList":[{"fault_type":"CardNetworkUnhealthy","npu_name":"Ascend910-0",'
        '"fault_level":"PreSeparateNPU","fault_handling":"PreSeparateNPU","large_model_fault_level":"PreSeparateNPU",'
        '"fault_code":"81078603"},{"fault_type":"CardUnhealthy","npu_name":"Ascend910-4","fault_level":"SeparateNPU",'
        '"fault_handling":"SeparateNPU","large_model_fault_level":"SeparateNPU","fault_code":"A8028801"}],'
        '"NodeName":"n0","UnhealthyNPU":["Ascend910-4"],"NetworkUnhealthyNPU":["Ascend910-0"],'
        '"NodeDEnable":true,"NodeHealthState":"CardUnhealthy","UpdateTime":1744182212}]'
    )
    assert data["remain-retry-times"] == '{"train/j-uid-train-j":{"UUID":"uid-train-j","Times":3}}'
    used = msgspec.structs.replace(plan, history=History(jobs={JOB: JobMemory(uid="uid-train-j", retries=1)}))
    data = named(scheduler_bodies(used, seen))["vcjob-fault-npu-cm"]
    assert data["remain-retry-times"] == '{"train/j-uid-train-j":{"UUID":"uid-train-j","Times":1}}'
    anew = msgspec.structs.replace(plan, history=History(jobs={JOB: JobMemory(uid="an earlier job", retries=0)}))
    data = named(scheduler_bodies(anew, seen))["vcjob-fault-npu-cm"]
    assert json.loads(data["remain-retry-times"])["train/j-uid-train-j"]["Times"] == 3, "a recreated job starts afresh"
    quiet = named(scheduler_bodies(plan_of(), worlds.world(1)))
    assert quiet["vcjob-fault-npu-cm"] == {"fault-node": "", "remain-retry-times": ""}
    assert quiet["job-reschedule-reason"] == {"recent-reschedule-records": ""}


def test_a_node_that_is_not_ready_has_the_documented_element() -> None:
    nodes = [
        msgspec.structs.replace(worlds.node("n0", labels={"nodeDEnable": "off"}), ready=False, ready_changed=NOW - 600)
    ]
    seen = worlds.observed(nodes, [worlds.report("n0", faults=[worlds.fault(3)], unhealthy=[3])], [])
    (node,) = json.loads(
        named(scheduler_bodies(decided(worlds.desired(), seen, NOW), seen))["vcjob-fault-npu-cm"]["fault-node"]
    )
    away, chip = node["FaultDeviceList"]
    assert away == {
        "fault_type": "NodeUnhealthy",
        "npu_name": "",
        "fault_level": "",
        "fault_handling": "",
        "large_model_fault_level": "",
        "fault_code": "heartbeatTimeOut",
    }
    assert (chip["npu_name"], node["NodeHealthState"], node["NodeDEnable"]) == ("Ascend910-3", "NodeUnhealthy", False)


def test_reschedules_are_listed_newest_first_within_950_kib() -> None:
    records = tuple(
        RescheduleRecord(1748790061000 + 1000 * n, (("CardUnhealthy", f"j-{n}", "n0", "3"),)) for n in (2, 1)
    )
    memory = JobMemory(uid="u", rescheduled=5, records=records)
    data = named(scheduler_bodies(plan_of(history=History(jobs={JOB: memory})), worlds.world(1)))
    assert data["job-reschedule-reason"]["recent-reschedule-records"] == (
        '{"train/j-u":{"JobID":"train/j-u","TotalRescheduleTimes":5,"RescheduleRecords":[{"LogFileFormatTime":'
        '"I0601 15:01:03","RescheduleTimeStamp":1748790063,"ReasonOfTask":[{"RescheduleReason":"CardUnhealthy",'
        '"PodName":"j-2","NodeName":"n0","NodeRankIndex":"3"}]},{"LogFileFormatTime":"I0601 15:01:02",'
        '"RescheduleTimeStamp":1748790062,"ReasonOfTask":[{"RescheduleReason":"CardUnhealthy","PodName":"j-1",'
        '"NodeName":"n0","NodeRankIndex":"3"}]}]}}'
    )
    long = RescheduleRecord(1000, tuple(("CardUnhealthy", f"pod-{n}" * 20, "node" * 20, "1") for n in range(10)))
    many = {f"train/AscendJob/j{n}": JobMemory(uid="u", records=(long,) * 10) for n in range(200)}
    data = named(scheduler_bodies(plan_of(history=History(jobs=many)), worlds.world(1)))
    text = data["job-reschedule-reason"]["recent-reschedule-records"]
    told = json.loads(text)
    assert len(text) <= 950 * 1024 and len(told) == 200
    assert {len(row["RescheduleRecords"]) for row in told.values()} == {1}
    assert {row["AdditionalInfo"] for row in told.values()} == {"9 older records are left out for their length"}


def test_work_on_a_chip_at_pre_separate_is_spared_in_the_aggregates_too() -> None:
    """Else a foreign scheduler that reads them would evict what Belay leaves in place."""
    report = worlds.report("n0", faults=[worlds.fault(3, "80F38008", "PreSeparateNPU")], unhealthy=[])
    seen = worlds.observed(
        [worlds.node("n0")], [report], node_reports=[worlds.node_report("n0", "PreSeparateFault", codes=("0300000D",))]
    )

    def told(user: str | None) -> tuple[str, str]:
        chip = ChipState("n0", "Ascend910-3", "isolated", "PreSeparateNPU", ("80F38008",), ("CardUnhealthy",), user)
        state = NodeState("n0", "p", "pre-isolated", "PreSeparateFault", ())
        data = named(ClusterInfo().bodies(plan_of(nodes=(state,), chips=(chip,)), seen))
        device = json.loads(data["cluster-info-device-0"]["cluster-info-device-0"])["mindx-dl-deviceinfo-n0"]
        text = data["cluster-info-node-cm"]["cluster-info-node-cm"]
        assert text.startswith('{"mindx-dl-nodeinfo-n0":{"FaultDevList":[{"DeviceType":"CPU","DeviceId":1,"FaultCode":')
        return device["DeviceList"]["huawei.com/Ascend910-Unhealthy"], json.loads(text)["mindx-dl-nodeinfo-n0"][
            "NodeStatus"
        ]

    assert told("train/p") == ("", "Healthy")
    assert told(None) == ("Ascend910-3", "UnHealthy")


def test_a_switch_entry_has_its_keys_in_clusterd_s_order() -> None:
    text = '{"NodeStatus":"PreSeparate","UpdateTime":7,"FaultLevel":"PreSeparate","FaultCode":[],'
    text += '"FaultTimeAndLevelMap":{}}'
    switch = msgspec.structs.replace(worlds.switch("PreSeparate"), text=text)
    seen = worlds.observed([worlds.node("n0")], [worlds.report("n0", switch=switch)])
    data = named(ClusterInfo().bodies(plan_of(), seen))["cluster-info-switch-0"]["cluster-info-switch-0"]
    assert data == (
        '{"mindx-dl-switchinfo-n0":{"FaultCode":[],"FaultLevel":"PreSeparate","UpdateTime":7,"NodeStatus":"UnHealthy",'
        '"FaultTimeAndLevelMap":{},"CmName":"mindx-dl-switchinfo-n0"}}'
    )


def test_switch_faults_that_jobs_tolerate_are_not_aggregated() -> None:
    """As ClusterD's custom filter leaves them out: Volcano reads the rest."""
    code, other = "[0x00f1ff09,155912,cpu,na]", "[0x08520003,na,L2,na]"
    rows = {
        f"{code}_0_1": {"fault_time": 1, "fault_level": "Separate"},
        f"{code}_0_2": {"fault_time": 2, "fault_level": "Separate"},
        f"{other}_0_3": {"fault_time": 3, "fault_level": "SubHealthFault"},
    }
    items = [
        json.dumps({"AssembledFaultCode": place.rsplit("_", 2)[0], "SwitchChipId": 0, "SwitchPortId": int(place[-1])})
        for place in rows
    ]
    body = {"FaultCode": items, "FaultLevel": "Separate", "UpdateTime": 7, "NodeStatus": "UnHealthy"}
    text = json.dumps(body | {"FaultTimeAndLevelMap": rows})
    faults = tuple(SwitchFault(p.rsplit("_", 2)[0], row["fault_level"], row["fault_time"]) for p, row in rows.items())
    whole = msgspec.structs.replace(worlds.switch(codes=[code, other]), text=text, faults=faults)
    seen = worlds.observed([worlds.node("n0")], [worlds.report("n0", switch=whole)])

    def told(left: tuple[SwitchFault, ...] | None, level: str = "Separate") -> tuple[list[str], str, str]:
        """``level`` is the switch's as the planner sees it without the faults that jobs tolerate."""
        codes = tuple(sorted({fault.code for fault in left or ()}))
        switches = {} if left is None else {"n0": msgspec.structs.replace(whole, level=level, faults=left, codes=codes)}
        data = named(ClusterInfo().bodies(plan_of(switches=switches), seen))["cluster-info-switch-0"]
        entry = json.loads(data["cluster-info-switch-0"])["mindx-dl-switchinfo-n0"]
        assert entry["FaultCode"] == [items[list(rows).index(place)] for place in entry["FaultTimeAndLevelMap"]]
        return list(entry["FaultTimeAndLevelMap"]), entry["FaultLevel"], entry["NodeStatus"]

    assert told(None) == (list(rows), "Separate", "UnHealthy")
    assert told(faults[1:]) == (list(rows)[1:], "Separate", "UnHealthy")
    assert told(faults[2:], "SubHealthFault") == (list(rows)[2:], "SubHealthFault", "SubHealthy")
    assert told(()) == ([], "NotHandle", "Healthy")


def test_events_report_what_happened_once_and_not_routine() -> None:
    done = [
        EvictPod(reason="ChipFault", message="gone", namespace="a", pod="p", grace_period_seconds=0, force=True,
                 owner=Owner("AscendJob", "j"), budget_unit="u"),
        BindPod(reason="Placed", message="placed", namespace="a", pod="q", node="n", chips=(), annotations={},
                preconditions=Preconditions(uid="u-1")),
        IsolateChip(reason="ChipFault", message="out", node="n", chips=("Ascend910-1",), level="SeparateNPU"),
        CreatePod(reason="Missing", message="made", namespace="a", pod="q", owner=Owner("AscendJob", "j"), object={}),
    ]  # fmt: skip
    found = events(done, NOW)
    assert [(e["type"], e["reason"], e["involvedObject"]["name"]) for e in found] == [
        ("Warning", "ChipFault", "p"),
        ("Normal", "Scheduled", "q"),
        ("Warning", "ChipFault", "n"),
    ]
    assert [e["involvedObject"].get("uid") for e in found] == [None, "u-1", "n"], "kubectl describe looks by uid"
    assert [e["metadata"]["name"] for e in found] == [e["metadata"]["name"] for e in events(done, NOW)]
    assert len(events(done * 500, NOW)) == 100


def test_events_name_the_cause_apart_from_what_is_done() -> None:
    cause = Cause(
        kind=CauseKind.DOCUMENT, subject="FaultPolicy/site", rule="frequency", file="policies/site.yaml", line=7,
        commit="0123456789abcdef",
    )  # fmt: skip
    out = IsolateChip(reason="ChipFault", message="out", node="n", chips=("Ascend910-1",), level="SeparateNPU",
                      evidence=Evidence(cause=cause))  # fmt: skip
    bound = BindPod(reason="Placed", message="placed", namespace="a", pod="q", node="n", chips=(), annotations={},
                    evidence=Evidence(cause=cause))  # fmt: skip
    assert [one["message"] for one in events([out, bound], NOW)] == [
        "out; because of FaultPolicy/site frequency at policies/site.yaml:7@0123456789ab",
        "Successfully assigned a/q to n",
    ]


def test_a_request_to_reboot_is_seen_on_the_node() -> None:
    asked = PatchObject(reason="ResetsFailed", message="may heal it", api_version="v1", object_kind="Node",
                        namespace="", name="n0", patch={})  # fmt: skip
    other = PatchObject(reason="HotSwitch", message="x", api_version="v1", object_kind="Pod", namespace="a", name="p",
                        patch={})  # fmt: skip
    (found,) = events([asked, other], NOW)
    assert (found["type"], found["reason"]) == ("Warning", "ResetsFailed")
    assert found["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "namespace": "", "name": "n0", "uid": "n0"}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def body(text: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "s", "name": "a"}, "data": {"x": text}}


def test_the_writer_sends_only_changes_and_at_most_one_a_second() -> None:
    clock = Clock()
    tracker = WriteTracker(clock)
    assert tracker.due([body("1")]) == [body("1")]
    tracker.record_write(body("1"))
    assert tracker.due([body("1")]) == []
    assert tracker.due([body("2")]) == []
    clock.now += 0.75
    assert tracker.due([body("2")]) == [] and tracker.next_due([body("2")]) == 0.25
    clock.now += 0.25
    assert tracker.due([body("2")]) == [body("2")]
    tracker.record_write(body("2"))
    assert tracker.next_due([body("2")]) == 0.0
    tracker.forget(body("2"))
    clock.now += 1.0
    assert tracker.due([body("2")]) == [body("2")]


def test_what_people_watch_waits_a_fifth_of_a_second_only() -> None:
    clock = Clock()
    tracker = WriteTracker(clock)
    tracker.record_write({"metadata": {"namespace": "belay-system", "name": "belay-pool-a"}, "data": {"x": "1"}})
    changed = {"metadata": {"namespace": "belay-system", "name": "belay-pool-a"}, "data": {"x": "2"}}
    assert tracker.due([changed]) == [] and 0.0 < tracker.next_due([changed]) <= 0.2
    clock.now += 0.25
    assert tracker.due([changed]) == [changed]


def test_after_a_restart_the_writer_learns_what_is_there() -> None:
    tracker = WriteTracker(Clock())
    tracker.record_live({"metadata": {"namespace": "s", "name": "a", "resourceVersion": "7"}, "data": {"x": "1"}})
    assert tracker.due([body("1")]) == []
    assert tracker.due([body("2")]) == [body("2")]


def test_a_volcano_job_with_one_of_two_pods_does_not_run_yet() -> None:
    raw = {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v", "namespace": "train"},
        "spec": {"minAvailable": 2, "tasks": [{"name": "w", "replicas": 2}]},
    }  # fmt: skip
    owner = {"owner": ("Job", "v"), "owner_api": "batch.volcano.sh/v1alpha1"}
    one = worlds.pod("v-w-0", node="n0", chips=range(8), **owner)
    other = worlds.pod("v-w-1", phase="Succeeded", **owner)

    def told(*pods: Any) -> tuple[str, str]:
        seen = worlds.world(2, pods=pods, objects=[raw])
        data = named(memory_bodies(plan_of(), seen))["belay-job-train.job.v"]
        (row,) = answers.jobs(plan_of(), seen).rows
        ready = next(c["status"] for c in json.loads(data["status.json"])["conditions"] if c["type"] == "Ready")
        assert (ready == "True") is (data["phase"] == "Running")
        return data["phase"], row["phase"]

    assert told(one) == ("Starting", "Starting")
    assert told(one, other) == ("Running", "Running"), "one that has done its work counts"
    raw["status"] = {"state": {"phase": "Failed"}}
    assert told(one) == ("Failed", "Failed")


def test_aggregates_are_published_again_while_others_read_them() -> None:
    clock = Clock()
    tracker = WriteTracker(clock)
    aggregate = body("1")
    aggregate["metadata"]["labels"] = {"mx-consumer-volcano": "true"}
    for one in (aggregate, own := {"metadata": {"namespace": "s", "name": "b"}, "data": {}}):
        tracker.record_write(one)
    clock.now += 60
    assert tracker.due([aggregate, own]) == [] and tracker.next_due([aggregate, own]) == 0.0
    tracker.has_foreign_readers = True
    assert tracker.due([aggregate, own]) == [aggregate]
    tracker.record_write(aggregate)
    assert tracker.due([aggregate]) == [] and tracker.next_due([aggregate, own]) == 5.0
    clock.now += 5
    assert tracker.due([aggregate]) == [aggregate]


def test_what_is_published_again_differs_by_its_time_only() -> None:
    """A write that changes nothing reaches no watch, so a foreign reader would take silence for death."""
    sent: list[dict[str, Any]] = []

    class Kube:
        async def apply(self, body: dict[str, Any]) -> dict[str, Any]:
            sent.append(body)
            stored = {"uid": "u", "resourceVersion": str(len(sent)), **body["metadata"]}
            return {**body, "metadata": stored}

    clock = Clock()
    writer = StatusWriter(Kube(), clock, lambda: 1000.0 + clock.now)  # type: ignore[arg-type]
    bodies = [b for b in ClusterInfo().bodies(plan_of(), worlds.world(1)) if "device-0" in b["metadata"]["name"]]
    assert asyncio.run(writer.write_status(bodies)) == 0.0
    assert asyncio.run(writer.write_status(bodies, foreign=True)) == 5.0
    clock.now += 5
    asyncio.run(writer.write_status(bodies, foreign=True))
    first, again = sent
    assert "annotations" not in first["metadata"] and first["data"] == again["data"]
    assert again["metadata"]["annotations"] == {"belay.dev/published": "1105"}
    clock.now += 50
    assert asyncio.run(writer.write_status(bodies)) == 0.0 and len(sent) == 2


def test_a_missing_namespace_is_said_once_and_asked_for_less_and_less(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[float] = []
    written: list[str] = []
    missing = True

    class Kube:
        async def apply(self, body: dict[str, Any]) -> dict[str, Any]:
            metadata = body["metadata"]
            if metadata["namespace"] == "cluster-system" and missing:
                tries.append(clock.now)
                raise NotFound('namespaces "cluster-system" not found', status=404, reason="NotFound")
            written.append(metadata["name"])
            return {**body, "metadata": {"uid": "u", "resourceVersion": str(len(written)), **metadata}}

    def body(namespace: str, name: str, value: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": {"a": value},
        }

    caplog.set_level("INFO")
    clock = Clock()
    writer = StatusWriter(Kube(), clock, lambda: 1000.0)  # type: ignore[arg-type]
    lost, other = body("cluster-system", "scheduling-exception-report", "0"), body("belay-system", "belay-sync", "0")
    start = clock.now
    while clock.now < start + 3600:
        again = asyncio.run(writer.write_status([lost, other]))
        assert again > 0, "it is tried again"
        clock.now += again
        lost = body("cluster-system", "scheduling-exception-report", str(clock.now))
    assert written == ["belay-sync"], "the others are written as before"
    assert len(tries) < 70 and max(b - a for a, b in itertools.pairwise(tries)) <= 60.5
    lines = [record for record in caplog.records if record.getMessage() == "status not written"]
    assert 1 <= len(lines) <= 7 and "create namespace cluster-system" in str(lines[0].__dict__)
    missing = False
    assert asyncio.run(writer.write_status([lost, other])) == 0.0
    assert written == ["belay-sync", "scheduling-exception-report"]
    assert [record.getMessage() for record in caplog.records][-1] == "status written again"


@pytest.mark.parametrize(
    ("schedule", "aggregate", "expected"),
    [
        ("on", True, {"cluster-info-device-0", "vcjob-fault-npu-cm", "job-reschedule-reason"}),
        ("on", False, {"vcjob-fault-npu-cm", "job-reschedule-reason"}),
        ("off: volcano-system/volcano-scheduler-0 runs", True, {"cluster-info-device-0"}),
    ],
)
def test_each_role_writes_its_own_config_maps(schedule: str, aggregate: bool, expected: set[str]) -> None:
    """A live Volcano's own records are never written over; beside a live ClusterD the scheduler's still are."""
    state = SyncState(roles={"schedule": schedule})
    found = named(status_bodies(plan_of(), worlds.world(1), state, ClusterInfo() if aggregate else None))
    theirs = {"cluster-info-device-0", "vcjob-fault-npu-cm", "job-reschedule-reason"}
    assert set(found) & theirs == expected


def test_a_refused_job_gets_a_warning_event_and_a_refused_scale_out_none() -> None:
    def patch(message: str, kind: str = "Failed") -> PatchObject:
        row = {"type": kind, "status": "True", "reason": "JobValidFailed", "message": message}
        return PatchObject(
            reason="JobFailed", message="m", api_version="mindxdl.gitee.com/v1", object_kind="AscendJob",
            namespace="train", name="j", patch={"status": {"conditions": [row]}},
            preconditions=Preconditions(uid="u-j"),
        )  # fmt: skip

    (event,) = events([patch("InvalidFramework: no label")], NOW)
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning", "JobValidFailed", "InvalidFramework: no label",
    )  # fmt: skip
    assert event["involvedObject"] == {
        "apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "namespace": "train", "name": "j", "uid": "u-j",
    }  # fmt: skip
    assert events([patch("InvalidScaleOutConfig: no"), patch("is running", "Running")], NOW) == []
