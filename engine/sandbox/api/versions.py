"""Conversion of objects between the stored and other versions.

Events of the two API groups, and custom kinds with several versions.
"""

from __future__ import annotations

import orjson

from belay.engine.sandbox.api.kinds import JSON, ResourceRegistry, ServedResource
from belay.engine.sandbox.api.store import ObjectVersion

# core/v1 Event field ↔ events.k8s.io/v1 Event field (pkg/apis/events/v1/conversion.go)
_EVENT_FIELDS = (
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
)


def object_for(resource: ServedResource, entry: ObjectVersion) -> JSON:
    """Return the object as `resource`'s version shows it. Not to be changed by the caller."""
    if resource.storage_version:
        return entry.obj
    shown = dict(entry.obj)
    shown["apiVersion"] = resource.api_version
    if resource.storage == "events":
        _rename(shown, [(old, new) for old, new in _EVENT_FIELDS])
    return shown


def bytes_for(resource: ServedResource, entry: ObjectVersion) -> bytes:
    """Return the serialised object in `resource`'s version, made once per stored version."""
    if resource.storage_version:
        return entry.raw
    if entry.variants is None:
        entry.variants = {}
    found = entry.variants.get(resource.api_version)
    if found is None:
        found = entry.variants[resource.api_version] = orjson.dumps(object_for(resource, entry))
    return found


def to_stored(registry: ResourceRegistry, resource: ServedResource, obj: JSON) -> JSON:
    """Return `obj`, decoded in `resource`'s version, in the version that is stored."""
    if resource.storage_version:
        return obj
    stored = registry.of_storage(resource.storage)
    if stored is not None:
        obj["apiVersion"] = stored.api_version
    if resource.storage == "events":
        _rename(obj, [(new, old) for old, new in _EVENT_FIELDS])
    return obj


def _rename(obj: JSON, pairs: list[tuple[str, str]]) -> None:
    for old, new in pairs:
        if old in obj:
            obj[new] = obj.pop(old)
