"""Jobs behind Kueue, with labels, gates and selectors as Kueue 0.17 writes them on Kubernetes 1.37."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from belay.engine.gangs.grouping import group
from belay.engine.observe.observed import key_of
from belay.engine.status.queues import queue_body
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


def admission(
    owners: list[Body], count: int, *, queue: str = "team", admitted: str = "True", version: str = "v1beta2"
) -> Body:
    """Kueue's Workload of one object, or of a group of pods."""
    references = [
        {"apiVersion": one["apiVersion"], "kind": one["kind"], "name": one["metadata"]["name"],
         "uid": one["metadata"]["uid"]}
        for one in owners
    ]  # fmt: skip
    meta = {
        "name": f"of-{owners[0]['metadata']['name']}",
        "namespace": SPACE,
        "uid": "w",
        "ownerReferences": references,
    }
    assigned = [{"name": "main", "flavors": {"huawei.com/Ascend910": "default"}, "count": count}]
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Workload",
        "metadata": meta,
        "spec": {"queueName": queue, "podSets": [{"name": "main", "count": count, "template": template()}]},
        "status": {
            "admission": {"clusterQueue": "all", "podSetAssignments": assigned},
            "conditions": [
                {"type": "QuotaReserved", "status": "True"},
                {"type": "Admitted", "status": admitted},
            ],
        },
    }


def one_queue(chips: int, **spec: Any) -> dict[str, bytes]:
    return settings(queues=[{"name": "default", "capability": {"huawei.com/Ascend910": chips}}], **spec)


def quotas(world: Cluster) -> dict[str, Any]:
    rows = json.loads(queue_body(world.plan(), world.observed(), world.desired)["data"]["queues.json"])
    return {row["name"]: (row["used"].get("huawei.com/Ascend910", 0), row["declaredBy"]) for row in rows}


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_job_of_kueue_counts_in_no_queue_of_belay(version: str) -> None:
    world = world_of(5, one_queue(8))
    job, pods = a_job("first", 3)
    own = body("batch/v1", "Job", "own", {"parallelism": 1, "completions": 1, "template": template()})
    world.put(admission([job], 3, version=version))
    for one in [job, *pods, own, *pods_of(own, ["own-0"])]:
        put(world, one)
    world.step()
    assert bound(world) == {"first-0", "first-1", "first-2", "own-0"}, "the queue's 8 chips are left to its own job"
    queue = f"kueue.x-k8s.io/{SPACE}/team"
    gangs, _ = group(world.observed())
    assert gangs[f"{SPACE}/Job.batch/first"].queue == queue, "LocalQueues of two namespaces are two"
    assert quotas(world) == {"default": (8, "SchedulingSettings"), queue: (24, "Kueue")}


def test_a_group_of_pods_counts_with_kueue_once_every_pod_of_it_is_admitted() -> None:
    pods = pods_of(None, names("plain"), labels=OF_PODS, notes=TOTAL)
    for owners, placed in ((pods[:4], 0), (pods, 5)):
        world = world_of(5, one_queue(8))
        world.put(admission(owners, 5))
        for pod in pods:
            put(world, pod)
        world.step()
        assert len(bound(world)) == placed, f"Kueue has admitted {len(owners)} of 5"


def held_back(world: Cluster, things: list[Body]) -> None:
    for one in things:
        put(world, one)
    plan = world.step()
    assert bound(world) == set()
    assert [entry.reason for entry in plan.pending] == ["QueueExhausted"]


def test_labels_of_kueue_evade_no_quota() -> None:
    job, pods = a_job("first", 3)
    held_back(world_of(5, one_queue(8)), [DEFINITION, job, *pods])
    for labels in ({"kueue.x-k8s.io/podset": "x"}, {"kueue.x-k8s.io/managed": "true"}):
        held_back(world_of(5, one_queue(4)), [DEFINITION, *pods_of(None, ["alone"], labels=labels)])


@pytest.mark.parametrize("case", ["not admitted", "of another job", "more pods than admitted", "by the setting"])
def test_what_kueue_has_not_admitted_counts_in_belays_queues(case: str) -> None:
    job, pods = a_job("first", 3)
    other, _ = a_job("other", 3)
    record = {
        "not admitted": admission([job], 3, admitted="False"),
        "of another job": admission([other], 3),
        "more pods than admitted": admission([job], 2),
        "by the setting": admission([job], 3),
    }[case]
    quota = "queues" if case == "by the setting" else "kueue"
    world = world_of(5, one_queue(8, kueueQuota=quota))
    put(world, DEFINITION)
    world.put(record)
    held_back(world, [job, *pods])


def test_pods_that_claim_the_uid_of_an_admitted_job_are_not_of_it() -> None:
    job, _ = a_job("first", 1)
    world = world_of(5, one_queue(4))
    for one in (DEFINITION, job, admission([job], 1)):
        world.put(one)
    claimed = copy.deepcopy(job)
    claimed["metadata"]["name"] = "forged"
    held_back(world, pods_of(claimed, ["forged-0"], labels=OF_JOB))


def test_a_job_leaves_kueues_queue_with_its_admission() -> None:
    world = world_of(5, one_queue(8))
    job, pods = a_job("first", 1)
    record = admission([job], 1)
    world.put(record)
    for one in [job, *pods]:
        put(world, one)
    world.step()
    assert quotas(world)[f"kueue.x-k8s.io/{SPACE}/team"] == (8, "Kueue")
    world.delete(key_of(record))
    world.step()
    assert quotas(world) == {"default": (8, "SchedulingSettings")}
