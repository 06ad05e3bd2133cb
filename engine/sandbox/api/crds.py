"""CustomResourceDefinitions: checked, established at once, and turned into served resources."""

from __future__ import annotations

from typing import Any

from belay.engine.sandbox.api.errors import FieldError, field_invalid, field_required, field_unsupported
from belay.engine.sandbox.api.kinds import JSON, Column, ResourceRegistry, ScalePaths, ServedResource
from belay.engine.sandbox.api.schema import custom_node
from belay.engine.sandbox.api.store import ClusterStore, ObjectChanged, ObjectVersion

STORAGE = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
"""Finalizer that keeps a definition until its objects are gone."""

_AGE = Column(
    "Age",
    "date",
    "",
    "CreationTimestamp is a timestamp representing the server time when this object was created.",
    0,
    ".metadata.creationTimestamp",
)


def set_defaults(obj: JSON) -> None:
    """Fill in omitted fields of a definition, in place."""
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if not finalizers and "deletionTimestamp" not in obj["metadata"]:
        finalizers.append(CLEANUP)
    if not finalizers:
        del obj["metadata"]["finalizers"]


def validate(obj: JSON, live: JSON | None) -> list[FieldError]:
    """Return the errors of a definition (pkg/apis/apiextensions/validation)."""
    spec = obj.get("spec") or {}
    names = spec.get("names") or {}
    errors: list[FieldError] = []
    for field in ("group", "scope"):
        if not spec.get(field):
            errors.append(field_required(f"spec.{field}"))
    if spec.get("scope") and spec["scope"] not in ("Namespaced", "Cluster"):
        errors.append(field_unsupported("spec.scope", spec["scope"], ["Cluster", "Namespaced"]))
    for field in ("plural", "kind"):
        if not names.get(field):
            errors.append(field_required(f"spec.names.{field}"))
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if obj["metadata"].get("name") != wanted:
        errors.append(
            field_invalid("metadata.name", obj["metadata"].get("name"), 'must be spec.names.plural+"."+spec.group')
        )
    versions = spec.get("versions") or []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        errors.append(
            field_invalid(
                "spec.versions",
                [v.get("name") for v in versions],
                "must have exactly one version marked as storage version",
            )
        )
    for i, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, dict):
            errors.append(field_required(f"spec.versions[{i}].schema.openAPIV3Schema", "schemas are required"))
        else:
            errors.extend(_structural(schema, f"spec.versions[{i}].schema.openAPIV3Schema", top=True))
    if live is not None:
        old = live.get("spec") or {}
        for field in ("group", "scope"):
            if spec.get(field) != old.get(field):
                errors.append(field_invalid(f"spec.{field}", spec.get(field), "field is immutable"))
    return errors


def _structural(schema: JSON, path: str, *, top: bool = False) -> list[FieldError]:
    errors: list[FieldError] = []
    if (
        not schema.get("type")
        and not schema.get("x-kubernetes-int-or-string")
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        errors.append(
            field_required(
                f"{path}.type",
                "must not be empty for specified object fields" if not top else "must not be empty at the root",
            )
        )
    if top and schema.get("type") not in (None, "object"):
        errors.append(field_invalid(f"{path}.type", schema.get("type"), "must be object at the root"))
    if schema.get("properties") and isinstance(schema.get("additionalProperties"), dict):
        errors.append(
            FieldError(
                f"{path}.additionalProperties",
                "FieldValueForbidden",
                "Forbidden: additionalProperties and properties are mutual exclusive",
            )
        )
    for name, child in (schema.get("properties") or {}).items():
        if isinstance(child, dict):
            errors.extend(_structural(child, f"{path}.properties[{name}]"))
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        errors.append(field_required(f"{path}.items", "must be specified"))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            errors.extend(_structural(schema[key], f"{path}.{key}"))
    return errors


def established(obj: JSON, now: str) -> JSON:
    """Return the status of a definition whose names are accepted."""
    spec = obj["spec"]
    stored = next((version["name"] for version in spec["versions"] if version.get("storage")), "")
    known = list((obj.get("status") or {}).get("storedVersions") or ())
    conditions = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", now),
    ]
    return {
        "conditions": (obj.get("status") or {}).get("conditions") or conditions,
        "acceptedNames": spec["names"],
        "storedVersions": known if stored in known else [*known, stored],
    }


def _condition(kind: str, reason: str, message: str, now: str) -> JSON:
    return {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}


def resources_of(obj: JSON) -> list[ServedResource]:
    """Return the resources that a definition makes the server serve, one per served version."""
    spec = obj["spec"]
    names = spec["names"]
    found: list[ServedResource] = []
    for version in spec.get("versions") or ():
        if not version.get("served"):
            continue
        schema = version["schema"]["openAPIV3Schema"]
        subresources = version.get("subresources") or {}
        scale = subresources.get("scale")
        resource = ServedResource(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            spec.get("scope") == "Namespaced",
            tuple(names.get("shortNames") or ()),
            tuple(names.get("categories") or ()),
            status="status" in subresources,
            scale=_scale(scale) if scale else None,
            subresources=(("scale", "autoscaling", "v1", "Scale"),) if scale else (),
            generation=True,
            singular=names.get("singular", ""),
            list_kind=names.get("listKind", ""),
            custom=True,
            crd_schema=schema,
            columns=_columns(version.get("additionalPrinterColumns")),
            storage_version=bool(version.get("storage")),
            selectable=tuple(f["jsonPath"].lstrip(".") for f in version.get("selectableFields") or ()),
        )
        resource.node = custom_node(schema)
        found.append(resource)
    return found


def _scale(scale: JSON) -> ScalePaths:
    return ScalePaths(
        scale.get("specReplicasPath", ".spec.replicas").lstrip("."),
        scale.get("statusReplicasPath", ".status.replicas").lstrip("."),
        scale.get("labelSelectorPath", "").lstrip("."),
    )


def _columns(given: list[JSON] | None) -> tuple[Column, ...]:
    if not given:
        return (_AGE,)
    return tuple(
        Column(
            c["name"],
            c.get("type", "string"),
            c.get("format", ""),
            c.get("description", ""),
            c.get("priority", 0),
            c["jsonPath"],
        )
        for c in given
    )


class Definitions:
    """Updates the registry when stored definitions change."""

    def __init__(self, store: ClusterStore, registry: ResourceRegistry) -> None:
        self._store = store
        self._registry = registry
        self._served: dict[str, list[ServedResource]] = {}
        for entry in store.collection(STORAGE).entries():
            self._serve(entry)
        store.listeners.append(self._changed)

    def _changed(self, event: ObjectChanged) -> None:
        if event.entry.storage != STORAGE:
            return
        if event.type == "DELETED":
            self._forget(event.entry.key[1])
        elif event.old is None or event.old.obj["spec"] != event.entry.obj["spec"]:
            self._serve(event.entry)

    def _forget(self, name: str) -> None:
        for resource in self._served.pop(name, ()):
            self._registry.remove(resource)
            if resource.storage_version:
                for watcher in self._store.collection(resource.storage).watchers():
                    watcher.close()

    def _serve(self, entry: ObjectVersion) -> None:
        obj: Any = entry.obj
        new = resources_of(obj)
        kept = {(r.group, r.version, r.plural) for r in new}
        for resource in self._served.get(entry.key[1], ()):
            if (resource.group, resource.version, resource.plural) not in kept:
                self._registry.remove(resource)
        self._served[entry.key[1]] = new
        for resource in new:
            self._registry.add(resource)
