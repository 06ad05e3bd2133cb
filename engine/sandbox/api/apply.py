"""Server-side apply, and the record of the manager of each field (metadata.managedFields)."""

from __future__ import annotations

from typing import Any

from belay.engine.sandbox.api import fieldsets
from belay.engine.sandbox.api.errors import ApiError, bad_request
from belay.engine.sandbox.api.fieldsets import Trie
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.schema import ANY, SchemaNode

# never owned by a manager (structured-merge-diff's stripSet in k8s.io/apimachinery/pkg/util/managedfields)
_UNOWNED_META = (
    "name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation", "managedFields",
    "resourceVersion", "generateName", "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip
MAX_MANAGERS = 10
"""Update entries kept per object; older ones are merged into one, as kube-apiserver's capManagersManager does."""


def _owned_part(resource: ServedResource, obj: JSON, subresource: str) -> JSON:
    """Return the part of an object whose fields can be owned through this endpoint."""
    part = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in _UNOWNED_META}
    if metadata:
        part["metadata"] = metadata
    if resource.status and subresource != "status":
        part.pop("status", None)
    return part


def _entries(obj: JSON) -> list[JSON]:
    found = obj.get("metadata", {}).get("managedFields") or []
    return [dict(entry) for entry in found if isinstance(entry, dict) and entry.get("manager") is not None]


def _identity(entry: JSON) -> tuple[str, str, str, str]:
    operation = entry.get("operation", "")
    version = "" if operation == "Apply" else entry.get("apiVersion", "")
    return entry.get("manager", ""), operation, version, entry.get("subresource", "")


def _entry(resource: ServedResource, manager: str, operation: str, subresource: str, now: str, fields: Trie) -> JSON:
    entry: JSON = {
        "manager": manager,
        "operation": operation,
        "apiVersion": resource.api_version,
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    if subresource:
        entry["subresource"] = subresource
    return entry


def _stored(obj: JSON, entries: list[JSON]) -> None:
    kept = [entry for entry in entries if entry.get("fieldsV1")]
    updates = [entry for entry in kept if entry.get("operation") == "Update"]
    while len(updates) > MAX_MANAGERS:
        oldest, second = sorted(updates, key=lambda entry: str(entry.get("time", "")))[:2]
        second["fieldsV1"] = fieldsets.union(second["fieldsV1"], oldest["fieldsV1"])
        second["manager"] = "ancient-changes"
        kept.remove(oldest)
        updates.remove(oldest)
    if kept:
        obj["metadata"]["managedFields"] = kept
    else:
        obj["metadata"].pop("managedFields", None)


def track_update(
    resource: ServedResource, live: JSON | None, new: JSON, manager: str, subresource: str, now: str
) -> None:
    """Record the owners of fields in `new` after a create, update or patch by `manager`.

    The manager now owns the fields that it changed.
    """
    node = resource.node or ANY
    given = new["metadata"].get("managedFields")
    base = new if given is not None or live is None else live
    # clients send an explicit empty list to remove all managers
    entries = _entries(base)
    before = _owned_part(resource, live, subresource) if live is not None else {}
    after = _owned_part(resource, new, subresource)
    changed, removed = fieldsets.compare(node, before, after) if before else (fieldsets.of_value(node, after), None)
    identity = (manager, "Update", resource.api_version, subresource)
    mine: JSON | None = None
    for entry in entries:
        fields = entry.get("fieldsV1") or {}
        same = _identity(entry) == identity
        if removed:
            fields = fieldsets.difference(fields, removed) or {}
        if changed and not same:
            fields = fieldsets.difference(fields, changed) or {}
        entry["fieldsV1"] = fields
        if same:
            mine = entry
    if changed and after:
        if mine is None:
            entries.append(_entry(resource, manager, "Update", subresource, now, changed))
        else:
            mine["fieldsV1"] = fieldsets.union(mine["fieldsV1"], changed)
            mine["time"] = now
    _stored(new, entries)


def empty_fields(resource: ServedResource, config: object) -> Trie:
    """Return the fields that an applied configuration gives as empty maps or lists, before it is decoded."""
    if resource.node is None or not isinstance(config, dict) or not isinstance(config.get("metadata") or {}, dict):
        return {}  # decoding says what is wrong
    return fieldsets.of_empty(resource.node, _owned_part(resource, config, ""))


def apply(
    resource: ServedResource,
    live: JSON | None,
    config: JSON,
    manager: str,
    *,
    empty: Trie,
    force: bool,
    subresource: str,
    now: str,
) -> JSON:
    """Return the object after `manager` applied `config`; fields it no longer has are removed unless others own them.

    `empty` are the fields that the configuration gave as empty maps or lists, which decoding has left out of `config`:
    their manager owns them (servers since 1.21).

    Raises ApiError 409 with one cause per field when another manager owns a field that would change and `force` is
    false.
    """
    node = resource.node or ANY
    if (config.get("metadata") or {}).get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    owned = _owned_part(resource, config, subresource)
    wanted = fieldsets.of_value(node, owned) if owned else {}
    if empty:
        wanted = fieldsets.union(wanted, empty) if wanted else empty
    identity = (manager, "Apply", "", subresource)
    if live is None:
        new = dict(config)
        new["metadata"] = dict(config.get("metadata") or {})
        _stored(new, [_entry(resource, manager, "Apply", subresource, now, wanted)])
        return new
    entries = _entries(live)
    mine = next((entry for entry in entries if _identity(entry) == identity), None)
    others = [entry for entry in entries if entry is not mine]
    merged: JSON = fieldsets.merge(node, live, _with_identity(live, config, owned))
    if mine is not None:
        merged = _pruned(node, merged, mine.get("fieldsV1") or {}, wanted, others)
    changed, removed = fieldsets.compare(
        node, _owned_part(resource, live, subresource), _owned_part(resource, merged, subresource)
    )
    if changed:
        _settle_conflicts(others, changed, force)
    if removed:
        for entry in others:
            entry["fieldsV1"] = fieldsets.difference(entry.get("fieldsV1") or {}, removed) or {}
    if mine is None or mine.get("fieldsV1") != wanted or mine.get("apiVersion") != resource.api_version:
        entries = [*others, _entry(resource, manager, "Apply", subresource, now, wanted)]
    elif changed or removed:
        mine["time"] = now
    merged["metadata"] = dict(merged["metadata"])
    _stored(merged, entries)
    return merged


def _with_identity(live: JSON, config: JSON, owned: JSON) -> JSON:
    laid = dict(owned)
    metadata = dict(owned.get("metadata") or {})
    if version := (config.get("metadata") or {}).get("resourceVersion"):
        metadata["resourceVersion"] = version
    if metadata:
        laid["metadata"] = metadata
    laid["apiVersion"] = config.get("apiVersion", live.get("apiVersion"))
    return laid


def _pruned(node: SchemaNode, merged: JSON, last: Trie, wanted: Trie, others: list[JSON]) -> JSON:
    gone: Trie | None = fieldsets.difference(last, wanted)
    for entry in others:
        if gone is not None:
            gone = fieldsets.difference(gone, entry.get("fieldsV1") or {})
    if gone is None:
        return merged
    result: Any = fieldsets.prune(node, merged, gone)
    return dict(result)


def _settle_conflicts(others: list[JSON], changed: Trie, force: bool) -> None:
    found: list[tuple[str, str]] = []
    for entry in others:
        fields = entry.get("fieldsV1") or {}
        both = fieldsets.intersection(fields, changed)
        if both is None:
            continue
        if force:
            entry["fieldsV1"] = fieldsets.difference(fields, changed) or {}
        else:
            found.extend((_shown(entry), path) for path in fieldsets.paths(both))
    if found:
        raise _conflict(found)


def _shown(entry: JSON) -> str:
    text = f'"{entry.get("manager", "")}"'
    if entry.get("subresource"):
        text += f' with subresource "{entry["subresource"]}"'
    if entry.get("operation") == "Update":
        text += f" using {entry.get('apiVersion', '')}"
    return text


def _conflict(found: list[tuple[str, str]]) -> ApiError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in found
    ]
    if len(found) == 1:
        text = f"Apply failed with 1 conflict: conflict with {found[0][0]}: {found[0][1]}"
    else:
        by_manager: dict[str, list[str]] = {}
        for manager, path in found:
            by_manager.setdefault(manager, []).append(path)
        lines = [
            line
            for manager in sorted(by_manager)
            for line in (f"conflicts with {manager}:", *(f"- {p}" for p in by_manager[manager]))
        ]
        text = f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)
    return ApiError(409, "Conflict", text, details={"causes": causes})
