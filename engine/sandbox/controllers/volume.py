"""PersistentVolumes for claims: the binder of kube-controller-manager, and a provisioner that makes volumes.

A claim gets an available volume that suits it, else a new one, as the sandbox has storage everywhere. Where its class
waits for the first consumer, that is when a scheduler has chosen the volume or selected a node. A class of
``kubernetes.io/no-provisioner`` has the volumes that people made only.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from belay.engine.model import quantities
from belay.engine.model.labels import BETA_STORAGE_CLASS, BIND_COMPLETED, NO_PROVISIONER, SELECTED_NODE
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write, create, delete, patch, patch_status


def reconcile(claim: Json, storage: Json | None, volumes: Sequence[Json]) -> Reconciled:
    """One step of a claim, ``storage`` being the object of its class."""
    spec, notes = claim.get("spec") or {}, claim["metadata"].get("annotations") or {}
    if o.deleting(claim) or notes.get(BIND_COMPLETED) == "yes":
        return Reconciled()
    volume = next((one for one in volumes if _names(one, claim)), None)
    if volume is None and spec.get("volumeName"):
        volume = next((one for one in volumes if one["metadata"]["name"] == spec["volumeName"]), None)
        return Reconciled() if volume is None or not _free(volume) else Reconciled((_reserved(volume, claim),))
    kind = storage or {}
    waits = kind.get("volumeBindingMode") == "WaitForFirstConsumer"
    if volume is None and not waits and (suits := _suitable(claim, volumes)) is not None:
        return Reconciled((_reserved(suits, claim),))
    if volume is None:
        made = kind.get("provisioner") != NO_PROVISIONER and not (waits and not notes.get(SELECTED_NODE))
        return Reconciled((create(_volume(claim)),) if made else ())
    name = volume["metadata"]["name"]
    bound = {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": name}}
    status = {"phase": "Bound", "capacity": (volume.get("spec") or {}).get("capacity") or {}}
    return Reconciled((
        patch_status(volume, "PersistentVolume", {"phase": "Bound"}),
        patch_status(claim, "PersistentVolumeClaim", status | {"accessModes": spec.get("accessModes") or []}),
        patch(claim, "PersistentVolumeClaim", bound),
    ))  # fmt: skip


def offer(volume: Json, claims: Container[tuple[str, str]]) -> Reconciled:
    """One step of a volume: available while it is free, released once its claim is gone.

    ``claims``: namespaces and names of the claims that there are.
    """
    status, spec = volume.get("status") or {}, volume.get("spec") or {}
    if o.deleting(volume):
        return Reconciled()
    if _free(volume):
        return Reconciled() if status.get("phase") == "Available" else Reconciled((_phase(volume, "Available"),))
    reference = spec["claimRef"]
    gone = (str(reference.get("namespace")), str(reference.get("name"))) not in claims
    if status.get("phase") != "Bound" or not gone:
        return Reconciled()
    if spec.get("persistentVolumeReclaimPolicy") == "Delete":
        return Reconciled((delete(volume, "PersistentVolume"),))
    return Reconciled((_phase(volume, "Released"),))


def class_of(claim: Json) -> str:
    """The storage class of a claim, empty when it has none."""
    notes = claim["metadata"].get("annotations") or {}
    return str(notes.get(BETA_STORAGE_CLASS) or (claim.get("spec") or {}).get("storageClassName") or "")


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


def _suitable(claim: Json, volumes: Sequence[Json]) -> Json | None:
    """The smallest available volume that a claim can have; one with a selector of labels is made."""
    spec = claim.get("spec") or {}
    if spec.get("selector"):
        return None
    wanted, modes = _size((spec.get("resources") or {}).get("requests")), set(spec.get("accessModes") or ())
    found = []
    for volume in volumes:
        own = volume.get("spec") or {}
        same = class_of(volume) == class_of(claim) and _mode(own) == _mode(spec)
        large = (size := _size(own.get("capacity"))) >= wanted
        if _free(volume) and same and large and modes <= set(own.get("accessModes") or ()) and not o.deleting(volume):
            found.append((size, volume["metadata"]["name"], volume))
    return min(found, key=lambda row: row[:2], default=(0, "", None))[2]


def _size(amounts: Json | None) -> int:
    return quantities.whole((amounts or {}).get("storage"))


def _mode(spec: Json) -> str:
    return str(spec.get("volumeMode") or "Filesystem")


def _phase(volume: Json, phase: str) -> Write:
    return patch_status(volume, "PersistentVolume", {"phase": phase})


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
