"""Owners of pods that a list of objects leaves out: a list of pods seldom names all of their owners.

An owner that is not listed exists nevertheless, as the garbage collector would have deleted its pods. A ReplicaSet is
rebuilt from its pods, so that a Deployment that is listed, or declared, counts them as its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from belay.engine.gangs.owners import controller_of, metadata
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import POD_TEMPLATE_HASH

_APPS: Final = "apps/v1"


def absent_owners(objects: Mapping[ObjectKey, Mapping[str, Any]]) -> dict[ObjectKey, str]:
    """Controllers of live pods that are not among the objects, with their uids; Deployments behind ReplicaSets that
    are not among them too, with a uid made up from the ReplicaSet's.
    """
    found: dict[ObjectKey, str] = {}
    for key, raw in objects.items():
        owner = controller_of(raw) if key.kind == "Pod" and not _ended(raw) else {}
        above = _named(owner, key.namespace)
        if above is None or above in objects:
            continue
        found[above] = str(owner.get("uid", ""))
        deployment = _deployment(above, raw)
        if deployment is not None and deployment not in objects:
            found[deployment] = f"deployment-of-{owner.get('uid', '')}"
    return found


def replica_sets(
    objects: Mapping[ObjectKey, Mapping[str, Any]], absent: Mapping[ObjectKey, str]
) -> list[dict[str, Any]]:
    """The absent ReplicaSets of Deployments, rebuilt: as many replicas as there are live pods, a pod's template."""
    pods: dict[ObjectKey, list[Mapping[str, Any]]] = {}
    for key, raw in objects.items():
        above = _named(controller_of(raw), key.namespace) if key.kind == "Pod" and not _ended(raw) else None
        if above is not None and above in absent and _deployment(above, raw) is not None:
            pods.setdefault(above, []).append(raw)
    return [_replica_set(key, of, objects, absent) for key, of in pods.items()]


def _replica_set(
    key: ObjectKey,
    pods: list[Mapping[str, Any]],
    objects: Mapping[ObjectKey, Mapping[str, Any]],
    absent: Mapping[ObjectKey, str],
) -> dict[str, Any]:
    deployment = _deployment(key, pods[0])
    assert deployment is not None
    above = objects.get(deployment)
    if above is not None:
        spec, uid = copy.deepcopy(above.get("spec") or {}), str(metadata(above).get("uid", ""))
    else:
        spec, uid = {"replicas": len(pods), "template": _template(pods[0])}, absent[deployment]
    reference = {"apiVersion": _APPS, "kind": "Deployment", "name": deployment.name, "uid": uid, "controller": True}
    named = {"name": key.name, "namespace": key.namespace, "uid": absent[key], "ownerReferences": [reference]}
    return {"apiVersion": _APPS, "kind": "ReplicaSet", "metadata": named, "spec": spec}


def _template(pod: Mapping[str, Any]) -> dict[str, Any]:
    spec = {name: copy.deepcopy(value) for name, value in (pod.get("spec") or {}).items() if name != "nodeName"}
    return {"metadata": {"labels": dict(metadata(pod).get("labels") or {})}, "spec": spec}


def _deployment(key: ObjectKey, pod: Mapping[str, Any]) -> ObjectKey | None:
    """The Deployment whose ReplicaSet this is, by the hash in the labels of its pods."""
    suffix = f"-{(metadata(pod).get('labels') or {}).get(POD_TEMPLATE_HASH, '')}"
    if (key.api_version, key.kind) != (_APPS, "ReplicaSet") or len(suffix) < 2 or not key.name.endswith(suffix):
        return None
    return ObjectKey(_APPS, "Deployment", key.namespace, key.name.removesuffix(suffix))


def _named(owner: Mapping[str, Any], namespace: str) -> ObjectKey | None:
    if not owner:
        return None
    return ObjectKey(str(owner.get("apiVersion")), str(owner.get("kind")), namespace, str(owner.get("name")))


def _ended(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status")
    return isinstance(status, Mapping) and status.get("phase") in ("Succeeded", "Failed")


def unlisted_uids(objects: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The uids of owners that objects name and none has."""
    named, held = set(), set()
    for raw in objects:
        held.add(str(metadata(raw).get("uid", "")))
        owners = metadata(raw).get("ownerReferences")
        if isinstance(owners, list):
            named |= {str(owner.get("uid", "")) for owner in owners if isinstance(owner, Mapping)}
    return frozenset(named - held)
