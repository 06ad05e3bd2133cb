"""Deletion: preconditions, grace periods of pods, finalizers and the treatment of dependents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from belay.engine.sandbox.api.crds import STORAGE as DEFINITIONS
from belay.engine.sandbox.api.errors import bad_request, conflict, success
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.metadata import timestamp
from belay.engine.sandbox.api.objects import ObjectWriter
from belay.engine.sandbox.api.store import ClusterStore, ObjectVersion

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_DEFAULT_GRACE = 30
_POLICIES = ("Background", "Foreground", "Orphan")


@dataclass(slots=True)
class DeleteOptions:
    """The options of a deletion.

    `policy` is empty for the kind's own default; `grace` is None when not given (seconds).
    """

    grace: int | None = None
    policy: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


def delete_options(body: Any, query: Any) -> DeleteOptions:
    """Read DeleteOptions from a request's body, overlaid by its query. Raises ApiError 400."""
    given: JSON = body if isinstance(body, dict) else {}
    policy = query.get("propagationPolicy") or given.get("propagationPolicy") or ""
    orphan = given.get("orphanDependents")
    if not policy and orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if policy and policy not in _POLICIES:
        raise bad_request(
            f'invalid propagationPolicy "{policy}": supported values: "Background", "Foreground", "Orphan"'
        )
    grace = query.get("gracePeriodSeconds", given.get("gracePeriodSeconds"))
    if grace is not None:
        try:
            grace = int(grace)
        except (TypeError, ValueError) as error:
            raise bad_request(f"gracePeriodSeconds must be an integer, not {grace!r}") from error
    preconditions = given.get("preconditions") or {}
    dry_run = bool(query.get("dryRun") or given.get("dryRun"))
    return DeleteOptions(
        grace, policy, preconditions.get("uid") or "", preconditions.get("resourceVersion") or "", dry_run
    )


class Deletion:
    """The rules of deletion; the removal may wait for kubelets, finalizers and the collector."""

    def __init__(self, objects: ObjectWriter) -> None:
        self._objects = objects

    @property
    def _store(self) -> ClusterStore:
        return self._objects.store

    def delete(
        self, resource: ServedResource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[ObjectVersion, bool]:
        """Delete an object or start deleting it.

        Returns its state and whether it is gone. Raises ApiError 404 or 409.
        """
        live = self._objects.get(resource, namespace, name)
        self._check_preconditions(resource, live, options)
        metadata = live.obj["metadata"]
        grace = self._grace(resource, live.obj, options)
        finalizers = self._finalizers(resource, metadata, options)
        if not grace and not finalizers and resource.storage != "pods":
            return self._remove(live, options), True
        new = live.copy()
        meta = new["metadata"]
        if finalizers:
            meta["finalizers"] = finalizers
        else:
            meta.pop("finalizers", None)
        if "deletionTimestamp" not in meta or grace < meta.get("deletionGracePeriodSeconds", 0):
            meta["deletionTimestamp"] = timestamp(self._objects.clock() + grace)
            meta["deletionGracePeriodSeconds"] = grace
            if resource.generation:
                meta["generation"] = meta.get("generation", 0) + 1
        if resource.storage == "namespaces":
            new["status"] = {**(new.get("status") or {}), "phase": "Terminating"}
        if resource.storage == "pods" and not grace and not finalizers:
            return self._remove_pod(live, new, options), True
        if new == live.obj or options.dry_run:
            return live, False
        return self._store.put(resource.storage, live.key, new), False

    def _remove_pod(self, live: ObjectVersion, new: JSON, options: DeleteOptions) -> ObjectVersion:
        """Remove a pod in the two steps that watchers of a real server see: its grace ends, then it is gone."""
        if not options.dry_run:
            self._store.put(live.storage, live.key, new)
        return self._remove(live, options)

    def _check_preconditions(self, resource: ServedResource, live: ObjectVersion, options: DeleteOptions) -> None:
        for what, wanted, found, happened in (
            ("UID", options.uid, live.obj["metadata"]["uid"], "deleted and then recreated"),
            ("ResourceVersion", options.resource_version, str(live.rv), "modified"),
        ):
            if wanted and wanted != found:
                why = f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found})."
                raise conflict(
                    resource, live.key[1], f"{why} The object might have been {happened}", plural=resource.kind
                )

    def _grace(self, resource: ServedResource, obj: JSON, options: DeleteOptions) -> int:
        if resource.storage != "pods":
            return 0
        spec = obj.get("spec") or {}
        grace = (
            options.grace if options.grace is not None else spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
        )
        # a pod that no kubelet holds, or that has ended, needs no grace (pkg/registry/core/pod/strategy.go,
        # CheckGracefulDelete)
        if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            grace = 0
        if "deletionTimestamp" in obj["metadata"]:
            grace = min(grace, obj["metadata"].get("deletionGracePeriodSeconds", grace))
        return max(0, int(grace))

    def _finalizers(self, resource: ServedResource, metadata: JSON, options: DeleteOptions) -> list[str]:
        found = list(metadata.get("finalizers") or ())
        if resource.storage == "namespaces":
            # replaces spec.finalizers [kubernetes]: the collector empties the namespace first
            return found or ([NAMESPACE] if "deletionTimestamp" not in metadata or NAMESPACE in found else [])
        policy = options.policy
        if not policy:
            if FOREGROUND in found or ORPHAN in found:
                return found
            policy = "Orphan" if resource.storage == "jobs.batch" else "Background"
        kept = [name for name in found if name not in (FOREGROUND, ORPHAN)]
        if policy == "Foreground":
            kept.append(FOREGROUND)
        elif policy == "Orphan" and resource.storage != DEFINITIONS:
            kept.append(ORPHAN)
        return kept

    def _remove(self, live: ObjectVersion, options: DeleteOptions) -> ObjectVersion:
        if options.dry_run:
            return live
        return self._store.delete(live.storage, live.key)


NAMESPACE = "kubernetes"


def deleted_status(resource: ServedResource, entry: ObjectVersion) -> JSON:
    """Return the response to a completed deletion."""
    details: JSON = {"name": entry.key[1]}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = resource.plural
    details["uid"] = entry.obj["metadata"]["uid"]
    return success(details)
