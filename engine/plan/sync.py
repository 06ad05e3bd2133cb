"""The pass that makes live objects what Git declares: create, patch by server-side apply, prune by inventory.

An object is left alone when it carries the digest of its manifest and none of its declared fields has drifted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from engine.documents import SHIPPED, BelayDocument, Declared, Desired, Manifest
from engine.model.actions import CreateObject, DeleteObject, Evidence, PatchObject
from engine.model.cluster import Observed
from engine.model.diagnostics import Diagnostic, ObjectKey
from engine.plan.drift import differs
from engine.plan.gangs import MAIN_SHARD
from engine.plan.memo import Memo
from engine.plan.scope import Scope
from engine.plan.served import kept, strict

RULE: Final = "sync"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "belay"
DIGEST: Final = "belay.dev/applied-digest"
PRUNE: Final = "belay.dev/prune"
_BELAY_GROUP: Final = "belay.dev"
_CRD: Final = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")

#: What must be there before what uses it; kinds not named come last.
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
#: ConfigMaps that people declare and machines fill: keys under which live content wins.
_FILLED: Final[dict[str, tuple[str, ...]]] = {
    "rings-config-": ("hccl.json", "version"),
    "reset-config-": ("reset.json", "checkCode", "restartType"),
    "fault-config-": ("fault-npus", "checkCode"),
}
#: Per object: why it has to be patched, empty when it need not.
_VERDICTS: Memo[tuple[str, str]] = Memo(32768)
_Schemas = Mapping[tuple[str, str], Mapping[str, Any]]
_COPIES: Memo[Manifest] = Memo(4096)


def run(scope: Scope) -> None:
    """Plans creations and patches in the order of need, then prunes in the opposite order.

    Objects belong to no node, so one shard does this for all.
    """
    desired = scope.desired
    if not desired.has_git or scope.shard != MAIN_SHARD:
        return
    schemas = _schemas(scope.observed)
    wanted = [*desired.manifests, *_copies(desired, schemas)]
    for manifest in sorted(wanted, key=lambda m: _rank(m.key)):  # manifests come sorted by key, and sorting is stable
        _apply(scope, manifest, schemas.get((manifest.key.api_version, manifest.key.kind)))
    _prune(scope, {manifest.key for manifest in wanted})


def declared_keys(desired: Desired, observed: Observed) -> tuple[ObjectKey, ...]:
    """Every object that this pass keeps in the cluster, for the inventory."""
    return tuple(sorted(manifest.key for manifest in (*desired.manifests, *_copies(desired, _schemas(observed)))))


def _rank(key: ObjectKey) -> int:
    return _ORDER.get(key.kind, len(_ORDER))


def _apply(scope: Scope, manifest: Manifest, schema: Mapping[str, Any] | None) -> None:
    """Creates or patches one object, if it needs it; ``schema`` is what its definition keeps, if it has one."""
    key = manifest.key
    live = scope.observed.objects.get(key)
    if live is None:
        body = applied(manifest, {})
        message = f"{key} is declared at {manifest.origin} and does not exist: creating it"
        scope.actions.append(
            CreateObject(
                reason="Missing",
                message=message,
                evidence=_evidence(scope, manifest),
                api_version=key.api_version,
                object_kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                object=body,
            )
        )
        return
    metadata = _part(live, "metadata")
    if metadata.get("deletionTimestamp"):
        return  # it must go before it can come again
    reason, detail = _VERDICTS.of(key, (manifest.digest, live, schema), lambda: _verdict(manifest, live, schema))
    if reason:
        version = metadata.get("uid")
        scope.actions.append(
            PatchObject(
                reason=reason,
                message=f"{key}: {detail}; applying {manifest.origin}",
                evidence=_evidence(scope, manifest),
                preconditions={"patchType": "apply"} | ({"uid": str(version)} if version else {}),
                api_version=key.api_version,
                object_kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                patch=applied(manifest, live),
            )
        )


def applied(manifest: Manifest, live: Mapping[str, Any]) -> dict[str, Any]:
    """What is applied for a manifest: its body with namespace, the label and the digest by which Belay knows it.

    Keys of ConfigMaps that machines fill keep their live content.
    """
    body = strict({key: value for key, value in manifest.body.items() if key != "status"})
    metadata = dict(_part(body, "metadata"))
    metadata["name"] = manifest.key.name
    if manifest.key.namespace:
        metadata["namespace"] = manifest.key.namespace
    metadata["labels"] = {**_part(metadata, "labels"), MANAGED_BY: MANAGER}
    metadata["annotations"] = {**_part(metadata, "annotations"), DIGEST: manifest.digest}
    body["metadata"] = metadata
    filled = _filled_keys(manifest.key)
    if filled and live:
        now = _part(live, "data")
        body["data"] = {**_part(body, "data"), **{key: now[key] for key in filled if key in now}}
    return body


def _verdict(manifest: Manifest, live: Mapping[str, Any], schema: Mapping[str, Any] | None) -> tuple[str, str]:
    """Why an object has to be patched, and the words for it."""
    metadata = _part(live, "metadata")
    digest = _part(metadata, "annotations").get(DIGEST)
    if digest != manifest.digest:
        return "ManifestChanged", "it was not applied yet" if digest is None else "its manifest has changed"
    body = applied(manifest, live)
    path = differs(kept(body, schema) if schema else body, live)
    return ("Drifted", f"its field {path} is not as declared") if path else ("", "")


def _filled_keys(key: ObjectKey) -> tuple[str, ...]:
    if key.kind != "ConfigMap":
        return ()
    return next((keys for prefix, keys in _FILLED.items() if key.name.startswith(prefix)), ())


def _prune(scope: Scope, wanted: set[ObjectKey]) -> None:
    """Deletes what Git applied before and declares no more, dependents first."""
    inventory = scope.observed.inventory
    if inventory is None:
        return
    gone = [key for key in inventory if key not in wanted and scope.desired.may_prune(key)]
    if gone and _declares_nothing(scope.desired):
        message = (
            f"the repository declares nothing, so {len(gone)} objects that it declared before stay; "
            "to remove them keep at least one document in the tree"
        )
        scope.diagnostics.append(Diagnostic("error", "", "", 0, 0, "", message))
        return
    for key in sorted(gone, key=lambda k: (-_rank(k), k)):
        live = scope.observed.objects.get(key)
        if live is not None:
            _delete(scope, key, live)


def _declares_nothing(desired: Desired) -> bool:
    groups: tuple[Iterable[Declared[Any]], ...] = (
        desired.pools, desired.layouts, desired.fault_policies, desired.isolations, desired.budgets,
        desired.scheduling, desired.links, desired.products.values(), desired.fault_tables.values(),
        desired.templates.values(),
    )  # fmt: skip
    return not desired.manifests and all(
        declared.origin.file.startswith(SHIPPED) for group in groups for declared in group
    )


def _delete(scope: Scope, key: ObjectKey, live: Mapping[str, Any]) -> None:
    metadata = _part(live, "metadata")
    if metadata.get("deletionTimestamp"):
        return
    if _part(metadata, "annotations").get(PRUNE) == "disabled":
        return
    if _part(metadata, "labels").get(MANAGED_BY) != MANAGER:
        _keep(scope, key, f"label {MANAGED_BY} says that Belay does not manage it any more")
        return
    if key.kind == "Namespace" and _inhabited(scope.observed, key.name):
        _keep(scope, key, "the namespace still holds objects")
        return
    uid = metadata.get("uid")
    scope.actions.append(
        DeleteObject(
            reason="Pruned",
            message=f"{key} was applied from Git and is declared no more: deleting it",
            evidence=Evidence(rule=RULE, revision=scope.desired.revision),
            preconditions={"uid": str(uid)} if uid else {},
            api_version=key.api_version,
            object_kind=key.kind,
            namespace=key.namespace,
            name=key.name,
        )
    )


def _keep(scope: Scope, key: ObjectKey, why: str) -> None:
    message = f"is declared no more and yet not deleted: {why}"
    scope.diagnostics.append(Diagnostic("info", str(key), "", 0, 0, "", message))


def _inhabited(observed: Observed, namespace: str) -> bool:
    """Whether anything of people's lives in a namespace; Kubernetes fills every one with a root certificate."""
    if any(pod.namespace == namespace for pod in observed.pods.values()):
        return True
    return any(
        key.namespace == namespace and key.kind not in ("Event", "ServiceAccount") and key.name != "kube-root-ca.crt"
        for key in observed.objects
    )


def _copies(desired: Desired, schemas: _Schemas) -> Iterator[Manifest]:
    """Belay's own documents as objects, for the kinds whose definition the cluster has."""
    known = {kind for api, kind in schemas if api.partition("/")[0] == _BELAY_GROUP}
    if not known:
        return
    groups: tuple[tuple[Declared[Any], ...], ...] = (
        desired.pools, desired.layouts, desired.fault_policies, desired.isolations, desired.budgets,
        desired.scheduling, desired.links,
    )  # fmt: skip
    for group in groups:
        for declared in group:
            if declared.document.kind in known and not declared.origin.file.startswith(SHIPPED):
                yield _copy(declared)


def _copy(declared: Declared[BelayDocument]) -> Manifest:
    document = declared.document
    key = ObjectKey(document.api_version, document.KIND, "", document.name)

    def make() -> Manifest:
        body = document.manifest()
        digest = hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()
        return Manifest(key, body, declared.origin, digest)

    return _COPIES.of(key, (document, declared.origin), make)


def _schemas(observed: Observed) -> _Schemas:
    """Schemas of the kinds that have a CustomResourceDefinition in the cluster, by apiVersion and kind."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for key in observed.objects:
        if (key.api_version, key.kind) != _CRD:
            continue
        spec = _part(observed.objects[key], "spec")
        kind = str(_part(spec, "names").get("kind") or "")
        versions = spec.get("versions")
        for version in versions if isinstance(versions, list) else ({},):
            if isinstance(version, dict):
                schema = _part(_part(version, "schema"), "openAPIV3Schema")
                found[(f"{spec.get('group')}/{version.get('name')}", kind)] = schema
    return found


def _evidence(scope: Scope, manifest: Manifest) -> Evidence:
    origin = manifest.origin
    return Evidence(rule=RULE, file=origin.file, line=origin.line, revision=scope.desired.revision)


def _part(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}
