"""Large clusters with work that waits: what the placement benchmarks decide on, as raw objects like kubectl's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.bench import clusters
from tests.bench.clusters import NOW

Item = dict[str, Any]
ZONES = 8
"""Labels ``zone`` and taints of the constrained cluster go by it."""
SUPER_POD = 128
"""Nodes of one A3 super pod."""
A3_LABELS = {
    "accelerator": "huawei-Ascend910",
    "accelerator-type": "module-a3-16-super-pod",
    "host-arch": "huawei-arm",
    "node.kubernetes.io/npu.chip.name": "910_9391",
}
QUEUES = ("research", "serving", "platform")


def name_of(index: int) -> str:
    """The node's name."""
    return f"node-{index:05d}"


def plain(nodes: int) -> Iterator[Item]:
    """Free Atlas 800T A2 servers with 8 chips."""
    for index in range(nodes):
        yield clusters.node(name_of(index), index)
        yield clusters.device(name_of(index))


def zoned(nodes: int) -> Iterator[Item]:
    """The same, with a zone and a disk label each; the last zone is tainted, and three queues have a capability."""
    for index in range(nodes):
        item = clusters.node(name_of(index), index)
        zone = index % ZONES
        item["metadata"]["labels"] |= {"zone": f"z{zone}", "disk": "nvme" if index % 2 else "ssd"}
        if zone == ZONES - 1:
            item["spec"]["taints"] = [{"key": "reserved", "value": "research", "effect": "NoSchedule"}]
        yield item
        yield clusters.device(name_of(index))
    for queue in QUEUES:
        spec = {"weight": 1, "capability": {"huawei.com/Ascend910": str(nodes * 8)}}
        metadata = {"name": queue, "uid": f"queue-{queue}", "resourceVersion": "1"}
        status = {"state": "Open"}
        api = "scheduling.volcano.sh/v1beta1"
        yield {"apiVersion": api, "kind": "Queue", "metadata": metadata, "spec": spec, "status": status}


def a3(nodes: int) -> Iterator[Item]:
    """Nodes of A3 super pods, 16 dies each."""
    for index in range(nodes):
        item = clusters.node(name_of(index), index, 16)
        labels = item["metadata"]["labels"]
        labels.clear()
        labels |= {"kubernetes.io/hostname": name_of(index)} | A3_LABELS
        yield item
        yield a3_device(index)


def a3_device(index: int, faulty: int | None = None, at: int = int(NOW) - 2) -> Item:
    """The report of one of them."""
    place = {"super_pod_id": index // SUPER_POD, "server_index": index % SUPER_POD}
    return clusters.device(name_of(index), 16, faulty, at, **place)


def whole_nodes(pods: int) -> Iterator[Item]:
    """One AscendJob whose pods want a whole A2 server each."""
    yield clusters.ascend_job("crowd", pods, 8)
    yield clusters.service("crowd")
    for rank in range(pods):
        yield waiting(clusters.pod("crowd", rank, "", 8))


def small_gangs(gangs: int) -> Iterator[Item]:
    """Gangs of three pods with 1, 2, 4 or 8 chips, each under a selector, an affinity, a toleration and a queue."""
    for number in range(gangs):
        name, chips = f"gang-{number:05d}", (1, 2, 4, 8)[number % 4]
        yield group(name, 3, QUEUES[number % len(QUEUES)])
        for rank in range(3):
            item = group_pod(name, rank, chips)
            item["spec"] |= {
                "nodeSelector": {"accelerator-type": "module-910b-8", "disk": "nvme" if number // 4 % 2 else "ssd"},
                "affinity": _affinity(number),
                "tolerations": [{"key": "reserved", "operator": "Equal", "value": "research", "effect": "NoSchedule"}]
                if number % len(QUEUES) == 0
                else [],
            }
            yield item


def mixed_jobs(jobs: int) -> Iterator[Item]:
    """Super-pod jobs of 2 to 16 nodes, small jobs of 1 to 16 dies, with and without blocks: half of them run nothing
    larger than a node."""
    for number in range(jobs):
        name = f"job-{number:05d}"
        if number % 2:
            pods, chips, block = (2, 4, 8, 16)[number // 2 % 4], 16, (32, 64)[number // 8 % 2]
            block = min(block, pods * 16)
        else:
            chips = (1, 2, 4, 8, 16)[number // 2 % 5]
            pods, block = 1, chips
        yield group(name, pods, "default", {"sp-block": str(block)})
        for rank in range(pods):
            item = group_pod(name, rank, chips)
            item["spec"]["nodeSelector"] = {"accelerator-type": A3_LABELS["accelerator-type"]}
            item["metadata"]["annotations"] |= {"sp-block": str(block)}
            yield item


def running(pods: int, nodes: int) -> Iterator[Item]:
    """Bound pods of two or sixteen dies on A3 nodes until there are ``pods`` of them."""
    free = [0] * nodes
    for number in range(pods):
        index = number % nodes
        chips = 8 if free[index] == 0 else 4
        name = f"run-{number:05d}"
        yield group(name, 1, "default", {"sp-block": str(chips)})
        item = group_pod(name, 0, chips)
        held = ",".join(f"Ascend910-{chip}" for chip in range(free[index], free[index] + chips))
        free[index] += chips
        item["spec"] |= {"nodeName": name_of(index)}
        item["spec"]["nodeSelector"] = {"accelerator-type": A3_LABELS["accelerator-type"]}
        item["metadata"]["annotations"] |= {"huawei.com/Ascend910": held, "huawei.com/AscendReal": held}
        item["status"] = {"phase": "Running", "podIP": "10.1.0.1", "startTime": "2026-08-31T08:00:10Z"}
        yield item


def group(name: str, pods: int, queue: str, annotations: dict[str, str] | None = None) -> Item:
    """A PodGroup of Volcano."""
    metadata = {
        "name": name,
        "namespace": "train",
        "uid": f"group-{name}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-08-31T08:00:00Z",
        "annotations": annotations or {},
    }
    spec = {"minMember": pods, "queue": queue}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def group_pod(name: str, rank: int, chips: int) -> Item:
    """A pod of a PodGroup, waiting."""
    item = clusters.pod(name, rank, "", chips)
    item["metadata"] = {
        "name": f"{name}-{rank}",
        "namespace": "train",
        "uid": f"pod-{name}-{rank}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-08-31T08:00:00Z",
        "labels": {"app": name},
        "annotations": {"scheduling.k8s.io/group-name": name},
    }
    return waiting(item)


def waiting(item: Item) -> Item:
    """A pod that has no node and no chips yet."""
    item["spec"].pop("nodeName", None)
    for key in ("huawei.com/Ascend910", "huawei.com/AscendReal", "predicate-time", "distributed-job"):
        item["metadata"]["annotations"].pop(key, None)
    item["status"] = {"phase": "Pending"}
    return item


def _affinity(number: int) -> Item:
    zones = [f"z{zone}" for zone in range(ZONES) if zone != number % ZONES]
    rule = {"matchExpressions": [{"key": "zone", "operator": "In", "values": zones}]}
    wish = {"weight": 10, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": zones[:1]}]}}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [rule]},
            "preferredDuringSchedulingIgnoredDuringExecution": [wish],
        }
    }


def size_of(items: list[Item]) -> int:
    """Bytes of the objects as JSON."""
    return sum(len(json.dumps(item, separators=(",", ":"))) for item in items)
