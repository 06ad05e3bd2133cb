"""Job summaries, numbers and scheduling exceptions, as ClusterD's readers find them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.plan import Pending, Plan
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import observe
from belay.engine.status import job_bodies, surplus
from belay.engine.status.statistics import JobStatistic, updated
from belay.engine.status.summaries import KEPT
from tests import peer_tables, worlds
from tests.jobs import ascend_job, volcano_job
from tests.worlds import NOW

Told = dict[str, dict[str, Any]]


def pod(rank: int, node: str = "", phase: str = "Running", **more: Any) -> Pod:
    notes = {"hccl/rankIndex": str(rank)}
    if node:
        devices = [{"device_id": str(i), "device_ip": f"192.168.{i}.{node[-1]}"} for i in range(2)]
        notes["ascend.kubectl.kubernetes.io/ascend-910-configuration"] = json.dumps(
            {"pod_name": f"j-{rank}", "server_id": f"s-{node}", "host_ip": f"10.0.0.{node[-1]}", "devices": devices}
        )
    made = worlds.pod(f"j-{rank}", node=node, chips=range(2) if node else (), count=2, owner=("AscendJob", "j"), **more)
    return msgspec.structs.replace(made, annotations={**made.annotations, **notes}, phase=phase, owner_uid="job-uid")


def world(*pods: Pod, told: Told | None = None, live: bool = True) -> Observed:
    raw = ascend_job("j", namespace="train", workers=1, labels={"custom-job-id": "mine"})
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "train", "name": "j-master-0"},
        "spec": {"clusterIP": "10.96.0.7"},
    }  # fmt: skip
    seen = observe([*([raw, service] if live else []), *(told or {}).values()])
    base = worlds.world(2, pods=pods)
    return msgspec.structs.replace(base, objects={**base.objects, **seen.objects})


def tell(observed: Observed, now: float = NOW, pending: tuple[Pending, ...] = ()) -> Told:
    bodies = job_bodies(Plan(revision="r", now=now, pending=pending), observed)
    return {body["metadata"]["name"]: body for body in bodies}


def data(told: Told) -> dict[str, str]:
    return dict(told["job-summary-j"]["data"])


def numbers(told: Told) -> dict[str, Any]:
    (row,) = json.loads(told["current-job-statistic"]["data"]["data"])
    return dict(row)


def test_a_running_jobs_summary() -> None:
    told = tell(world(pod(0, "n0"), pod(1, "n1")))
    body = told["job-summary-j"]
    assert body["metadata"]["namespace"] == "train"
    assert body["metadata"]["labels"]["outside-job-info"] == "true"
    assert body["metadata"]["labels"]["ring-controller.atlas"] == "ascend-910"
    table = json.loads(body["data"]["hccl.json"])
    assert list(table) == ["status", "server_list", "server_count", "total"]
    assert (table["status"], table["server_count"], table["total"]) == ("complete", "2", 1)
    assert [d["rank_id"] for s in table["server_list"] for d in s["device"]] == ["0", "1", "2", "3"]
    assert [(s["server_id"], s["server_name"], s["pod_name"]) for s in table["server_list"]] == [
        ("10.0.0.0", "n0", "j-0"), ("10.0.0.1", "n1", "j-1"),
    ]  # fmt: skip
    rest = {key: value for key, value in body["data"].items() if key != "hccl.json"}
    assert rest == {
        "job_id": "job-uid", "job_name": "j", "framework": "pytorch", "job_status": "running", "operator": "add",
        "time": str(int(NOW)), "sid": "mine", "sharedTorIp": "", "masterAddr": "10.96.0.7", "cm_index": "0",
        "total": "1",
    }  # fmt: skip
    assert numbers(told) == {"id": "job-uid", "customID": "mine", "cardNum": 4, "podFirstRunTime": int(NOW)}
    assert told["current-job-statistic"]["data"]["totalJob"] == "1"


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ((pod(0, phase="Pending"), pod(1, phase="Pending")), "pending"),
        ((pod(0, "n0"), pod(1, "n1", "Pending")), "pending"),
        ((pod(0, "n0"), pod(1, "n1", "Failed")), "failed"),
        ((pod(0, "n0", "Succeeded"), pod(1, "n1")), "running"),
        ((pod(0, "n0", "Succeeded"), pod(1, "n1", "Succeeded")), "complete"),
        ((pod(0, "n0", "Succeeded"),), "pending"),
    ],
)
def test_states(pods: tuple[Pod, ...], wanted: str) -> None:
    assert data(tell(world(*pods)))["job_status"] == wanted


def test_a_job_that_ran_has_failed_until_it_runs_again() -> None:
    told = tell(world(pod(0, "n0"), pod(1, "n1")))
    assert "deleteTime" not in data(told)
    lost = tell(world(pod(0, "n0"), pod(1, phase="Pending"), told=told), NOW + 5)
    assert (data(lost)["job_status"], data(lost)["deleteTime"]) == ("failed", str(int(NOW) + 5))
    later = tell(world(pod(0, phase="Pending"), pod(1, phase="Pending"), told=lost), NOW + 9)
    assert (data(later)["job_status"], data(later)["deleteTime"]) == ("failed", str(int(NOW) + 5))
    again = tell(world(pod(0, "n0"), pod(1, "n1"), told=later), NOW + 20)
    assert data(again)["job_status"] == "running" and "deleteTime" not in data(again)
    done = tell(world(pod(0, "n0", "Succeeded"), pod(1, "n1", "Succeeded"), told=again), NOW + 30)
    assert (data(done)["job_status"], data(done)["deleteTime"]) == ("complete", str(int(NOW) + 30))
    cleaned = tell(world(told=done), NOW + 40)
    assert (data(cleaned)["job_status"], data(cleaned)["deleteTime"]) == ("complete", str(int(NOW) + 30))


def test_a_waiting_jobs_table_is_initializing() -> None:
    assert data(tell(world(pod(0, phase="Pending"), pod(1, phase="Pending"))))["hccl.json"] == (
        '{"status":"initializing"}'
    )


def test_the_first_time_is_kept_and_a_deleted_job_is_marked_for_a_while() -> None:
    told = tell(world(pod(0, "n0"), pod(1, "n1")))
    later = tell(world(pod(0, "n0"), pod(1, "n1"), told=told), NOW + 9)
    assert later == told, "nothing changed, nothing is written"
    gone = tell(world(told=told, live=False), NOW + 10)
    assert (data(gone)["operator"], data(gone)["job_status"]) == ("delete", "failed")
    assert data(gone)["deleteTime"] == str(int(NOW) + 10)
    assert data(gone)["hccl.json"] == data(told)["hccl.json"], "which chips it had is looked up afterwards"
    assert numbers(gone)["stopTime"] == int(NOW) + 10
    still = tell(world(told=gone, live=False), NOW + 20)
    assert data(still) == data(gone)
    after = world(told=gone, live=False)
    bodies = job_bodies(Plan(revision="r", now=NOW + 10 + KEPT), after)
    assert surplus(after, bodies) == [("train", "job-summary-j")]


def test_a_job_whose_pods_are_gone_has_failed_while_it_stands() -> None:
    told = tell(world(pod(0, "n0"), pod(1, "n1")))
    assert data(tell(world(told=told), NOW + 5))["job_status"] == "failed"


def test_large_tables_are_split_by_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.status.summaries.MAX_BYTES", 300)
    told = tell(world(pod(0, "n0"), pod(1, "n1"), told={}))
    assert {"job-summary-j", "job-summary-j-1"} <= set(told)
    tables = [json.loads(told[name]["data"]["hccl.json"]) for name in ("job-summary-j", "job-summary-j-1")]
    assert [len(table["server_list"]) for table in tables] == [1, 1]
    assert [told[n]["data"]["cm_index"] for n in ("job-summary-j", "job-summary-j-1")] == ["0", "1"]
    assert {table["server_count"] for table in tables} == {"2"}
    gone = tell(world(told=told, live=False), NOW + 10)
    assert [json.loads(gone[name]["data"]["hccl.json"]) for name in ("job-summary-j", "job-summary-j-1")] == tables


def test_exceptions_say_why_a_job_waits() -> None:
    wait = Pending("AscendJob", "train", "j", ("j-0",), "NPUResourceShortage", "0/2 nodes", {}, None)
    told = tell(world(pod(0, phase="Pending")), pending=(wait,))
    rows = told["scheduling-exception-report"]["data"]
    assert json.loads(rows["j.job-uid"]) == {
        "jobName": "j", "jobType": "AscendJob", "nameSpace": "train",
        "conditions": {"status": "JobInitialized", "reason": "NotEnoughResources", "message": "0/2 nodes"},
    }  # fmt: skip
    assert tell(world(pod(0, "n0")))["scheduling-exception-report"]["data"] == {}


def pod_group(phase: str, *conditions: tuple[str, str]) -> dict[str, Any]:
    """The PodGroup of job ``j`` in a phase, with conditions Unschedulable (reason, message)."""
    owner = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "name": "j", "uid": "job-uid"}
    rows = [{"type": "Unschedulable", "status": "True", "reason": r, "message": m} for r, m in conditions]
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"namespace": "train", "name": "j-job-uid", "ownerReferences": [{**owner, "controller": True}]},
        "spec": {"minMember": 2, "queue": "gold"}, "status": {"phase": phase, "conditions": rows},
    }  # fmt: skip


def trouble(*pods: Pod, group: dict[str, Any] | None = None, now: float = NOW) -> dict[str, str] | None:
    """The job's conditions in the report; None without a row."""
    told = tell(world(*pods, told={"group": group} if group else {}), now)
    row = told["scheduling-exception-report"]["data"].get("j.job-uid")
    return None if row is None else dict(json.loads(row)["conditions"])


@pytest.mark.parametrize(
    ("phase", "conditions", "status", "reason", "text"),
    [
        ("", (), "PodGroupCreated", "PgNotInitialized", "volcano-scheduler maybe not running"),
        ("Pending", (), "PodGroupPending", "JobEnqueueFailed", "kubectl describe q gold"),
        ("Pending", (("JobEnqueueFailed", "closed"),), "PodGroupPending", "JobEnqueueFailed", "closed"),
        ("Inqueue", (("NodePredicateFailed", "no node"),), "PodGroupInqueue", "NodePredicateFailed", "no node"),
        (
            "Inqueue", (("NodePredicateFailed", "no node"), ("BatchOrderFailed", "no set")),
            "PodGroupInqueue", "BatchOrderFailed", "no set; no node",
        ),
        ("Inqueue", (("JobValidateFailed", "odd"),), "PodGroupInqueue", "JobValidateFailed", "odd"),
        ("Inqueue", (("NotEnoughResources", "1/2"),), "PodGroupInqueue", "NotEnoughResources", "1/2"),
    ],
)  # fmt: skip
def test_exceptions_of_jobs_that_volcano_places_follow_their_pod_group(
    phase: str, conditions: tuple[tuple[str, str], ...], status: str, reason: str, text: str
) -> None:
    group = pod_group(phase, *conditions)
    for pods in ((), (pod(0, phase="Pending"), pod(1, phase="Pending"))):
        found = trouble(*pods, group=group)
        assert found is not None and (found["status"], found["reason"]) == (status, reason)
        assert text in found["message"]


def test_a_scheduler_has_a_moment_for_a_new_pod_group() -> None:
    for phase in ("", "Pending"):
        group = pod_group(phase)
        group["metadata"]["creationTimestamp"] = rfc3339(NOW - 5)
        assert trouble(pod(0, phase="Pending"), group=group) is None
        assert trouble(pod(0, phase="Pending"), group=group, now=NOW + 30) is not None
    group = pod_group("Pending", ("JobEnqueueFailed", "closed"))
    group["metadata"]["creationTimestamp"] = rfc3339(NOW - 5)
    assert trouble(pod(0, phase="Pending"), group=group) is not None


def test_pods_that_fail_or_do_not_start_are_exceptions() -> None:
    starting = (pod(0, "n0"), pod(1, "n1", "Pending", created=NOW - 30))
    row = trouble(*starting, group=pod_group("Running"))
    assert row is not None and (row["status"], row["reason"]) == ("PodGroupRunning", "PodPending")
    assert "kubectl describe pod -n train j-1" in row["message"]
    assert trouble(pod(0, "n0"), pod(1, "n1", "Pending", created=NOW - 5), group=pod_group("Running")) is None
    for group in (pod_group("Running"), pod_group("Unknown"), None):
        failed = trouble(pod(0, "n0", "Failed"), pod(1, "n1"), group=group)
        assert failed is not None and (failed["status"], failed["reason"]) == ("PodGroupUnknown", "PodFailed")
    assert trouble(pod(0, "n0"), pod(1, "n1"), group=pod_group("Running")) is None
    assert trouble(pod(0, "n0", "Succeeded"), pod(1, "n1", "Succeeded"), group=pod_group("Completed")) is None


def test_a_job_that_no_component_picks_up_is_an_exception_after_a_while() -> None:
    assert trouble(now=NOW - 50) is None
    row = trouble()
    assert row is not None and (row["status"], row["reason"]) == ("JobEmptyStatus", "JobNoInitialized")
    raw = ascend_job("j", namespace="train")
    for condition, status in (("Created", "JobInitialized"), ("Failed", "JobFailed")):
        raw["status"] = {"conditions": [{"type": condition, "status": "True", "reason": "Why", "message": "text"}]}
        report = tell(observe([raw]))["scheduling-exception-report"]["data"]
        assert json.loads(report["j.job-uid"])["conditions"] == {"status": status, "reason": "Why", "message": "text"}


@pytest.mark.parametrize(
    ("phase", "status", "reason"),
    [("", "JobEmptyStatus", "JobNoInitialized"), ("Pending", "JobInitialized", "JobPending"),
     ("Failed", "JobFailed", "JobFailed"), ("Completed", "", "")],
)  # fmt: skip
def test_volcano_jobs_without_pods_are_exceptions(phase: str, status: str, reason: str) -> None:
    raw = volcano_job("v", namespace="train", uid="v-uid")
    raw["status"] = {"state": {"phase": phase}} if phase else {}
    report = tell(observe([raw]))["scheduling-exception-report"]["data"]
    assert list(report) == (["v.v-uid"] if status else [])
    if status:
        found = json.loads(report["v.v-uid"])["conditions"]
        assert (found["status"], found["reason"]) == (status, reason)


def test_a_refused_job_is_an_exception() -> None:
    raw = ascend_job("j", namespace="train", framework=None)
    raw["status"] = {"conditions": [{"type": "Failed", "reason": "JobValidFailed", "message": "InvalidFramework: x"}]}
    told = tell(observe([raw]))
    row = json.loads(told["scheduling-exception-report"]["data"]["j.job-uid"])
    assert row["conditions"] == {
        "status": "JobFailed", "reason": "JobValidateFailed", "message": "InvalidFramework: x",
    }  # fmt: skip


def shown(do: dict[str, Any]) -> dict[str, Any]:
    """What the summary and the report say of a job in a state of the tables of MindCluster's answers."""
    if "volcano" in do:
        raw = volcano_job("v", namespace="train", uid="v-uid")
        raw["status"] = {"state": {"phase": do["volcano"]}} if do["volcano"] else {}
        told = tell(observe([raw]))
    elif "job" in do:
        raw = ascend_job("j", namespace="train")
        rows = [{"type": kind, "status": "True", "reason": why, "message": text} for kind, why, text in do["job"]]
        raw["status"] = {"conditions": rows} if rows else {}
        told = tell(observe([raw]))
    else:
        pods = [pod(rank, f"n{rank}" if phase != "Pending" else "", phase) for rank, phase in enumerate(do["pods"])]
        group = pod_group(do["group"], *((reason, text) for reason, text in do.get("conditions", ())))
        told = tell(world(*pods, told={"group": group}), NOW + 60)

    (row, *_) = [*told["scheduling-exception-report"]["data"].values(), None]
    found = json.loads(row)["conditions"] if row else {"status": peer_tables.ABSENT}
    return found | ({"summary": data(told)["job_status"]} if "pods" in do else {})


def test_jobs_are_shown_as_clusterd_shows_them() -> None:
    table = peer_tables.tables()["jobs"]
    peer_tables.compare(table, {state.state: shown(state.do) for state in table.states})


def test_without_jobs_the_statistic_counts_none() -> None:
    assert tell(observe([]))["current-job-statistic"]["data"] == {"data": "[]", "totalJob": "0"}


def test_faults_and_recoveries_are_counted_once_each() -> None:
    one = JobStatistic("a")
    for at, status in enumerate(["running", "running", "failed", "failed", "pending", "running", "running", "failed"]):
        one = updated(one, status, 8, False, 100 + at)
    assert one == JobStatistic("a", "", 8, 100, 0, 105, 107, 2)
    assert updated(one, "complete", 8, False, 120).stop_time == 120


STATES = st.lists(st.sampled_from(["pending", "running", "failed", "complete"]), max_size=30)


@given(STATES, st.integers(0, 3))
def test_a_state_seen_twice_counts_once(states: list[str], step: int) -> None:
    now, one = 1000, JobStatistic("a")
    for state in states:
        one = updated(one, state, 8, False, now)
        assert updated(one, state, 8, False, now + 50) == one
        now += step
    changes = sum(b == "failed" and a != "failed" for a, b in zip(["", *states], states, strict=False))
    assert one.pod_fault_times <= changes
