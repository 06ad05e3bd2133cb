"""Taints of nodes: which pods they keep off, and what those who set the well-known ones mean by them.

Belay sets and removes no taint. Sources: kubernetes.io "Well-Known Labels, Annotations and Taints";
cluster-autoscaler/utils/taints; karpenter.sh "Disruption"; the Node Readiness Controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec

from belay.engine.model.cluster import Departure, Node, Pod, Taint
from belay.engine.model.labels import NODE_NOT_READY, NODE_UNREACHABLE

UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_KEEPING_OFF: Final = frozenset({"NoSchedule", "NoExecute"})


class TaintUse(StrEnum):
    """What becomes of a node with a taint: its pods go now; it goes, unless its owner thinks better of it, and its pods
    stay until then; it is still starting; it is short of something; it is cordoned."""

    LEAVES = "leaves"
    MAY_LEAVE = "may leave"
    STARTS = "starts"
    SHORT = "short"
    CORDONED = "cordoned"


#: Of nodes that take no new work, whatever a pod tolerates.
REMOVING: Final = frozenset({TaintUse.LEAVES, TaintUse.MAY_LEAVE})


class TaintOwner(msgspec.Struct, frozen=True):
    """Who sets and removes a taint, what that says of the node after "who …", and what it means for pods."""

    who: str
    says: str
    meaning: TaintUse


_LIFECYCLE: Final = "the node lifecycle controller"
_CLOUD: Final = "the cloud controller manager"
_AUTOSCALER: Final = "the cluster autoscaler"

#: By the taint's key.
OWNERS: Final[dict[str, TaintOwner]] = {
    "ToBeDeletedByClusterAutoscaler": TaintOwner(_AUTOSCALER, "removes this node", TaintUse.LEAVES),
    "node.kubernetes.io/out-of-service": TaintOwner(
        "an operator", "declared this node shut down and out of service", TaintUse.LEAVES
    ),
    "node.cloudprovider.kubernetes.io/shutdown": TaintOwner(_CLOUD, "found this node shut down", TaintUse.LEAVES),
    "karpenter.sh/disrupted": TaintOwner("Karpenter", "is about to replace or remove this node", TaintUse.MAY_LEAVE),
    # before Karpenter 1.0
    "karpenter.sh/disruption": TaintOwner("Karpenter", "is about to replace or remove this node", TaintUse.MAY_LEAVE),
    "node.cloudprovider.kubernetes.io/uninitialized": TaintOwner(
        _CLOUD, "has not initialized this node yet", TaintUse.STARTS
    ),
    "karpenter.sh/unregistered": TaintOwner("Karpenter", "has not registered this node yet", TaintUse.STARTS),
    NODE_NOT_READY: TaintOwner(_LIFECYCLE, "waits for this node to be ready", TaintUse.STARTS),
    NODE_UNREACHABLE: TaintOwner(_LIFECYCLE, "waits for this node's kubelet", TaintUse.STARTS),
    "node.kubernetes.io/network-unavailable": TaintOwner(_LIFECYCLE, "waits for this node's network", TaintUse.STARTS),
    UNSCHEDULABLE.key: TaintOwner(_LIFECYCLE, "follows the cordon of this node", TaintUse.CORDONED),
    "node.kubernetes.io/memory-pressure": TaintOwner(_LIFECYCLE, "found this node short of memory", TaintUse.SHORT),
    "node.kubernetes.io/disk-pressure": TaintOwner(_LIFECYCLE, "found this node short of disk", TaintUse.SHORT),
    "node.kubernetes.io/pid-pressure": TaintOwner(_LIFECYCLE, "found this node short of PIDs", TaintUse.SHORT),
}  # fmt: skip

#: By what the taint's key begins with.
_PREFIXES: Final[dict[str, TaintOwner]] = {
    "readiness.k8s.io/": TaintOwner(
        "the Node Readiness Controller", "waits for this node's conditions", TaintUse.STARTS
    )
}


def owner_of(taint: Taint) -> TaintOwner | None:
    """Who sets this taint, where that is well known."""
    found = OWNERS.get(taint.key)
    if found is not None:
        return found
    return next((owner for prefix, owner in _PREFIXES.items() if taint.key.startswith(prefix)), None)


def departure(taints: Iterable[Taint], being_deleted: bool) -> Departure | None:
    """By whom a node is about to go, and whether its pods go now; None for one that stays.

    Karpenter taints first and begins to drain only once the replacement is ready and the Node is being deleted; if that
    fails, it takes the taint away. A node that is being deleted waits for its pods, one with a taint by which it leaves
    does not.
    """
    removing = [(owner, taint) for taint in taints if (owner := owner_of(taint)) and owner.meaning in REMOVING]
    if not removing:
        return Departure("its Node is being deleted", now=True, waits=True) if being_deleted else None

    final = [row for row in removing if row[0].meaning is TaintUse.LEAVES]
    owner, taint = (final or removing)[0]
    text = f"{owner.who} {owner.says} (taint {taint.key})"
    return Departure(text, now=being_deleted or bool(final), waits=not final)


def tolerates(pod: Pod, taint: Taint) -> bool:
    """Whether one of the pod's tolerations covers the taint."""
    for toleration in pod.tolerations:
        effect, key = toleration.get("effect") or "", toleration.get("key") or ""
        if effect and effect != taint.effect:
            continue
        operator = toleration.get("operator") or "Equal"
        if key and key != taint.key:
            continue
        if operator == "Exists" or (key and operator == "Equal" and (toleration.get("value") or "") == taint.value):
            return True
    return False


def keeps_off(pod: Pod, taint: Taint) -> bool:
    """Whether the taint keeps the pod off nodes that have it."""
    return taint.effect in _KEEPING_OFF and not tolerates(pod, taint)


def untolerated(pod: Pod, node: Node) -> Iterator[Taint]:
    """The taints of the node that keep the pod off, without the one that follows from its cordon."""
    for taint in node.taints:
        if taint == UNSCHEDULABLE and node.unschedulable:
            continue
        if keeps_off(pod, taint):
            yield taint


def closed_by_others(pod: Pod, node: Node) -> bool:
    """Whether taints say that others empty the node, as far as the pod is concerned.

    Taints about the node's state say no such thing: Belay judges its readiness, and the rest passes.
    """
    return node.departure is not None or any(owner_of(taint) is None for taint in untolerated(pod, node))


__all__ = [
    "OWNERS", "REMOVING", "UNSCHEDULABLE", "TaintUse", "TaintOwner", "closed_by_others", "departure", "keeps_off",
    "owner_of", "tolerates", "untolerated",
]  # fmt: skip
