"""The owner of a pod's job: its controller, the Deployment behind a ReplicaSet, or the owner of its PodGroup.

Also readers of raw Kubernetes objects; malformed fields read as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from engine.model.cluster import Observed, Pod
from engine.model.diagnostics import ObjectKey
from engine.model.unstructured import nested_list, nested_map, string_map

ASCEND_API: Final = "mindxdl.gitee.com/v1"
VOLCANO_API: Final = "batch.volcano.sh/v1alpha1"
POD_GROUP_APIS: Final = ("scheduling.volcano.sh/v1beta1", "scheduling.incubator.k8s.io/v1alpha1")
#: Name of a PodGroup made for a controller's pods, followed by the controller's uid, or by that of a pod without one
#: (Volcano's PodgroupNamePrefix).
GENERATED_GROUP: Final = "podgroup-"
GROUP_NAME_KEYS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")

#: Kinds of owners whose pods form a gang under any scheduler; pods of other owners only if they request NPUs.
JOB_KINDS: Final = frozenset({"AscendJob", "Job", "Deployment", "StatefulSet", "PodGroup", "ReplicaSet"})


class JobOwner(NamedTuple):
    """The object that declares a gang; ``raw`` is empty when the snapshot lacks it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    raw: Mapping[str, Any]


class OwnerIndex:
    """Finds the owner of a pod's job in a snapshot; caches by controller."""

    def __init__(self, observed: Observed) -> None:
        self._objects = observed.objects
        self._cache: dict[tuple[str, str, str, str, str], JobOwner] = {}
        self._groups_of: dict[tuple[str, str, str], str] = {}
        self._generated: set[tuple[str, str]] = set()
        for key, raw in observed.objects.items():
            if key.kind == "PodGroup" and key.api_version in POD_GROUP_APIS:
                if key.name.startswith(GENERATED_GROUP):
                    self._generated.add((key.namespace, key.name))
                controller = controller_of(raw)
                # a pod's own group bears its uid: one that a former pod of that name left is not found by name
                if controller and controller.get("kind") != "Pod":
                    self._groups_of.setdefault(
                        (key.namespace, str(controller.get("kind")), str(controller.get("name"))), key.name
                    )

    def fresh(self) -> OwnerIndex:
        """The same index with an empty cache."""
        other = copy(self)
        other._cache = {}
        return other

    def of(self, pod: Pod) -> JobOwner | None:
        """The owner of the pod's job; None for pods of DaemonSets and static pods that request no NPU."""
        group = self.group_name(pod)
        if pod.owner_kind in JOB_KINDS:
            cache_key = (pod.namespace, pod.owner_api, pod.owner_kind, pod.owner_name, "")
            found = self._cache.get(cache_key)
            if found is None:
                found = self._cache[cache_key] = self._controller_of(pod)
            return found
        if group and (pod.owner_kind or group != generated_group(pod)):
            cache_key = (pod.namespace, "", "PodGroup", group, "")
            found = self._cache.get(cache_key)
            if found is None:
                found = self._cache[cache_key] = self._owner_of_group(pod, group)
            return found
        if pod.owner_kind in ("DaemonSet", "Node") and not pod.count:
            return None
        return JobOwner("v1", "Pod", pod.namespace, pod.name, pod.uid, {})

    def group_name(self, pod: Pod) -> str:
        """Name of the PodGroup in the pod's annotations, else of that made for its controller or for itself; empty
        without both.
        """
        if stated := stated_group(pod):
            return stated
        made = generated_group(pod) if self._generated else ""
        return made if made and (pod.namespace, made) in self._generated else ""

    def group_of_owner(self, owner: JobOwner) -> str:
        """Name of a PodGroup that the owner controls, empty when there is none."""
        if owner.kind == "PodGroup":
            return owner.name
        return self._groups_of.get((owner.namespace, owner.kind, owner.name), "")

    def groups_for(self, owner: JobOwner, pods: Iterable[Pod]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Every PodGroup, by name, that the owner's pods may belong to."""
        named = {*map(self.group_name, pods), self.group_of_owner(owner)} - {""}
        return tuple([(name, self.pod_group(owner.namespace, name)) for name in sorted(named)]) if named else ()

    def pod_group(self, namespace: str, name: str) -> Mapping[str, Any]:
        """The raw PodGroup, empty when the snapshot lacks it."""
        return find_pod_group(self._objects, namespace, name)

    def object(self, key: ObjectKey) -> Mapping[str, Any]:
        """A raw object, empty when the snapshot lacks it."""
        return self._objects.get(key, {})

    def _controller_of(self, pod: Pod) -> JobOwner:
        if pod.owner_kind == "ReplicaSet":
            return self._behind_replica_set(pod)
        raw = self._objects.get(ObjectKey(pod.owner_api, pod.owner_kind, pod.namespace, pod.owner_name), {})
        return JobOwner(pod.owner_api, pod.owner_kind, pod.namespace, pod.owner_name, pod.owner_uid, raw)

    def _behind_replica_set(self, pod: Pod) -> JobOwner:
        """The Deployment behind a ReplicaSet, by the template hash in its name if the snapshot lacks the ReplicaSet."""
        replica_set = self._objects.get(ObjectKey("apps/v1", "ReplicaSet", pod.namespace, pod.owner_name))
        if replica_set is not None:
            above = controller_of(replica_set)
            if above.get("kind") != "Deployment":
                return JobOwner("apps/v1", "ReplicaSet", pod.namespace, pod.owner_name, pod.owner_uid, replica_set)
            name = str(above.get("name", ""))
            raw = self._objects.get(ObjectKey("apps/v1", "Deployment", pod.namespace, name), {})
            return JobOwner("apps/v1", "Deployment", pod.namespace, name, str(above.get("uid", "")), raw)
        suffix = "-" + pod.labels.get("pod-template-hash", "")
        if len(suffix) > 1 and pod.owner_name.endswith(suffix):
            name = pod.owner_name.removesuffix(suffix)
            raw = self._objects.get(ObjectKey("apps/v1", "Deployment", pod.namespace, name), {})
            return JobOwner(
                "apps/v1", "Deployment", pod.namespace, name, str(metadata(raw).get("uid", pod.owner_uid)), raw
            )
        return JobOwner("apps/v1", "ReplicaSet", pod.namespace, pod.owner_name, pod.owner_uid, {})

    def _owner_of_group(self, pod: Pod, group: str) -> JobOwner:
        raw = self.pod_group(pod.namespace, group)
        above = controller_of(raw)
        if above.get("kind") in ("AscendJob", "Job"):
            api, kind, name = str(above.get("apiVersion")), str(above.get("kind")), str(above.get("name"))
            owner = self._objects.get(ObjectKey(api, kind, pod.namespace, name), {})
            return JobOwner(api, kind, pod.namespace, name, str(above.get("uid", "")), owner)
        return JobOwner(POD_GROUP_APIS[0], "PodGroup", pod.namespace, group, str(metadata(raw).get("uid", "")), raw)


def find_pod_group(objects: Mapping[ObjectKey, Mapping[str, Any]], namespace: str, name: str) -> Mapping[str, Any]:
    """A raw PodGroup of either API group, empty where there is none."""
    for api in POD_GROUP_APIS:
        raw = objects.get(ObjectKey(api, "PodGroup", namespace, name)) if name else None
        if raw is not None:
            return raw
    return {}


def stated_group(pod: Pod) -> str:
    """Name of the PodGroup that the pod's annotations state, empty without one."""
    return next(filter(None, map(pod.annotations.get, GROUP_NAME_KEYS)), "")


def generated_group(pod: Pod) -> str:
    """Name of the PodGroup that is made for a pod which names none, empty without a UID.

    Source: volcano.sh/apis/pkg/apis/helpers (GeneratePodgroupName).
    """
    uid = pod.owner_uid or pod.uid
    return GENERATED_GROUP + uid if uid else ""


def controller_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The owner reference of the controller, empty when there is none."""
    owners = metadata(raw).get("ownerReferences")
    if not isinstance(owners, list):
        return {}
    return next((owner for owner in owners if isinstance(owner, dict) and owner.get("controller")), {})


def metadata(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``metadata`` of an object; empty where it is absent or malformed."""
    return nested_map(raw, "metadata")


def spec_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``spec`` of an object; empty where it is absent or malformed."""
    return nested_map(raw, "spec")


def objects_by_name(found: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a map such as ``replicaSpecs``; values of other types are dropped."""
    return [row for row in found.values() if isinstance(row, dict)] if isinstance(found, dict) else []


def tasks_of(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The tasks of a Volcano Job's spec."""
    return nested_list(spec, "tasks")


def non_negative(value: Any, default: int) -> int:
    """Return a whole number of at least 0, else the default."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def labels_of(raw: Mapping[str, Any]) -> dict[str, str]:
    """Labels of an object as text."""
    return string_map(nested_map(raw, "metadata", "labels"))


def annotations_of(raw: Mapping[str, Any]) -> dict[str, str]:
    """Annotations of an object as text."""
    return string_map(nested_map(raw, "metadata", "annotations"))
