"""Recover: which pods go for which fault, how, and how often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from belay.engine.documents import Manifest
from belay.engine.gangs.job_status import ended
from belay.engine.model.actions import EvictPod, PatchObject, SignalJob
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey, Origin
from belay.engine.model.history import History, JobMemory
from belay.engine.plan import plan
from belay.engine.status.rescheduling import fault_npu
from tests.steps import Steps
from tests.worlds import NOW, decide, desired, document, fault, node, node_report, observed, pod, report, switch

JOB = "train/AscendJob/j"


def gang(*, deleting: dict[int, float] | None = None, count: int = 2, **more: Any) -> list[Pod]:
    """A 2-pod AscendJob: the master on n0, the worker on n1, eight chips each."""
    labels = {"fault-scheduling": "force"} | more.pop("labels", {})
    gone = deleting or {}
    return [
        pod(
            f"j-{i}",
            node=f"n{i}",
            chips=range(8),
            owner=("AscendJob", "j"),
            labels=labels | {"replica-type": "worker" if i else "master"},
            rank=i,
            deleting=gone.get(i),
            **more,
        )
        for i in range(count)
    ]


def world(pods: list[Pod], bad: int | None = 0, level: str = "RestartNPU", **more: Any) -> Observed:
    """Six nodes; chip 3 of node ``bad`` is faulty."""
    names = [f"n{i}" for i in range(6)]
    code = "80C98001"
    reports = [report(n, faults=[fault(3, code, level)] if i == bad else ()) for i, n in enumerate(names)]
    return observed([node(n) for n in names], reports, pods, **more)


def evictions(scope: Steps) -> dict[str, EvictPod]:
    return {a.pod: a for a in scope.actions if isinstance(a, EvictPod)}


@pytest.mark.parametrize("level", ["RestartRequest", "RestartBusiness", "FreeRestartNPU", "RestartNPU", "SeparateNPU"])
def test_a_hit_pod_takes_its_whole_job_with_it(level: str) -> None:
    scope = decide(world(gang(), level=level))
    found = evictions(scope)
    assert sorted(found) == ["j-0", "j-1"]
    assert {(a.force, a.grace_period_seconds, a.budget_unit) for a in found.values()} == {(True, 0, JOB)}
    assert found["j-1"].reason == "CardUnhealthy" and found["j-1"].evidence.codes == ("80C98001",)
    memory = scope.memory.jobs[JOB]
    assert memory.fault_nodes == ("n0",) and memory.nodes == {"0": "n0", "1": "n1"}
    assert memory.reschedules == (int(NOW * 1000),) and set(memory.evicted) == {"uid-train-j-0", "uid-train-j-1"}
    assert scope.penalty[JOB] == {"n0": -64}


@pytest.mark.parametrize("level", ["NotHandleFault", "SubHealthFault", "PreSeparateNPU"])
def test_levels_that_spare_the_running_task(level: str) -> None:
    assert evictions(decide(world(gang(), level=level))) == {}


@pytest.mark.parametrize("value", ["off", "", "yes"])
def test_jobs_that_do_not_ask_for_rescheduling_stay(value: str) -> None:
    assert evictions(decide(world(gang(labels={"fault-scheduling": value})))) == {}


def test_a_fault_on_another_chip_of_the_node_evicts_no_pod() -> None:
    pods = [pod("a", node="n0", chips=[0, 1], owner=("AscendJob", "a"), labels={"fault-scheduling": "force"})]
    assert evictions(decide(world(pods))) == {}


def test_a_network_fault_alone_never_evicts() -> None:
    net = fault(3, "81078603", "SeparateNPU", kind="CardNetworkUnhealthy")
    snapshot = observed([node("n0"), node("n1")], [report("n0", faults=[net], network=[3]), report("n1")], gang())
    assert evictions(decide(snapshot)) == {}


def test_grace_deletes_gracefully_then_by_force() -> None:
    pods = gang(labels={"fault-scheduling": "grace"}, grace_seconds=45)
    scope = decide(world(pods))
    assert {(a.force, a.grace_period_seconds) for a in evictions(scope).values()} == {(False, 45)}
    asked = scope.memory.frozen("")
    going = gang(labels={"fault-scheduling": "grace"}, deleting={0: NOW + 45, 1: NOW + 45})
    again = msgspec.structs.replace(world(going), history=asked)
    assert evictions(decide(again, now=NOW + 300)) == {}
    fresh = [msgspec.structs.replace(r, update_time=NOW + 900) for r in again.reports.values()]
    later = msgspec.structs.replace(again, reports={r.node: r for r in fresh})
    assert evictions(decide(later, now=NOW + 900)) == {}
    forced = decide(later, now=NOW + 901)
    assert {(a.force, a.reason) for a in evictions(forced).values()} == {(True, "GraceTimeExceeded")}
    assert forced.memory.jobs[JOB].reschedules == (int(NOW * 1000),)
    after = msgspec.structs.replace(later, history=forced.memory.frozen(""))
    assert evictions(decide(after, now=NOW + 902)) == {}


def test_grace_over_time_comes_from_the_scheduler_configuration() -> None:
    pods = gang(labels={"fault-scheduling": "grace"}, deleting={0: NOW - 170, 1: NOW - 170})
    assert evictions(decide(world(pods))) == {}
    assert sorted(evictions(decide(world(pods, init_params={"grace-over-time": "120"})))) == ["j-0", "j-1"]


def test_terminating_pods_are_not_evicted_again() -> None:
    scope = decide(world(gang(deleting={0: NOW - 1})))
    assert sorted(evictions(scope)) == ["j-1"]


def test_an_eviction_once_decided_is_completed_and_counted_once() -> None:
    first = decide(world(gang()))
    half = msgspec.structs.replace(world(gang()[1:], bad=None), history=first.memory.frozen(""))
    second = decide(half)
    assert sorted(evictions(second)) == ["j-1"]
    assert second.memory.jobs[JOB].reschedules == first.memory.jobs[JOB].reschedules
    assert second.memory.budgets == first.memory.budgets


def test_the_eviction_is_forgotten_when_the_job_runs_again() -> None:
    first = decide(world(gang()))
    moved = [msgspec.structs.replace(p, uid=p.uid + "x", node=f"n{i + 2}") for i, p in enumerate(gang())]
    second = decide(msgspec.structs.replace(world(moved), history=first.memory.frozen("")))
    assert evictions(second) == {} and second.memory.jobs[JOB].evicted == {}
    assert second.memory.jobs[JOB].fault_nodes == ("n0",)


def test_attempts_are_limited_per_job() -> None:
    used = JobMemory(uid="uid-train-j", reschedules=tuple(int((NOW - h * 3600) * 1000) for h in (5, 3, 1)))
    history = msgspec.structs.replace(world([]).history, jobs={JOB: used})
    few = document("FaultPolicy", "a", attempts={"reschedule": {"max": 3, "window": "6h"}})
    scope = decide(world(gang(), history=history), desired(few))
    assert evictions(scope) == {}
    assert {(d.budget, d.until) for d in scope.deferred} == {("attempts:reschedule", "2026-09-01T09:00:00Z")}
    assert evictions(decide(world(gang(), history=history))) == {}, "three in six hours are the default"
    many = document("FaultPolicy", "a", attempts={"reschedule": {"max": 20, "window": "24h"}})
    assert len(evictions(decide(world(gang(), history=history), desired(many)))) == 2
    assert len(evictions(decide(world(gang(), history=history), desired(shipped=False)))) == 0


@pytest.mark.parametrize(("mode", "kind"), [("external-force", "CardUnhealthy"), ("external-grace", "CardUnhealthy")])
def test_pods_of_external_controllers_are_marked_once(mode: str, kind: str) -> None:
    scope = decide(world(gang(labels={"fault-scheduling": mode})))
    patches = [a for a in scope.actions if isinstance(a, PatchObject)]
    assert [(p.name, p.patch["metadata"]["annotations"]) for p in patches] == [
        ("j-0", {"huawei.com/pod-status": f"Unhealthy-{kind}"})
    ]
    assert evictions(scope) == {}
    told = gang(labels={"fault-scheduling": mode}, annotations={"huawei.com/pod-status": f"Unhealthy-{kind}"})
    assert not [a for a in decide(world(told)).actions if isinstance(a, PatchObject)]


def test_pod_level_takes_the_faulty_worker_only() -> None:
    pods = gang(labels={"pod-rescheduling": "on"})
    found = evictions(decide(world(pods, bad=1)))
    assert sorted(found) == ["j-1"] and found["j-1"].budget_unit == "train/j-1"


def test_a_fault_on_the_master_takes_the_job_at_pod_level() -> None:
    assert sorted(evictions(decide(world(gang(labels={"pod-rescheduling": "on"}), bad=0)))) == ["j-0", "j-1"]
    assert sorted(evictions(decide(world(gang(labels={"process-recover-enable": "on"}), bad=0)))) == ["j-0", "j-1"]
    never = gang(annotations={"huawei.com/recover_policy_path": "pod"})
    assert sorted(evictions(decide(world(never, bad=0)))) == ["j-0"]


def test_pod_level_widens_to_the_job_when_the_replacement_stays_pending() -> None:
    pods = gang(labels={"pod-rescheduling": "on"})
    first = decide(world(pods, bad=1))
    waiting = msgspec.structs.replace(
        pods[1], uid="new", node="", chips=(), phase="Pending", created=NOW + 10, started=None
    )
    later = msgspec.structs.replace(world([pods[0], waiting], bad=1), history=first.memory.frozen(""))
    assert evictions(decide(later, now=NOW + 21)) == {}
    assert sorted(evictions(decide(later, now=NOW + 22))) == ["j-0", "j-1"]


def many(count: int, *, chips: int = 8, **more: Any) -> list[Pod]:
    """An AscendJob of one pod per node, ranks in order; rank 0 is the master."""
    labels = {"fault-scheduling": "force"} | more.pop("labels", {})
    return [
        pod(f"j-{i}", node=f"n{i}", chips=range(chips), owner=("AscendJob", "j"), rank=i,
            labels=labels | {"replica-type": "worker" if i else "master"}, **more)
        for i in range(count)
    ]  # fmt: skip


def stuck(pods: list[Pod], lost: int, after: float) -> list[str]:
    """Which pods go when the replacement of pod ``lost`` has been pending for so many seconds."""
    names = [p.node for p in pods]
    bad = [report(n, faults=[fault(3)] if i == lost else ()) for i, n in enumerate(names)]
    first = decide(observed([node(n) for n in names], bad, pods))
    assert sorted(evictions(first)) == [f"j-{lost}"]
    notes = {k: v for k, v in pods[lost].annotations.items() if k in KEPT}
    waiting = msgspec.structs.replace(
        pods[lost], uid="new", node="", chips=(), phase="Pending", created=NOW, annotations=notes
    )
    rest = [p for i, p in enumerate(pods) if i != lost]
    seen = observed([node(n) for n in names], bad, [*rest, waiting], history=first.memory.frozen(""))
    return sorted(evictions(decide(seen, now=NOW + after)))


KEPT = (
    "hccl/rankIndex",
    "huawei.com/recover_policy_path",
    "sp-block",
    "ra-block",
    "huawei.com/schedule_policy",
    "huawei.com/affinity-config",
)
ALL = [f"j-{i}" for i in range(8)]
RACK = {"huawei.com/schedule_policy": "chip8-node8-ra64-sp", "sp-block": "32", "ra-block": "16"}


@pytest.mark.parametrize(
    ("notes", "labels", "after", "expected"),
    [
        ({}, {"pod-rescheduling": "on"}, 11, []),
        ({}, {"pod-rescheduling": "on"}, 12, ALL),
        ({"sp-block": "32"}, {"pod-rescheduling": "on"}, 5, []),
        ({"sp-block": "32"}, {"pod-rescheduling": "on"}, 6, ["j-4", "j-6", "j-7"]),
        ({"sp-block": "32"}, {"pod-rescheduling": "on"}, 12, ALL),
        (RACK, {"pod-rescheduling": "on"}, 2, []),
        (RACK, {"pod-rescheduling": "on"}, 3, ["j-4"]),
        (RACK, {"pod-rescheduling": "on"}, 6, ["j-4", "j-6", "j-7"]),
        (RACK, {"pod-rescheduling": "on"}, 12, ALL),
        (RACK, {"process-recover-enable": "on"}, 3, ["j-4"]),
        (RACK, {"process-recover-enable": "on"}, 60, ["j-4"]),
        (RACK, {"process-recover-enable": "pause", "pod-rescheduling": "on"}, 6, ["j-4", "j-6", "j-7"]),
        ({"sp-block": "32"}, {"process-recover-enable": "on"}, 60, []),
        ({"huawei.com/affinity-config": "level1=2,level2=4"}, {"pod-rescheduling": "on"}, 5, []),
        ({"huawei.com/affinity-config": "level1=2,level2=4"}, {"pod-rescheduling": "on"}, 6, ["j-4", "j-6", "j-7"]),
        ({"huawei.com/recover_policy_path": "pod", "sp-block": "32"}, {"pod-rescheduling": "on"}, 60, []),
    ],
)
def test_pod_level_widens_stage_by_stage(
    notes: dict[str, str], labels: dict[str, str], after: float, expected: list[str]
) -> None:
    assert stuck(many(8, labels=labels, annotations=notes), 5, after) == expected


def test_a_block_with_the_master_in_it_takes_the_whole_job() -> None:
    pods = many(8, labels={"pod-rescheduling": "on"}, annotations={"sp-block": "32"})
    assert stuck(pods, 2, 6) == ALL


def test_jobs_under_another_process_recovery_are_not_evicted() -> None:
    pods = gang(annotations={"ProcessRecoverStrategy": "recover"})
    assert evictions(decide(world(pods))) == {}


def test_replicas_of_a_deployment_are_evicted_one_by_one() -> None:
    pods = [
        pod(
            f"d-{i}",
            node=f"n{i}",
            chips=[3],
            owner=("ReplicaSet", "d-abc"),
            owner_api="apps/v1",
            labels={"fault-scheduling": "force", "pod-template-hash": "abc"},
        )
        for i in range(2)
    ]
    found = evictions(decide(world(pods)))
    assert sorted(found) == ["d-0"] and found["d-0"].budget_unit == "train/d-0"


def test_a_bare_pod_is_not_evicted() -> None:
    pods = [pod("b", node="n0", chips=[3], labels={"fault-scheduling": "force"})]
    assert evictions(decide(world(pods))) == {}


def test_pods_of_another_scheduler_are_left_to_it() -> None:
    pods = [msgspec.structs.replace(p, scheduler="default-scheduler") for p in gang()]
    assert evictions(decide(world(pods))) == {}
    known = document("SchedulingSettings", "default", schedulerNames=["default-scheduler"])
    assert len(evictions(decide(world(pods), desired(known)))) == 2
    assert evictions(decide(world(gang()), desired(known))) == {}


def failing(**labels: str) -> list[Pod]:
    pods = gang(labels=labels)
    return [msgspec.structs.replace(pods[0], phase="Failed"), pods[1]]


def test_failed_pods_need_retries() -> None:
    assert evictions(decide(world(failing(), bad=None))) == {}
    scope = decide(world(failing(**{"fault-retry-times": "2"}), bad=None))
    assert {a.reason for a in evictions(scope).values()} == {"PodFailed"} and len(evictions(scope)) == 2
    assert scope.memory.jobs[JOB].retries == 1 and scope.memory.jobs[JOB].fault_nodes == ()
    spent = msgspec.structs.replace(scope.memory.frozen(""), jobs={JOB: JobMemory(uid="uid-train-j", retries=0)})
    assert evictions(decide(world(failing(**{"fault-retry-times": "2"}), bad=None, history=spent))) == {}
    other_job = msgspec.structs.replace(spent, jobs={JOB: JobMemory(uid="another", retries=0)})
    assert len(evictions(decide(world(failing(**{"fault-retry-times": "2"}), bad=None, history=other_job)))) == 2


def after_a_shutdown(*, replaced: bool, deleting: bool = False) -> Observed:
    """A Job of two pods that keeps a pod which a shutdown ended; another has its rank, bound once ``replaced``."""
    kept, new = (
        pod(name, node=node, chips=range(8) if node else (), count=8, owner=("Job", "j"), owner_api="batch/v1",
            labels={"fault-scheduling": "force", "fault-retry-times": "2"})
        for name, node in (("j-0-a", "n0"), ("j-1-b", "n1" if replaced else ""))
    )  # fmt: skip
    lost = msgspec.structs.replace(
        kept, name="j-1-a", uid="a", phase="Failed", reason="Terminated", deleting=NOW - 900 if deleting else None
    )
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "train", "uid": "uid-train-j"},
        "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed"},
    }  # fmt: skip
    return world([kept, new, lost], bad=None, objects=[job])


def test_a_pod_that_a_shutdown_ended_moves_its_job_only_while_the_job_lacks_it() -> None:
    assert sorted(evictions(decide(after_a_shutdown(replaced=False)))) == ["j-0-a", "j-1-a", "j-1-b"]
    assert evictions(decide(after_a_shutdown(replaced=True))) == {}
    assert evictions(decide(after_a_shutdown(replaced=False, deleting=True))) == {}


@pytest.mark.parametrize(
    ("kind", "policy", "mode", "goes"),
    [
        ("AscendJob", "Never", "force", True),
        ("AscendJob", "", "grace", True),
        ("AscendJob", "Always", "force", False),
        ("AscendJob", "OnFailure", "grace", False),
        ("AscendJob", "OnFailure", "external-force", False),
        ("StatefulSet", "Always", "external-force", True),
        ("StatefulSet", "Always", "force", True),
    ],
)
def test_failed_pods_are_retried_unless_kubelet_restarts_their_containers(
    kind: str, policy: str, mode: str, goes: bool
) -> None:
    labels = {"fault-retry-times": "2", "fault-scheduling": mode}
    pods = [
        msgspec.structs.replace(p, restart_policy=policy, owner_kind=kind, phase="Failed" if i == 0 else p.phase)
        for i, p in enumerate(gang(labels=labels))
    ]
    scope = decide(world(pods, bad=None))
    marked = [a for a in scope.actions if isinstance(a, PatchObject) and a.object_kind == "Pod"]
    assert bool(evictions(scope) or marked) is goes
    said = [d for d in scope.diagnostics if d.field == "spec.restartPolicy"]
    assert [d.object for d in said] == ([] if goes else ["Pod/train/j-0"])
    assert goes or "needs Never" in said[0].message


def test_hardware_faults_move_pods_of_any_restart_policy() -> None:
    pods = [msgspec.structs.replace(p, restart_policy="Always") for p in gang(labels={"fault-retry-times": "2"})]
    assert sorted(evictions(decide(world(pods)))) == ["j-0", "j-1"]


@pytest.mark.parametrize(
    ("record", "goes"),
    [
        ('{"train/j-uid-train-j":{"UUID":"uid-train-j","Times":1}}', True),
        ('{"train/j-uid-train-j":{"UUID":"uid-train-j","Times":0}}', False),
        ('{"train/j-uid-train-j":{"UUID":"another","Times":0}}', True),
        ('{"train/other":{"UUID":"uid-train-j","Times":0}}', True),
        ("broken", True),
        ("", True),
    ],
)
def test_a_job_keeps_the_retries_that_volcano_left(record: str, goes: bool) -> None:
    kept = {
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"remain-retry-times": record},
        "metadata": {"namespace": "volcano-system", "name": "vcjob-fault-npu-cm"},
    }  # fmt: skip
    seen = world(failing(**{"fault-retry-times": "2"}), bad=None, objects=[kept])
    scope = decide(seen)
    assert bool(evictions(scope)) is goes
    told = fault_npu(scope.document(), seen)["data"]["remain-retry-times"]
    left = 2 if "another" in record or "other" in record or record in ("broken", "") else int("1}" in record)
    assert f'"Times":{left - goes}' in told


def test_hardware_faults_do_not_consume_retries() -> None:
    scope = decide(world(gang(labels={"fault-retry-times": "2"})))
    assert scope.memory.jobs[JOB].retries == -1


def test_node_faults_hit_every_task_of_the_node() -> None:
    plain = pod("cpu", node="n0", owner=("AscendJob", "c"), labels={"fault-scheduling": "force"})
    scope = decide(world([*gang(), plain], bad=None, node_reports=[node_report("n0")]))
    assert sorted(evictions(scope)) == ["cpu", "j-0", "j-1"]
    assert {a.reason for a in evictions(scope).values()} == {"NodeUnhealthy"}
    pre = decide(world(gang(), bad=None, node_reports=[node_report("n0", "PreSeparateFault")]))
    assert evictions(pre) == {}


def test_a_bad_chip_on_a_node_that_is_not_ready_is_a_fault_of_the_chip() -> None:
    """Known faults come first (getTaskHealthStateByNode): the node, then its chips, then that it is silent."""
    silent = node("n0", ready=False, ready_changed=NOW - 41)
    both = world(gang())
    scope = decide(msgspec.structs.replace(both, nodes=dict(both.nodes) | {"n0": silent}))
    assert {a.pod: a.reason for a in evictions(scope).values()}["j-0"] == "CardUnhealthy"
    worse = world(gang(), node_reports=[node_report("n0")])
    assert {a.reason for a in evictions(decide(worse)).values()} == {"NodeUnhealthy"}


def test_an_eviction_from_an_isolated_node_says_why_without_a_code() -> None:
    told = world(gang(), bad=None)
    stressed = node("n0", annotations={"NodeHealthyStatus": "UnHealthy"})
    scope = decide(msgspec.structs.replace(told, nodes=dict(told.nodes) | {"n0": stressed}))
    assert "node n0 is manually-isolated (node is unhealthy); " in evictions(scope)["j-0"].message


def test_a_lost_node_is_a_fault_and_a_mass_outage_is_not() -> None:
    silent = world(gang(), bad=None)
    nodes = dict(silent.nodes) | {"n0": node("n0", ready=False, ready_changed=NOW - 41)}
    scope = decide(msgspec.structs.replace(silent, nodes=nodes))
    assert len(evictions(scope)) == 2 and evictions(scope)["j-0"].evidence.codes == ("heartbeatTimeOut",)
    deleted = {n: v for n, v in silent.nodes.items() if n != "n0"}
    assert len(evictions(decide(msgspec.structs.replace(silent, nodes=deleted)))) == 2
    assert evictions(decide(msgspec.structs.replace(silent, nodes={}))) == {}
    half = {n: v for n, v in silent.nodes.items() if n not in ("n0", "n1")}
    mates = [n for n in silent.nodes if n not in ("n0", "n1")][:1]
    for left, expected in ((mates, 0), ([*mates, "x"], 2)):
        # two of three nodes are gone: a mistake elsewhere; two of four: as many as are left
        nodes = {n: half.get(n, node(n)) for n in left}
        both = {"train/j-0": msgspec.structs.replace(silent.pods["train/j-0"], node="n0"),
                "train/j-1": msgspec.structs.replace(silent.pods["train/j-1"], node="n1")}  # fmt: skip
        scope = decide(msgspec.structs.replace(silent, nodes=nodes, pods=dict(silent.pods) | both))
        assert len(evictions(scope)) == expected, left
    wave = {n: node(n, ready=False, ready_changed=NOW - 50) for n in silent.nodes}
    assert evictions(decide(msgspec.structs.replace(silent, nodes=wave))) == {}


def test_a_stale_or_missing_report_alone_evicts_no_pod() -> None:
    snapshot = world(gang())
    old = {n: msgspec.structs.replace(r, update_time=NOW - 5000) for n, r in snapshot.reports.items()}
    assert evictions(decide(msgspec.structs.replace(snapshot, reports=old))) == {}
    assert evictions(decide(msgspec.structs.replace(snapshot, reports={}))) == {}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("ignore", None), ("graceExit", (False, 30)), ("forceExit", (True, 0)), ("hotSwitch", None)],
)
def test_sub_health_follows_the_job_s_strategy(strategy: str, expected: tuple[bool, int] | None) -> None:
    scope = decide(world(gang(labels={"subHealthyStrategy": strategy}), level="SubHealthFault"))
    found = {(a.force, a.grace_period_seconds) for a in evictions(scope).values()}
    assert found == ({expected} if expected else set())
    if strategy == "ignore":
        assert scope.penalty[JOB]["n0"] == -1 and JOB not in scope.refused
    else:
        assert {node: why.message for node, why in scope.refused[JOB].items()} == {
            "n0": "NodePredicate failed, cardSubHealthy=true andswitchSubHealthy=false, "
            f"but sub-healthy strategy is {strategy}"
        }


def test_graceful_exit_signals_the_job_first() -> None:
    pods = gang(labels={"subHealthyStrategy": "graceExit"})
    reset = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "train", "name": "reset-config-j"}}
    scope = decide(world(pods, level="SubHealthFault", objects=[reset]))
    kinds = [type(a) for a in scope.actions if isinstance(a, SignalJob | EvictPod)]
    assert kinds == [SignalJob, EvictPod, EvictPod]


def test_a_sub_healthy_switch_counts_too() -> None:
    pods = gang(labels={"subHealthyStrategy": "forceExit"})
    snapshot = observed([node("n0"), node("n1")], [report("n0", switch=switch("SubHealthFault")), report("n1")], pods)
    assert len(evictions(decide(snapshot))) == 2


def test_a_live_volcano_reschedules_itself() -> None:
    off = document("SchedulingSettings", "default", roles={"schedule": "off"})
    snapshot, declared = world(gang()), desired(off)
    scope = decide(snapshot, declared)
    assert evictions(scope) == {} and scope.nodes["n0"].hit


def test_an_ordinary_fault_beats_the_sub_health_path() -> None:
    pods = gang(labels={"subHealthyStrategy": "graceExit"})
    mixed = [report("n0", faults=[fault(3, level="SubHealthFault")]), report("n1", faults=[fault(3)])]
    scope = decide(observed([node("n0"), node("n1")], mixed, pods))
    assert {a.force for a in evictions(scope).values()} == {True}


def test_hot_switched_pod_goes_alone() -> None:
    pods = gang(labels={"subHealthyStrategy": "hotSwitch"})
    pods[1] = msgspec.structs.replace(pods[1], annotations=pods[1].annotations | {"needVolcanoOpe": "delete"})
    scope = decide(world(pods, bad=1, level="SubHealthFault"))
    assert sorted(evictions(scope)) == ["j-1"]


def test_labels_of_relation_faults_and_processes() -> None:
    pods = gang()
    pods[1] = msgspec.structs.replace(pods[1], labels=pods[1].labels | {"fault-type": "Separate"})
    assert {a.reason for a in evictions(decide(world(pods, bad=None))).values()} == {"RelationFaultSeparate"}
    pods[1] = msgspec.structs.replace(pods[1], labels=pods[1].labels | {"fault-type": "software"})
    assert evictions(decide(world(pods, bad=None))) == {}
    pods = [msgspec.structs.replace(p, labels=p.labels | {"pod-rescheduling": "on"}) for p in pods]
    assert sorted(evictions(decide(world(pods, bad=None)))) == ["j-1"]


def test_the_exit_request_is_cleared_once_the_old_pods_are_gone() -> None:
    labels = {"fault-scheduling": "grace", "subHealthyStrategy": "graceExit"}
    meta = {"name": "reset-config-j", "namespace": "train"}
    told = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"reset.json": '{"GracefulExit": 1}'},
    }  # fmt: skip
    new = pod("t1", owner=("AscendJob", "j"), labels=labels, count=8)
    old = pod("t0", node="n0", chips=range(8), owner=("AscendJob", "j"), labels=labels, deleting=NOW)
    memory = History(jobs={"train/AscendJob/j": JobMemory(evicted={old.uid: int(NOW * 1000) - 5000})})
    for pods, expected in (([old], []), ([new], ["clear"])):
        scope = decide(observed([node("n0")], [report("n0")], pods, objects=[told], history=memory))
        assert [a.signal for a in scope.actions if isinstance(a, SignalJob)] == expected


def test_a_job_without_attempts_gets_no_exit_request() -> None:
    labels = {"fault-scheduling": "grace", "subHealthyStrategy": "graceExit"}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "reset-config-j", "namespace": "train"}}
    pods = [pod("t0", node="n0", chips=range(8), owner=("AscendJob", "j"), labels=labels)]
    spent = tuple(int(NOW * 1000) - i * 1000 for i in range(3))
    for times, signals in (((), 1), (spent, 0)):
        memory = History(jobs={"train/AscendJob/j": JobMemory(reschedules=times)})
        scope = decide(world(pods, level="SubHealthFault", objects=[config], history=memory))
        assert len([a for a in scope.actions if isinstance(a, SignalJob)]) == signals
        assert bool(scope.deferred) is not bool(signals)


@pytest.mark.parametrize(
    ("status", "moved"),
    [
        ({"conditions": [{"type": "Failed", "status": "True"}]}, False),
        ({"conditions": [{"type": "Succeeded", "status": "True"}]}, False),
        ({"conditions": [{"type": "Failed", "status": "False"}, {"type": "Running", "status": "True"}]}, True),
        ({}, True),
    ],
)
def test_pods_of_a_job_that_has_ended_are_left_where_they_are(status: dict[str, Any], moved: bool) -> None:
    raw = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "status": status, "spec": {}}
    raw["metadata"] = {"name": "j", "namespace": "train", "labels": {"fault-scheduling": "force"}}
    scope = decide(world(gang(), objects=[raw]))
    assert bool(evictions(scope)) is moved


@pytest.mark.parametrize(
    ("phase", "conditions", "end"),
    [
        ("Completed", [], "Succeeded"),
        ("Terminated", [], "Failed"),
        ("Running", [], ""),
        ("", [{"type": "Complete", "status": "True"}], "Succeeded"),
        ("", [{"type": "Failed", "status": "True"}], "Failed"),
    ],
)
def test_every_kind_of_job_says_how_it_ended(phase: str, conditions: list[dict[str, str]], end: str) -> None:
    assert ended({"status": {"state": {"phase": phase}, "conditions": conditions}}) == end
    assert ended({"status": "?"}) == ended(None) == ended({"status": {"state": [], "conditions": 3}}) == ""


def test_the_evidence_says_where_the_job_is_written() -> None:
    body = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "metadata": {"name": "j", "namespace": "train"}}
    key = ObjectKey("mindxdl.gitee.com/v1", "AscendJob", "train", "j")
    written = Manifest(key, body, Origin("desired/jobs/j.yaml", 7), "d")
    told = evictions(decide(world(gang()), replace(desired(), manifests=(written,))))["j-1"].evidence
    assert (told.rule, told.file, told.line, told.revision) == (
        "fault-scheduling=force",
        "desired/jobs/j.yaml",
        7,
        "r1",
    )
    assert evictions(decide(world(gang())))["j-1"].evidence.file == "", "a job that is not in Git is written nowhere"


@pytest.mark.parametrize("text", ["²", "9" * 5000])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("huawei.com/schedule.filter.faultLevel", "RestartNPU:{}"),
        ("huawei.com/schedule.filter.faultCode", "80C98001:{}"),
        ("wait-reschedule-timeout", "{}"),
        ("sp-block", "{}"),
        ("hccl/rankIndex", "{}"),
        ("super-pod-rank", "{}"),
    ],
)
def test_an_invalid_number_in_annotations_affects_its_own_job_only(key: str, value: str, text: str) -> None:
    odd = [
        msgspec.structs.replace(one, annotations=one.annotations | {key: value.format(text)})
        for one in gang(annotations={"recover-strategy": "recover"})
    ]
    labels = {"fault-scheduling": "force"}
    other = pod("o-0", node="n2", chips=range(8), owner=("AscendJob", "o"), labels=labels, rank=0)
    names = [f"n{i}" for i in range(6)]
    bad = [report(n, faults=[fault(3)] if n in ("n0", "n2") else ()) for n in names]
    found = plan(desired(), observed([node(n) for n in names], bad, [*odd, other]), NOW)
    assert {a.pod for a in found.actions if isinstance(a, EvictPod)} == {"j-0", "j-1", "o-0"}
