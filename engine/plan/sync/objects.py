"""The pass that makes live objects match Git: create, patch by server-side apply, prune by inventory.

An object that carries the digest of its manifest is left alone unless a declared field has drifted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.documents import CLUSTER, SHIPPED, BelayDocument, Declared, Desired, Manifest
from belay.engine.model.actions import (
    CreateObject,
    DeleteObject,
    Evidence,
    PatchObject,
    Preconditions,
)
from belay.engine.model.cluster import Observed
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.labels import APPLIED_DIGEST, MANAGED_BY, PRUNE_ANNOTATION
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.reasons import ActionReason
from belay.engine.model.rules import RuleKind
from belay.engine.model.unstructured import nested_map
from belay.engine.model.wording import counted
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.sync import template_changes
from belay.engine.plan.sync.drift import first_difference
from belay.engine.plan.sync.pruning import PRUNED, member_of
from belay.engine.plan.sync.served import normalized, without_unknown_fields
from belay.engine.wire.names import MAIN_SHARD

RULE: Final = RuleKind.SYNC.value
MANIFEST_CHANGED: Final = "ManifestChanged"
MANAGER: Final = "belay"
_BELAY_GROUP: Final = "belay.dev"
_MAX_AWAITED: Final = 20
"""Most new objects of its kind that a deletion waits for, and among which a renamed one is looked for."""
_CRD: Final = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")

#: Order of creation by kind, used objects before their users; other kinds come last.
_ORDER: Final = {
    kind: rank
    for rank, kinds in enumerate(
        (
            ("Namespace",),
            ("CustomResourceDefinition",),
            ("PriorityClass", "Queue"),
            ("ConfigMap", "Service", "ServiceAccount"),
            ("PodGroup",),
        )
    )
    for kind in kinds
}
#: ConfigMaps that people declare and components fill, by name prefix: keys whose live content is kept.
_MACHINE_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "rings-config-": ("hccl.json", "version"),
    "reset-config-": ("reset.json", "checkCode", "restartType"),
    "fault-config-": ("fault-npus", "checkCode"),
}
_Schemas = Mapping[tuple[str, str], Mapping[str, Any]]


class _Comparison(NamedTuple):
    """Why a live object has to be patched, both empty when it need not be, and which declared field is dropped."""

    reason: str
    detail: str
    dropped: str


#: Per object.
_COMPARISONS: Final = CacheKey("declared objects against live ones", Memo[_Comparison], limit=32768)
_COPIES: Final = CacheKey("copies of documents", Memo[Manifest], limit=4096)


def sync_objects(facts: Facts, draft: Draft, gangs: PassGangs) -> set[ObjectKey]:
    """Plan creations and patches in order of dependency, then deletions in reverse order.

    Objects belong to no node, so one shard does this for all.

    Returns:
        Live objects that Git applied and no longer declares.
    """
    desired, undeclared = facts.desired, set[ObjectKey]()
    if not desired.has_git or facts.shard != MAIN_SHARD:
        return undeclared

    schemas = _schemas(facts.observed)
    wanted = [*desired.manifests, *_copies(desired, schemas, facts.cache)]
    for manifest in sorted(wanted, key=lambda m: _rank(m.key)):  # manifests come sorted by key, and sorting is stable
        _apply(facts, draft, gangs, manifest, schemas.get((manifest.key.api_version, manifest.key.kind)))
    _prune(facts, draft, undeclared, {manifest.key for manifest in wanted})
    _maintain_waiting(facts, draft, gangs, undeclared, schemas)
    template_changes.report(facts, draft, gangs)
    return undeclared


def declared_keys(desired: Desired, observed: Observed, cache: PlanCache | None = None) -> tuple[ObjectKey, ...]:
    """Keys of all objects that this pass keeps in the cluster, for the inventory."""
    copies = _copies(desired, _schemas(observed), cache or PlanCache())
    return tuple(sorted(manifest.key for manifest in (*desired.manifests, *copies)))


def _rank(key: ObjectKey) -> int:
    return _ORDER.get(key.kind, len(_ORDER))


def _apply(facts: Facts, draft: Draft, gangs: PassGangs, manifest: Manifest, schema: Mapping[str, Any] | None) -> None:
    """Create or patch one object if needed; ``schema`` is that of its CRD, if it has one."""
    key = manifest.key
    live = facts.observed.objects.get(key)
    if live is None:
        body = applied_body(manifest, {})
        message = f"{key} is declared at {manifest.origin} and does not exist: creating it"
        draft.actions.append(
            CreateObject(
                reason=ActionReason.MISSING,
                message=message,
                evidence=_evidence(facts, manifest),
                api_version=key.api_version,
                object_kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                object=body,
            )
        )
        return
    metadata = nested_map(live, "metadata")
    if metadata.get("deletionTimestamp"):
        return  # it can be created again once it is gone
    inputs = (manifest.digest, live, schema)
    reason, detail, dropped = facts.cache[_COMPARISONS].of(key, inputs, lambda: _compared(manifest, live, schema))
    if dropped:
        _report_dropped(draft, manifest, dropped)
    if reason:
        version = metadata.get("uid")
        draft.actions.append(
            PatchObject(
                reason=reason,
                message=f"{key}: {detail}; applying {manifest.origin}",
                evidence=_evidence(facts, manifest),
                preconditions=Preconditions(uid=str(version) if version else None),
                api_version=key.api_version,
                object_kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                patch=applied_body(manifest, live),
            )
        )
        if reason == MANIFEST_CHANGED:
            template_changes.remember(facts, draft, gangs, manifest, live)


def applied_body(manifest: Manifest, live: Mapping[str, Any]) -> dict[str, Any]:
    """The body to apply for a manifest: with namespace, and the label and digest by which Belay recognises it.

    Keys of ConfigMaps that components fill keep their live content.
    """
    body = normalized({key: value for key, value in manifest.body.items() if key != "status"})
    metadata = dict(nested_map(body, "metadata"))
    metadata["name"] = manifest.key.name
    if manifest.key.namespace:
        metadata["namespace"] = manifest.key.namespace
    metadata["labels"] = {**nested_map(metadata, "labels"), MANAGED_BY: MANAGER}
    metadata["annotations"] = {**nested_map(metadata, "annotations"), APPLIED_DIGEST: manifest.digest}
    body["metadata"] = metadata
    filled = _machine_keys(manifest.key)
    if filled and live:
        now = nested_map(live, "data")
        body["data"] = {**nested_map(body, "data"), **{key: now[key] for key in filled if key in now}}
    return body


def _compared(manifest: Manifest, live: Mapping[str, Any], schema: Mapping[str, Any] | None) -> _Comparison:
    body = applied_body(manifest, live)
    kept = without_unknown_fields(body, schema) if schema else body
    dropped = first_difference(body, kept) if schema else ""

    digest = nested_map(live, "metadata", "annotations").get(APPLIED_DIGEST)
    if digest != manifest.digest:
        detail = "it was not applied yet" if digest is None else "its manifest has changed"
        return _Comparison(MANIFEST_CHANGED, detail, dropped)

    path = first_difference(kept, live)
    reason, detail = ("Drifted", f"its field {path} is not as declared") if path else ("", "")
    return _Comparison(reason, detail, dropped)


def _machine_keys(key: ObjectKey) -> tuple[str, ...]:
    if key.kind != "ConfigMap":
        return ()
    return next((keys for prefix, keys in _MACHINE_KEYS.items() if key.name.startswith(prefix)), ())


def _prune(facts: Facts, draft: Draft, undeclared: set[ObjectKey], wanted: set[ObjectKey]) -> None:
    """Delete objects that were applied from Git and are no longer declared, dependents first."""
    inventory = facts.observed.inventory
    if inventory is None:
        return
    gone = [key for key in inventory if key not in wanted and facts.desired.may_prune(key)]
    if gone and _declares_nothing(facts.desired):
        message = (
            f"the repository declares nothing, so {counted(len(gone), 'object')} that it declared before stay; "
            "to remove them keep at least one document in the tree"
        )
        draft.diagnostics.append(Diagnostic("error", "", "", 0, 0, "", message, PassCode.DECLARES_NOTHING))
        return
    fresh: dict[str, list[CreateObject]] = {}
    for action in draft.actions:
        if isinstance(action, CreateObject) and action.evidence.rule_kind is RuleKind.SYNC:
            fresh.setdefault(action.object_kind, []).append(action)
    for key in sorted(gone, key=lambda k: (-_rank(k), k)):
        live = facts.observed.objects.get(key)
        if live is not None:
            _delete(facts, draft, undeclared, key, live, fresh.get(key.kind, [])[:_MAX_AWAITED])


def _maintain_waiting(
    facts: Facts, draft: Draft, gangs: PassGangs, undeclared: set[ObjectKey], schemas: _Schemas
) -> None:
    """Keep objects whose deletion waits as they were last declared: edits by others are still reverted."""
    waiting = {member for row in draft.memory.prunes if not row.released for member in row.members}
    for manifest in facts.desired.earlier if waiting else ():
        live = facts.observed.objects.get(manifest.key) if manifest.key in undeclared else None
        if live is None or member_of(manifest.key, live) not in waiting:
            continue
        if nested_map(live, "metadata", "annotations").get(APPLIED_DIGEST) == manifest.digest:
            _apply(facts, draft, gangs, manifest, schemas.get((manifest.key.api_version, manifest.key.kind)))


def _declares_nothing(desired: Desired) -> bool:
    return all(origin.file.startswith((SHIPPED, CLUSTER)) for origin in desired.origins)


def _delete(
    facts: Facts,
    draft: Draft,
    undeclared: set[ObjectKey],
    key: ObjectKey,
    live: Mapping[str, Any],
    fresh: Sequence[CreateObject],
) -> None:
    """Delete one object; where it may have been renamed, only once the ``fresh`` objects exist.

    Kubernetes renames nothing: the object of the new name starts pods of its own. A finding says
    so, because in Git a changed name looks like a small edit.
    """
    metadata = nested_map(live, "metadata")
    if metadata.get("deletionTimestamp"):
        return
    if nested_map(metadata, "annotations").get(PRUNE_ANNOTATION) == "disabled":
        return
    if nested_map(metadata, "labels").get(MANAGED_BY) != MANAGER:
        _report_kept(draft, key, f"label {MANAGED_BY} says that Belay no longer manages it")
        return
    if key.kind == "Namespace":
        # Secrets and objects of unknown kinds are not seen, and would go with it
        still = "it still holds objects" if _holds_objects(facts.observed, key.name) else "it looks empty"
        why = f"Belay deletes no namespaces, since what it cannot see would go with them; {still}"
        _report_kept(draft, key, f"{why}: kubectl delete namespace {key.name}")
        return
    undeclared.add(key)
    uid = metadata.get("uid")
    awaited = tuple((new.api_version, new.object_kind, new.namespace, new.name) for new in fresh)
    new = f" once {fresh[0].object_kind} {fresh[0].name} exists" if fresh else ""
    renamed = next((new for new in fresh if _is_renamed(new, live)), None)
    if renamed is not None:
        new = f" once {renamed.object_kind} {renamed.name} exists, which has the same content under another name"
        _report_renamed(draft, key, renamed)
    draft.actions.append(
        DeleteObject(
            reason=PRUNED,
            message=f"{key} was applied from Git and is no longer declared: deleting it{new}",
            evidence=Evidence(rule=RULE, revision=facts.desired.revision),
            preconditions=Preconditions(uid=str(uid) if uid else None, after=awaited),
            api_version=key.api_version,
            object_kind=key.kind,
            namespace=key.namespace,
            name=key.name,
        )
    )


def _is_renamed(new: CreateObject, live: Mapping[str, Any]) -> bool:
    """Whether a new object is declared as the live one is, but for its name."""
    declared = dict(new.object)
    metadata = dict(nested_map(declared, "metadata"))
    annotations = {key: text for key, text in nested_map(metadata, "annotations").items() if key != APPLIED_DIGEST}
    declared["metadata"] = {**metadata, "annotations": annotations}
    return first_difference(declared, live) == ""


def _report_renamed(draft: Draft, key: ObjectKey, new: CreateObject) -> None:
    where = ObjectKey(new.api_version, new.object_kind, new.namespace, new.name)
    message = (
        f"its name was changed from {key.name}: Kubernetes renames no objects, so this is another one, whose pods "
        f"start from the beginning, and {key} goes once this one exists"
    )
    evidence = new.evidence
    place = (evidence.file, evidence.line, 1)
    draft.diagnostics.append(Diagnostic("warning", str(where), *place, "metadata.name", message, PassCode.RENAMED))


def _report_dropped(draft: Draft, manifest: Manifest, field: str) -> None:
    """Say that a declared field has no effect. What the API server drops is never patched again."""
    key, origin = manifest.key, manifest.origin
    message = (
        f"has no effect: the cluster's definition of {key.kind} in {key.api_version} has no such field, so the API "
        "server drops it; renew the CustomResourceDefinition (Belay's are in deploy/crds), or take the field out"
    )
    place = (origin.file, origin.line, origin.column)
    draft.diagnostics.append(Diagnostic("warning", str(key), *place, field, message, PassCode.FIELD_DROPPED))


def _report_kept(draft: Draft, key: ObjectKey, why: str) -> None:
    message = f"is no longer declared, but stays: {why}"
    draft.diagnostics.append(Diagnostic("info", str(key), "", 0, 0, "", message, PassCode.KEPT))


def _holds_objects(observed: Observed, namespace: str) -> bool:
    """Whether a namespace holds objects besides those that Kubernetes creates in every namespace."""
    if any(pod.namespace == namespace for pod in observed.pods.values()):
        return True
    return any(
        key.namespace == namespace and key.kind not in ("Event", "ServiceAccount") and key.name != "kube-root-ca.crt"
        for key in observed.objects
    )


def _copies(desired: Desired, schemas: _Schemas, cache: PlanCache) -> Iterator[Manifest]:
    """Belay's own documents as objects, for the kinds whose CRD the cluster has."""
    known = {kind for api, kind in schemas if api.partition("/")[0] == _BELAY_GROUP}
    if not known:
        return
    groups: tuple[tuple[Declared[Any], ...], ...] = (
        desired.pools, desired.layouts, desired.fault_policies, desired.isolations, desired.budgets,
        desired.scheduling, desired.links, desired.notifications, tuple(desired.products.values()),
        tuple(desired.fault_tables.values()), tuple(desired.templates.values()),
    )  # fmt: skip
    for group in groups:
        for declared in group:
            if declared.document.KIND in known and not declared.origin.file.startswith((SHIPPED, CLUSTER)):
                yield _copy(declared, cache)


def _copy(declared: Declared[BelayDocument], cache: PlanCache) -> Manifest:
    document = declared.document
    key = ObjectKey(document.api_version, document.KIND, "", document.name)

    def make() -> Manifest:
        body = document.manifest()
        digest = hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()
        return Manifest(key, body, declared.origin, digest)

    return cache[_COPIES].of(key, (document, declared.origin), make)


def _schemas(observed: Observed) -> _Schemas:
    """OpenAPI schemas of the CRDs in the cluster, by apiVersion and kind."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for key in observed.objects:
        if (key.api_version, key.kind) != _CRD:
            continue
        spec = nested_map(observed.objects[key], "spec")
        kind = str(nested_map(spec, "names").get("kind") or "")
        versions = spec.get("versions")
        for version in versions if isinstance(versions, list) else ({},):
            if isinstance(version, dict):
                schema = nested_map(version, "schema", "openAPIV3Schema")
                found[(f"{spec.get('group')}/{version.get('name')}", kind)] = schema
    return found


def _evidence(facts: Facts, manifest: Manifest) -> Evidence:
    origin = manifest.origin
    return Evidence(rule=RULE, file=origin.file, line=origin.line, revision=facts.desired.revision)
