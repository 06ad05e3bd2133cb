"""The owner of a pod's job: the object that people made, at the end of the chain of controllers, or a group of pods.

Rows of the table of workload kinds say how far the chain leads, and which pods of a workload start together.

Also readers of raw Kubernetes objects; malformed fields read as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from belay.engine.gangs.declared import group_of, label_or_annotation, says_size
from belay.engine.gangs.kueue import Admissions
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import GROUP_NAME, POD_TEMPLATE_HASH, VOLCANO_GROUP_NAME
from belay.engine.model.native_groups import NATIVE_GROUP, NATIVE_GROUP_APIS, find_native_group, gang_minimum
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.model.workload_kinds import StartTogether, WorkloadRow, WorkloadTable

ASCEND_API: Final = "mindxdl.gitee.com/v1"
VOLCANO_API: Final = "batch.volcano.sh/v1alpha1"
POD_GROUP_APIS: Final = ("scheduling.volcano.sh/v1beta1", "scheduling.incubator.k8s.io/v1alpha1")
#: Name of a PodGroup made for a controller's pods, followed by the controller's uid, or by that of a pod without one
#: (Volcano's PodgroupNamePrefix).
GENERATED_GROUP: Final = "podgroup-"
GROUP_NAME_KEYS: Final = (GROUP_NAME, VOLCANO_GROUP_NAME)

#: Kinds of owners whose pods form a gang under any scheduler; pods of other owners only if they request NPUs.
JOB_KINDS: Final = frozenset({"AscendJob", "Job", "Deployment", "StatefulSet", "PodGroup", "ReplicaSet"})


#: Of pods without a controller that name a group: they have no object, so the plural names them.
PLAIN_PODS: Final = "Pods"
#: Controllers above each other that are followed; real chains have three.
_DEEPEST: Final = 8


class JobOwner(NamedTuple):
    """The object that declares a gang; ``raw`` is empty when the snapshot lacks it.

    ``row`` is the row of its kind, None for kinds without one. ``sized_by`` is the row and the object that say how many
    pods it has: its own, or those of an object below it. ``group`` is the group of pods within it that starts together.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    raw: Mapping[str, Any]
    row: WorkloadRow | None = None
    sized_by: tuple[WorkloadRow, Mapping[str, Any]] | None = None
    group: str = ""

    @property
    def by_table(self) -> bool:
        """Whether rows of the table, or the rule for kinds without one, say how many of its pods start together."""
        return self.row is not None or self.kind not in JOB_KINDS | {"Pod"}

    @property
    def is_native_group(self) -> bool:
        """Whether it is a PodGroup of Kubernetes itself."""
        return self.kind == NATIVE_GROUP and self.api_version in NATIVE_GROUP_APIS


class OwnerIndex:
    """Finds the owner of a pod's job in a snapshot; caches by controller."""

    def __init__(self, observed: Observed) -> None:
        self._objects = observed.objects
        self._pods = observed.pods
        self._table: WorkloadTable = observed.workloads
        self.admissions = Admissions(observed)
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
        named = self._native_group(pod) or self._named_by(pod)
        if named is not None:
            return named if not _starts_each_alone(named.row) else _alone(pod)
        if pod.owner_kind in JOB_KINDS:
            return _with_group(
                self._cached((pod.namespace, pod.owner_api, pod.owner_kind, pod.owner_name, ""), pod), pod
            )

        group = self.group_name(pod)
        if pod.owner_kind in ("DaemonSet", "Node") and not (pod.count or group):
            return None
        if pod.owner_kind and pod.owner_kind not in ("DaemonSet", "Node"):
            owner = self._cached((pod.namespace, pod.owner_api, pod.owner_kind, pod.owner_name, pod.owner_uid), pod)
            if _starts_each_alone(owner.row):
                return _alone(pod)
            if not self._is_foreign(group, owner, pod):
                return _with_group(owner, pod)
        if group and (pod.owner_kind or group != generated_group(pod)):
            cache_key = (pod.namespace, "", "PodGroup", group, "")
            found = self._cache.get(cache_key)
            if found is None:
                found = self._cache[cache_key] = self._owner_of_group(pod, group)
            return found
        return self._plain(pod)

    def _cached(self, key: tuple[str, str, str, str, str], pod: Pod) -> JobOwner:
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._above(self._controller_of(pod))
        return found

    def _native_group(self, pod: Pod) -> JobOwner | None:
        """The PodGroup of Kubernetes itself that a pod names, or its Job's, if that Job has it made.

        None if the pod names none, or one whose policy demands nothing. One that is not there yet may demand much.
        """
        if not pod.scheduling_group:
            return None
        api, raw = find_native_group(self._objects, pod.namespace, pod.scheduling_group)
        if raw and not gang_minimum(raw):
            return None
        made_for = {str(one.get("uid") or "") for one in nested_list(raw, "metadata", "ownerReferences")} - {""}
        if pod.owner_kind == "Job" and (not raw or pod.owner_uid in made_for):
            return None
        uid = str(metadata(raw).get("uid", ""))
        return JobOwner(api, NATIVE_GROUP, pod.namespace, pod.scheduling_group, uid, raw)

    def _named_by(self, pod: Pod) -> JobOwner | None:
        """The object that a pod names by a label or an annotation of a row; None where it names none."""
        for row in self._table.named:
            for key in row.pod_keys:
                if name := label_or_annotation(pod, key):
                    return _with_group(self._named(row, pod.namespace, name), pod)
        return None

    def _named(self, row: WorkloadRow, namespace: str, name: str) -> JobOwner:
        """The object that people made above one that pods name, or that itself."""
        cache_key = (namespace, row.group, row.kind, name, "named")
        found = self._cache.get(cache_key)
        if found is None:
            found = self._cache[cache_key] = self._above(self._object_of(row, namespace, name))
        return found

    def _object_of(self, row: WorkloadRow, namespace: str, name: str) -> JobOwner:
        for version in row.versions:
            api = f"{row.group}/{version}" if row.group else version
            raw = self._objects.get(ObjectKey(api, row.kind, namespace, name))
            if raw is not None:
                uid = str(metadata(raw).get("uid", ""))
                return JobOwner(api, row.kind, namespace, name, uid, raw)
        api = f"{row.group}/{row.versions[0]}" if row.group else row.versions[0]
        return JobOwner(api, row.kind, namespace, name, "", {})

    def _plain(self, pod: Pod) -> JobOwner:
        """A pod without controller: the group that it names by a label, else itself."""
        row = None if pod.owner_kind else self._table.of("v1", "Pod")
        group = group_of(row, pod) if row is not None else ""
        if row is None or not group:
            return _alone(pod)
        return JobOwner("v1", PLAIN_PODS, pod.namespace, group, "", {}, row, None, group)

    def _above(self, owner: JobOwner) -> JobOwner:
        """The object that people made: the highest one in the chain of controllers whose kind has a row."""
        found = self._with_row(owner)
        current = found
        for _ in range(_DEEPEST):
            parent = self._parent(current)
            if parent is None or _starts_each_alone(parent.row):
                break
            current = parent
            if parent.row is not None:
                sized = parent.sized_by or found.sized_by
                found = parent._replace(sized_by=sized)
        return found

    def _with_row(self, owner: JobOwner) -> JobOwner:
        row = self._table.of(owner.api_version, owner.kind)
        if row is None:
            return owner

        if not owner.raw:
            # the reference may name another version than the one that is watched
            raw = self._object_of(row, owner.namespace, owner.name).raw
            owner = owner._replace(raw=raw)
        return owner._replace(row=row, sized_by=(row, owner.raw) if says_size(row) else None)

    def _parent(self, owner: JobOwner) -> JobOwner | None:
        """The controller of an object, None if the snapshot knows none."""
        above: Mapping[str, Any] = controller_of(owner.raw)
        if owner.kind == "Pod":
            pod = self._pods.get(f"{owner.namespace}/{owner.name}")
            if pod is None or not pod.owner_kind:
                return None
            above = {"apiVersion": pod.owner_api, "kind": pod.owner_kind, "name": pod.owner_name, "uid": pod.owner_uid}
        if not above:
            return None
        api, kind, name = (str(above.get(field) or "") for field in ("apiVersion", "kind", "name"))
        raw = self._objects.get(ObjectKey(api, kind, owner.namespace, name), {})
        return self._with_row(JobOwner(api, kind, owner.namespace, name, str(above.get("uid") or ""), raw))

    def _is_foreign(self, group: str, owner: JobOwner, pod: Pod) -> bool:
        """Whether a pod names a PodGroup that is neither its owner's nor made for its controller."""
        if not group or group == generated_group(pod):
            return False
        above = controller_of(self.pod_group(pod.namespace, group))
        return str(above.get("uid") or "") not in {owner.uid, pod.owner_uid} or not above

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
            return owner.name if owner.api_version in POD_GROUP_APIS else ""
        return self._groups_of.get((owner.namespace, owner.kind, owner.name), "")

    def groups_for(self, owner: JobOwner, pods: Sequence[Pod]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Every PodGroup, by name, that the owner's pods may belong to; last those of Kubernetes itself."""
        named = {*map(self.group_name, pods), self.group_of_owner(owner)} - {""}
        native = {pod.scheduling_group for pod in pods} - {""}
        if not named and not native:
            return ()
        return (
            *((name, self.pod_group(owner.namespace, name)) for name in sorted(named)),
            *((name, self.native_group(owner.namespace, name)) for name in sorted(native)),
        )

    def native_group(self, namespace: str, name: str) -> Mapping[str, Any]:
        """The raw PodGroup of Kubernetes itself, empty when the snapshot lacks it."""
        return find_native_group(self._objects, namespace, name)[1]

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
        suffix = "-" + pod.labels.get(POD_TEMPLATE_HASH, "")
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


def _alone(pod: Pod) -> JobOwner:
    """The owner of a pod that starts for itself."""
    return JobOwner("v1", "Pod", pod.namespace, pod.name, pod.uid, {})


def _starts_each_alone(row: WorkloadRow | None) -> bool:
    return row is not None and row.together is StartTogether.NONE


def _with_group(owner: JobOwner, pod: Pod) -> JobOwner:
    """The owner of the group that a pod belongs to, where the groups of its workload start for themselves."""
    row = owner.row
    if row is None or row.together is not StartTogether.GROUPS:
        return owner
    group = group_of(row, pod)
    return owner._replace(name=f"{owner.name}.{group}", group=group) if group else owner


def find_pod_group(objects: Mapping[ObjectKey, Mapping[str, Any]], namespace: str, name: str) -> Mapping[str, Any]:
    """A raw PodGroup of either API group, empty if there is none."""
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
    """Return ``metadata`` of an object; empty if it is absent or malformed."""
    return nested_map(raw, "metadata")


def spec_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``spec`` of an object; empty if it is absent or malformed."""
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
