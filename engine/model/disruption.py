"""Pods that people keep from being moved, by the annotations that autoscalers heed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import INDEPENDENT_KINDS, Gang
from belay.engine.model.labels import DO_NOT_DISRUPT, SAFE_TO_EVICT

#: Annotations by which people keep autoscalers from moving a pod.
SETTLED: Final = {
    SAFE_TO_EVICT: "false",
    DO_NOT_DISRUPT: "true",
}


def settled(pod: Pod) -> bool:
    """Whether an annotation keeps the pod where it is."""
    return any(pod.annotations.get(key) == value for key, value in SETTLED.items())


def awaits_its_deletion(gang: Gang, pod: Pod, pods: Mapping[str, Pod]) -> bool:
    """Whether a pod stays on a node that may wait for it: an annotation keeps it or another pod of its gang there, and
    none of them is being deleted yet.

    Who removes the node drains it first, and leaves such pods until their time is over.
    """
    members = [pod] if gang.kind in INDEPENDENT_KINDS else [pods[key] for key in gang.pods if key in pods]
    kept = any(one.node == pod.node and settled(one) for one in members)
    return kept and all(one.deleting is None for one in members)


__all__ = ["SETTLED", "awaits_its_deletion", "settled"]
