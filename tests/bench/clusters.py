"""Clusters as raw objects, of any size, for benchmarks."""

from __future__ import annotations

import json
from typing import Any

from belay.engine.wire import deviceinfo

NOW = 1788249600.0


def cluster(nodes: int, jobs: int, *, chips: int = 8, pods_per_job: int = 2) -> list[dict[str, Any]]:
    """``nodes`` healthy Atlas 800T A2 servers and ``jobs`` running AscendJobs of whole nodes."""
    items: list[dict[str, Any]] = []
    for index in range(nodes):
        items += [node(f"node-{index:05d}", index, chips), device(f"node-{index:05d}", chips)]
    free = iter(range(nodes))
    for index in range(jobs):
        name = f"job-{index:05d}"
        items.append(ascend_job(name, pods_per_job, chips))
        items.append(service(name))
        for rank in range(pods_per_job):
            place = next(free, None)
            if place is not None:
                items.append(pod(name, rank, f"node-{place:05d}", chips))
    return items


def node(name: str, index: int, chips: int = 8) -> dict[str, Any]:
    base = {
        f"Ascend910-{c}": {"IP": f"192.168.{c}.{index % 250}", "SuperDeviceID": index * chips + c} for c in range(chips)
    }
    amounts = {"cpu": "192", "memory": "1536Gi", "pods": "110", "huawei.com/Ascend910": str(chips)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"node-uid-{index}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-08-02T08:00:00Z",
            "labels": {
                "kubernetes.io/hostname": name,
                "accelerator": "huawei-Ascend910",
                "accelerator-type": "module-910b-8",
                "host-arch": "huawei-arm",
                "servertype": "Ascend910B-20",
                "node.kubernetes.io/npu.chip.name": "910B3",
            },
            "annotations": {"baseDeviceInfos": json.dumps(base)},
        },
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-08-02T08:00:00Z"}],
            "addresses": [
                {"type": "InternalIP", "address": f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"}
            ],
        },
    }


def device(
    name: str, chips: int = 8, faulty: int | None = None, at: int = int(NOW) - 2, **place: int
) -> dict[str, Any]:
    """A report; ``place`` are ``super_pod_id`` and ``server_index``."""
    names = [f"Ascend910-{c}" for c in range(chips)]
    lists = {
        "huawei.com/Ascend910": ",".join(n for c, n in enumerate(names) if c != faulty),
        "huawei.com/Ascend910-Unhealthy": names[faulty] if faulty is not None else "",
        "huawei.com/Ascend910-NetworkUnhealthy": "",
        "huawei.com/Ascend910-Recovering": "",
        "huawei.com/Ascend910-Fault": "[]",
    }
    if faulty is not None:
        element = deviceinfo.fault_element(
            "CardUnhealthy", names[faulty], {"80C98001": (int(NOW - 10) * 1000, "RestartNPU")}, "RestartNPU"
        )
        lists["huawei.com/Ascend910-Fault"] = json.dumps([element], separators=(",", ":"))
    config_map = deviceinfo.build(name, device_list=lists, update_time=at, **place)
    config_map["metadata"]["resourceVersion"] = str(at)
    return config_map


def ascend_job(name: str, pods: int, chips: int) -> dict[str, Any]:
    def replica(count: int) -> dict[str, Any]:
        amount = {"huawei.com/Ascend910": str(chips)}
        container = {"name": "ascend", "image": "train:1", "resources": {"limits": amount, "requests": amount}}
        return {
            "replicas": count,
            "restartPolicy": "Never",
            "template": {"spec": {"schedulerName": "volcano", "containers": [container]}},
        }

    specs = {"Master": replica(1)}
    if pods > 1:
        specs["Worker"] = replica(pods - 1)
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {
            "name": name,
            "namespace": "train",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": "2026-08-31T08:00:00Z",
            "labels": {"framework": "pytorch", "fault-scheduling": "force"},
        },
        "spec": {"schedulerName": "volcano", "replicaSpecs": specs},
    }


def service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"{name}-master-0",
            "namespace": "train",
            "uid": f"svc-{name}",
            "resourceVersion": "1",
            "ownerReferences": [_owner(name)],
        },
        "spec": {"clusterIP": "10.96.0.9", "ports": [{"name": "ascendjob-port", "port": 2222}]},
    }


def pod(job: str, rank: int, where: str, chips: int) -> dict[str, Any]:
    role = "master" if rank == 0 else "worker"
    number = 0 if rank == 0 else rank - 1
    held = ",".join(f"Ascend910-{c}" for c in range(chips))
    amount = {"huawei.com/Ascend910": str(chips)}
    labels = {
        "job-name": job,
        "training.kubeflow.org/job-name": job,
        "training.kubeflow.org/operator-name": "ascendjob-controller",
        "replica-type": role,
        "replica-index": str(number),
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(number),
        "group-name": "mindxdl.gitee.com",
        "version": "0",
        "fault-scheduling": "force",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-{role}-{number}",
            "namespace": "train",
            "uid": f"pod-{job}-{rank}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-08-31T08:00:00Z",
            "labels": labels,
            "annotations": {
                "hccl/rankIndex": str(rank),
                "volcano.sh/task-spec": role,
                "huawei.com/Ascend910": held,
                "huawei.com/AscendReal": held,
                "predicate-time": "18446744073709551615",
                "distributed-job": "true",
            },
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            "nodeName": where,
            "schedulerName": "volcano",
            "containers": [{"name": "ascend", "image": "train:1", "resources": {"limits": amount, "requests": amount}}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.1.0.1",
            "startTime": "2026-08-31T08:00:10Z",
            "containerStatuses": [{"name": "ascend", "ready": True, "restartCount": 0, "state": {"running": {}}}],
        },
    }


def _owner(job: str) -> dict[str, Any]:
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "name": job,
        "uid": f"uid-{job}",
        "controller": True,
    }
