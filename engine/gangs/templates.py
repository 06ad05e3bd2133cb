"""Which template of its workload a pod was made from, while Kubernetes rolls the workload from one to the next.

Old and new pods of a rolling Deployment, StatefulSet or LeaderWorkerSet may ask for different things: each template is
judged as a request of its own. Source: Volcano makes a PodGroup per ReplicaSet
(github.com/volcano-sh/volcano/pkg/controllers/podgroup).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from belay.engine.gangs.owners import JobOwner, OwnerIndex, annotations_of, non_negative, spec_of
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import (
    CONTROLLER_REVISION_HASH,
    DEPLOYMENT_REVISION,
    LEADER_WORKER_SET_REVISION,
    POD_TEMPLATE_HASH,
)
from belay.engine.model.quantities import whole_number
from belay.engine.model.unstructured import nested_map


def template_of(pod: Pod) -> str:
    """The template of a pod as its controller labels it; empty for pods of controllers that never roll."""
    revision = pod.labels.get(LEADER_WORKER_SET_REVISION, "")
    if revision:
        return revision
    match pod.owner_kind:
        case "ReplicaSet":
            return pod.labels.get(POD_TEMPLATE_HASH, "") or pod.owner_name
        case "StatefulSet":
            return pod.labels.get(CONTROLLER_REVISION_HASH, "")
    return ""


def pod_templates(value: Any) -> list[Mapping[str, Any]]:
    """The pod templates in a spec, without how many pods are made of them; in the order of their places."""
    if isinstance(value, list):
        return [template for item in value for template in pod_templates(item)]
    if not isinstance(value, Mapping):
        return []
    found: list[Mapping[str, Any]] = []
    for name in sorted(value):
        inner = value[name]
        if name == "template" and isinstance(inner, Mapping) and "spec" in inner:
            found.append(inner)
        else:
            found += pod_templates(inner)
    return found


def by_template(owner: JobOwner, pods: Iterable[Pod], finder: OwnerIndex) -> list[tuple[str, list[Pod]]]:
    """The pods of each template, the newest template first.

    Workloads that share a PodGroup start together, whatever their templates: there only the revision that a
    LeaderWorkerSet gives to all its pods names a template.
    """
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        one_workload = owner.kind != "PodGroup"
        found.setdefault(
            template_of(pod) if one_workload else pod.labels.get(LEADER_WORKER_SET_REVISION, ""), []
        ).append(pod)

    if len(found) < 2:
        return list(found.items())

    update = nested_map(owner.raw, "status").get("updateRevision")
    ages = {
        name: (name == update, _revision(members[0], finder), max(pod.created for pod in members), name)
        for name, members in found.items()
    }
    return sorted(found.items(), key=lambda row: ages[row[0]], reverse=True)


def replica_sets_of(pods: Iterable[Pod], finder: OwnerIndex) -> tuple[Mapping[str, Any], ...]:
    """The ReplicaSets of a rolling Deployment's pods, none while it has pods of one ReplicaSet only."""
    first = {pod.owner_name: pod for pod in pods if pod.owner_kind == "ReplicaSet"}
    return tuple([_replica_set(first[name], finder) for name in sorted(first)]) if len(first) > 1 else ()


def wanted_of_template(pods: list[Pod], finder: OwnerIndex) -> int:
    """How many pods of this template its controller wants now: in a rollout a ReplicaSet wants a part of all replicas.

    Of a StatefulSet those are the pods that exist.
    """
    staying = sum(1 for pod in pods if pod.deleting is None)
    replica_set = _replica_set(pods[0], finder)
    return max(staying, non_negative(spec_of(replica_set).get("replicas"), 0))


def _revision(pod: Pod, finder: OwnerIndex) -> int:
    """The number that a Deployment gives to the ReplicaSet of a pod; a rollback gives an old one the highest."""
    return whole_number(annotations_of(_replica_set(pod, finder)).get(DEPLOYMENT_REVISION, "")) or 0


def _replica_set(pod: Pod, finder: OwnerIndex) -> Mapping[str, Any]:
    if pod.owner_kind != "ReplicaSet":
        return {}
    return finder.object(ObjectKey("apps/v1", "ReplicaSet", pod.namespace, pod.owner_name))
