"""Volumes, volume claims, resource claims and queues as objects of a cluster."""

from __future__ import annotations

from typing import Any

from tests.listing import Item


def storage_class(name: str = "fast", provisioner: str = "csi.example.com", **more: Any) -> Item:
    body = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}} | body | more


def claim(name: str, size: str = "10Gi", kind: str = "fast", **more: Any) -> Item:
    head = {"namespace": "train", "name": name, "uid": f"u-{name}", "resourceVersion": "7"}
    body: Item = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head | more.pop("metadata", {}),
        "spec": {"storageClassName": kind, "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Pending"},
    }  # fmt: skip
    return body | more


def volume(name: str, host: str = "", size: str = "20Gi", kind: str = "fast", **spec: Any) -> Item:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if host else {}
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name, "uid": f"u-{name}"},
        "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": kind}
        | affinity | spec, "status": {"phase": "Available"},
    }  # fmt: skip


def capacity(name: str, host: str, size: str) -> Item:
    return {
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity", "metadata": {"namespace": "csi", "name": name},
        "storageClassName": "fast", "capacity": size,
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": host}},
    }  # fmt: skip


DRIVER = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "csi.example.com"},
          "spec": {"storageCapacity": True}}  # fmt: skip


def mounting(*claims: str) -> dict[str, Any]:
    return {"volumes": [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]}


def allocated(claim: str = "npu", host: str = "", user: str = "u-train-j-0", version: str = "v1") -> Item:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [host]}]}]
    allocation = {"nodeSelector": {"nodeSelectorTerms": terms}} if host else {"devices": {"results": []}}
    return {
        "apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceClaim",
        "metadata": {"namespace": "train", "name": claim},
        "status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "j-0", "uid": user}]},
    }  # fmt: skip


def queue(name: str, state: str = "Open", **spec: Any) -> Item:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec,
        "status": {"state": state},
    }  # fmt: skip
