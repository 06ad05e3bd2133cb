"""Admission, between decoding and validation: defaults, first status, priority, earlier allocations."""

from __future__ import annotations

from collections.abc import Callable

from belay.engine.sandbox.api import crds, structural
from belay.engine.sandbox.api.errors import forbidden
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.store import ClusterStore
from belay.engine.workloads import defaults


class Admission:
    """Fills in fields that clients leave to the server. `now` returns the current time in Kubernetes' format."""

    def __init__(self, store: ClusterStore, now: Callable[[], str]) -> None:
        self._store = store
        self._now = now

    def complete_new(self, resource: ServedResource, obj: JSON) -> None:
        """Complete a new object: generation, first status, defaults and priority, as an API server does."""
        if resource.generation:
            obj["metadata"]["generation"] = 1
        if resource.status:
            defaults.first_status(resource.storage, obj, custom=resource.custom)
        self.fill(resource, obj)
        if resource.storage == "pods":
            self._priority(resource, obj)
            defaults.pod_status(obj)
        if resource.storage == crds.STORAGE and not crds.validate(obj, None):
            obj["status"] = crds.established(obj, self._now())

    def fill(self, resource: ServedResource, obj: JSON) -> None:
        """Fill in defaults."""
        if resource.crd_schema is not None:
            structural.set_defaults(resource.crd_schema, obj)
        elif resource.storage == crds.STORAGE:
            crds.set_defaults(obj)
        else:
            defaults.set_defaults(resource.storage, obj)

    def _priority(self, resource: ServedResource, pod: JSON) -> None:
        spec = pod["spec"]
        name = spec.get("priorityClassName")
        classes = self._store.collection("priorityclasses.scheduling.k8s.io")
        if not name:
            default = next((entry.obj for entry in classes.entries() if entry.obj.get("globalDefault")), None)
            if default is None:
                spec.setdefault("priority", 0)
                return
            name = spec["priorityClassName"] = default["metadata"]["name"]
        builtin = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
        found = classes.get(("", name))
        if found is None and name not in builtin:
            raise forbidden(resource, pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found")
        spec["priority"] = found.obj.get("value", 0) if found is not None else builtin[name]
        if found is not None and (policy := found.obj.get("preemptionPolicy")):
            spec["preemptionPolicy"] = policy

    def keep_allocated(self, resource: ServedResource, old: JSON, obj: JSON) -> None:
        """Keep values that were allocated to the object when an update omits them."""
        if resource.storage == "services":
            spec, before = obj.setdefault("spec", {}), old.get("spec") or {}
            for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                if key in before and not spec.get(key):
                    spec[key] = before[key]
        elif resource.storage == "pods":
            spec, before = obj["spec"], old["spec"]
            for key in ("priority", "preemptionPolicy", "nodeName"):
                if key in before:
                    spec.setdefault(key, before[key])
        elif resource.storage == "jobs.batch":
            before = old.get("spec") or {}
            if "selector" in before:
                obj["spec"].setdefault("selector", before["selector"])
        elif resource.storage == crds.STORAGE and not crds.validate(obj, old):
            obj["status"] = crds.established(obj, self._now())
