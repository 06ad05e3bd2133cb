"""PersistentVolumes for claims: the binder of kube-controller-manager, and a provisioner that makes every volume.

A claim whose class waits for its first consumer gets a volume once a scheduler has selected a node; any other claim
gets one at once, and so does a claim without a class: the sandbox has storage everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.sandbox.controllers import objects as o
from engine.sandbox.controllers.writes import Json, Step, Write, create, patch, patch_status

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_CLASS: Final = "volume.beta.kubernetes.io/storage-class"


def reconcile(claim: Json, storage: Json | None, volumes: Sequence[Json]) -> Step:
    """One step of a claim, ``storage`` being the object of its class."""
    spec, notes = claim.get("spec") or {}, claim["metadata"].get("annotations") or {}
    if o.deleting(claim) or notes.get(_COMPLETED) == "yes":
        return Step()
    volume = next((one for one in volumes if _names(one, claim)), None)
    if volume is None and spec.get("volumeName"):
        volume = next((one for one in volumes if one["metadata"]["name"] == spec["volumeName"]), None)
        return Step() if volume is None or not _free(volume) else Step((_reserved(volume, claim),))
    waits = (storage or {}).get("volumeBindingMode") == "WaitForFirstConsumer" and not notes.get(SELECTED_NODE)
    if volume is None:
        return Step() if waits else Step((create(_volume(claim)),))
    name = volume["metadata"]["name"]
    bound = {"metadata": {"annotations": {_COMPLETED: "yes"}}, "spec": {"volumeName": name}}
    status = {"phase": "Bound", "capacity": (volume.get("spec") or {}).get("capacity") or {}}
    return Step((
        patch_status(volume, "PersistentVolume", {"phase": "Bound"}),
        patch_status(claim, "PersistentVolumeClaim", status | {"accessModes": spec.get("accessModes") or []}),
        patch(claim, "PersistentVolumeClaim", bound),
    ))  # fmt: skip


def class_of(claim: Json) -> str:
    """The storage class of a claim, empty when it has none."""
    notes = claim["metadata"].get("annotations") or {}
    return str(notes.get(_CLASS) or (claim.get("spec") or {}).get("storageClassName") or "")


def _reference(claim: Json) -> Json:
    meta = claim["metadata"]
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta["namespace"], "name": meta["name"],
        "uid": meta.get("uid", ""),
    }  # fmt: skip


def _names(volume: Json, claim: Json) -> bool:
    reference = (volume.get("spec") or {}).get("claimRef") or {}
    wanted = _reference(claim)
    same = all(reference.get(key) == wanted[key] for key in ("namespace", "name"))
    return same and reference.get("uid") in (None, "", wanted["uid"])


def _free(volume: Json) -> bool:
    return not (volume.get("spec") or {}).get("claimRef")


def _reserved(volume: Json, claim: Json) -> Write:
    return patch(volume, "PersistentVolume", {"spec": {"claimRef": _reference(claim)}})


def _volume(claim: Json) -> Json:
    spec, meta = claim.get("spec") or {}, claim["metadata"]
    storage = ((spec.get("resources") or {}).get("requests") or {}).get("storage", "1Gi")
    name = f"pvc-{meta.get('uid') or meta['name']}"
    body: Json = {
        "capacity": {"storage": storage}, "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
        "claimRef": _reference(claim), "persistentVolumeReclaimPolicy": "Delete",
        "volumeMode": spec.get("volumeMode") or "Filesystem", "hostPath": {"path": f"/var/lib/belay-sandbox/{name}"},
    }  # fmt: skip
    if class_of(claim):
        body["storageClassName"] = class_of(claim)
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": body}
