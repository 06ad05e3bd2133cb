"""Jobs behind Kueue, with labels, gates and selectors as Kueue 0.17 writes them on Kubernetes 1.37."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from engine.gangs.grouping import group
from engine.observe.observed import key_of
from engine.status.queues import queue_body
from tests.test_workloads import Cluster, bound, put, world_of
from tests.workload_cases import SPACE, Body, body, names, pods_of, template

GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
DEFINITION: Body = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterqueues.kueue.x-k8s.io", "uid": "uid-crd"},
    "spec": {
        "group": "kueue.x-k8s.io",
        "scope": "Cluster",
        "names": {"kind": "ClusterQueue", "plural": "clusterqueues"},
    },
}
#: What Kueue writes on pods of a Job that it has admitted, and on pods that it manages themselves.
OF_JOB = {
    "kueue.x-k8s.io/cluster-queue-name": "team",
    "kueue.x-k8s.io/local-queue-name": "team",
    "kueue.x-k8s.io/podset": "main",
}
OF_PODS = {
    "kueue.x-k8s.io/managed": "true",
    "kueue.x-k8s.io/pod-group-name": "plain",
    "kueue.x-k8s.io/queue-name": "team",
}
TOTAL = {"kueue.x-k8s.io/pod-group-total-count": "5", "kueue.x-k8s.io/role-hash": "7839867f"}


def gated(pod: Body) -> Body:
    held = copy.deepcopy(pod)
    held["spec"]["schedulingGates"] = [{"name": name} for name in GATES]
    return held


def a_job(name: str, pods: int, **spec: Any) -> tuple[Body, list[Body]]:
    made = body("batch/v1", "Job", name, {"parallelism": pods, "completions": pods, "template": template(), **spec})
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    return made, pods_of(made, names(name, pods), labels=OF_JOB)


def settings(**spec: Any) -> dict[str, bytes]:
    document = {
        "apiVersion": "belay.dev/v1alpha1",
        "kind": "SchedulingSettings",
        "metadata": {"name": "s"},
        "spec": spec,
    }
    return {"policies/s.yaml": json.dumps(document).encode()}


def test_a_group_of_pods_waits_for_the_last_gate() -> None:
    world = world_of(5)
    pods = pods_of(None, names("plain"), labels=OF_PODS, notes=TOTAL)
    for pod in pods:
        put(world, gated(pod))
    plan = world.step()
    (entry,) = plan.pending
    assert (entry.kind, entry.name, entry.reason) == ("Pods", "plain", "SchedulingGated")
    assert all(gate in entry.message for gate in GATES) and "LocalQueue team" in (entry.unblock or "")

    for free in range(1, 5):
        put(world, pods[free])
        plan = world.step()
        assert bound(world) == set(), f"{free} of 5 are free of their gates"
    (entry,) = plan.pending
    assert entry.reason == "GangIncomplete" and "1 pod of it is there, but held by" in (entry.unblock or "")

    put(world, pods[0])
    world.step()
    assert len(bound(world)) == 5


@pytest.mark.parametrize(("servers", "placed"), [(4, 0), (5, 5)])
def test_a_suspended_job_is_nothing_to_place_and_starts_whole_once_admitted(servers: int, placed: int) -> None:
    world = world_of(servers)
    job, pods = a_job("first", 5)
    put(world, {**job, "spec": job["spec"] | {"suspend": True}})
    assert not world.step().pending

    put(world, job)
    for pod in pods:
        put(world, pod)
    world.step()
    assert len(bound(world)) == placed


def test_pods_go_where_topology_aware_scheduling_sent_them_or_nowhere() -> None:
    world = world_of(4)
    job, pods = a_job("tas", 2)
    for pod, server in zip(pods, ("n1", "n3"), strict=True):
        pod["spec"]["nodeSelector"] = {**pod["spec"]["nodeSelector"], "kubernetes.io/hostname": server}
    other = pods_of(None, ["other"])
    other[0]["spec"]["nodeSelector"] = pods[1]["spec"]["nodeSelector"]
    put(world, other[0])
    world.step()
    assert bound(world) == {"other"}

    for one in [job, *pods]:
        put(world, one)
    world.step()
    assert bound(world) == {"other"}, "half of the job would fit"
    world.delete(key_of(other[0]))
    world.step()
    where = {pod.name: pod.node for pod in world.observed().pods.values() if pod.node}
    assert where == {"tas-0": "n1", "tas-1": "n3"}


def quotas(world: Cluster) -> dict[str, Any]:
    rows = json.loads(queue_body(world.plan(), world.observed(), world.desired)["data"]["queues.json"])
    return {row["name"]: (row["used"].get("huawei.com/Ascend910", 0), row["declaredBy"]) for row in rows}


def test_a_job_of_kueue_counts_in_no_queue_of_belay() -> None:
    files = settings(queues=[{"name": "default", "capability": {"huawei.com/Ascend910": 8}}])
    world = world_of(5, files)
    put(world, DEFINITION)
    job, pods = a_job("first", 3)
    own = body("batch/v1", "Job", "own", {"parallelism": 1, "completions": 1, "template": template()})
    for one in [job, *pods, own, *pods_of(own, ["own-0"])]:
        put(world, one)
    world.step()
    assert bound(world) == {"first-0", "first-1", "first-2", "own-0"}, "the queue's 8 chips are left to its own job"
    gangs, _ = group(world.observed())
    assert gangs[f"{SPACE}/Job.batch/first"].queue == "kueue.x-k8s.io/team"
    assert quotas(world) == {"default": (8, "SchedulingSettings"), "kueue.x-k8s.io/team": (24, "Kueue")}


def test_without_kueue_or_by_the_setting_its_labels_change_no_quota() -> None:
    queues = [{"name": "default", "capability": {"huawei.com/Ascend910": 8}}]
    for definitions, spec in (([], {"queues": queues}), ([DEFINITION], {"queues": queues, "kueueQuota": "queues"})):
        world = world_of(5, settings(**spec))
        job, pods = a_job("first", 3)
        for one in [*definitions, job, *pods]:
            put(world, one)
        plan = world.step()
        assert bound(world) == set()
        assert [entry.reason for entry in plan.pending] == ["QueueExhausted"]
