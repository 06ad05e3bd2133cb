"""Groups live pods into gangs by their owner: who starts together, how many, with which labels and annotations.

The owner is the AscendJob, Volcano Job, Deployment (through its ReplicaSet), StatefulSet or Job that controls the
pod; pods that have only a PodGroup form one gang named after it; any other pod is a gang of its own. The sizes follow
component/ascend-for-volcano/plugin/job.go and docs/zh/scheduling/06_api/15_yaml_configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from engine.model.cluster import Observed, Pod
from engine.model.diagnostics import ObjectKey
from engine.model.jobs import Gang
from engine.model.times import parse_rfc3339
from engine.plan.scope import Scope

ASCEND_API: Final = "mindxdl.gitee.com/v1"
VOLCANO_API: Final = "batch.volcano.sh/v1alpha1"
POD_GROUP_APIS: Final = ("scheduling.volcano.sh/v1beta1", "scheduling.incubator.k8s.io/v1alpha1")
GROUP_NAME_KEYS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
QUEUE_NAME_KEY: Final = "scheduling.volcano.sh/queue-name"
MIN_AVAILABLE_KEY: Final = "huawei.com/schedule_minAvailable"
TASK_KEY: Final = "volcano.sh/task-spec"
REPLICA_TYPE_KEYS: Final = ("training.kubeflow.org/replica-type", "replica-type")
RANK_KEY: Final = "hccl/rankIndex"
DEFAULT_QUEUE: Final = "default"
SHARD_LABEL: Final = "belay.dev/shard"
MAIN_SHARD: Final = "main"

#: Owners whose pods form a gang whatever scheduler they name; other owners only matter when the pod wants NPUs.
JOB_KINDS: Final = frozenset({"AscendJob", "Job", "Deployment", "StatefulSet", "PodGroup", "ReplicaSet"})

_DIGITS: Final = re.compile(r"(\d+)")


class Owner(NamedTuple):
    """Who declares a gang, with its raw object (empty when the snapshot lacks it)."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    raw: Mapping[str, Any]


def gang_key(api_version: str, kind: str, namespace: str, name: str) -> str:
    """``namespace/Kind/name``; a ``batch/v1`` Job is ``Job.batch``, so that it never meets a Volcano Job's memory."""
    return f"{namespace}/{'Job.batch' if api_version == 'batch/v1' else kind}/{name}"


def run(scope: Scope) -> None:
    """Fills ``scope.gangs`` and ``scope.gang_of`` from the pods of the snapshot."""
    scope.gangs, scope.gang_of = group(scope.observed)


def group(observed: Observed) -> tuple[dict[str, Gang], dict[str, str]]:
    """The gangs by key, and the gang key of each pod key (finished pods included, though they are no longer in
    ``Gang.pods``).
    """
    priorities = _priorities(observed)
    finder = _Owners(observed)
    members: dict[str, list[Pod]] = {}
    owners: dict[str, Owner] = {}
    gang_of: dict[str, str] = {}
    for pod in observed.pods.values():
        owner = finder.of(pod)
        if owner is None:
            continue
        key = gang_key(owner.api_version, owner.kind, owner.namespace, owner.name)
        owners.setdefault(key, owner)
        members.setdefault(key, []).append(pod)
        gang_of[pod.key] = key
    gangs = {key: _gang(key, owners[key], members[key], finder, priorities) for key in sorted(members)}
    return gangs, gang_of


def task_of(pod: Pod) -> str:
    """The pod's task: annotation ``volcano.sh/task-spec``, else its replica type; empty when it has neither."""
    task = pod.annotations.get(TASK_KEY)
    if task:
        return task
    return next((pod.labels[key] for key in REPLICA_TYPE_KEYS if key in pod.labels), "")


def declared_rank(pod: Pod) -> int | None:
    """The rank that the pod itself states: annotation ``hccl/rankIndex``, else a StatefulSet's ordinal or a
    Volcano task index.
    """
    text = pod.annotations.get(RANK_KEY, "")
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return int(text)
    if pod.owner_kind == "StatefulSet" or (pod.owner_kind == "Job" and pod.owner_api == VOLCANO_API):
        tail = pod.name.rpartition("-")[2]
        return int(tail) if tail.isascii() and tail.isdecimal() and len(tail) <= 9 else None
    return None


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key under which ``w-2`` comes before ``w-10``."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name) if part)


def in_rank_order(pods: Iterable[Pod]) -> list[Pod]:
    """Pods by rank, those without one last, then by name."""
    return sorted(pods, key=_order)


def counts_as_started(pod: Pod) -> bool:
    """Whether a pod counts towards ``min_available`` without being placed now: bound and staying, or already
    succeeded.
    """
    if pod.phase == "Succeeded":
        return True
    return bool(pod.node) and pod.deleting is None and pod.phase != "Failed"


def shard_of(scope: Scope, gang: Gang) -> str:
    """The shard that decides for a gang: its label, else the only one its node selection can match, else ``main``."""
    label = gang.labels.get(SHARD_LABEL)
    if label:
        return label
    pools = [pool.document for pool in scope.desired.pools]
    if all(pool.spec.shard == MAIN_SHARD for pool in pools):
        return MAIN_SHARD
    selectors = [scope.observed.pods[key].node_selector for key in gang.pods[:1]]
    found: set[str] = set()
    for node in scope.observed.nodes.values():
        if all(node.labels.get(key) == value for wanted in selectors for key, value in wanted.items()):
            pool = next((pool for pool in pools if pool.spec.selector.matches(node.labels)), None)
            found.add(pool.spec.shard if pool else MAIN_SHARD)
    return found.pop() if len(found) == 1 else MAIN_SHARD


def pod_group_of(observed: Observed, gang: Gang) -> Mapping[str, Any]:
    """The raw PodGroup of a gang, empty when there is none."""
    if not gang.pod_group:
        return {}
    for api in POD_GROUP_APIS:
        raw = observed.objects.get(ObjectKey(api, "PodGroup", gang.namespace, gang.pod_group))
        if raw is not None:
            return raw
    return {}


def _order(pod: Pod) -> tuple[int, tuple[tuple[int, str], ...], str]:
    rank = declared_rank(pod)
    return (1 << 40 if rank is None else rank, natural(pod.name), pod.name)


class _Owners:
    """Finds the declaring owner of a pod in a snapshot; caches by controller."""

    def __init__(self, observed: Observed) -> None:
        self._objects = observed.objects
        self._cache: dict[tuple[str, str, str, str, str], Owner] = {}
        self._groups_of: dict[tuple[str, str, str], str] = {}
        for key, raw in observed.objects.items():
            if key.kind == "PodGroup" and key.api_version in POD_GROUP_APIS:
                controller = _controller(raw)
                if controller:
                    self._groups_of.setdefault(
                        (key.namespace, str(controller.get("kind")), str(controller.get("name"))), key.name
                    )

    def of(self, pod: Pod) -> Owner | None:
        """The pod's owner; None for pods that are no workload of ours (of a DaemonSet, a static pod …) and want no
        NPU.
        """
        group = self.group_name(pod)
        if pod.owner_kind in JOB_KINDS:
            cache_key = (pod.namespace, pod.owner_api, pod.owner_kind, pod.owner_name, "")
            found = self._cache.get(cache_key)
            if found is None:
                found = self._cache[cache_key] = self._controller_of(pod)
            return found
        if group:
            cache_key = (pod.namespace, "", "PodGroup", group, "")
            found = self._cache.get(cache_key)
            if found is None:
                found = self._cache[cache_key] = self._owner_of_group(pod, group)
            return found
        if pod.owner_kind in ("DaemonSet", "Node") and not pod.count:
            return None
        return Owner("v1", "Pod", pod.namespace, pod.name, pod.uid, {})

    def group_name(self, pod: Pod) -> str:
        """Name of the PodGroup that the pod's annotations name, empty when they name none."""
        return next((pod.annotations[key] for key in GROUP_NAME_KEYS if pod.annotations.get(key)), "")

    def group_of_owner(self, owner: Owner) -> str:
        """Name of a PodGroup that the owner controls, empty when there is none."""
        if owner.kind == "PodGroup":
            return owner.name
        return self._groups_of.get((owner.namespace, owner.kind, owner.name), "")

    def pod_group(self, namespace: str, name: str) -> Mapping[str, Any]:
        """The raw PodGroup, empty when the snapshot lacks it."""
        for api in POD_GROUP_APIS:
            raw = self._objects.get(ObjectKey(api, "PodGroup", namespace, name)) if name else None
            if raw is not None:
                return raw
        return {}

    def _controller_of(self, pod: Pod) -> Owner:
        if pod.owner_kind == "ReplicaSet":
            return self._behind_replica_set(pod)
        raw = self._objects.get(ObjectKey(pod.owner_api, pod.owner_kind, pod.namespace, pod.owner_name), {})
        return Owner(pod.owner_api, pod.owner_kind, pod.namespace, pod.owner_name, pod.owner_uid, raw)

    def _behind_replica_set(self, pod: Pod) -> Owner:
        """The Deployment behind a ReplicaSet; by its name's template hash when the ReplicaSet is not in the
        snapshot.
        """
        replica_set = self._objects.get(ObjectKey("apps/v1", "ReplicaSet", pod.namespace, pod.owner_name))
        if replica_set is not None:
            above = _controller(replica_set)
            if above.get("kind") != "Deployment":
                return Owner("apps/v1", "ReplicaSet", pod.namespace, pod.owner_name, pod.owner_uid, replica_set)
            name = str(above.get("name", ""))
            raw = self._objects.get(ObjectKey("apps/v1", "Deployment", pod.namespace, name), {})
            return Owner("apps/v1", "Deployment", pod.namespace, name, str(above.get("uid", "")), raw)
        suffix = "-" + pod.labels.get("pod-template-hash", "")
        if len(suffix) > 1 and pod.owner_name.endswith(suffix):
            name = pod.owner_name.removesuffix(suffix)
            raw = self._objects.get(ObjectKey("apps/v1", "Deployment", pod.namespace, name), {})
            return Owner("apps/v1", "Deployment", pod.namespace, name, str(_meta(raw).get("uid", pod.owner_uid)), raw)
        return Owner("apps/v1", "ReplicaSet", pod.namespace, pod.owner_name, pod.owner_uid, {})

    def _owner_of_group(self, pod: Pod, group: str) -> Owner:
        raw = self.pod_group(pod.namespace, group)
        above = _controller(raw)
        if above.get("kind") in ("AscendJob", "Job"):
            api, kind, name = str(above.get("apiVersion")), str(above.get("kind")), str(above.get("name"))
            owner = self._objects.get(ObjectKey(api, kind, pod.namespace, name), {})
            return Owner(api, kind, pod.namespace, name, str(above.get("uid", "")), owner)
        return Owner(POD_GROUP_APIS[0], "PodGroup", pod.namespace, group, str(_meta(raw).get("uid", "")), raw)


def _gang(key: str, owner: Owner, pods: list[Pod], finder: _Owners, priorities: Mapping[str, int]) -> Gang:
    live = [pod for pod in pods if not pod.finished]
    ordered = in_rank_order(live)
    sample = ordered or in_rank_order(pods)
    group_name = next((name for name in map(finder.group_name, sample) if name), "") or finder.group_of_owner(owner)
    group = finder.pod_group(owner.namespace, group_name)
    by_task = _first_of_each_task(sample)
    annotations = {**_own_annotations(sample[0]), **_annotations(owner.raw), **_annotations(group)}
    labels = {**_joined_labels(by_task), **_labels(owner.raw), **_labels(group)}
    replicas = _replicas(owner, group, live, finder)
    priority_class = _priority_class(owner, group, sample[0])
    return Gang(
        key=key,
        api_version=owner.api_version,
        kind=owner.kind,
        namespace=owner.namespace,
        name=owner.name,
        uid=owner.uid,
        labels=labels,
        annotations=annotations,
        queue=_queue(owner, group, annotations),
        priority=priorities.get(priority_class, max(pod.priority for pod in sample)),
        priority_class=priority_class,
        created=_created(owner, group, sample),
        min_available=_min_available(owner, group, annotations, replicas, any(pod.count for pod in pods)),
        replicas=replicas,
        task_min=_task_min(owner, group),
        pods=tuple(pod.key for pod in ordered),
        pod_group=group_name if group else "",
    )


def _first_of_each_task(pods: list[Pod]) -> list[Pod]:
    first: dict[str, Pod] = {}
    for pod in pods:
        first.setdefault(task_of(pod), pod)
    return list(first.values())


def _own_annotations(pod: Pod) -> dict[str, str]:
    """A pod's annotations that speak for its job: not the ones written at its own allocation."""
    return {key: value for key, value in pod.annotations.items() if key not in _PER_POD_ANNOTATIONS}


_PER_POD_ANNOTATIONS: Final = frozenset({
    RANK_KEY, "predicate-time", "huawei.com/AscendReal", "huawei.com/kltDev", "huawei.com/Ascend910",
    "huawei.com/Ascend310", "huawei.com/Ascend310P", "huawei.com/npu", "huawei.com/npu-core", "distributed-job",
    "super-pod-rank", "super-pod-id", "ascend.kubectl.kubernetes.io/ascend-910-configuration",
    "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
})  # fmt: skip


def _joined_labels(pods: list[Pod]) -> dict[str, str]:
    """Labels of the tasks' first pods; differing values are joined with "|" as upstream does."""
    if len(pods) == 1:
        return pods[0].labels
    merged: dict[str, list[str]] = {}
    for pod in pods:
        for key, value in pod.labels.items():
            values = merged.setdefault(key, [])
            if value not in values:
                values.append(value)
    return {key: "|".join(values) for key, values in merged.items()}


def _replicas(owner: Owner, group: Mapping[str, Any], live: list[Pod], finder: _Owners) -> int:
    spec = _spec(owner.raw)
    if owner.kind == "AscendJob" and spec:
        return sum(_count(row.get("replicas"), 1) for row in _rows(spec.get("replicaSpecs")))
    if owner.kind == "Job" and owner.api_version == VOLCANO_API and spec:
        return sum(_count(task.get("replicas"), 1) for task in spec.get("tasks") or () if isinstance(task, dict))
    if owner.kind == "Job" and spec:
        parallel = _count(spec.get("parallelism"), 1)
        return min(parallel, _count(spec.get("completions"), parallel))
    if owner.kind in ("Deployment", "StatefulSet", "ReplicaSet") and spec:
        return _count(spec.get("replicas"), 1)
    if owner.kind == "Pod":
        return 1
    return max(len(live), _count(_spec(group).get("minMember"), 0))


def _min_available(
    owner: Owner, group: Mapping[str, Any], annotations: Mapping[str, str], replicas: int, npu: bool
) -> int:
    """How many pods start together.

    A PodGroup's ``minMember`` or the owner's own minimum rules; where that is 1 (PodGroups that Volcano generates)
    or absent, the annotation ``huawei.com/schedule_minAvailable`` does, and without it NPU workloads of a replicated
    kind want all replicas.
    """
    declared = _count(_spec(group).get("minMember"), 0) or _declared_min(owner)
    if declared > 1:
        return declared
    stated = parse_min_available(annotations)
    if stated is not None:
        return max(1, stated)
    if (
        not npu
        or owner.kind not in ("Deployment", "ReplicaSet", "StatefulSet", "Job")
        or owner.api_version == VOLCANO_API
    ):
        return max(1, declared) if declared or owner.kind != "AscendJob" else max(1, replicas)
    if owner.kind == "StatefulSet" and _spec(owner.raw).get("podManagementPolicy") != "Parallel":
        return 1  # its pods are created one after the other, each waiting for the one before
    return max(1, replicas)


def parse_min_available(annotations: Mapping[str, str]) -> int | None:
    """Annotation ``huawei.com/schedule_minAvailable``; None when absent or not a whole number."""
    text = annotations.get(MIN_AVAILABLE_KEY, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def _declared_min(owner: Owner) -> int:
    spec = _spec(owner.raw)
    if owner.kind == "AscendJob":
        policy = _part(_part(spec, "runPolicy"), "schedulingPolicy")
        total = sum(_count(row.get("replicas"), 1) for row in _rows(spec.get("replicaSpecs")))
        return _count(policy.get("minAvailable"), total)
    if owner.api_version == VOLCANO_API:
        return _count(
            spec.get("minAvailable"), sum(_count(task.get("replicas"), 1) for task in spec.get("tasks") or ())
        )
    return 0


def _task_min(owner: Owner, group: Mapping[str, Any]) -> dict[str, int]:
    from_group = _part(_spec(group), "minTaskMember")
    if from_group:
        return {str(task): _count(least, 0) for task, least in sorted(from_group.items())}
    if owner.api_version != VOLCANO_API:
        return {}
    tasks = [task for task in _spec(owner.raw).get("tasks") or () if isinstance(task, dict)]
    return {str(task.get("name")): _count(task.get("minAvailable"), 0) for task in tasks if task.get("minAvailable")}


def _queue(owner: Owner, group: Mapping[str, Any], annotations: Mapping[str, str]) -> str:
    spec = _spec(owner.raw)
    policy = _part(_part(spec, "runPolicy"), "schedulingPolicy")
    own = (
        policy.get("queue")
        if owner.kind == "AscendJob"
        else spec.get("queue")
        if owner.api_version == VOLCANO_API
        else None
    )
    return str(_spec(group).get("queue") or own or annotations.get(QUEUE_NAME_KEY) or DEFAULT_QUEUE)


def _priority_class(owner: Owner, group: Mapping[str, Any], first: Pod) -> str:
    spec = _spec(owner.raw)
    policy = _part(_part(spec, "runPolicy"), "schedulingPolicy")
    own = policy.get("priorityClass") if owner.kind == "AscendJob" else spec.get("priorityClassName")
    return str(_spec(group).get("priorityClassName") or own or first.priority_class or "")


def _priorities(observed: Observed) -> dict[str, int]:
    """Values of the cluster's priority classes."""
    classes = (raw for key, raw in observed.objects.items() if key.kind == "PriorityClass")
    return {str(_meta(raw).get("name")): raw["value"] for raw in classes if isinstance(raw.get("value"), int)}


def _created(owner: Owner, group: Mapping[str, Any], pods: list[Pod]) -> float:
    for raw in (owner.raw, group):
        text = _meta(raw).get("creationTimestamp")
        if isinstance(text, str):
            try:
                return parse_rfc3339(text)
            except ValueError:
                continue  # an unreadable time says nothing; the next source does
    return min(pod.created for pod in pods)


def _controller(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = _meta(raw).get("ownerReferences") or ()
    return next((owner for owner in owners if isinstance(owner, dict) and owner.get("controller")), {})


def _meta(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return _part(raw, "metadata")


def _spec(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return _part(raw, "spec")


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = raw.get(name)
    return part if isinstance(part, Mapping) else {}


def _rows(part: Any) -> list[Mapping[str, Any]]:
    return [row for row in part.values() if isinstance(row, Mapping)] if isinstance(part, Mapping) else []


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _texts(part: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in part.items()}


def _labels(raw: Mapping[str, Any]) -> dict[str, str]:
    return _texts(_part(_meta(raw), "labels"))


def _annotations(raw: Mapping[str, Any]) -> dict[str, str]:
    return _texts(_part(_meta(raw), "annotations"))
