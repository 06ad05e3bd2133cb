"""Gangs that Kueue has admitted: they count in its queues, not in Belay's, so that no job counts in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from engine.model.cluster import Observed, Pod
from engine.model.diagnostics import ObjectKey

#: Labels, annotations and gates of Kueue begin so; so does the name of a gang's queue that is one of Kueue's.
KUEUE: Final = "kueue.x-k8s.io/"
#: Label of the LocalQueue that people write, and the one that Kueue writes on the pods of a job that it has admitted.
QUEUE_LABELS: Final = (f"{KUEUE}queue-name", f"{KUEUE}local-queue-name")
#: What Kueue writes on the pods of a job, and on pods that it manages themselves.
_MARKS: Final = (f"{KUEUE}podset", f"{KUEUE}managed")
_DEFINITION: Final = ObjectKey(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "clusterqueues.kueue.x-k8s.io"
)


def kueue_counts(observed: Observed) -> bool:
    """Whether the cluster has Kueue and the settings leave it the quota of what it admits."""
    return observed.workloads.kueue_counts and _DEFINITION in observed.objects


def local_queue(pods: Sequence[Pod], owner_labels: Mapping[str, str]) -> str:
    """The LocalQueue of a gang that Kueue manages; empty for another gang."""
    marked = next((pod.labels for pod in pods if any(mark in pod.labels for mark in _MARKS)), None)
    if marked is None:
        return ""
    named = (labels[key] for labels in (marked, owner_labels) for key in QUEUE_LABELS if labels.get(key))
    return next(named, "unnamed")


def is_kueues(queue: str) -> bool:
    """Whether a gang's queue is one of Kueue's."""
    return queue.startswith(KUEUE)
