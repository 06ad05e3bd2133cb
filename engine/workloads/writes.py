"""A controller's writes as data, so that controllers stay pure and tests need no server."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Json = dict[str, Any]
Verb = Literal["create", "patch", "status", "delete"]

API_VERSIONS: Final[dict[str, str]] = {
    "Pod": "v1",
    "Node": "v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "ControllerRevision": "apps/v1",
    "Job": "batch/v1",
    "PersistentVolume": "v1",
    "PersistentVolumeClaim": "v1",
    "ResourceClaim": "resource.k8s.io/v1",
}
"""The kinds that controllers write, with their API versions."""


class Write(msgspec.Struct, frozen=True):
    """One call. ``body`` is the object to create, or the merge patch for ``patch`` and ``status``.

    ``uid`` guards ``delete`` against a newer object of the same name; ``grace_seconds`` None leaves the object's own
    grace.
    """

    verb: Verb
    kind: str
    namespace: str
    name: str
    body: Json = {}
    uid: str = ""
    grace_seconds: int | None = None

    @property
    def api_version(self) -> str:
        """The API version of ``kind``."""
        return API_VERSIONS[self.kind]


class Reconciled(msgspec.Struct, frozen=True):
    """One reconcile: the writes, in order, and when to reconcile again without a change (seconds from now, None:
    not needed)."""

    writes: tuple[Write, ...] = ()
    again_in: float | None = None


def create(body: Json) -> Write:
    """Create ``body``; its name may come from ``generateName``."""
    meta = body["metadata"]
    return Write("create", body["kind"], meta.get("namespace", ""), meta.get("name", ""), body)


def patch(target: Json, kind: str, body: Json) -> Write:
    """Merge-patch all but the status of ``target``, and only of this object, not of a newer one with its name."""
    return Write(
        "patch", kind, target["metadata"].get("namespace", ""), target["metadata"]["name"], _guarded(target, body)
    )


def patch_status(target: Json, kind: str, body: Json) -> Write:
    """Merge-patch the status of ``target``, and only of this object."""
    meta = target["metadata"]
    return Write("status", kind, meta.get("namespace", ""), meta["name"], _guarded(target, {"status": body}))


def status(target: Json, kind: str, body: Json) -> Write | None:
    """As ``patch_status`` with the changed fields only; None if nothing would change."""
    old = target.get("status") or {}
    changed = {key: value for key, value in body.items() if old.get(key) != value and (value or key in old)}
    return patch_status(target, kind, changed) if changed else None


def _guarded(target: Json, body: Json) -> Json:
    uid = target["metadata"].get("uid")
    return {**body, "metadata": {**(body.get("metadata") or {}), "uid": uid}} if uid else body


def delete(target: Json, kind: str, grace_seconds: int | None = None) -> Write:
    """Delete exactly this object, by its uid."""
    meta = target["metadata"]
    return Write(
        "delete", kind, meta.get("namespace", ""), meta["name"], uid=meta.get("uid", ""), grace_seconds=grace_seconds
    )
