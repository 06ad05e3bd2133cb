"""The objects of a cluster in memory, stamped as by an API server, and the pods that hold chips."""

from __future__ import annotations

import copy
from typing import Any, Final

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import ASCEND_REAL, RESTARTED_AT
from belay.engine.model.patches import merge_patch
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import Observer, key_of
from belay.engine.simulate.server import SimulatedServer
from belay.engine.simulate.workloads import with_defaults

POD_GONE: Final = ("Succeeded", "Failed")
_WHOLE: Final = ("template", "replicaSpecs")
"""Fields that hold pod templates, whose fields Git alone owns."""


class SimulatedObjects:
    """Raw objects and servers at a virtual time, and the observer that follows them."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.nodes: dict[str, SimulatedServer] = {}
        self.objects: dict[ObjectKey, dict[str, Any]] = {}
        self.observer = Observer()
        self.version = 0
        self.uids = 0
        #: Uids of owners that exist, although no object has them, and owners by name that do (``owners.py``).
        self.unlisted: frozenset[str] = frozenset()
        self.absent: dict[ObjectKey, str] = {}
        self._bound: dict[str, set[ObjectKey]] = {}

    def put(self, obj: dict[str, Any], *, owner_check: bool = False) -> None:
        """Create or replace an object, stamped as by an API server; ``owner_check`` keeps a live one unchanged."""
        key = key_of(obj)
        live = self.objects.get(key)
        if owner_check and live is not None:
            return
        obj = with_defaults(obj)
        metadata = obj.setdefault("metadata", {})
        self.version += 1
        if live is None:
            self.uids += 1
            known = self.absent.pop(key, "")
            self.unlisted -= {known}  # from now on the object itself says that it exists
            metadata.setdefault("uid", known or f"uid-{self.uids}")
            metadata.setdefault("creationTimestamp", rfc3339(self.now))
            if key.kind == "Pod":
                obj.setdefault("status", {}).setdefault("phase", "Pending")
            if key.kind == "Service":
                obj.setdefault("spec", {}).setdefault("clusterIP", f"10.96.0.{self.uids % 250}")
        else:
            for field in ("uid", "creationTimestamp"):
                if field in live["metadata"]:
                    metadata[field] = live["metadata"][field]
        metadata["resourceVersion"] = str(self.version)
        self.take(obj)

    def take(self, obj: dict[str, Any]) -> None:
        """Store an object unchanged, without a stamp."""
        key = key_of(obj)
        self._unbind(key)
        self.objects[key] = obj
        if key.kind == "Pod":
            node = (obj.get("spec") or {}).get("nodeName")
            if node:
                self._bound.setdefault(node, set()).add(key)
        self.observer.put(obj)

    def delete(self, key: ObjectKey) -> None:
        """Remove an object."""
        self._unbind(key)
        if self.objects.pop(key, None) is not None:
            self.observer.delete(key)

    def _unbind(self, key: ObjectKey) -> None:
        live = self.objects.get(key) if key.kind == "Pod" else None
        node = (live.get("spec") or {}).get("nodeName") if live else None
        if node:
            self._bound.get(node, set()).discard(key)

    def pods(self, namespace: str = "") -> dict[str, dict[str, Any]]:
        """Live pods by name."""
        return {
            k.name: p
            for k, p in sorted(self.objects.items())
            if k.kind == "Pod" and (not namespace or k.namespace == namespace) and p["status"]["phase"] not in POD_GONE
        }

    def owners(self, node: str) -> dict[str, str]:
        """Chip name → live pod that holds it, the first by name where pods share it."""
        taken: dict[str, str] = {}
        resource = self.nodes[node].resource if node in self.nodes else ""
        for key in sorted(self._bound.get(node, ())):
            pod = self.objects[key]
            if (pod.get("status") or {}).get("phase") in POD_GONE:
                continue
            annotations = pod["metadata"].get("annotations") or {}
            text = annotations.get(ASCEND_REAL) or annotations.get(resource) or ""
            for chip in filter(None, text.split(",")):
                self.take_chip(taken, node, chip, key.name)
        return taken

    def take_chip(self, taken: dict[str, str], node: str, chip: str, pod: str) -> None:
        """Record that a pod holds a chip; subclasses may reject a second holder."""
        taken.setdefault(chip, pod)


def applied(live: Any, patch: Any) -> Any:
    """Server-side apply by the manager of the whole object: what its pod templates leave out is removed from them.

    Other fields stay, as others may own them; so does the time at which a person restarted the pods.
    """
    result = merged(live, patch)
    _take_templates(result, live, patch)
    return result


def _take_templates(result: Any, live: Any, patch: Any) -> None:
    """Put the patch's own pod templates into the result."""
    if not (isinstance(result, dict) and isinstance(live, dict) and isinstance(patch, dict)):
        return
    for name, value in patch.items():
        if name not in _WHOLE:
            _take_templates(result.get(name), live.get(name), value)
            continue
        result[name] = copy.deepcopy(value)
        restarted = (((live.get(name) or {}).get("metadata") or {}).get("annotations") or {}).get(RESTARTED_AT)
        if restarted and isinstance(result[name], dict):
            metadata = result[name].setdefault("metadata", {})
            metadata["annotations"] = {**(metadata.get("annotations") or {}), RESTARTED_AT: restarted}


def merged(live: Any, patch: Any) -> Any:
    """A merge patch applied; the result shares nothing with either argument."""
    return copy.deepcopy(merge_patch(live, patch))
