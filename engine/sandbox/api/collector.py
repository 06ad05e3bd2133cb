"""The garbage collector: dependents of deleted owners, foreground and orphan deletion, emptying of
namespaces and custom kinds.

It uses an index of owners that follows the store, and runs after every change that may concern it; it never polls.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from belay.engine.sandbox.api import crds
from belay.engine.sandbox.api.deletion import FOREGROUND, NAMESPACE, ORPHAN, DeleteOptions, Deletion
from belay.engine.sandbox.api.errors import ApiError
from belay.engine.sandbox.api.kinds import JSON, ResourceRegistry
from belay.engine.sandbox.api.store import ClusterStore, Key, ObjectChanged, ObjectVersion

Ref = tuple[str, Key]
LOG = logging.getLogger(__name__)


class Collector:
    """Follows the store; `run` processes the queued objects. `wake` is called when an object is queued."""

    def __init__(
        self, store: ClusterStore, registry: ResourceRegistry, deletion: Deletion, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._registry = registry
        self._deletion = deletion
        self._wake = wake
        self._dependents: dict[str, set[Ref]] = {}
        self._alive: set[str] = set()
        self._waiting: deque[Ref] = deque()
        self._queued: set[Ref] = set()
        for storage, collection in store.collections.items():
            for entry in collection.entries():
                self._index(entry)
                self._enqueue((storage, entry.key))
        store.listeners.append(self._changed)

    def _index(self, entry: ObjectVersion) -> None:
        self._alive.add(entry.obj["metadata"]["uid"])
        for owner in entry.obj["metadata"].get("ownerReferences") or ():
            self._dependents.setdefault(owner.get("uid", ""), set()).add((entry.storage, entry.key))

    def _changed(self, event: ObjectChanged) -> None:
        ref = (event.entry.storage, event.entry.key)
        metadata = event.entry.obj["metadata"]
        if event.old is not None:
            before = event.old.obj["metadata"].get("ownerReferences")
            if event.type == "DELETED" or before != metadata.get("ownerReferences"):
                self._unindex(event.old)
        if event.type == "DELETED":
            self._alive.discard(metadata["uid"])
            for dependent in self._dependents.get(metadata["uid"], ()):
                self._enqueue(dependent)
            for owner in metadata.get("ownerReferences") or ():
                self._enqueue_uid(owner)
            if metadata.get("namespace"):
                self._enqueue_terminating("namespaces", ("", metadata["namespace"]))
            self._enqueue_definition(event.entry.storage)
            return
        self._index(event.entry)
        if metadata.get("ownerReferences") or "deletionTimestamp" in metadata:
            self._enqueue(ref)

    def _unindex(self, entry: ObjectVersion) -> None:
        for owner in entry.obj["metadata"].get("ownerReferences") or ():
            found = self._dependents.get(owner.get("uid", ""))
            if found is not None:
                found.discard((entry.storage, entry.key))
                if not found:
                    del self._dependents[owner.get("uid", "")]

    def _enqueue(self, ref: Ref) -> None:
        if ref not in self._queued:
            self._queued.add(ref)
            self._waiting.append(ref)
            self._wake()

    def _enqueue_uid(self, owner: JSON) -> None:
        group = owner.get("apiVersion", "").rpartition("/")[0]
        resource = self._registry.of_kind(group, owner.get("kind", ""))
        if resource is None:
            return
        for namespace in list(self._store.collection(resource.storage).by_namespace):
            self._enqueue_terminating(resource.storage, (namespace, owner.get("name", "")))

    def _enqueue_terminating(self, storage: str, key: Key) -> None:
        entry = self._store.get(storage, key)
        if entry is not None and "deletionTimestamp" in entry.obj["metadata"]:
            self._enqueue((storage, key))

    def _enqueue_definition(self, storage: str) -> None:
        self._enqueue_terminating(crds.STORAGE, ("", storage))

    def run(self, limit: int = 500) -> bool:
        """Process up to `limit` queued objects; returns whether more are queued."""
        for _ in range(min(limit, len(self._waiting))):
            ref = self._waiting.popleft()
            self._queued.discard(ref)
            entry = self._store.get(*ref)
            if entry is None:
                continue
            try:
                self._settle(entry)
            except ApiError as error:
                LOG.warning("garbage collection failed", extra={"object": f"{ref[0]} {ref[1]}", "error": error.message})
        return bool(self._waiting)

    def _settle(self, entry: ObjectVersion) -> None:
        metadata = entry.obj["metadata"]
        if metadata.get("ownerReferences") and self._collect_orphaned(entry):
            return
        if "deletionTimestamp" not in metadata:
            return
        finalizers = metadata.get("finalizers") or []
        if ORPHAN in finalizers:
            self._release_dependents(entry)
        elif FOREGROUND in finalizers:
            self._delete_dependents(entry)
        elif entry.storage == "namespaces":
            self._empty_namespace(entry)
        elif entry.storage == crds.STORAGE and crds.CLEANUP in finalizers:
            self._empty_definition(entry)

    def _collect_orphaned(self, entry: ObjectVersion) -> bool:
        """Delete an object if all its owners are gone, else drop its references to missing owners.

        Returns whether it was deleted.
        """
        owners = entry.obj["metadata"]["ownerReferences"]
        present = [owner for owner in owners if owner.get("uid") in self._alive]
        if len(present) == len(owners):
            return False
        if present:
            new = entry.copy()
            new["metadata"]["ownerReferences"] = present
            self._store.put(entry.storage, entry.key, new)
            return False
        if "deletionTimestamp" in entry.obj["metadata"]:
            return False
        self._delete(entry, "Background")
        return True

    def _delete(self, entry: ObjectVersion, policy: str) -> None:
        resource = self._registry.of_storage(entry.storage)
        if resource is not None:
            self._deletion.delete(resource, *entry.key, DeleteOptions(policy=policy))

    def _release_dependents(self, entry: ObjectVersion) -> None:
        uid = entry.obj["metadata"]["uid"]
        for ref in list(self._dependents.get(uid, ())):
            dependent = self._store.get(*ref)
            if dependent is None:
                continue
            new = dependent.copy()
            kept = [owner for owner in new["metadata"]["ownerReferences"] if owner.get("uid") != uid]
            new["metadata"]["ownerReferences"] = kept
            if not kept:
                del new["metadata"]["ownerReferences"]
            self._store.put(dependent.storage, dependent.key, new)
        self._drop_finalizer(entry, ORPHAN)

    def _delete_dependents(self, entry: ObjectVersion) -> None:
        uid = entry.obj["metadata"]["uid"]
        blocking = 0
        for ref in list(self._dependents.get(uid, ())):
            dependent = self._store.get(*ref)
            if dependent is None:
                continue
            if "deletionTimestamp" not in dependent.obj["metadata"]:
                self._delete(dependent, "Foreground" if self._has_blocking_dependents(dependent) else "Background")
                dependent = self._store.get(*ref)
            if dependent is not None:
                owners = dependent.obj["metadata"].get("ownerReferences") or ()
                blocking += any(owner.get("uid") == uid and owner.get("blockOwnerDeletion") for owner in owners)
        if not blocking:
            self._drop_finalizer(entry, FOREGROUND)

    def _has_blocking_dependents(self, entry: ObjectVersion) -> bool:
        return bool(self._dependents.get(entry.obj["metadata"]["uid"]))

    def _empty_namespace(self, entry: ObjectVersion) -> None:
        left = 0
        for storage, collection in self._store.collections.items():
            for content in list(collection.entries(entry.key[1])):
                resource = self._registry.of_storage(storage)
                if resource is None or not resource.namespaced:
                    continue
                if "deletionTimestamp" not in content.obj["metadata"]:
                    self._delete(content, "Background")
                left += self._store.get(storage, content.key) is not None
        if not left:
            self._drop_finalizer(entry, NAMESPACE)

    def _empty_definition(self, entry: ObjectVersion) -> None:
        spec = entry.obj["spec"]
        collection = self._store.collection(f"{spec['names']['plural']}.{spec['group']}")
        for content in list(collection.entries()):
            if "deletionTimestamp" not in content.obj["metadata"]:
                self._delete(content, "Background")
        if not collection.by_namespace:
            self._drop_finalizer(entry, crds.CLEANUP)

    def _drop_finalizer(self, entry: ObjectVersion, name: str) -> None:
        current = self._store.get(entry.storage, entry.key)
        if current is None:
            return
        new = current.copy()
        kept = [finalizer for finalizer in new["metadata"].get("finalizers") or () if finalizer != name]
        new["metadata"]["finalizers"] = kept
        if not kept:
            del new["metadata"]["finalizers"]
        if not kept and not new["metadata"].get("deletionGracePeriodSeconds"):
            self._store.delete(entry.storage, entry.key)
        else:
            self._store.put(entry.storage, entry.key, new)
