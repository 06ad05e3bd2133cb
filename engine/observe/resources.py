"""The kinds of objects that the engine uses, and a function that reads all of them once.

The controller watches exactly these; `belay plan --cluster live`, `get` and `explain` list them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from belay.engine.kube import CONFIGMAP, NODE, POD, Forbidden, Kube, NotFound, Resource, resource_for
from belay.engine.model.labels import INFERENCE_SCALES
from belay.engine.model.native_groups import NATIVE_GROUP_APIS
from belay.engine.wire.dra import TAINT_RULE_VERSIONS


class Watched(msgspec.Struct, frozen=True):
    """One list+watch: a kind and its selectors. The cluster need not serve ``optional`` kinds, nor give the right to
    read those that ``may_be_closed``: nothing is known of their objects then.
    """

    resource: Resource
    namespace: str | None = None
    labels: str | None = None
    fields: str | None = None
    optional: bool = False
    may_be_closed: bool = False


WATCHED: Final[tuple[Watched, ...]] = (
    Watched(NODE),
    Watched(POD),
    # one watch for reports of both kinds: what an agent says of itself is as old as what it says of its chips
    Watched(CONFIGMAP),
    Watched(resource_for("v1", "Service")),
    Watched(resource_for("v1", "Namespace")),
    Watched(resource_for("v1", "PersistentVolume"), optional=True),
    Watched(resource_for("v1", "PersistentVolumeClaim"), optional=True),
    Watched(resource_for("storage.k8s.io/v1", "StorageClass"), optional=True),
    Watched(resource_for("storage.k8s.io/v1", "CSIDriver"), optional=True),
    Watched(resource_for("storage.k8s.io/v1", "CSINode"), optional=True),
    Watched(resource_for("storage.k8s.io/v1", "VolumeAttachment"), optional=True),
    Watched(resource_for("storage.k8s.io/v1", "CSIStorageCapacity"), optional=True),
    Watched(Resource("storage.k8s.io/v1beta1", "CSIStorageCapacity", "csistoragecapacities", True), optional=True),
    *(
        Watched(Resource(f"resource.k8s.io/{version}", kind, f"{kind.lower()}{tail}", namespaced), optional=True)
        for version in ("v1", "v1beta2", "v1beta1")
        for kind, tail, namespaced in (
            ("ResourceClaim", "s", True),
            ("ResourceSlice", "s", False),
            ("DeviceClass", "es", False),
        )
    ),
    *(
        Watched(Resource(f"resource.k8s.io/{version}", "DeviceTaintRule", "devicetaintrules", False), optional=True)
        for version in TAINT_RULE_VERSIONS
    ),
    Watched(resource_for("apps/v1", "Deployment")),
    Watched(resource_for("apps/v1", "StatefulSet")),
    Watched(resource_for("apps/v1", "ReplicaSet")),
    Watched(resource_for("batch/v1", "Job")),
    Watched(resource_for("scheduling.k8s.io/v1", "PriorityClass"), optional=True),
    # the right to read them is newer than the other rights
    *(
        Watched(Resource(version, "PodGroup", "podgroups", True), optional=True, may_be_closed=True)
        for version in NATIVE_GROUP_APIS
    ),
    # what Kueue has admitted; this right, too, is newer than the others
    *(
        Watched(Resource(f"kueue.x-k8s.io/{version}", "Workload", "workloads", True), optional=True, may_be_closed=True)
        for version in ("v1beta2", "v1beta1")
    ),
    Watched(resource_for("policy/v1", "PodDisruptionBudget"), optional=True),
    Watched(Resource("policy/v1beta1", "PodDisruptionBudget", "poddisruptionbudgets", True), optional=True),
    Watched(resource_for("apiextensions.k8s.io/v1", "CustomResourceDefinition"), optional=True),
    Watched(resource_for("mindxdl.gitee.com/v1", "AscendJob"), optional=True),
    Watched(resource_for("batch.volcano.sh/v1alpha1", "Job"), optional=True),
    Watched(resource_for("bus.volcano.sh/v1alpha1", "Command"), optional=True),
    Watched(resource_for("mindcluster.huawei.com/v1", "InferServiceSet"), optional=True),
    Watched(resource_for("mindcluster.huawei.com/v1", "InferService"), optional=True),
    Watched(resource_for("mindcluster.huawei.com/v1", "InstanceSet"), optional=True),
    # of roles with a scalingPolicy; before 1.23 the API server serves the beta version only
    Watched(resource_for("autoscaling/v2", "HorizontalPodAutoscaler"), labels=INFERENCE_SCALES, optional=True),
    Watched(
        Resource("autoscaling/v2beta2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True),
        labels=INFERENCE_SCALES,
        optional=True,
    ),
    Watched(resource_for("scheduling.volcano.sh/v1beta1", "PodGroup"), optional=True),
    Watched(resource_for("scheduling.volcano.sh/v1beta1", "Queue"), optional=True),
    *(
        Watched(resource_for("belay.dev/v1alpha1", kind), optional=True)
        for kind in (
            "NodePool",
            "VNPULayout",
            "FaultPolicy",
            "Isolation",
            "SafetyBudget",
            "SchedulingSettings",
            "KVLink",
            "NotificationPolicy",
            "Product",
            "FaultTable",
            "VNPUTemplates",
            "DiagnosisRules",
            "WorkloadKind",
        )
    ),
)


async def fetch(kube: Kube, watched: tuple[Watched, ...] = WATCHED) -> list[dict[str, Any]]:
    """Every watched object, raw; kinds that the cluster does not serve are left out."""
    listings = await asyncio.gather(*(_list(kube, one) for one in watched))
    return [item for listing in listings for item in listing]


async def _list(kube: Kube, one: Watched) -> list[dict[str, Any]]:
    try:
        return (await kube.list(one.resource, one.namespace, one.labels, one.fields)).items
    except NotFound:
        if one.optional:
            return []
        raise
    except Forbidden:
        if one.may_be_closed:
            return []
        raise
