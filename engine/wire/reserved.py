"""Objects that a component keeps as its own record: no repository declares them, no plan writes them as an object.

A device report that Git declares would be believed as if the node had written it, an order obeyed as if the engine had
given it. Sources of the names: component/clusterd/pkg/common/constant (ConfigMaps of ClusterD), docs of device plugin
and NodeD (``mindx-dl-deviceinfo-<node>``, ``mindx-dl-nodeinfo-<node>``, ``mindx-dl-switchinfo-<node>``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from belay.engine.wire import faultjob, manualinfo, publicinfo
from belay.engine.wire.names import (
    DEVICE_NAMESPACE,
    DEVICE_PREFIX,
    DPU_PREFIX,
    JOB_STATISTIC,
    JOB_SUMMARY_PREFIX,
    NODE_NAMESPACE,
    NODE_PREFIX,
    NODES,
    RECOVERIES,
    SCHEDULER_NAMESPACE,
    SCHEDULING_EXCEPTIONS,
    SYSTEM,
)

PUBLIC_NAMESPACE: Final = "cluster-system"
ANYWHERE: Final = ""
#: Namespaces of Kubernetes itself, in which admission lets the engine write nothing but Events.
KUBERNETES: Final = frozenset({"kube-system", "kube-public", "kube-node-lease"})
#: Namespaces of Kubernetes and Belay: a pod there may run with the rights of the service accounts that live there.
SYSTEM_NAMESPACES: Final = KUBERNETES | {SYSTEM, NODES}
#: The PriorityClass of Belay's own pods; the API server itself keeps those of Kubernetes.
CONTROL_PRIORITY: Final = "belay-control"


class ReservedRecord(NamedTuple):
    """ConfigMaps of one writer: by namespace (empty: any) and by name, or by prefix if the name ends with ``*``."""

    namespace: str
    name: str
    writer: str


RECORDS: Final = (
    ReservedRecord(SYSTEM, "belay-*", "Belay"),
    ReservedRecord(NODES, "*", "the node's agent"),
    ReservedRecord(RECOVERIES, "*", "Belay"),
    ReservedRecord(DEVICE_NAMESPACE, f"{DEVICE_PREFIX}*", "the node's device plugin"),
    ReservedRecord(DEVICE_NAMESPACE, f"{DPU_PREFIX}*", "the node's RDMA device plugin"),
    ReservedRecord(DEVICE_NAMESPACE, "mindx-dl-switchinfo-*", "the node's device plugin"),
    ReservedRecord(NODE_NAMESPACE, "mindx-dl-switchinfo-*", "the node's device plugin"),
    ReservedRecord(NODE_NAMESPACE, f"{NODE_PREFIX}*", "NodeD of the node"),
    ReservedRecord(NODE_NAMESPACE, "cluster-info-*", "ClusterD"),
    ReservedRecord(NODE_NAMESPACE, JOB_STATISTIC, "ClusterD"),
    ReservedRecord(NODE_NAMESPACE, "job-reschedule-reason", "the scheduler"),
    ReservedRecord(SCHEDULER_NAMESPACE, "vcjob-fault-npu-cm", "the scheduler"),
    ReservedRecord(PUBLIC_NAMESPACE, publicinfo.STATISTICS, "ClusterD"),
    ReservedRecord(PUBLIC_NAMESPACE, SCHEDULING_EXCEPTIONS, "ClusterD"),
    ReservedRecord(PUBLIC_NAMESPACE, "super-pod-*", "ClusterD"),
    ReservedRecord(faultjob.NAMESPACE, faultjob.NAME, "ClusterD"),
    ReservedRecord(manualinfo.NAMESPACE, manualinfo.NAME, "ClusterD"),
    ReservedRecord(ANYWHERE, f"{JOB_SUMMARY_PREFIX}*", "ClusterD"),
    ReservedRecord(ANYWHERE, "kube-root-ca.crt", "Kubernetes"),
    ReservedRecord("kube-system", "coredns", "Kubernetes"),
    ReservedRecord("kube-system", "kube-proxy", "Kubernetes"),
    ReservedRecord("kube-system", "kubeadm-config", "Kubernetes"),
    ReservedRecord("kube-system", "kubelet-config*", "Kubernetes"),
    ReservedRecord("kube-system", "extension-apiserver-authentication", "Kubernetes"),
    ReservedRecord("kube-public", "cluster-info", "Kubernetes"),
)
"""ConfigMaps that only their writer may change. Those that people write and components read are not here, such as
``kube-system/mindx-dl-fault-config``."""


def writer_of(namespace: str, name: str) -> str:
    """Who keeps a ConfigMap as its own record; empty when people may declare it."""
    return next((row.writer for row in RECORDS if _matches(row, namespace, name)), "")


def refusal(kind: str, namespace: str, name: str) -> str:
    """Why no object of this kind and name may be declared; empty when it may be."""
    if kind == "Namespace":
        return f"namespace {name} belongs to Kubernetes or Belay" if name in SYSTEM_NAMESPACES else ""
    if kind == "PriorityClass":
        return f"PriorityClass {name} is that of Belay's own pods" if name == CONTROL_PRIORITY else ""
    if kind == "ConfigMap":
        writer = writer_of(namespace, name)
        return f"ConfigMap {namespace}/{name} is a record that only {writer} writes" if writer else ""
    if namespace in SYSTEM_NAMESPACES:
        return f"namespace {namespace} belongs to Kubernetes or Belay: a {kind} there could use its service accounts"
    return ""


def _matches(row: ReservedRecord, namespace: str, name: str) -> bool:
    if row.namespace not in (ANYWHERE, namespace):
        return False
    return name.startswith(row.name[:-1]) if row.name.endswith("*") else name == row.name
