"""Read-your-writes copies of a few kinds, with the indexes that controllers and kubelets need.

A controller that acts on a copy older than its own last write acts twice. So the answer to a write enters the cache at
once (`record`), and a later watch event replaces it only if it is newer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from belay.engine.kube import Key, Kube, Reflector, Resource, WatchChange, resource_for, run_all

Json = dict[str, Any]
Listener = Callable[[str, Key, "Json | None", "Json | None"], None]
"""Called with kind, key, the object before and the object now; None where there is none."""

CONTROLLER_REVISION: Final = Resource("apps/v1", "ControllerRevision", "controllerrevisions")
_TOMBSTONES: Final = 4096


class Indexer:
    """All objects of one kind by key, by controlling owner and, for pods, by node."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.objects: dict[Key, Json] = {}
        self.listeners: list[Listener] = []
        self._by_owner: dict[str, set[Key]] = {}
        self._by_node: dict[str, set[Key]] = {}
        self._assumed: dict[Key, int] = {}
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def owned(self, uid: str) -> list[Json]:
        """Objects whose controlling owner has this uid."""
        return [self.objects[key] for key in sorted(self._by_owner.get(uid, ()))]

    def on_node(self, node: str) -> list[Json]:
        """Pods bound to the node."""
        return [self.objects[key] for key in sorted(self._by_node.get(node, ()))]

    def follow(self, _: Reflector, change: WatchChange) -> None:
        """Apply a watch event unless the cache has a newer version."""
        old = self.objects.get(change.key)
        if change.obj is None:
            if old is not None and (change.key not in self._assumed or number(change.rv) >= self._assumed[change.key]):
                self._set(change.key, None)
            return
        if number(change.rv) >= self._assumed.get(change.key, 0):
            self._assumed.pop(change.key, None)  # the watch has reached our own write
        if uid_of(change.obj) in self._deleted or (old is not None and not _newer(change.obj, old)):
            return
        self._set(change.key, change.obj)

    def progress(self, reflector: Reflector) -> None:
        """Drop our own writes that the watch passed without an event: the objects were deleted between lists."""
        if not self._assumed:
            return
        seen = number(reflector.watermark)
        for key in [key for key, version in self._assumed.items() if version < seen]:
            del self._assumed[key]
            if key in self.objects:
                self._set(key, None)

    def record(self, answer: Json) -> None:
        """Store the answer to our own create or patch."""
        key = key_of(answer)
        old = self.objects.get(key)
        if uid_of(answer) in self._deleted or (old is not None and not _newer(answer, old)):
            return
        if old is None:
            self._assumed[key] = number(answer["metadata"].get("resourceVersion"))
        self._set(key, answer)

    def record_deletion(self, victim: Json) -> None:
        """Remove an object that we deleted; late watch events about it are ignored."""
        self._deleted[uid_of(victim)] = None
        while len(self._deleted) > _TOMBSTONES:
            self._deleted.popitem(last=False)
        key = key_of(victim)
        old = self.objects.get(key)
        if old is not None and uid_of(old) == uid_of(victim):
            self._assumed.pop(key, None)
            self._set(key, None)

    def _set(self, key: Key, obj: Json | None) -> None:
        old = self.objects.pop(key, None)
        if old is not None:
            self._index(old, key, add=False)
        if obj is not None:
            obj["metadata"].pop("managedFields", None)  # a third of an object's memory, and unused here
            self.objects[key] = obj
            self._index(obj, key, add=True)
        for listener in self.listeners:
            listener(self.resource.kind, key, old, obj)

    def _index(self, obj: Json, key: Key, *, add: bool) -> None:
        places = [(self._by_owner, owner) for owner in _controllers(obj)]
        if self.resource.kind == "Pod" and (node := (obj.get("spec") or {}).get("nodeName")):
            places.append((self._by_node, str(node)))
        for index, name in places:
            if add:
                index.setdefault(name, set()).add(key)
            elif (keys := index.get(name)) is not None:
                keys.discard(key)
                if not keys:
                    del index[name]


class Cache:
    """Stores of several kinds, kept current until cancelled."""

    def __init__(self, kube: Kube, resources: Iterable[Resource]) -> None:
        self.kube = kube
        self.stores: dict[str, Indexer] = {resource.kind: Indexer(resource) for resource in resources}
        self._reflectors = [
            Reflector(kube, store.resource, on_change=store.follow, on_progress=store.progress)
            for store in self.stores.values()
        ]

    def __getitem__(self, kind: str) -> Indexer:
        return self.stores[kind]

    async def run(self) -> None:
        """Follow all kinds until cancelled."""
        await run_all(*(reflector.run() for reflector in self._reflectors))

    @property
    def synced(self) -> bool:
        """Whether every kind has been listed at least once."""
        return all(reflector.synced for reflector in self._reflectors)

    async def wait_synced(self) -> None:
        """Return once every kind has been listed."""
        while not self.synced:
            await asyncio.sleep(0.02)


RESOURCE_CLAIM: Final = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", True)
RESOURCE_CLAIM_TEMPLATE: Final = Resource("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates", True)

WORLD_KINDS: Final = (
    resource_for("v1", "Pod"),
    resource_for("v1", "Node"),
    resource_for("coordination.k8s.io/v1", "Lease"),
    resource_for("apps/v1", "Deployment"),
    resource_for("apps/v1", "ReplicaSet"),
    resource_for("apps/v1", "StatefulSet"),
    CONTROLLER_REVISION,
    resource_for("batch/v1", "Job"),
    resource_for("v1", "PersistentVolume"),
    resource_for("v1", "PersistentVolumeClaim"),
    resource_for("storage.k8s.io/v1", "StorageClass"),
)
"""Kinds that the simulated cluster and its controllers watch."""


def key_of(obj: Json) -> Key:
    """(namespace, name)."""
    meta = obj["metadata"]
    return str(meta.get("namespace") or ""), str(meta["name"])


def uid_of(obj: Json) -> str:
    """The object's uid, empty when it has none."""
    return str(obj["metadata"].get("uid") or "")


def number(version: Any) -> int:
    """A resourceVersion as a number; API servers on etcd and the sandbox's own count upwards."""
    text = str(version or "0")
    return int(text) if text.isascii() and text.isdecimal() else 0


def _newer(new: Json, old: Json) -> bool:
    return number(new["metadata"].get("resourceVersion")) > number(old["metadata"].get("resourceVersion")) or uid_of(
        new
    ) != uid_of(old)


def _controllers(obj: Json) -> list[str]:
    return [str(r.get("uid", "")) for r in obj["metadata"].get("ownerReferences") or () if r.get("controller")]
