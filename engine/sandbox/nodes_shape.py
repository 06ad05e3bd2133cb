"""A simulated node in Kubernetes: labels, annotations and resources as its device plugin and its
administrator set them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.documents.products import Product
from belay.engine.model.labels import (
    ACCELERATOR_LABEL,
    ACCELERATOR_TYPE,
    ASCEND_310,
    ASCEND_310P,
    ASCEND_910,
    BASE_DEVICES,
    CHIP_NAME,
    HOST_ARCH,
    HOSTNAME_LABEL,
    NODE_SERVER_INDEX,
    NODE_SUPER_POD,
    NPU,
    SERVER_TYPE,
)
from belay.engine.model.times import rfc3339

Json = dict[str, Any]

CPU: Final = "192"
MEMORY: Final = "1536Gi"
PODS: Final = "110"
STORAGE: Final = "900Gi"
KUBELET_VERSION: Final = "v1.29.0-belay-sandbox"

_ACCELERATOR: Final[Mapping[str, str]] = {
    ASCEND_910: "huawei-Ascend910",
    ASCEND_310P: "huawei-Ascend310P",
    ASCEND_310: "huawei-Ascend310",
    NPU: "huawei-npu",
}
_SERVER_TYPES: Final[Mapping[str, str]] = {
    "910B1": "Ascend910B-25",
    "910B2": "Ascend910B-24",
    "910B3": "Ascend910B-20",
    "910B4": "Ascend910B-20",
    "310P3": "Ascend310P-8",
    "Ascend910-9382": "Ascend910A3-24",
    "Ascend910-9362": "Ascend910A3-20",
}
"""``servertype`` by chip name: family and AI cores (component/ascend-device-plugin/pkg/server/manager.go)."""


class Shape(msgspec.Struct, frozen=True):
    """A server model. ``resource`` is its whole-chip resource, ``prefix`` its device name prefix, ``chips`` how many
    it holds, ``product`` its name in policies/products."""

    resource: str
    prefix: str
    chips: int
    labels: dict[str, str]
    super_pod_size: int = 0
    product: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Device names of all chips."""
        return tuple(f"{self.prefix}{chip}" for chip in range(self.chips))


def of_product(product: Product, most: int = 64) -> Shape:
    """Return the server of a product with at most ``most`` chips. Raises ValueError where it is not a server model."""
    spec = product.spec
    if not spec.node_labels or spec.resource == "*":
        raise ValueError(f"product {product.metadata.name} is a policy, not a server; choose one that has nodeLabels")
    labels = dict(spec.node_labels[0])
    labels.setdefault(ACCELERATOR_LABEL, _ACCELERATOR.get(spec.resource, "huawei-npu"))
    if spec.accelerator_types:
        labels.setdefault(ACCELERATOR_TYPE, spec.accelerator_types[0])
    if spec.chip_names:
        labels.setdefault(CHIP_NAME, _usual(spec.chip_names))
    chip = labels.get(CHIP_NAME, "")
    if server_type := _SERVER_TYPES.get(chip):
        labels.setdefault(SERVER_TYPE, server_type)
    labels.setdefault(HOST_ARCH, "huawei-arm")
    labels.setdefault("workerselector", "dls-worker-node")
    in_super_pod = spec.placement.handler in ("superpod", "superpod850", "rack950")
    return Shape(
        resource=spec.resource,
        prefix=spec.device_prefix,
        chips=min(most, spec.chips_per_node),
        labels=labels,
        super_pod_size=4 if in_super_pod else 0,
        product=product.metadata.name,
    )


def _usual(chip_names: tuple[str, ...]) -> str:
    """The chip a product is usually sold with, where it comes with several."""
    return next((name for name in ("910B3", "310P3") if name in chip_names), chip_names[0])


def address(index: int) -> str:
    """The node's IP address; ``index`` counts from 0 over all nodes."""
    return f"10.{64 + index // 62500}.{index // 250 % 250}.{index % 250 + 1}"


def pod_address(index: int, number: int) -> str:
    """An address for the ``number``-th pod of a node."""
    return f"10.{128 + index // 250 % 100}.{index % 250}.{number % 250 + 1}"


def base_devices(shape: Shape, index: int) -> str:
    """Annotation ``baseDeviceInfos``: every chip with its parameter-plane address."""
    return json.dumps(
        {
            name: {"IP": f"192.{168 + chip % 8}.{index // 250}.{index % 250 + 1}", "SuperDeviceID": ""}
            for chip, name in enumerate(shape.names)
        },
        separators=(",", ":"),
    )


def node_object(name: str, index: int, shape: Shape, now: float) -> Json:
    """The Node as the kubelet registers it; its status follows with the first heartbeat."""
    labels = {
        HOSTNAME_LABEL: name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64" if shape.labels.get(HOST_ARCH) == "huawei-arm" else "amd64",
        **shape.labels,
    }
    annotations = {BASE_DEVICES: base_devices(shape, index)}
    if shape.super_pod_size:
        annotations |= {
            NODE_SUPER_POD: str(index // shape.super_pod_size),
            NODE_SERVER_INDEX: str(index % shape.super_pod_size),
        }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {},
        "status": status(name, index, shape, {shape.resource: shape.chips}, {shape.resource: shape.chips}, True, now),
    }


def status(
    name: str,
    index: int,
    shape: Shape,
    capacity: Mapping[str, int],
    allocatable: Mapping[str, int],
    ready: bool,
    now: float,
) -> Json:
    """The status a kubelet posts; ``capacity`` and ``allocatable`` count devices."""
    base = {"cpu": CPU, "memory": MEMORY, "pods": PODS, "ephemeral-storage": STORAGE}
    return {
        "capacity": base | {key: str(count) for key, count in sorted(capacity.items())},
        "allocatable": base | {key: str(count) for key, count in sorted(allocatable.items())},
        "conditions": conditions(ready, now),
        "addresses": [{"type": "InternalIP", "address": address(index)}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "architecture": "arm64" if shape.labels.get(HOST_ARCH) == "huawei-arm" else "amd64",
            "bootID": f"sim-{name}",
            "containerRuntimeVersion": "belay-sandbox://0",
            "kernelVersion": "5.10.0",
            "kubeProxyVersion": KUBELET_VERSION,
            "kubeletVersion": KUBELET_VERSION,
            "machineID": f"sim-{name}",
            "operatingSystem": "linux",
            "osImage": "Belay sandbox",
            "systemUUID": f"sim-{name}",
        },
    }


def conditions(ready: bool, now: float, old: list[Json] | None = None) -> list[Json]:
    """The node's conditions; transition times change only with the status."""
    before = {c.get("type"): c for c in old or ()}
    rows = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status")
        if ready
        else ("Ready", "False", "KubeletNotReady", "container runtime is down"),
    ]
    stamp = rfc3339(float(int(now)))
    out = []
    for kind, value, reason, message in rows:
        was = before.get(kind, {})
        since = was.get("lastTransitionTime") if was.get("status") == value else None
        out.append(
            {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": stamp,
                "lastTransitionTime": since or stamp,
            }
        )
    return out
