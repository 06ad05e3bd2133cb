"""Volumes that bind a pod to some nodes: the node affinity of bound persistent volumes that the snapshot holds.

Semantics of kube-scheduler's VolumeBinding filter for bound claims. A claim that the snapshot does not hold is ignored;
provisioners make new volumes.
"""

from __future__ import annotations

from typing import Any, Final

from engine.model.cluster import Observed, Pod
from engine.model.diagnostics import ObjectKey
from engine.plan.place.handler import Refusal

CONFLICT: Final = Refusal("VolumeNodeAffinityConflict", "node(s) had volume node affinity conflict")

Terms = tuple[dict[str, Any], ...]


def required(pod: Pod, observed: Observed) -> tuple[Terms, ...]:
    """The node selector terms of each bound volume of the pod; a node must match one term of every volume."""
    found = (_terms(pod.namespace, claim, observed) for claim in pod.claims)
    return tuple(terms for terms in found if terms is not None)


def _terms(namespace: str, claim: str, observed: Observed) -> Terms | None:
    spec = _spec(observed, ObjectKey("v1", "PersistentVolumeClaim", namespace, claim))
    name = spec.get("volumeName")
    affinity = _spec(observed, ObjectKey("v1", "PersistentVolume", "", str(name))).get("nodeAffinity") if name else None
    wanted = affinity.get("required") if isinstance(affinity, dict) else None
    rows = wanted.get("nodeSelectorTerms") if isinstance(wanted, dict) else None
    return tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else None


def _spec(observed: Observed, key: ObjectKey) -> dict[str, Any]:
    spec = observed.objects.get(key, {}).get("spec")
    return spec if isinstance(spec, dict) else {}
