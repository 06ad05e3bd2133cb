"""Gangs that Kueue has admitted: they count in its queues, not in Belay's, so that no job counts in both.

Labels say nothing here, as any author of pods may write them. What counts is Kueue's own record: a Workload in state
Admitted that is owned by the gang's object or by its pods. Kueue's roles let users read Workloads; their status is
written by its controller alone. Source: Kueue, "Workload" and its ClusterRoles ``kueue-batch-*-role``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.labels import KUEUE_PREFIX
from belay.engine.model.unstructured import nested_list, nested_map

#: Label of the LocalQueue that people write.
QUEUE_LABEL: Final = f"{KUEUE_PREFIX}queue-name"
_WORKLOAD: Final = "Workload"


class KueueAdmission(NamedTuple):
    """What Kueue has admitted: the queue that it counts in, and how many pods."""

    queue: str
    pods: int


class Admissions:
    """What Kueue has admitted in a snapshot, by the namespace and uid of what owns its Workloads."""

    def __init__(self, observed: Observed) -> None:
        self._by_owner: dict[tuple[str, str], KueueAdmission] = {}
        if not observed.workloads.kueue_counts:
            return
        for key, raw in observed.objects.items():
            if key.kind == _WORKLOAD and key.api_version.startswith(KUEUE_PREFIX) and _is_admitted(raw):
                self._add(key.namespace, raw)

    def _add(self, namespace: str, raw: Mapping[str, Any]) -> None:
        name = nested_map(raw, "spec").get("queueName")
        admission = KueueAdmission(f"{KUEUE_PREFIX}{namespace}/{name}", _count(raw))
        for owner in nested_list(raw, "metadata", "ownerReferences"):
            place = (namespace, str(owner.get("uid") or ""))
            known = self._by_owner.get(place)
            if known is None or known.pods < admission.pods:
                self._by_owner[place] = admission

    def queue_of(self, namespace: str, uid: str, pods: Sequence[Pod]) -> str:
        """The queue of Kueue that a gang counts in, empty where Kueue has not admitted all of it.

        Args:
            uid: that of the gang's object in the cluster, empty without one.
        """
        if not self._by_owner:
            return ""

        placeable = [pod for pod in pods if not pod.finished and pod.deleting is None and not pod.gates]
        whole = self._by_owner.get((namespace, uid)) if uid else None
        # pods that an author adds to an admitted job are more than Kueue has counted
        if whole is not None and len(placeable) <= whole.pods:
            return whole.queue
        single = [self._by_owner.get((namespace, pod.uid)) for pod in placeable]
        if not single or None in single:
            return ""
        return next(one.queue for one in single if one is not None)


def _is_admitted(raw: Mapping[str, Any]) -> bool:
    conditions = nested_list(raw, "status", "conditions")
    return any(one.get("type") == "Admitted" and one.get("status") == "True" for one in conditions)


def _count(raw: Mapping[str, Any]) -> int:
    """How many pods were admitted; Kueue may admit fewer than a job has."""
    stated = {str(one.get("name")): one.get("count") for one in nested_list(raw, "spec", "podSets")}
    for one in nested_list(raw, "status", "admission", "podSetAssignments"):
        if one.get("count") is not None:
            stated[str(one.get("name"))] = one["count"]
    return sum(count for count in stated.values() if isinstance(count, int))


def is_kueues(queue: str) -> bool:
    """Whether a gang's queue is one of Kueue's."""
    return queue.startswith(KUEUE_PREFIX)
