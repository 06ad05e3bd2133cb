"""Create, update, patch and apply: the rules for an object between request and store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from belay.engine.sandbox.api import apply, crds, structural, versions
from belay.engine.sandbox.api.addresses import Addresses
from belay.engine.sandbox.api.admission import Admission
from belay.engine.sandbox.api.decoding import decode
from belay.engine.sandbox.api.errors import (
    ApiError,
    FieldError,
    already_exists,
    bad_request,
    conflict,
    field_invalid,
    forbidden,
    invalid,
    invalid_kind,
    not_found,
)
from belay.engine.sandbox.api.fieldsets import Trie
from belay.engine.sandbox.api.kinds import JSON, ResourceRegistry, ServedResource
from belay.engine.sandbox.api.metadata import (
    carry_over,
    finalizer_errors,
    generated_name,
    prepare_new,
    timestamp,
    validate_metadata,
)
from belay.engine.sandbox.api.store import ClusterStore, Key, ObjectVersion, OversizedError
from belay.engine.sandbox.api.validation import MAX_OBJECT_BYTES, validate_builtin

# kinds whose updates must carry a resourceVersion (AllowUnconditionalUpdate is false in their strategies)
_CONDITIONAL = {"leases.coordination.k8s.io", crds.STORAGE, "poddisruptionbudgets.policy"}
_GENERATE_ATTEMPTS = 8


@dataclass(slots=True)
class WriteOptions:
    """Query parameters of a write. `warnings` collects the texts of Warning headers."""

    manager: str = "unknown"
    dry_run: bool = False
    validation: str = "Warn"
    force: bool = False
    subresource: str = ""
    warnings: list[str] = field(default_factory=list)


class ObjectWriter:
    """The rules of writes. All methods run to completion without yielding, so each is atomic."""

    def __init__(self, store: ClusterStore, registry: ResourceRegistry, clock: Callable[[], float]) -> None:
        self.store = store
        self.registry = registry
        self.clock = clock
        self.addresses = Addresses(store)
        self._admission = Admission(store, self.now)

    def now(self) -> str:
        """Return the current time in Kubernetes' format."""
        return timestamp(self.clock())

    def get(self, resource: ServedResource, namespace: str, name: str) -> ObjectVersion:
        """Return an object. Raises ApiError 404."""
        entry = self.store.get(resource.storage, (namespace, name))
        if entry is None:
            raise not_found(resource, name)
        return entry

    # -- create

    def create(self, resource: ServedResource, namespace: str, obj: JSON, options: WriteOptions) -> ObjectVersion:
        """Store a new object. Raises ApiError 400, 403, 404, 409 or 422."""
        obj = self._decoded(resource, obj, options)
        metadata = obj["metadata"]
        self._check_namespace(resource, namespace, metadata)
        if metadata.get("resourceVersion"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        metadata.pop("resourceVersion", None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._free_name(resource, namespace, metadata["generateName"])
        prepare_new(metadata, namespace, self.clock())
        name = metadata.get("name") or ""
        self._admission.complete_new(resource, obj)
        self._require_valid(resource, name, obj, None)
        key = (namespace, name)
        if self.store.get(resource.storage, key) is not None:
            raise already_exists(resource, name)
        if resource.storage == "services":
            self.addresses.allocate(resource, obj, dry_run=options.dry_run)
        if "managedFields" not in metadata or options.manager:
            self._track(resource, None, obj, options)
        entry = self._commit(resource, key, obj, options)
        if resource.storage == "namespaces" and not options.dry_run:
            self._default_account(name)
        return entry

    def _default_account(self, namespace: str) -> None:
        """Create the default service account of a new namespace, as the controller manager does."""
        accounts = self.registry.find("", "v1", "serviceaccounts")
        if accounts is not None and self.store.get(accounts.storage, (namespace, "default")) is None:
            self.create(accounts, namespace, {"metadata": {"name": "default"}}, WriteOptions(manager="sandbox"))

    def _free_name(self, resource: ServedResource, namespace: str, base: str) -> str:
        name = ""
        for _ in range(_GENERATE_ATTEMPTS):
            name = generated_name(base)
            if self.store.get(resource.storage, (namespace, name)) is None:
                break
        return name

    def _check_namespace(self, resource: ServedResource, namespace: str, metadata: JSON) -> None:
        given = metadata.get("namespace")
        if given and given != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if not resource.namespaced:
            return
        space = self.store.get("namespaces", ("", namespace))
        if space is None:
            owner = self.registry.find("", "v1", "namespaces")
            assert owner is not None
            raise not_found(owner, namespace)
        if "deletionTimestamp" in space.obj["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            causes = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise forbidden(resource, metadata.get("name") or "", why, causes)

    # -- update

    def update(
        self, resource: ServedResource, namespace: str, name: str, obj: JSON, options: WriteOptions
    ) -> tuple[ObjectVersion, bool]:
        """Replace an object (PUT). Returns the new version and whether the update removed the object."""
        obj = self._decoded(resource, obj, options)
        given = obj["metadata"].get("name")
        if given and given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        self._check_body_namespace(namespace, obj)
        live = self.get(resource, namespace, name)
        self._check_version(resource, live, obj, patching=False)
        return self.replace(resource, live, obj, options)

    def _check_body_namespace(self, namespace: str, obj: JSON) -> None:
        given = obj["metadata"].get("namespace")
        if given and given != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")

    def _check_version(self, resource: ServedResource, live: ObjectVersion, obj: JSON, *, patching: bool) -> None:
        metadata = obj["metadata"]
        name = live.key[1]
        if (uid := metadata.get("uid")) and uid != live.obj["metadata"]["uid"]:
            if patching:
                raise invalid(resource, name, [field_invalid("metadata.uid", uid, "field is immutable")])
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {live.obj['metadata']['uid']}"
            raise conflict(resource, name, why)
        version = metadata.get("resourceVersion")
        if not version:
            if not patching and (resource.custom or resource.storage in _CONDITIONAL):
                text = "Invalid value: 0x0: must be specified for an update"
                errors = [FieldError("metadata.resourceVersion", "FieldValueInvalid", text)]
                raise invalid_kind(resource.qualified, resource.group, resource.plural, name, errors)
            return
        if not str(version).isdigit():
            raise invalid(
                resource, name, [field_invalid("metadata.resourceVersion", version, "must be an unsigned integer")]
            )
        if int(version) != live.rv:
            raise conflict(resource, name)

    def replace(
        self, resource: ServedResource, live: ObjectVersion, obj: JSON, options: WriteOptions, *, tracked: bool = False
    ) -> tuple[ObjectVersion, bool]:
        """Make `obj` the next version of `live`.

        Isolates status, fills in defaults, validates, counts generations and tracks managers.
        """
        old = live.obj
        carry_over(obj["metadata"], old["metadata"])
        obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        obj = self._isolated(resource, old, obj, options.subresource)
        if not options.subresource:
            self._admission.fill(resource, obj)
            self._admission.keep_allocated(resource, old, obj)
        self._require_valid(resource, live.key[1], obj, old)
        if not tracked:
            self._track(resource, old, obj, options)
        if _unchanged(old, obj):
            return live, False
        self._count_generation(resource, old, obj)
        metadata = obj["metadata"]
        if (
            "deletionTimestamp" in metadata
            and not metadata.get("finalizers")
            and not metadata.get("deletionGracePeriodSeconds")
        ):
            if options.dry_run:
                return ObjectVersion(resource.storage, live.key, obj, live.rv), True
            # watchers see one deletion with the state that was stored, not the removal of the last finalizer
            return self.store.delete(resource.storage, live.key), True
        return self._commit(resource, live.key, obj, options), False

    def _isolated(self, resource: ServedResource, old: JSON, obj: JSON, subresource: str) -> JSON:
        if subresource == "status":
            kept = dict(old)
            kept["status"] = obj.get("status") or {}
            kept["metadata"] = dict(obj["metadata"]) if not resource.custom else dict(old["metadata"])
            if resource.custom and "managedFields" in obj["metadata"]:
                kept["metadata"]["managedFields"] = obj["metadata"]["managedFields"]
            if not resource.custom and "ownerReferences" in old["metadata"]:
                kept["metadata"]["ownerReferences"] = old["metadata"]["ownerReferences"]
            # a private copy: the store's versions are shared and must not be changed below
            copied: JSON = orjson.loads(orjson.dumps(kept))
            return copied
        if resource.status:
            if "status" in old:
                # defaulting of custom kinds changes status too; the store's own copy must not change
                obj["status"] = orjson.loads(orjson.dumps(old["status"])) if resource.custom else old["status"]
            else:
                obj.pop("status", None)
        return obj

    def _count_generation(self, resource: ServedResource, old: JSON, new: JSON) -> None:
        if not resource.generation:
            return
        if resource.custom:
            ignored = ("metadata", "status") if resource.status else ("metadata",)
            changed = any(old.get(key) != new.get(key) for key in {*old, *new} if key not in ignored)
        else:
            changed = old.get("spec") != new.get("spec")
        if changed:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    # -- patch

    def patch(
        self, resource: ServedResource, namespace: str, name: str, change: Callable[[JSON], JSON], options: WriteOptions
    ) -> tuple[ObjectVersion, bool]:
        """Apply `change` to a copy of the live object and store the result.

        A resourceVersion in the patch is a precondition.
        """
        live = self.get(resource, namespace, name)
        shown = live.copy() if resource.storage_version else orjson.loads(versions.bytes_for(resource, live))
        changed = change(shown)
        if not isinstance(changed.get("metadata"), dict):
            raise bad_request("metadata must be an object")
        obj = self._decoded(resource, changed, options)
        if obj["metadata"].get("name") != name:
            raise bad_request(
                f"the name of the object ({obj['metadata'].get('name')}) does not match the name on the URL ({name})"
            )
        self._check_version(resource, live, obj, patching=True)
        return self.replace(resource, live, obj, options)

    def apply(
        self, resource: ServedResource, namespace: str, name: str, config: JSON, options: WriteOptions
    ) -> tuple[ObjectVersion, bool]:
        """Server-side apply.

        Returns the new version and whether the object was created. Raises ApiError 409 on conflicts.
        """
        empty = apply.empty_fields(resource, config)
        config = self._decoded(resource, config, options)
        metadata = config["metadata"]
        if (metadata.get("name") or name) != name:
            raise bad_request(
                f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
            )
        self._check_body_namespace(namespace, config)
        live = self.store.get(resource.storage, (namespace, name))
        if live is None:
            if options.subresource:
                raise not_found(resource, name)
            if metadata.get("resourceVersion") or metadata.get("uid"):
                raise conflict(resource, name)
            return self._apply_new(resource, namespace, name, config, empty, options), True
        self._check_version(resource, live, config, patching=True)
        merged = apply.apply(
            resource,
            live.copy(),
            config,
            options.manager,
            empty=empty,
            force=options.force,
            subresource=options.subresource,
            now=self.now(),
        )
        return self.replace(resource, live, merged, options, tracked=True)[0], False

    def _apply_new(
        self, resource: ServedResource, namespace: str, name: str, config: JSON, empty: Trie, options: WriteOptions
    ) -> ObjectVersion:
        config["metadata"]["name"] = name
        self._check_namespace(resource, namespace, config["metadata"])
        new = apply.apply(
            resource, None, config, options.manager, empty=empty, force=options.force, subresource="", now=self.now()
        )
        created = WriteOptions(manager="", dry_run=options.dry_run, warnings=options.warnings)
        return self.create(resource, namespace, new, created)

    # -- shared

    def _decoded(self, resource: ServedResource, obj: Any, options: WriteOptions) -> JSON:
        """Check and normalise a received object.

        Unknown fields are dropped, warned about or refused, as fieldValidation says.
        """
        if not isinstance(obj, dict):
            raise bad_request("the object provided is unrecognized (must be of type Object)")
        kind, version = obj.setdefault("kind", resource.kind), obj.setdefault("apiVersion", resource.api_version)
        if version != resource.api_version:
            raise bad_request(
                f"the API version in the data ({version}) does not match the expected API version "
                f"({resource.api_version})"
            )
        if kind != resource.kind:
            raise bad_request(
                f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: no kind "{kind}" '
                f"is registered"
            )
        metadata = obj.setdefault("metadata", {})
        if metadata is None:
            metadata = obj["metadata"] = {}
        if not isinstance(metadata, dict):
            raise bad_request(
                f'{kind} in version "{resource.version}" cannot be handled as a {kind}: metadata must be an object'
            )
        if resource.node is not None:
            self._report_unknown(resource, decode(resource.node, obj, resource), options)
        obj.setdefault("metadata", {})
        return versions.to_stored(self.registry, resource, obj)

    def _report_unknown(self, resource: ServedResource, unknown: list[str], options: WriteOptions) -> None:
        if not unknown or options.validation == "Ignore":
            return
        listed = [f'unknown field "{path}"' for path in unknown[:20]]
        if options.validation == "Strict":
            what = (
                ""
                if resource.custom
                else f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            )
            raise bad_request(f"{what}strict decoding error: {', '.join(listed)}")
        options.warnings.extend(listed)

    def _require_valid(self, resource: ServedResource, name: str, obj: JSON, live: JSON | None) -> None:
        errors = (
            validate_metadata(resource, obj["metadata"]) if live is None or live["metadata"] != obj["metadata"] else []
        )
        if live is not None:
            errors.extend(finalizer_errors(obj["metadata"], live["metadata"]))
        if resource.crd_schema is not None:
            errors.extend(structural.validate(resource.crd_schema, obj))
        elif resource.storage == crds.STORAGE:
            errors.extend(crds.validate(obj, live))
        else:
            errors.extend(validate_builtin(resource, obj, live))
        if errors:
            raise invalid(resource, name, errors)

    def _track(self, resource: ServedResource, live: JSON | None, obj: JSON, options: WriteOptions) -> None:
        if options.manager:
            apply.track_update(resource, live, obj, options.manager, options.subresource, self.now())

    def _commit(self, resource: ServedResource, key: Key, obj: JSON, options: WriteOptions) -> ObjectVersion:
        if options.dry_run:
            return ObjectVersion(resource.storage, key, obj, 0)
        try:
            return self.store.put(resource.storage, key, obj, limit=MAX_OBJECT_BYTES)
        except OversizedError as error:
            raise ApiError(500, "", "etcdserver: request is too large") from error


def _unchanged(old: JSON, new: JSON) -> bool:
    """Whether an update changes nothing but times of managed fields."""

    def managers(obj: JSON) -> list[JSON]:
        return [{k: v for k, v in entry.items() if k != "time"} for entry in obj["metadata"].get("managedFields") or ()]

    def rest(obj: JSON) -> JSON:
        return {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion")}

    if any(old.get(key) != new.get(key) for key in {*old, *new} if key != "metadata"):
        return False
    return rest(old) == rest(new) and managers(old) == managers(new)
