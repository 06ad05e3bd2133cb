"""The pass that marks objects of Belay's own kinds that Git does not declare: in force, or ignored.

Which ones count is decided before a pass, when documents are loaded (``engine.load.cluster``). This pass sets the
condition ``Ignored`` in the status of each, so that people do not take an ignored object for one in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from engine.documents import CLUSTER, CLUSTER_KINDS, SHIPPED, Declared, Desired
from engine.documents.kinds import API_VERSION
from engine.model.actions import (
    Evidence,
    PatchObject,
    PatchType,
    Preconditions,
)
from engine.model.diagnostics import Diagnostic, ObjectKey
from engine.model.plan import IgnoredObject
from engine.model.reasons import ActionReason
from engine.model.times import rfc3339
from engine.plan.scope import Scope
from engine.wire.names import MAIN_SHARD

CONDITION: Final = "Ignored"
RULE: Final = "cluster-documents"
_CRD: Final = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
_GROUP: Final = API_VERSION.partition("/")[0]
_SETTING: Final = "SchedulingSettings.spec.clusterDocuments"
_DIGEST: Final = "belay.dev/applied-digest"


def run(scope: Scope) -> None:
    """Set the condition on every object of Belay's kinds that Git does not declare; one shard does it for all."""
    if scope.shard != MAIN_SHARD:
        return
    objects = {key: raw for key, raw in scope.observed.objects.items() if key.api_version == API_VERSION}
    if not objects:
        return
    origins, served = _origins(scope.desired), _with_status(scope)
    for key in sorted(objects):
        raw = objects[key]
        metadata = _part(raw, "metadata")
        if metadata.get("deletionTimestamp"):
            continue
        origin = origins.get((key.kind, key.name))
        if origin is not None and origin.startswith(CLUSTER):
            wanted = ("False", "Counts", f"{_SETTING} names {key.kind}, so this object counts beside Git")
        elif origin is not None:
            wanted = ("", "", "")
        else:
            wanted = ("True", *_why(scope, key, metadata))
            scope.ignored.append(IgnoredObject(f"{key.kind}/{key.name}", wanted[1], wanted[2]))
            text = f"ignored: {wanted[2]}"
            scope.diagnostics.append(Diagnostic("warning", f"{key.kind}/{key.name}", "", 0, 0, "", text))
        if key.kind in served:
            _patch_condition(scope, key, raw, *wanted)


def _why(scope: Scope, key: ObjectKey, metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of an object that does not count."""
    inventory = scope.observed.inventory
    applied = key in inventory if inventory is not None else _DIGEST in _part(metadata, "annotations")
    if applied:
        return "NotDeclared", "it was applied from Git, and Git no longer declares it: delete it, or declare it again"
    if key.kind in scope.desired.settings.cluster_documents:
        return (
            "Refused",
            f"{_SETTING} names {key.kind}, but this object is not valid: `belay status` says what is wrong",
        )
    commit = "it did not come from Git, where these documents are declared: commit it to the repository"
    if key.kind not in CLUSTER_KINDS:
        return "NotFromGit", commit
    return "NotFromGit", f"{commit}, or name {key.kind} in {_SETTING}"


def _patch_condition(
    scope: Scope, key: ObjectKey, raw: Mapping[str, Any], status: str, reason: str, message: str
) -> None:
    """Patch the object's condition where it differs; an empty ``status`` removes the condition."""
    conditions = _part(raw, "status").get("conditions")
    rows = [row for row in conditions if isinstance(row, dict)] if isinstance(conditions, list) else []
    found = next((row for row in rows if row.get("type") == CONDITION), None)
    now = (found or {}).get("status"), (found or {}).get("reason"), (found or {}).get("message")
    if (found is None and not status) or now == (status, reason, message):
        return
    others = [row for row in rows if row.get("type") != CONDITION]
    since = found.get("lastTransitionTime") if found is not None and found.get("status") == status else None
    row = {
        "type": CONDITION, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since or rfc3339(float(int(scope.now))),
    }  # fmt: skip
    uid = _part(raw, "metadata").get("uid")
    words = {"True": f"ignored: {message}", "False": message}
    scope.actions.append(
        PatchObject(
            reason=ActionReason.STATUS_CHANGED,
            message=f"{key.kind}/{key.name}: {words.get(status, 'it is declared in Git now')}",
            evidence=Evidence(rule=RULE, file=f"{CLUSTER}{key.kind}/{key.name}", revision=scope.desired.revision),
            patch_type=PatchType.MERGE,
            preconditions=Preconditions(uid=str(uid) if uid else None),
            api_version=key.api_version,
            object_kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            patch={"status": {"conditions": [*others, row] if status else others or None}},
        )
    )


def _origins(desired: Desired) -> dict[tuple[str, str], str]:
    """The file of each document in force by kind and name, without shipped ones."""
    groups: tuple[Iterable[Declared[Any]], ...] = (
        desired.pools, desired.layouts, desired.fault_policies, desired.isolations, desired.budgets,
        desired.scheduling, desired.links, desired.products.values(), desired.fault_tables.values(),
        desired.templates.values(),
    )  # fmt: skip
    return {
        (declared.document.KIND, declared.document.name): declared.origin.file
        for group in groups
        for declared in group
        if not declared.origin.file.startswith(SHIPPED)
    }


def _with_status(scope: Scope) -> frozenset[str]:
    """Belay's kinds whose CRD has a status subresource."""
    found = set()
    for key, raw in scope.observed.objects.items():
        spec = _part(raw, "spec") if (key.api_version, key.kind) == _CRD else {}
        if spec.get("group") != _GROUP:
            continue
        versions = spec.get("versions")
        for version in versions if isinstance(versions, list) else ():
            if isinstance(version, dict) and "status" in _part(version, "subresources"):
                found.add(str(_part(spec, "names").get("kind") or ""))
    return frozenset(found)


def _part(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}
