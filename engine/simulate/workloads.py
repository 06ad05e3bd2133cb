"""The workload controllers of Kubernetes as far as a simulation needs them: create replicas, replace ended pods.

Source: kube-controller-manager's deployment, replicaset, statefulset and job controllers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from engine.model.diagnostics import ObjectKey

Objects = Mapping[ObjectKey, dict[str, Any]]
_ENDED: Final = ("Succeeded", "Failed")


def missing(objects: Objects, number: Callable[[], int]) -> Iterator[dict[str, Any]]:
    """Objects that the controllers create now; ``number`` returns numbers that no name has used."""
    sets: dict[str, list[ObjectKey]] = {}
    for key, obj in objects.items():
        if key.kind in ("Pod", "ReplicaSet"):
            for ref in obj["metadata"].get("ownerReferences") or ():
                sets.setdefault(str(ref.get("uid")), []).append(key)
    for key, obj in list(objects.items()):
        mine = sets.get(str(obj["metadata"].get("uid")), [])
        if key.kind == "Deployment":
            yield from _replica_set(key, obj, mine)
        elif key.kind == "ReplicaSet":
            yield from _replicas(objects, key, obj, mine, number)
        elif key.kind == "StatefulSet":
            yield from _ordinals(objects, key, obj)
        elif key.kind == "Job" and key.api_version == "batch/v1":
            yield from _completions(objects, key, obj, mine, number)


def counted(objects: Objects) -> Iterator[dict[str, Any]]:
    """Deployments and StatefulSets whose status is not the number of their pods, and of those that are ready."""
    pods: dict[str, list[dict[str, Any]]] = {}
    sets: dict[str, list[str]] = {}
    for key, obj in objects.items():
        if key.kind not in ("Pod", "ReplicaSet"):
            continue
        for ref in obj["metadata"].get("ownerReferences") or ():
            if key.kind == "Pod":
                pods.setdefault(str(ref.get("uid")), []).append(obj)
            else:
                sets.setdefault(str(ref.get("uid")), []).append(str(obj["metadata"].get("uid")))
    for key, obj in list(objects.items()):
        if key.kind not in ("Deployment", "StatefulSet"):
            continue
        uid = str(obj["metadata"].get("uid"))
        mine = [pod for one in (uid, *sets.get(uid, ())) for pod in pods.get(one, ())]
        alive = [pod for pod in mine if _alive(pod)]
        found = {"replicas": len(alive), "readyReplicas": sum(map(_serves, alive)), "updatedReplicas": len(alive)}
        before = obj.get("status") or {}
        if any(before.get(name) != value for name, value in found.items()):
            yield {**copy.deepcopy(obj), "status": {**before, **found}}


def bound_claims(objects: Objects) -> list[dict[str, Any]]:
    """Claims that are bound now: a node was selected for them, or a volume names them. Where the volume lies is not
    simulated.
    """
    found = []
    volumes = [raw for key, raw in objects.items() if key.kind == "PersistentVolume"]
    named = {(ref.get("namespace"), ref.get("name")): raw for raw in volumes if (ref := _claim_reference(raw))}
    for key, raw in objects.items():
        if key.kind != "PersistentVolumeClaim" or (raw.get("spec") or {}).get("volumeName"):
            continue
        volume = named.get((key.namespace, key.name))
        selected = (raw["metadata"].get("annotations") or {}).get("volume.kubernetes.io/selected-node")
        if volume is not None or selected:
            name = volume["metadata"]["name"] if volume is not None else f"pvc-{key.namespace}-{key.name}"
            found.append(raw | {"spec": {**raw.get("spec", {}), "volumeName": name}, "status": {"phase": "Bound"}})
    return found


def _claim_reference(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    return (volume.get("spec") or {}).get("claimRef") or {}


def owned(obj: dict[str, Any], key: ObjectKey, owner: Mapping[str, Any]) -> dict[str, Any]:
    """A copy named ``key`` that belongs to ``owner``."""
    obj = copy.deepcopy(obj)
    metadata = obj.setdefault("metadata", {})
    metadata.update(name=key.name, namespace=key.namespace)
    metadata["ownerReferences"] = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"].get("uid", ""),
            "controller": True,
        }
    ]
    return obj


def _replica_set(key: ObjectKey, obj: dict[str, Any], mine: list[ObjectKey]) -> Iterator[dict[str, Any]]:
    if not any(one.kind == "ReplicaSet" for one in mine):
        name = ObjectKey("apps/v1", "ReplicaSet", key.namespace, f"{key.name}-1")
        yield owned({"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": obj.get("spec") or {}}, name, obj)


def _replicas(
    objects: Objects, key: ObjectKey, obj: dict[str, Any], mine: list[ObjectKey], number: Callable[[], int]
) -> Iterator[dict[str, Any]]:
    wanted = _size(_declared(objects, obj), "replicas")
    live = [one for one in mine if one.kind == "Pod" and _alive(objects[one])]
    for _ in range(wanted - len(live)):
        yield _pod(obj, ObjectKey("v1", "Pod", key.namespace, f"{key.name}-{number():05d}"))


def _ordinals(objects: Objects, key: ObjectKey, obj: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Pods with fixed names; an ended pod is created again only after its object is gone."""
    for index in range(_size(obj, "replicas")):
        name = ObjectKey("v1", "Pod", key.namespace, f"{key.name}-{index}")
        if name not in objects:
            yield _pod(obj, name)


def _completions(
    objects: Objects, key: ObjectKey, obj: dict[str, Any], mine: list[ObjectKey], number: Callable[[], int]
) -> Iterator[dict[str, Any]]:
    pods = [objects[one] for one in mine if one.kind == "Pod"]
    failed = sum((pod.get("status") or {}).get("phase") == "Failed" for pod in pods)
    limit = (obj.get("spec") or {}).get("backoffLimit")
    if failed > (limit if isinstance(limit, int) else 6):
        return
    busy = sum((pod.get("status") or {}).get("phase") != "Failed" for pod in pods)
    for _ in range(_size(obj, "parallelism") - busy):
        yield _pod(obj, ObjectKey("v1", "Pod", key.namespace, f"{key.name}-{number():05d}"))


def _declared(objects: Objects, obj: dict[str, Any]) -> dict[str, Any]:
    """The replicas of a ReplicaSet: its Deployment's, if that exists and has no other ReplicaSet."""
    for ref in obj["metadata"].get("ownerReferences") or ():
        owner = objects.get(ObjectKey("apps/v1", "Deployment", str(obj["metadata"].get("namespace")), str(ref["name"])))
        if owner is not None and (obj.get("spec") or {}).get("replicas") != 0:
            return owner
    return obj


def _size(obj: Mapping[str, Any], field: str) -> int:
    found = (obj.get("spec") or {}).get(field)
    return found if isinstance(found, int) and not isinstance(found, bool) else 1


def _alive(pod: Mapping[str, Any]) -> bool:
    gone = pod["metadata"].get("deletionTimestamp")
    return not gone and (pod.get("status") or {}).get("phase", "Pending") not in _ENDED


def _serves(pod: Mapping[str, Any]) -> bool:
    rows = (pod.get("status") or {}).get("containerStatuses") or []
    return bool(rows) and all(row.get("ready") for row in rows)


def _pod(owner: dict[str, Any], key: ObjectKey) -> dict[str, Any]:
    template = copy.deepcopy((owner.get("spec") or {}).get("template") or {})
    return owned({"apiVersion": "v1", "kind": "Pod", **template}, key, owner)
