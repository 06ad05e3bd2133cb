"""The pass that finds objects of Belay's kinds in the cluster that have no effect.

Which ones count is decided before a pass, when documents are loaded (``belay.engine.load.cluster``); ``conditions``
writes it into their status, so that people do not take an ignored object for one in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from belay.engine.documents import CLUSTER_KINDS, SHIPPED, Declared, Desired
from belay.engine.documents.kinds import API_VERSION
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.labels import APPLIED_DIGEST
from belay.engine.model.plan import IgnoredObject
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.wire.names import MAIN_SHARD

SETTING: Final = "SchedulingSettings.spec.clusterDocuments"


def find_ignored(facts: Facts, draft: Draft) -> list[IgnoredObject]:
    """Every object of Belay's kinds that Git does not declare and that does not count; one shard lists them."""
    ignored: list[IgnoredObject] = []
    if facts.shard != MAIN_SHARD:
        return ignored
    keys = sorted(key for key in facts.observed.objects if key.api_version == API_VERSION)
    if not keys:
        return ignored
    declared = {(one.document.KIND, one.document.name) for one in declared_documents(facts.desired)}
    for key in keys:
        metadata = nested_map(facts.observed.objects[key], "metadata")
        if metadata.get("deletionTimestamp") or (key.kind, key.name) in declared:
            continue
        reason, why = _why(facts, key, metadata)
        ignored.append(IgnoredObject(f"{key.kind}/{key.name}", reason, why))
        about, text = f"{key.kind}/{key.name}", f"ignored: {why}"
        draft.diagnostics.append(Diagnostic("warning", about, "", 0, 0, "", text, PassCode.IGNORED))
    return ignored


def declared_documents(desired: Desired) -> Iterator[Declared[Any]]:
    """Each document in force, without shipped ones."""
    groups: tuple[Iterable[Declared[Any]], ...] = (
        desired.pools, desired.layouts, desired.fault_policies, desired.isolations, desired.budgets,
        desired.scheduling, desired.links, desired.notifications, desired.products.values(),
        desired.fault_tables.values(), desired.templates.values(),
    )  # fmt: skip
    for group in groups:
        for declared in group:
            if not declared.origin.file.startswith(SHIPPED):
                yield declared


def _why(facts: Facts, key: ObjectKey, metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of an object that does not count."""
    inventory = facts.observed.inventory
    applied = key in inventory if inventory is not None else APPLIED_DIGEST in nested_map(metadata, "annotations")
    if applied:
        return "NotDeclared", "it was applied from Git, and Git no longer declares it: delete it, or declare it again"
    if key.kind in facts.desired.settings.cluster_documents:
        return (
            "Refused",
            f"{SETTING} names {key.kind}, but this object is not valid: `belay status` says what is wrong",
        )
    commit = "it did not come from Git, where these documents are declared: commit it to the repository"
    if key.kind not in CLUSTER_KINDS:
        return "NotFromGit", commit
    return "NotFromGit", f"{commit}, or name {key.kind} in {SETTING}"
