"""Carry out the writes of a step and put the answers into the cache."""

from __future__ import annotations

from belay.engine.kube import Conflict, KubeError, NotFound, Resource, resource_for, run_many
from belay.engine.sandbox.cache import CONTROLLER_REVISION, RESOURCE_CLAIM, Cache
from belay.engine.workloads.writes import Json, Write

FIELD_MANAGER = "sandbox-controllers"
_IN_FLIGHT = 16


class WriteExecutor:
    """The only place where controllers and kubelets write; ``manager`` is the field manager they write as."""

    def __init__(self, cache: Cache, manager: str = FIELD_MANAGER) -> None:
        self._cache = cache
        self._manager = manager
        self._kube = cache.kube

    async def execute(self, writes: tuple[Write, ...]) -> list[tuple[Write, KubeError]]:
        """Carry out the writes, equal verbs together; returns failed ones. Deleting a missing object is no failure."""
        failed: list[tuple[Write, KubeError]] = []
        start = 0
        while start < len(writes):
            end = start
            while end < len(writes) and writes[end].verb == writes[start].verb:
                end += 1
            batch = writes[start:end]
            async for outcome in run_many([lambda w=write: self._one(w) for write in batch], _IN_FLIGHT):  # type: ignore[misc]
                if outcome.error is not None and not isinstance(outcome.error, NotFound):
                    failed.append((batch[outcome.index], outcome.error))
            if failed:
                return failed  # later writes may depend on these
            start = end
        return failed

    async def _one(self, write: Write) -> None:
        resource = _resource(write)
        match write.verb:
            case "create":
                self._record(write.kind, await self._kube.create(resource, write.body, field_manager=self._manager))
            case "patch" | "status":
                answer = await self._kube.patch(
                    resource,
                    write.name,
                    write.body,
                    write.namespace or None,
                    subresource="status" if write.verb == "status" else None,
                    field_manager=self._manager,
                )
                self._record(write.kind, answer)
            case "delete":
                await self._delete(resource, write)

    async def _delete(self, resource: Resource, write: Write) -> None:
        try:
            answer = await self._kube.delete(
                resource,
                write.name,
                write.namespace or None,
                grace=write.grace_seconds,
                uid=write.uid or None,
                propagation=None if write.kind == "Pod" else "Background",
            )
        except Conflict:  # another object has the name now, so the one to delete is gone
            return
        meta = answer.get("metadata") or {}
        lingers = meta.get("deletionTimestamp") and (
            meta.get("finalizers") or (meta.get("deletionGracePeriodSeconds") and write.grace_seconds != 0)
        )
        if lingers:
            self._record(write.kind, answer)
        else:
            self._record_deletion(write)

    def _record(self, kind: str, answer: Json) -> None:
        if (store := self._cache.stores.get(kind)) is not None:
            store.record(answer)

    def _record_deletion(self, write: Write) -> None:
        if write.uid and (store := self._cache.stores.get(write.kind)) is not None:
            store.record_deletion({"metadata": {"namespace": write.namespace, "name": write.name, "uid": write.uid}})


def _resource(write: Write) -> Resource:
    if write.kind == "ControllerRevision":
        return CONTROLLER_REVISION
    if write.kind == "ResourceClaim":
        return RESOURCE_CLAIM
    if write.verb in ("create", "delete") and (version := write.body.get("apiVersion")):
        return resource_for(str(version), write.kind)
    return resource_for(write.api_version, write.kind)
