"""One role of an inference service: its InstanceSet, its instances, and the pods of each.

An instance is one workload (Deployment or StatefulSet) whose pods communicate and start, fail and change together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from belay.engine.gangs.forming import gang_key
from belay.engine.model.actions import DeleteObject, Preconditions
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import (
    INFERENCE_GANG,
    INFERENCE_INSTANCE_INDEX,
    INFERENCE_MANAGED,
    INFERENCE_METRIC_ROLE,
    INFERENCE_ROLE,
    INFERENCE_SERVICE,
    INSTANCE_TEMPLATE,
    ROLLOUT_ANNOTATION,
)
from belay.engine.model.quantities import whole_number
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.plan.jobs.inference import labels as names
from belay.engine.plan.jobs.lifecycle import POD_GROUP_API, ExpansionContext, JobObject

#: Fields of a workload whose change replaces its pods; others are changed in place.
_OF_PODS: Final = ("template", "podManagementPolicy", "volumeClaimTemplates")
#: Fields that the API server never lets change, or that follow from names: no difference.
_FIXED: Final = frozenset({*_OF_PODS, "selector", "serviceName"})
_DIGITS: Final = 12

_OWNED: Final = (
    (names.API, names.SERVICE), (names.API, names.INSTANCES), (names.APPS, "Deployment"), (names.APPS, "StatefulSet"),
    (POD_GROUP_API, "PodGroup"), ("v1", "Service"), *((api, names.SCALER) for api in names.SCALER_APIS),
)  # fmt: skip


@dataclass(slots=True)
class ServingContext:
    """The expansion's view of inference services: objects by the uid of their owner, and pods by their labels.

    ``pods``: by namespace, service, role and index of the instance. ``created``: what this pass creates. ``services``:
    namespace and name of the services that this shard decides.
    """

    context: ExpansionContext
    pods: dict[tuple[str, str, str, str], list[Pod]]
    owned: dict[str, list[ObjectKey]]
    created: set[ObjectKey] = field(default_factory=set)
    services: set[tuple[str, str]] = field(default_factory=set)

    @staticmethod
    def of(context: ExpansionContext) -> ServingContext:
        """Index the snapshot once for all services."""
        pods: dict[tuple[str, str, str, str], list[Pod]] = {}
        for pod in context.facts.observed.pods.values():
            if pod.labels.get(INFERENCE_MANAGED) == "true":
                service, role, index = (
                    pod.labels.get(key, "") for key in (INFERENCE_SERVICE, INFERENCE_ROLE, INFERENCE_INSTANCE_INDEX)
                )
                pods.setdefault((pod.namespace, service, role, index), []).append(pod)
        owned: dict[str, list[ObjectKey]] = {}
        for kind in _OWNED:
            for key in context.kinds.get(kind, ()):
                for owner in nested_list(
                    nested_map(context.facts.observed.objects[key], "metadata"), "ownerReferences"
                ):
                    owned.setdefault(str(owner.get("uid")), []).append(key)
        return ServingContext(context, pods, {uid: sorted(keys) for uid, keys in owned.items()})

    def children(self, one: JobObject, api_version: str, kind: str) -> list[tuple[ObjectKey, dict[str, Any]]]:
        """The objects of a kind that belong to ``one``, by name."""
        objects = self.context.facts.observed.objects
        found = self.owned.get(one.uid, ()) if one.uid else ()
        return [
            (key, objects[key])
            for key in found
            if (key.api_version, key.kind, key.namespace) == (api_version, kind, one.key.namespace)
        ]

    def pods_at(self, role: ServingRole, index: int) -> list[Pod]:
        """All pods with an instance's labels, those of a deleted workload included, by name."""
        head = (role.job.key.namespace, role.service)
        found = [pod for name in (role.name, role.job.key.name) for pod in self.pods.get((*head, name, str(index)), ())]
        return sorted(found, key=lambda pod: pod.name)

    def decides(self, pod: Pod) -> bool:
        """Whether this shard decides about a pod of a service."""
        return self.context.one_shard or (pod.namespace, pod.labels.get(INFERENCE_SERVICE, "")) in self.services

    def owns(self, one: JobObject, raw: Mapping[str, Any]) -> bool:
        """Whether an object belongs to ``one``."""
        owners = nested_list(raw, "metadata", "ownerReferences")
        return bool(one.uid) and any(owner.get("uid") == one.uid for owner in owners)

    def key_of(self, body: Mapping[str, Any]) -> ObjectKey:
        """The key of an object that is to be created."""
        metadata = body["metadata"]
        return ObjectKey(body["apiVersion"], body["kind"], metadata.get("namespace", ""), metadata["name"])

    def remove(self, role: ServingRole, one: ServingInstance, reason: str, text: str, *, rule: str) -> None:
        """Delete the workload of an instance; with pods on nodes it counts as an eviction of the instance."""
        if not one.ours or not one.standing or one.live is None:
            return
        one.going = True
        self.context.draft.evicting |= {pod.key for pod in one.pods}
        runs = any(pod.holds_chips for pod in one.pods)
        evidence = self.context.evidence(role.job)
        self.context.draft.actions.append(
            DeleteObject(
                reason=reason,
                message=text,
                evidence=msgspec.structs.replace(evidence, rule=rule) if runs else evidence,
                preconditions=Preconditions(uid=str(nested_map(one.live, "metadata").get("uid") or "") or None),
                api_version=one.key.api_version,
                object_kind=one.key.kind,
                namespace=one.key.namespace,
                name=one.key.name,
                budget_unit=one.unit if runs else None,
            )
        )


@dataclass(slots=True)
class ServingInstance:
    """One instance: its workload in the snapshot, if any, and the pods that this workload controls, by name.

    ``ours``: the InstanceSet controls it. ``current``: it was made from the declared template, or adopted with it.
    ``going``: it leaves in this pass.
    """

    index: int
    key: ObjectKey
    live: dict[str, Any] | None
    ours: bool
    pods: list[Pod]
    ready: bool
    current: bool
    going: bool = False

    @property
    def deleting(self) -> bool:
        """Whether Kubernetes is deleting the workload."""
        return self.live is not None and bool(nested_map(self.live, "metadata").get("deletionTimestamp"))

    @property
    def standing(self) -> bool:
        """Whether the workload exists and stays."""
        return self.live is not None and not self.deleting and not self.going

    @property
    def unit(self) -> str:
        """The budget unit of the instance: the key of its gang."""
        return gang_key(self.key.api_version, self.key.kind, self.key.namespace, self.key.name)

    @property
    def placed(self) -> bool:
        """Whether every pod that the workload asks for has a node."""
        bound = [pod for pod in self.pods if pod.node and pod.deleting is None]
        return self.live is not None and len(bound) >= size_of(self.live)


@dataclass(slots=True)
class ServingRole:
    """One InstanceSet as read: which service and role, how many instances, from which template.

    ``pods_digest`` stands for what replaces pods when it changes, ``other_digest`` for what is changed in place.
    ``priority`` is None where the role has none or its service starts in parallel. ``snapshot_base``: see
    ``snapshots.BASE``.
    """

    job: JobObject
    service: str
    name: str
    kind: str
    count: int
    gang: bool
    priority: int | None
    pods_digest: str
    other_digest: str
    paused: bool
    snapshot_base: str = ""
    instances: dict[int, ServingInstance] = field(default_factory=dict)

    @property
    def spec(self) -> dict[str, Any]:
        """The InstanceSet's spec."""
        return nested_map(self.job.raw, "spec")

    @property
    def template(self) -> str:
        """The digest that a workload made now carries."""
        return f"{self.pods_digest}.{self.other_digest}"

    @property
    def ready(self) -> int:
        """How many of the wanted instances are ready; one that stands in for another counts as it."""
        return min(self.count, self.serving)

    @property
    def serving(self) -> int:
        """How many instances are ready, those that stand in for others included."""
        return sum(one.ready and one.standing for one in self.instances.values())

    @property
    def declared(self) -> list[ServingInstance]:
        """The instances within the declared number."""
        return [self.instances[index] for index in range(self.count)]

    @property
    def outdated(self) -> list[ServingInstance]:
        """Instances within the declared number that run an earlier template."""
        return [one for one in self.declared if one.standing and not one.current]

    def instance_name(self, index: int) -> str:
        """The name of an instance's workload."""
        return f"{self.service}-{self.name}-{index}"


def identity(one: JobObject) -> tuple[str, str]:
    """Service and role that an InstanceSet belongs to, empty where its labels lack them.

    Earlier versions of Belay labelled it with its role under another key.
    """
    found = one.labels
    return found.get(INFERENCE_SERVICE, ""), found.get(INFERENCE_ROLE) or found.get(INFERENCE_METRIC_ROLE, "")


def read(serving: ServingContext, one: JobObject, *, ordered: bool, paused: bool) -> ServingRole:
    """The role of a valid InstanceSet, with its live instances and empty places for the missing ones."""
    spec = nested_map(one.raw, "spec")
    service, name = identity(one)
    kind = str(nested_map(spec, "workload").get("kind"))
    gang = is_gang(one)
    body = nested_map(spec, "spec")
    priority = spec.get("priority")
    role = ServingRole(
        job=one, service=service, name=name, kind=kind, count=int(spec["replicas"]), gang=gang,
        priority=priority if ordered and isinstance(priority, int) and not isinstance(priority, bool) else None,
        pods_digest=_digest([{key: body[key] for key in _OF_PODS if key in body}, gang, size(body) if gang else 0]),
        other_digest=_digest({key: value for key, value in body.items()
                              if key not in _FIXED and not (gang and key == "replicas")}),
        paused=paused or annotations_of(one).get(ROLLOUT_ANNOTATION) == names.PAUSED,
    )  # fmt: skip
    for other in sorted(names.WORKLOADS, key=lambda known: known == kind):  # one of another kind is outdated
        for key, raw in serving.children(one, names.APPS, other):
            labels = string_map(nested_map(raw, "metadata").get("labels"))
            number = whole_number(labels.get(INFERENCE_INSTANCE_INDEX, ""), digits=5)
            if number is not None:
                role.instances[number] = _instance(serving, role, key, number, raw, ours=True)
    for index in range(role.count):
        if index not in role.instances:
            key = ObjectKey(names.APPS, kind, one.key.namespace, role.instance_name(index))
            live = serving.context.facts.observed.objects.get(key)  # of another owner: it is in the way
            role.instances[index] = _instance(serving, role, key, index, live, ours=False)
    return role


def is_gang(one: JobObject) -> bool:
    """Whether the pods of an instance start together."""
    declared = string_map(nested_map(one.raw, "spec", "metadata").get("labels"))
    return (declared.get(INFERENCE_GANG) or one.labels.get(INFERENCE_GANG)) == "true"


def annotations_of(one: JobObject) -> dict[str, str]:
    """Annotations of an InstanceSet, with those of its role over them."""
    return {**one.annotations, **string_map(nested_map(one.raw, "spec", "metadata").get("annotations"))}


def size(body: Mapping[str, Any]) -> int:
    """How many pods the spec of a workload asks for."""
    found = body.get("replicas", 1)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 1


def size_of(raw: Mapping[str, Any]) -> int:
    """How many pods a workload asks for."""
    return size(nested_map(raw, "spec"))


def template_of(raw: Mapping[str, Any]) -> str:
    """The digest that a workload or Service carries; empty on one that Belay has not made or adopted."""
    return string_map(nested_map(raw, "metadata").get("annotations")).get(INSTANCE_TEMPLATE, "")


def digest_of(value: object) -> str:
    """A short digest of a declared value."""
    return _digest(value)


def _instance(
    serving: ServingContext, role: ServingRole, key: ObjectKey, index: int, raw: dict[str, Any] | None, *, ours: bool
) -> ServingInstance:
    if raw is None:
        return ServingInstance(index, key, None, ours, [], ready=False, current=True)
    uid = str(nested_map(raw, "metadata").get("uid") or "")
    mine = [
        pod for pod in serving.pods_at(role, index) if not pod.owner_uid or uid == _workload_uid(serving.context, pod)
    ]
    carried = template_of(raw).partition(".")[0]
    current = not ours or (key.kind == role.kind and carried in ("", role.pods_digest))
    return ServingInstance(index, key, raw, ours, mine, ready=_is_ready(raw), current=current)


def _workload_uid(context: ExpansionContext, pod: Pod) -> str:
    """The uid of the workload that a pod belongs to, for a Deployment through its ReplicaSet."""
    if pod.owner_kind != "ReplicaSet":
        return pod.owner_uid
    found = context.facts.observed.objects.get(ObjectKey(names.APPS, "ReplicaSet", pod.namespace, pod.owner_name))
    owners = nested_list(found, "metadata", "ownerReferences") if found else []
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")


def _is_ready(raw: Mapping[str, Any]) -> bool:
    """Whether a workload serves: its status is of this generation, and all pods are ready and of its template.

    Source: component/infer-operator/pkg/controller/workload (isStatefulsetReady, isDeploymentReady).
    """
    status, wanted = nested_map(raw, "status"), size_of(raw)
    generation, observed = nested_map(raw, "metadata").get("generation"), status.get("observedGeneration")
    if isinstance(generation, int) and isinstance(observed, int) and observed < generation:
        return False
    updated = status.get("updatedReplicas", wanted)
    ready = status.get("readyReplicas") or 0
    if not isinstance(ready, int) or not isinstance(updated, int):
        return False
    return ready >= wanted and updated >= wanted and bool(status)


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:_DIGITS]
