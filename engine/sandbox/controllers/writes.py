"""What a controller wants written, as data, so that controllers stay pure and tests need no server."""

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
}
"""The kinds that controllers write, and the API version they speak for each."""


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


class Step(msgspec.Struct, frozen=True):
    """One reconcile: the writes, in order, and when to look again though nothing has changed (seconds from now, None:
    not needed)."""

    writes: tuple[Write, ...] = ()
    again_in: float | None = None


def create(body: Json) -> Write:
    """Create ``body``; its name may come from ``generateName``."""
    meta = body["metadata"]
    return Write("create", body["kind"], meta.get("namespace", ""), meta.get("name", ""), body)


def patch(target: Json, kind: str, body: Json) -> Write:
    """Merge-patch everything but the status of ``target``."""
    meta = target["metadata"]
    return Write("patch", kind, meta.get("namespace", ""), meta["name"], body)


def status(target: Json, kind: str, body: Json) -> Write | None:
    """Merge-patch the status of ``target``; None when nothing would change, so that nothing is written in vain."""
    old = target.get("status") or {}
    changed = {
        key: value
        for key, value in body.items()
        if old.get(key) != value and not (value in (None, 0, []) and key not in old)
    }
    if not changed:
        return None
    meta = target["metadata"]
    return Write("status", kind, meta.get("namespace", ""), meta["name"], {"status": changed})


def delete(target: Json, kind: str, grace_seconds: int | None = None) -> Write:
    """Delete exactly this object, by its uid."""
    meta = target["metadata"]
    return Write(
        "delete", kind, meta.get("namespace", ""), meta["name"], uid=meta.get("uid", ""), grace_seconds=grace_seconds
    )
