"""How kinds are addressed: a table of known kinds; others are discovered."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import quote

import msgspec


class Resource(msgspec.Struct, frozen=True, order=True):
    """One kind of the API and the path of its objects."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group_path(self) -> str:
        """``/api/v1`` for the core group, ``/apis/<group>/<version>`` for the others."""
        return _group_path(self.api_version)

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, or of one object and its subresource.

        Raises ValueError when a namespaced object is addressed without its namespace.
        """
        parts = [self.group_path]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment(namespace)]
        elif self.namespaced and name:
            raise ValueError(f"{self.kind} {name}: a namespace is needed")
        parts.append(self.plural)
        if name:
            parts.append(_segment(name))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


@lru_cache(maxsize=256)
def _group_path(api_version: str) -> str:
    return ("/apis/" if "/" in api_version else "/api/") + quote(api_version)


def _segment(text: str) -> str:
    if text in {".", ".."}:
        raise ValueError(f"{text!r} is not a name")
    return quote(text, safe=":")


_CORE = [
    ("v1", "ConfigMap", "configmaps", True),
    ("v1", "Endpoints", "endpoints", True),
    ("v1", "Event", "events", True),
    ("v1", "Namespace", "namespaces", False),
    ("v1", "Node", "nodes", False),
    ("v1", "PersistentVolume", "persistentvolumes", False),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaims", True),
    ("v1", "Pod", "pods", True),
    ("v1", "Secret", "secrets", True),
    ("v1", "Service", "services", True),
    ("v1", "ServiceAccount", "serviceaccounts", True),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False),
    ("apps/v1", "DaemonSet", "daemonsets", True),
    ("apps/v1", "Deployment", "deployments", True),
    ("apps/v1", "ReplicaSet", "replicasets", True),
    ("apps/v1", "StatefulSet", "statefulsets", True),
    ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True),
    ("batch/v1", "Job", "jobs", True),
    ("coordination.k8s.io/v1", "Lease", "leases", True),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", False),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", True),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", True),
    ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False),
    ("storage.k8s.io/v1", "CSIDriver", "csidrivers", False),
    ("storage.k8s.io/v1", "CSINode", "csinodes", False),
    ("storage.k8s.io/v1", "CSIStorageCapacity", "csistoragecapacities", True),
    ("storage.k8s.io/v1", "StorageClass", "storageclasses", False),
    ("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", False),
    ("batch.volcano.sh/v1alpha1", "Job", "jobs", True),
    ("bus.volcano.sh/v1alpha1", "Command", "commands", True),
    ("mindxdl.gitee.com/v1", "AscendJob", "ascendjobs", True),
    ("mindcluster.huawei.com/v1", "InferServiceSet", "inferservicesets", True),
    ("mindcluster.huawei.com/v1", "InferService", "inferservices", True),
    ("mindcluster.huawei.com/v1", "InstanceSet", "instancesets", True),
    ("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups", True),
    ("scheduling.volcano.sh/v1beta1", "Queue", "queues", False),
    ("belay.dev/v1alpha1", "DiagnosisRules", "diagnosisrules", False),
    ("belay.dev/v1alpha1", "FaultPolicy", "faultpolicies", False),
    ("belay.dev/v1alpha1", "FaultTable", "faulttables", False),
    ("belay.dev/v1alpha1", "Isolation", "isolations", False),
    ("belay.dev/v1alpha1", "KVLink", "kvlinks", False),
    ("belay.dev/v1alpha1", "NodePool", "nodepools", False),
    ("belay.dev/v1alpha1", "NotificationPolicy", "notificationpolicies", False),
    ("belay.dev/v1alpha1", "Product", "products", False),
    ("belay.dev/v1alpha1", "SafetyBudget", "safetybudgets", False),
    ("belay.dev/v1alpha1", "SchedulingSettings", "schedulingsettings", False),
    ("belay.dev/v1alpha1", "Source", "sources", False),
    ("belay.dev/v1alpha1", "VNPULayout", "vnpulayouts", False),
    ("belay.dev/v1alpha1", "VNPUTemplates", "vnputemplates", False),
    ("belay.dev/v1alpha1", "WorkloadKind", "workloadkinds", False),
]

KNOWN: dict[tuple[str, str], Resource] = {(row[0], row[1]): Resource(*row) for row in _CORE}


def resource_for(api_version: str, kind: str) -> Resource:
    """The resource of a known kind; raises KeyError for others (``Kube.resource`` asks the server)."""
    return KNOWN[(api_version, kind)]


CONFIGMAP = resource_for("v1", "ConfigMap")
EVENT = resource_for("v1", "Event")
LEASE = resource_for("coordination.k8s.io/v1", "Lease")
NAMESPACE = resource_for("v1", "Namespace")
NODE = resource_for("v1", "Node")
POD = resource_for("v1", "Pod")


def resource_of(obj: dict[str, Any]) -> Resource:
    """The resource of an object with ``apiVersion`` and ``kind``; raises KeyError for unknown kinds."""
    return resource_for(str(obj["apiVersion"]), str(obj["kind"]))
