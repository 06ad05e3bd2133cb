"""Forms gangs from live pods by their owner: which pods start together, how many, with which labels and annotations.

The owner is the object that people made (`owners`); pods that have only a PodGroup form one gang named after it; any
other pod is a gang of its own. How many pods of a kind of the table start together is in `together`; the other sizes
follow component/ascend-for-volcano/plugin/job.go and docs/zh/scheduling/06_api/15_yaml_configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from belay.engine.gangs.owners import (
    GENERATED_GROUP,
    POD_GROUP_APIS,
    VOLCANO_API,
    JobOwner,
    OwnerIndex,
    annotations_of,
    find_pod_group,
    labels_of,
    metadata,
    non_negative,
    objects_by_name,
    spec_of,
    tasks_of,
)
from belay.engine.gangs.templates import by_template, replica_sets_of, wanted_of_template
from belay.engine.gangs.together import GangStart, in_order, start_of, stated_fields
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import (
    ASCEND_310,
    ASCEND_310P,
    ASCEND_910,
    ASCEND_REAL,
    CONFIGURATION_910,
    CONFIGURATION_NPU,
    DISTRIBUTED_JOB,
    GROUP_QUEUE_NAME,
    IS_HEALTHY_TOR,
    IS_SHARED_TOR,
    KUBEFLOW_REPLICA_TYPE,
    KUBELET_DEVICES,
    NPU,
    NPU_CORE,
    PREDICATE_TIME,
    RANK_INDEX,
    REPLICA_TYPE,
    RESCHEDULE_IN_PLACE,
    SCHEDULE_MIN_AVAILABLE,
    SHARED_TOR_IP,
    SUPER_POD_ID,
    SUPER_POD_RANK,
    VOLCANO_TASK_SPEC,
)
from belay.engine.model.native_groups import gang_minimum
from belay.engine.model.plan import Pending
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.model.quantities import whole_number
from belay.engine.model.times import parse_rfc3339
from belay.engine.model.unstructured import nested_map
from belay.engine.model.workload_kinds import api_group

REPLICA_TYPE_KEYS: Final = (KUBEFLOW_REPLICA_TYPE, REPLICA_TYPE)
DEFAULT_QUEUE: Final = "default"

#: Kinds whose PodGroups Volcano generates with ``minMember`` 1, whatever the workload needs.
REPLICATED_KINDS: Final = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "Job"})

_DIGITS: Final = re.compile(r"(\d+)")

#: Gangs by key, while owner, pods, PodGroups and priority classes stay what they are.
GANGS: Final = CacheKey("gangs", Memo[Gang], limit=32768)


#: Kinds that two API groups have, with the groups whose objects bear the plain name.
_TWO_GROUPS: Final[Mapping[str, frozenset[str]]] = {
    "Job": frozenset({"", api_group(VOLCANO_API)}),
    "PodGroup": frozenset({"", *map(api_group, POD_GROUP_APIS)}),
}


def gang_key(api_version: str, kind: str, namespace: str, name: str) -> str:
    """``namespace/Kind/name``; a kind whose name another group had first bears its group, as kubectl writes it: a
    ``batch/v1`` Job is ``Job.batch``, so that it never shares a Volcano Job's memory.
    """
    group = api_group(api_version)
    plain = group in _TWO_GROUPS.get(kind, (group,))
    return f"{namespace}/{kind if plain else f'{kind}.{group}'}/{name}"


def pending_by_gang(pending: Iterable[Pending], gangs: Mapping[str, Gang]) -> dict[str, Pending]:
    """Pending entries by the key of their gang; an entry's kind is Job for ``batch/v1`` and for Volcano Jobs alike."""
    twins: dict[tuple[str, str, str], list[str]] = {}
    for key, gang in gangs.items():
        if gang.kind in _TWO_GROUPS:
            twins.setdefault((gang.kind, gang.namespace, gang.name), []).append(key)

    found: dict[str, Pending] = {}
    for entry in pending:
        plain = gang_key("", entry.kind, entry.namespace, entry.name)
        known = twins.get((entry.kind, entry.namespace, entry.name), [plain])
        first = f"{entry.namespace}/{entry.pods[0]}" if entry.pods else ""
        own = [key for key in known if first in gangs[key].pods] if len(known) > 1 else known
        found[(own or sorted(known, key=lambda key: key != plain))[0]] = entry
    return found


def task_of(pod: Pod) -> str:
    """The pod's task: annotation ``volcano.sh/task-spec``, else its replica type; empty when it has neither."""
    task = pod.annotations.get(VOLCANO_TASK_SPEC)
    if task:
        return task
    return next((pod.labels[key] for key in REPLICA_TYPE_KEYS if key in pod.labels), "")


def declared_rank(pod: Pod) -> int | None:
    """The rank that the pod itself states, None if it states none.

    In this order: annotation ``hccl/rankIndex``, a Volcano task index from its environment (``VC_TASK_INDEX``), the
    number at the end of its name (StatefulSets and Volcano Jobs).
    """
    stated = whole_number(pod.annotations.get(RANK_INDEX, ""))
    if stated is not None:
        return stated
    if pod.task_index is not None and pod.owner_kind != "StatefulSet":
        return pod.task_index
    if pod.owner_kind == "StatefulSet" or (pod.owner_kind == "Job" and pod.owner_api == VOLCANO_API):
        return whole_number(pod.name.rpartition("-")[2])
    return None


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts ``w-2`` before ``w-10``."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name) if part)


def in_rank_order(pods: Iterable[Pod]) -> list[Pod]:
    """Pods by rank, those without one last, then by name."""
    found = list(pods)
    return sorted(found, key=_order) if len(found) > 1 else found


def counts_as_started(pod: Pod) -> bool:
    """Whether a pod counts towards ``min_available`` without being placed now: bound and not terminating, or already
    succeeded.
    """
    if pod.phase == "Succeeded":
        return True
    return bool(pod.node) and pod.deleting is None and pod.phase != "Failed"


def pod_group_of(observed: Observed, gang: Gang) -> Mapping[str, Any]:
    """The raw PodGroup of a gang, empty when there is none."""
    return find_pod_group(observed.objects, gang.namespace, gang.pod_group)


def _order(pod: Pod) -> tuple[int, tuple[tuple[int, str], ...], str]:
    rank = declared_rank(pod)
    return (1 << 40, natural_key(pod.name), pod.name) if rank is None else (rank, (), pod.name)


def form_gang(
    key: str, owner: JobOwner, pods: list[Pod], finder: OwnerIndex, classes: Mapping[str, int], gangs: Memo[Gang]
) -> Gang:
    """The gang of an owner's pods.

    Args:
        classes: values of the cluster's priority classes.
        gangs: those formed before.
    """
    replica_sets = replica_sets_of(pods, finder)
    admitted_by = _admitted_by(owner, pods, finder)
    inputs = (owner, pods, finder.groups_for(owner, pods), classes, replica_sets, admitted_by)

    def formed() -> Gang:
        whole = _whole_gang(key, owner, pods, finder, classes)
        if not admitted_by:
            return whole
        parts = tuple(replace(part, queue=admitted_by) for part in whole.rollout)
        return replace(whole, queue=admitted_by, rollout=parts)

    return gangs.of(key, inputs, formed)


def _admitted_by(owner: JobOwner, pods: list[Pod], finder: OwnerIndex) -> str:
    """The queue of Kueue that has admitted a gang, empty without one.

    Only the object that is there has a uid that pods cannot claim, and a group of its pods is not all of it.
    """
    uid = "" if owner.group else str(metadata(owner.raw).get("uid") or "")
    return finder.admissions.queue_of(owner.namespace, uid, pods)


def _whole_gang(key: str, owner: JobOwner, pods: list[Pod], finder: OwnerIndex, classes: Mapping[str, int]) -> Gang:
    whole = _gang(key, owner, pods, finder, classes)
    rows = by_template(owner, (pod for pod in pods if not pod.finished), finder)
    if len(rows) < 2:
        return whole

    parts: list[Gang] = []
    for name, members in rows:
        part = _gang(key, owner, members, finder, classes)
        # a shared PodGroup says itself how many start together
        known = part.min_available if owner.kind == "PodGroup" else wanted_of_template(members, finder)
        parts.append(replace(part, template=name, wanted=known))
    return replace(whole, rollout=tuple(parts))


def _gang(key: str, owner: JobOwner, pods: list[Pod], finder: OwnerIndex, classes: Mapping[str, int]) -> Gang:
    live = [pod for pod in pods if not pod.finished]
    ordered = in_order(owner, in_rank_order(live))
    sample = ordered or in_rank_order(pods)
    group_name = next(filter(None, map(finder.group_name, sample)), "") or finder.group_of_owner(owner)
    group = finder.pod_group(owner.namespace, group_name)
    in_group = next((pod.scheduling_group for pod in sample if pod.scheduling_group), "")
    native = gang_minimum(finder.native_group(owner.namespace, in_group))
    spec, group_spec = spec_of(owner.raw), spec_of(group)
    by_task = _first_of_each_task(sample)
    stated = stated_fields(owner)
    notes = {**annotations_of(owner.raw), **stated.annotations}
    annotations = {**_own_annotations(sample[0]), **notes, **annotations_of(group)}
    labels = {**_joined_labels(by_task), **labels_of(owner.raw), **labels_of(group)}
    start = start_of(owner, pods) if owner.by_table else None
    replicas = start.replicas if start is not None else max(native, _replicas(owner, spec, group_spec, live))
    least, decides = _min_available(
        owner, spec, group_spec, annotations, replicas, any(pod.count for pod in pods), start, group_name
    )
    if native:
        least, decides = native, False
    priority_class = stated.priority_class or _priority_class(owner, spec, group_spec, sample[0])
    return Gang(
        key=key,
        api_version=owner.api_version,
        kind=owner.kind,
        namespace=owner.namespace,
        name=owner.name,
        uid=owner.uid,
        labels=labels,
        annotations=annotations,
        queue=_queue(owner, spec, group_spec, annotations, stated.queue),
        priority=classes.get(priority_class, max(pod.priority for pod in sample)),
        priority_class=priority_class,
        created=_created(owner, group, sample),
        min_available=least,
        replicas=replicas,
        task_min=_task_min(owner, spec, group_spec, least),
        pods=tuple(pod.key for pod in ordered),
        pod_group=group_name if group else "",
        declared=start.declared if start is not None and decides else 0,
        settles=start.settles if start is not None and decides else 0.0,
    )


def _first_of_each_task(pods: list[Pod]) -> list[Pod]:
    first: dict[str, Pod] = {}
    for pod in pods:
        first.setdefault(task_of(pod), pod)
    return list(first.values())


def _own_annotations(pod: Pod) -> dict[str, str]:
    """A pod's annotations that belong to its job: without those written at its allocation."""
    return {key: value for key, value in pod.annotations.items() if key not in _PER_POD_ANNOTATIONS}


_PER_POD_ANNOTATIONS: Final = frozenset({
    RANK_INDEX, PREDICATE_TIME, ASCEND_REAL, KUBELET_DEVICES, ASCEND_910,
    ASCEND_310, ASCEND_310P, NPU, NPU_CORE, DISTRIBUTED_JOB,
    SUPER_POD_RANK, SUPER_POD_ID, IS_SHARED_TOR, IS_HEALTHY_TOR, SHARED_TOR_IP, RESCHEDULE_IN_PLACE,
    CONFIGURATION_910,
    CONFIGURATION_NPU,
})  # fmt: skip


def _joined_labels(pods: list[Pod]) -> dict[str, str]:
    """Labels of the tasks' first pods; differing values are joined with "|" as MindCluster does."""
    if len(pods) == 1:
        return pods[0].labels
    merged: dict[str, list[str]] = {}
    for pod in pods:
        for key, value in pod.labels.items():
            values = merged.setdefault(key, [])
            if value not in values:
                values.append(value)
    return {key: "|".join(values) for key, values in merged.items()}


def _replicas(owner: JobOwner, spec: Mapping[str, Any], group: Mapping[str, Any], live: list[Pod]) -> int:
    """``spec`` is the owner's, ``group`` that of its PodGroup."""
    if owner.kind == "AscendJob" and spec:
        return sum(non_negative(row.get("replicas"), 1) for row in objects_by_name(spec.get("replicaSpecs")))
    if owner.kind == "Job" and owner.api_version == VOLCANO_API and spec:
        return sum(non_negative(task.get("replicas"), 1) for task in tasks_of(spec))
    if owner.kind == "Job" and spec:
        parallel = non_negative(spec.get("parallelism"), 1)
        return min(parallel, non_negative(spec.get("completions"), parallel))
    if owner.kind in ("Deployment", "StatefulSet", "ReplicaSet") and spec:
        return non_negative(spec.get("replicas"), 1)
    if owner.kind == "Pod":
        return 1
    return max(len(live), non_negative(group.get("minMember"), 0))


def _min_available(
    owner: JobOwner,
    spec: Mapping[str, Any],
    group: Mapping[str, Any],
    annotations: Mapping[str, str],
    replicas: int,
    npu: bool,
    start: GangStart | None,
    group_name: str,
) -> tuple[int, bool]:
    """Number of pods that start together, and whether ``start`` decided it.

    A PodGroup's ``minMember`` or the owner's own minimum decides; where that is 1 (PodGroups that Volcano generates)
    or absent, the annotation ``huawei.com/schedule_minAvailable`` does. Without it, NPU workloads of a replicated kind
    need all replicas, and those of other kinds what ``start`` says.
    """
    declared = non_negative(group.get("minMember"), 0) or _declared_min(owner, spec)
    if declared > 1:
        return declared, False
    stated = parse_min_available(annotations)
    if stated is not None:
        return max(1, stated), False

    generated = group_name.startswith(GENERATED_GROUP)
    if start is not None:
        by_start = npu and (generated or not declared)
        return (max(1, start.least), True) if by_start else (max(1, declared), False)

    generated = owner.kind in REPLICATED_KINDS and owner.api_version != VOLCANO_API
    if not npu or (declared and not generated):
        return max(1, declared), False
    if owner.kind in ("Pod", "PodGroup"):
        return 1, False
    if owner.kind == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel":
        return 1, False  # its pods are created one after the other
    return max(1, replicas), False


def parse_min_available(annotations: Mapping[str, str]) -> int | None:
    """Annotation ``huawei.com/schedule_minAvailable``; None when absent or not a whole number."""
    return whole_number(annotations.get(SCHEDULE_MIN_AVAILABLE, "").strip())


def _declared_min(owner: JobOwner, spec: Mapping[str, Any]) -> int:
    if owner.kind == "AscendJob":
        total = sum(non_negative(row.get("replicas"), 1) for row in objects_by_name(spec.get("replicaSpecs")))
        return non_negative(_policy(spec).get("minAvailable"), total)
    if owner.api_version == VOLCANO_API:
        # Volcano's webhook treats 0 as absent, and adds up the tasks' minima.
        needs = (
            non_negative(task.get("minAvailable"), non_negative(task.get("replicas"), 1)) for task in tasks_of(spec)
        )
        return non_negative(spec.get("minAvailable"), 0) or sum(needs)
    return 0


def _task_min(owner: JobOwner, spec: Mapping[str, Any], group: Mapping[str, Any], least: int) -> dict[str, int]:
    """The minimum of each task; none where the job's own minimum ``least`` is below their sum.

    Such a job may start with fewer pods than its tasks together state, so that number alone decides. Source:
    github.com/volcano-sh/volcano/pkg/scheduler/api/job_info.go (CheckTaskValid, CheckTaskReady).
    """
    found: dict[str, int] = {}
    from_group = nested_map(group, "minTaskMember")
    if from_group:
        found = {str(task): non_negative(minimum, 0) for task, minimum in sorted(from_group.items())}
    elif owner.api_version == VOLCANO_API:
        tasks = [task for task in tasks_of(spec) if task.get("minAvailable")]
        found = {str(task.get("name")): non_negative(task.get("minAvailable"), 0) for task in tasks}
    return found if least >= sum(found.values()) else {}


def _queue(
    owner: JobOwner, spec: Mapping[str, Any], group: Mapping[str, Any], annotations: Mapping[str, str], stated: str
) -> str:
    own: object = stated
    if owner.kind == "AscendJob":
        own = _policy(spec).get("queue")
    elif owner.api_version == VOLCANO_API:
        own = spec.get("queue")
    return str(group.get("queue") or own or annotations.get(GROUP_QUEUE_NAME) or DEFAULT_QUEUE)


def _priority_class(owner: JobOwner, spec: Mapping[str, Any], group: Mapping[str, Any], first: Pod) -> str:
    own = _policy(spec).get("priorityClass") if owner.kind == "AscendJob" else spec.get("priorityClassName")
    return str(group.get("priorityClassName") or own or first.priority_class or "")


def _policy(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The scheduling policy of an AscendJob."""
    return nested_map(spec, "runPolicy", "schedulingPolicy")


def priorities(observed: Observed) -> dict[str, int]:
    """Values of the cluster's priority classes."""
    classes = (raw for key, raw in observed.objects.items() if key.kind == "PriorityClass")
    return {str(metadata(raw).get("name")): raw["value"] for raw in classes if isinstance(raw.get("value"), int)}


def _created(owner: JobOwner, group: Mapping[str, Any], pods: list[Pod]) -> float:
    # a pod without controller waits since it was made, not since its group was
    for raw in filter(None, (owner.raw, {} if owner.kind == "Pod" else group)):
        text = metadata(raw).get("creationTimestamp")
        if isinstance(text, str):
            try:
                return parse_rfc3339(text)
            except ValueError:
                continue  # unreadable: the next source decides
    return min(pod.created for pod in pods)
