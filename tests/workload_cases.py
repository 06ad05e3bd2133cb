"""Five pods of eight chips in every form that the table of workloads knows, as their controllers make them.

Each case follows the published manifests and the labels and owners that the kind's controller documents.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

Body = dict[str, Any]
SPACE = "train"
CHIPS = "huawei.com/Ascend910"


class WorkloadCase(NamedTuple):
    """A workload of five pods; ``owner`` is what people call it, as the key of its gang. ``extra`` are pods without
    chips beside the five."""

    name: str
    owner: str
    objects: list[Body]
    pods: list[Body]
    extra: int = 0


def template(chips: int = 8) -> Body:
    resources = {"limits": {CHIPS: str(chips)}, "requests": {CHIPS: str(chips)}} if chips else {}
    return {
        "spec": {
            "schedulerName": "belay",
            "nodeSelector": {"accelerator-type": "module-910b-8"} if chips else {},
            "containers": [{"name": "main", "image": "train:1", "resources": resources}],
        }
    }


def body(api: str, kind: str, name: str, spec: Body, owner: Body | None = None, **metadata: Any) -> Body:
    meta = {"name": name, "namespace": SPACE, "uid": f"uid-{kind.lower()}-{name}", **metadata}
    if owner is not None:
        meta["ownerReferences"] = [reference(owner)]
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec}


def reference(owner: Body) -> Body:
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
        "controller": True,
    }  # fmt: skip


def pods_of(
    owner: Body | None, names: list[str], chips: int = 8, labels: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None, index: str = "",
) -> list[Body]:  # fmt: skip
    """Pods of a controller; ``index`` is the label that holds their number."""
    found = []
    for number, name in enumerate(names):
        own = {**(labels or {}), **({index: str(number)} if index else {})}
        pod = body("v1", "Pod", name, copy.deepcopy(template(chips)["spec"]), owner, labels=own)
        pod["metadata"]["annotations"] = dict(notes or {})
        found.append(pod)
    return found


def names(prefix: str, count: int = 5, first: int = 0) -> list[str]:
    return [f"{prefix}-{index}" for index in range(first, first + count)]


def _kubeflow(kind: str, field: str, api: str = "kubeflow.org/v1") -> WorkloadCase:
    label = "training.kubeflow.org/replica-index"
    roles = {
        "Worker": {"replicas": 5, "template": template()},
        "Launcher" if kind == "MPIJob" else "Scheduler": {"replicas": 1, "template": template(0)},
    }
    job = body(api, kind, "pt", {field: roles})
    other = pods_of(job, ["pt-launcher"], 0)
    return WorkloadCase(kind, f"{SPACE}/{kind}/pt", [job], [*pods_of(job, names("pt-worker"), index=label), *other], 1)


def _job_set(owner: Body | None = None) -> tuple[Body, list[Body], list[Body]]:
    rows = [
        {"name": "leader", "replicas": 1, "template": {"spec": {"parallelism": 1, "template": template()}}},
        {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": template()}}},
    ]
    whole = body("jobset.x-k8s.io/v1alpha2", "JobSet", "js", {"replicatedJobs": rows}, owner)
    jobs, pods = [], []
    for name, count in (("leader-0", 1), ("workers-0", 2), ("workers-1", 2)):
        job = body("batch/v1", "Job", f"js-{name}", {"parallelism": count, "completions": count}, whole)
        jobs.append(job)
        label = {"jobset.sigs.k8s.io/jobset-name": "js"}
        pods += pods_of(job, names(f"js-{name}", count), labels=label, index="batch.kubernetes.io/job-completion-index")
    return whole, jobs, pods


def _ray(parent: Body | None = None, extra: int = 1) -> tuple[Body, list[Body]]:
    spec = {
        "headGroupSpec": {"template": template(0)},
        "workerGroupSpecs": [
            {"groupName": "a", "replicas": 3, "minReplicas": 0, "maxReplicas": 5, "template": template()},
            {"groupName": "b", "replicas": 1, "numOfHosts": 2, "template": template()},
        ],
    }
    cluster = body("ray.io/v1", "RayCluster", "ray", spec, parent)
    pods = [
        *pods_of(cluster, ["ray-head"], 0),
        *pods_of(cluster, names("ray-a", 3)),
        *pods_of(cluster, names("ray-b", 2)),
    ]
    return cluster, pods


def _lws() -> WorkloadCase:
    group = {"leaderworkerset.sigs.k8s.io/name": "lws", "leaderworkerset.sigs.k8s.io/group-index": "0"}
    size = {"leaderworkerset.sigs.k8s.io/size": "5"}
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 5, "workerTemplate": template()}}
    whole = body("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "lws", spec)
    leaders = body("apps/v1", "StatefulSet", "lws", {"replicas": 1, "podManagementPolicy": "Parallel"}, whole)
    (leader,) = pods_of(leaders, ["lws-0"], labels=group, notes=size)
    workers = body("apps/v1", "StatefulSet", "lws-0", {"replicas": 4, "podManagementPolicy": "Parallel"}, leader)
    rest = pods_of(workers, names("lws-0", 4, 1), labels=group, notes=size)
    return WorkloadCase("LeaderWorkerSet", f"{SPACE}/LeaderWorkerSet/lws.0", [whole, leaders, workers], [leader, *rest])


def _grove() -> WorkloadCase:
    label = {"grove.io/podgang": "serve-0"}
    owner = body("grove.io/v1alpha1", "PodClique", "serve-0-decode", {"replicas": 4})
    other = body("grove.io/v1alpha1", "PodClique", "serve-0-prefill", {"replicas": 1})
    groups = [{"name": "serve-0-decode", "minReplicas": 4}, {"name": "serve-0-prefill", "minReplicas": 1}]
    gang = body("scheduler.grove.io/v1alpha1", "PodGang", "serve-0", {"podgroups": groups})
    pods = [*pods_of(owner, names("d", 4), labels=label), *pods_of(other, ["p-0"], labels=label)]
    return WorkloadCase("PodGang", f"{SPACE}/PodGang/serve-0", [owner, other, gang], pods)


def _kthena() -> WorkloadCase:
    roles = [
        {"name": "prefill", "replicas": 1, "entryTemplate": template()},
        {
            "name": "decode", "replicas": 2, "entryTemplate": template(), "workerReplicas": 1,
            "workerTemplate": template(),
        },
    ]  # fmt: skip
    serving = body(
        "workload.serving.volcano.sh/v1alpha1", "ModelServing", "llm", {"replicas": 1, "template": {"roles": roles}}
    )
    labels = {"modelserving.volcano.sh/group-name": "llm-0"}
    return WorkloadCase(
        "ModelServing", f"{SPACE}/ModelServing/llm.llm-0", [serving], pods_of(serving, names("llm-0"), labels=labels)
    )


def _role_based_group() -> WorkloadCase:
    roles = [
        {"name": "prefill", "replicas": 1, "template": template()},
        {"name": "decode", "replicas": 2, "leaderWorkerSet": {"size": 2}, "template": template()},
    ]
    group = body("workloads.x-k8s.io/v1alpha1", "RoleBasedGroup", "pd", {"roles": roles})
    first = body("apps/v1", "StatefulSet", "pd-prefill", {"replicas": 1}, group)
    second = body("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "pd-decode", {"replicas": 2}, group)
    leaders = body("apps/v1", "StatefulSet", "pd-decode", {"replicas": 2}, second)
    name = {"rolebasedgroup.workloads.x-k8s.io/name": "pd"}
    pods = [*pods_of(first, ["pd-prefill-0"], labels=name), *pods_of(leaders, names("pd-decode", 4), labels=name)]
    return WorkloadCase("RoleBasedGroup", f"{SPACE}/RoleBasedGroup/pd", [group, first, second, leaders], pods)


def _aibrix() -> WorkloadCase:
    service = body("orchestration.aibrix.ai/v1alpha1", "StormService", "storm", {"replicas": 1})
    roles = [
        {"name": "prefill", "replicas": 1, "template": template()},
        {"name": "decode", "replicas": 2, "podGroupSize": 2, "template": template()},
    ]
    role_set = body("orchestration.aibrix.ai/v1alpha1", "RoleSet", "storm-x", {"roles": roles}, service)
    return WorkloadCase("RoleSet", f"{SPACE}/RoleSet/storm-x", [service, role_set], pods_of(role_set, names("storm-x")))


def _spark() -> WorkloadCase:
    application = body("sparkoperator.k8s.io/v1beta2", "SparkApplication", "etl", {"executor": {"instances": 5}})
    name = {"sparkoperator.k8s.io/app-name": "etl"}
    (driver,) = pods_of(application, ["etl-driver"], 0, labels={"spark-role": "driver", **name})
    executors = pods_of(driver, names("etl-exec"), labels={"spark-role": "executor", **name}, index="spark-exec-id")
    return WorkloadCase("SparkApplication", f"{SPACE}/SparkApplication/etl", [application], [driver, *executors], 1)


def _volcano_job() -> WorkloadCase:
    tasks = [{"name": "w", "replicas": 5, "template": template()}]
    job = body("batch.volcano.sh/v1alpha1", "Job", "vc", {"tasks": tasks, "schedulerName": "belay"})
    return WorkloadCase("Volcano Job", f"{SPACE}/Job/vc", [job], pods_of(job, names("vc-w")))


def cases() -> list[WorkloadCase]:
    """All cases, by name."""
    indexed = body("batch/v1", "Job", "ix", {"parallelism": 5, "completions": 5, "completionMode": "Indexed"})
    train_job = body("trainer.kubeflow.org/v1alpha1", "TrainJob", "js", {"trainer": {"numNodes": 5}})
    ray_job = body("ray.io/v1", "RayJob", "rj", {})
    job_set, jobs, pods = _job_set()
    inner, inner_jobs, inner_pods = _job_set(train_job)
    cluster, ray_pods = _ray()
    below, below_pods = _ray(ray_job)
    scheduling = body("scheduling.x-k8s.io/v1alpha1", "PodGroup", "co", {"minMember": 5})
    own = body("example.org/v1", "Trial", "unknown", {"what": "ever"})
    found = [
        WorkloadCase("Job", f"{SPACE}/Job.batch/ix", [indexed], pods_of(indexed, names("ix"))),
        _kubeflow("PyTorchJob", "pytorchReplicaSpecs"),
        _kubeflow("TFJob", "tfReplicaSpecs"),
        _kubeflow("MPIJob", "mpiReplicaSpecs"),
        _kubeflow("XGBoostJob", "xgbReplicaSpecs"),
        _kubeflow("PaddleJob", "paddleReplicaSpecs"),
        _kubeflow("MSJob", "msReplicaSpecs", "mindspore.gitee.com/v1"),
        WorkloadCase("JobSet", f"{SPACE}/JobSet/js", [job_set, *jobs], pods),
        WorkloadCase("TrainJob", f"{SPACE}/TrainJob/js", [train_job, inner, *inner_jobs], inner_pods),
        WorkloadCase("RayCluster", f"{SPACE}/RayCluster/ray", [cluster], ray_pods, 1),
        WorkloadCase("RayJob", f"{SPACE}/RayJob/rj", [ray_job, below], below_pods, 1),
        _lws(), _grove(), _kthena(), _role_based_group(), _aibrix(), _spark(), _volcano_job(),
        WorkloadCase(
            "plain pods", f"{SPACE}/Pods/together", [],
            pods_of(None, names("plain"), labels={"kueue.x-k8s.io/pod-group-name": "together"},
                    notes={"kueue.x-k8s.io/pod-group-total-count": "5"}),
        ),
        WorkloadCase(
            "coscheduling", f"{SPACE}/PodGroup.scheduling.x-k8s.io/co", [scheduling],
            pods_of(None, names("co"), labels={"scheduling.x-k8s.io/pod-group": "co"}),
        ),
        WorkloadCase("a kind without a row", f"{SPACE}/Trial/unknown", [own], pods_of(own, names("trial"))),
    ]  # fmt: skip
    return sorted(found, key=lambda case: case.name)
