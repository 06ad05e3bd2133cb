"""The kubelet's admission: reject a bound pod if the node cannot hold it.

Reasons and wording: Kubernetes pkg/kubelet/lifecycle/predicate.go (OutOfcpu …, NodeAffinity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from belay.engine.model.labels import HUAWEI_PREFIX
from belay.engine.model.quantities import amount
from belay.engine.sandbox.nodes_devices import PodRejection

Json = dict[str, Any]


def requests(pod: Json) -> dict[str, int]:
    """The pod's requests: the sum of its containers, or the largest init container if that is more; invalid
    quantities count 0."""
    spec = pod.get("spec") or {}
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for resource, value in _wanted(container).items():
            total[resource] = total.get(resource, 0) + value
    for container in spec.get("initContainers") or ():
        for resource, value in _wanted(container).items():
            total[resource] = max(total.get(resource, 0), value)
    return total


def _wanted(container: Json) -> dict[str, int]:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    out = {}
    for resource, value in merged.items():
        try:
            out[resource] = amount(resource, value)
        except ValueError:
            out[resource] = 0
    return out


def admit(pod: Json, running: Iterable[Json], node: Json) -> PodRejection | None:
    """None when ``pod`` fits beside the ``running`` ones on ``node``; the device plugin checks NPU devices."""
    if (selector := (pod.get("spec") or {}).get("nodeSelector")) and not _labels_match(selector, node):
        return PodRejection("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed")
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    others = [requests(other) for other in running]
    if len(others) + 1 > amount("pods", allocatable.get("pods", "110")):
        return _out_of("pods", 1, len(others), amount("pods", allocatable.get("pods", "110")))
    for resource, wanted in sorted(requests(pod).items()):
        if resource.startswith(HUAWEI_PREFIX) and resource in allocatable:
            continue
        capacity = amount(resource, allocatable.get(resource, "0"))
        used = sum(other.get(resource, 0) for other in others)
        if wanted and used + wanted > capacity:
            return _out_of(resource, wanted, used, capacity)
    return None


def _out_of(resource: str, wanted: int, used: int, capacity: int) -> PodRejection:
    text = f"resource: {resource}, requested: {wanted}, used: {used}, capacity: {capacity}"
    return PodRejection(f"OutOf{resource}", f"Pod was rejected: Node didn't have enough {text}")


def _labels_match(selector: Mapping[str, str], node: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())
