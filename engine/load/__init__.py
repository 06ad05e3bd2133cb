"""``{path: bytes}`` to the desired state, with every problem at file, line and column.

A bad document does not affect good ones: it is reported, and its last good version stays in force.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from belay.engine.documents import (
    SHIPPED,
    Desired,
    DiagnosisRules,
    FaultPolicy,
    FaultTable,
    Isolation,
    KVLink,
    NodePool,
    NotificationPolicy,
    Product,
    SafetyBudget,
    SchedulingSettings,
    VNPULayout,
    VNPUTemplates,
    WorkloadKind,
)
from belay.engine.load import cluster
from belay.engine.load.assembly import Assembly
from belay.engine.load.cache import LoadCache
from belay.engine.load.files import is_document, load_directory, shipped_policies
from belay.engine.load.layers import Layer, documents_of, is_belay, manifests_of, names_of
from belay.engine.load.parser import digest
from belay.engine.load.prior_state import UNKNOWN, FileVersion, PriorState, Retained
from belay.engine.load.references import KnownNames
from belay.engine.load.schemas import schema_text, schemas
from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.diagnostics import Diagnostic

MAX_TREE_DOCUMENTS: Final = 20_000
MAX_DIAGNOSTICS: Final = 2_000
#: From this many files the garbage collector is off while reading: it would scan the growing tree again and again.
_MANY: Final = 500


@dataclass(frozen=True, slots=True)
class Loaded:
    """The desired state of a tree, and its problems.

    ``fallbacks`` maps each document in force in an older version to that version (``path~n``: n versions back);
    ``good`` maps each path to whether it has no errors. ``refused_files`` contain an unusable document, and ``kept`` is
    what they keep in force. ``refused`` is set when the tree as a whole cannot be used: its ``desired`` then holds no
    manifests and must not replace an earlier one.
    """

    desired: Desired
    diagnostics: tuple[Diagnostic, ...]
    fallbacks: Mapping[str, str]
    good: Mapping[str, bool]
    refused: str = ""
    refused_files: frozenset[str] = frozenset()
    kept: tuple[Retained, ...] = ()


def load(
    files: Mapping[str, bytes],
    *,
    shipped: Mapping[str, bytes] | None = None,
    overlays: Sequence[Mapping[str, bytes]] = (),
    before: PriorState = UNKNOWN,
    refused_files: Collection[str] = (),
    revision: str = "",
    blob_ids: Mapping[str, str] | None = None,
    cache: LoadCache | None = None,
    has_git: bool = True,
    foreign: Mapping[str, bytes] | None = None,
) -> Loaded:
    """Read a state repository. Problems of documents become diagnostics; none is raised.

    Args:
        files: contents by path below ``desired/`` and ``policies/`` (other paths count as ``desired/``).
        shipped: policies that the files override; by default those that come with Belay.
        overlays: policies that override the files.
        before: what was declared until now.
        refused_files: paths whose content is refused unread (too large, a broken link).
        blob_ids: names of contents; a content that ``cache`` knows is not fetched from ``files``.
        foreign: documents in the cluster that did not come from Git (``belay.engine.load.cluster``). Those count whose
        kind
            the settings name and that Git does not declare.
    """
    memory = LoadCache() if cache is None else cache
    try:
        tree = Assembly(files, before, memory, refused=set(refused_files))
        good = _take_all(tree, blob_ids or {})
        if good is None:
            return _refused(f"more than {MAX_TREE_DOCUMENTS} documents in the tree: split the repository", revision)
        tree.refuse_manifests("policies/")
        tree.recover()
        base = _plain_layer(shipped_policies() if shipped is None else shipped, memory, SHIPPED)
        over = [_plain_layer(overlay, memory, "") for overlay in overlays]
        others = _foreign_layer(foreign or {}, (base, tree, *over), memory)
        return _compose(tree, base, over, others, revision, good, has_git)
    finally:
        memory.end_load()


def _take_all(tree: Assembly, blob_ids: Mapping[str, str]) -> dict[str, bool] | None:
    """Read every file, unless the cache has it; ``None`` when there are too many documents."""
    paths = sorted(path for path in tree.files if is_document(path))
    good: dict[str, bool] = {}
    count = 0
    with _collector_paused(len(paths) - len(tree.cache) >= _MANY):
        for path in paths:
            version = blob_ids.get(path)
            result = tree.cache.get(path, version) if version else None
            if result is None:
                result = tree.cache.read(path, tree.files[path], version)
            count += len(result.entries)
            if count > MAX_TREE_DOCUMENTS:
                return None
            good[path] = result.good
            tree.add_file(path, result)
    return good


@contextmanager
def _collector_paused(rests: bool) -> Iterator[None]:
    if not (rests and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _refused(text: str, revision: str) -> Loaded:
    found = Diagnostic("error", "", "", 0, 0, "", text, FindingCode.REPOSITORY_REFUSED)
    return Loaded(Desired(revision=revision, has_git=False, incomplete=True), (found,), {}, {}, text)


def _plain_layer(files: Mapping[str, bytes], memory: LoadCache, prefix: str) -> Assembly:
    """Build a layer of policies, without older versions."""
    named = {f"{prefix}{path}": data for path, data in files.items()} if prefix else files
    layer = Assembly(named, PriorState(), memory)
    for path in sorted(named):
        if is_document(path.removeprefix(prefix)):
            layer.add_file(path, memory.read(path, named[path]))
    layer.refuse_manifests("")
    layer.recover()
    return layer


def _foreign_layer(files: Mapping[str, bytes], layers: Sequence[Assembly], memory: LoadCache) -> Assembly:
    """Build the layer of documents in the cluster that count beside Git's, without those that Git declares itself."""
    settings = documents_of(_merged(layers), SchedulingSettings)
    allowed = Desired(scheduling=tuple(settings.values())).settings.cluster_documents
    layer = Assembly(files, PriorState(), memory)
    for path in sorted(path for path in files if cluster.kind_of(path) in allowed):
        layer.add_file(path, memory.read(path, files[path]))
    layer.recover()
    for part in layers[1:]:
        for key in part.layer.keys() | part.broken.keys():
            layer.layer.pop(key, None)
            layer.broken.pop(key, None)
    return layer


def _compose(
    tree: Assembly,
    base: Assembly,
    over: Sequence[Assembly],
    others: Assembly,
    revision: str,
    good: dict[str, bool],
    has_git: bool,
) -> Loaded:
    """Merge the layers, resolve references among them, and sum up."""
    parts = (base, tree, *over)
    layers = (base, others, tree, *over)
    names = _names(layers)
    if tree.refuse_unresolved(names):
        tree.recover()  # documents that the refused ones name may have been declared until now
        names = _names(layers)
    for part in layers:
        part.settle_references(names)
    merged = _merged(layers)
    diagnostics = _sorted((*parts, others), _too_many_settings(merged))
    desired = _desired(merged, parts, revision, has_git)
    if others.budget_broken:
        desired = replace(desired, budget_broken=True)
    for diagnostic in diagnostics:
        if diagnostic.severity == "error" and diagnostic.file in good:
            good[diagnostic.file] = False
    fallbacks = {str(key): str(version) for key, version in sorted(tree.fallbacks.items())}
    return Loaded(desired, diagnostics, fallbacks, good, refused_files=frozenset(tree.refused), kept=tree.kept)


def _merged(parts: Sequence[Assembly]) -> Layer:
    return {key: item for part in parts for key, item in part.layer.items()}


def _names(parts: Sequence[Assembly]) -> KnownNames:
    return names_of(_merged(parts), {key for part in parts for key in part.broken})


def _desired(layer: Layer, parts: Sequence[Assembly], revision: str, has_git: bool) -> Desired:
    held = {str(key) for part in parts for key in (*part.broken, *part.fallbacks)}
    belay: Layer = {key: item for key, item in layer.items() if is_belay(key)}
    return Desired(
        revision=revision,
        manifests=manifests_of(layer),
        pools=tuple(documents_of(belay, NodePool).values()),
        layouts=tuple(documents_of(belay, VNPULayout).values()),
        fault_policies=tuple(documents_of(belay, FaultPolicy).values()),
        isolations=tuple(documents_of(belay, Isolation).values()),
        budgets=tuple(documents_of(belay, SafetyBudget).values()),
        scheduling=tuple(documents_of(belay, SchedulingSettings).values()),
        links=tuple(documents_of(belay, KVLink).values()),
        notifications=tuple(documents_of(belay, NotificationPolicy).values()),
        products=documents_of(belay, Product),
        fault_tables=documents_of(belay, FaultTable),
        diagnosis=documents_of(belay, DiagnosisRules),
        templates=documents_of(belay, VNPUTemplates),
        workloads=documents_of(belay, WorkloadKind),
        budget_broken=any(part.budget_broken for part in parts),
        has_git=has_git,
        held=tuple(sorted(held)),
        incomplete=parts[1].incomplete or any(part.lost for part in (parts[0], *parts[2:])),
    )


def _too_many_settings(layer: Layer) -> list[Diagnostic]:
    """Warn of all but the first SchedulingSettings besides the shipped one."""
    own = [
        declared
        for declared in documents_of(layer, SchedulingSettings).values()
        if not declared.origin.file.startswith(SHIPPED)
    ]
    return [
        Diagnostic(
            "warning", f"SchedulingSettings/{extra.document.name}", extra.origin.file, extra.origin.line,
            extra.origin.column, "", f"not in force: {own[0].document.name} at {own[0].origin} is",
            FindingCode.NOT_IN_FORCE,
        )
        for extra in own[1:]
    ]  # fmt: skip


def _sorted(parts: Sequence[Assembly], more: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    found = {diagnostic for part in parts for diagnostic in part.diagnostics} | set(more)
    ordered = sorted(found, key=lambda item: (item.file, item.line, item.column, item))
    if len(ordered) <= MAX_DIAGNOSTICS:
        return tuple(ordered)
    text = f"{len(ordered) - MAX_DIAGNOSTICS} more problems are not shown"
    errors_first = sorted(ordered, key=lambda item: item.severity != "error")[:MAX_DIAGNOSTICS]
    return (*errors_first, Diagnostic("error", "", "", 0, 0, "", text, FindingCode.MORE_FINDINGS))


__all__ = [
    "FileVersion", "LoadCache", "Loaded", "MAX_TREE_DOCUMENTS", "PriorState", "Retained", "UNKNOWN", "digest",
    "is_document", "load", "load_directory", "schema_text", "schemas", "shipped_policies",
]  # fmt: skip
