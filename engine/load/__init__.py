"""``{path: bytes}`` to the desired state, with every problem at file, line and column.

A bad document never takes good ones down: it is reported, and its last good version stays in force.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from engine.documents import (
    SHIPPED,
    Desired,
    FaultPolicy,
    FaultTable,
    Isolation,
    KVLink,
    NodePool,
    Product,
    SafetyBudget,
    SchedulingSettings,
    VNPULayout,
    VNPUTemplates,
)
from engine.load.assemble import Assembly
from engine.load.cache import LoadCache
from engine.load.files import is_document, load_directory, shipped_policies
from engine.load.layers import Layer, documents_of, is_belay, manifests_of, names_of
from engine.load.parse import digest
from engine.load.schemas import schema_text, schemas
from engine.model.diagnostics import Diagnostic

MAX_TREE_DOCUMENTS: Final = 20_000
MAX_DIAGNOSTICS: Final = 2_000
#: From this many files to read the garbage collector rests: it would walk the growing tree again and again.
_MANY: Final = 500


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a tree says and what is wrong with it.

    ``fallbacks`` tells for each document in force in an older version which one (``path~n``: n versions back);
    ``good`` for each path whether it has no errors. ``refused`` is set when the tree cannot be used as a whole: its
    ``desired`` then holds no manifests and must not replace an earlier one.
    """

    desired: Desired
    diagnostics: tuple[Diagnostic, ...]
    fallbacks: Mapping[str, str]
    good: Mapping[str, bool]
    refused: str = ""


def load(
    files: Mapping[str, bytes],
    *,
    shipped: Mapping[str, bytes] | None = None,
    overlays: Sequence[Mapping[str, bytes]] = (),
    previous: Mapping[str, Sequence[bytes]] | None = None,
    revision: str = "",
    blob_ids: Mapping[str, str] | None = None,
    cache: LoadCache | None = None,
    has_git: bool = True,
) -> Loaded:
    """Read a state repository.

    ``files`` are paths below ``desired/`` and ``policies/`` (others count as ``desired/``); ``shipped`` the policies
    laid under them (default: those that come with Belay), ``overlays`` those laid over them; ``previous`` older
    contents of a path, newest first. ``blob_ids`` name contents, so that unchanged ones are not even fetched from
    ``files`` when ``cache`` knows them. Problems become diagnostics; nothing is raised for what people wrote.
    """
    memory = LoadCache() if cache is None else cache
    try:
        tree = Assembly(files, previous or {}, memory)
        good = _take_all(tree, blob_ids or {})
        if good is None:
            return _refused(f"more than {MAX_TREE_DOCUMENTS} documents in the tree: split the repository", revision)
        tree.refuse_manifests("policies/")
        tree.recover()
        base = _plain_layer(shipped_policies() if shipped is None else shipped, memory, SHIPPED)
        over = [_plain_layer(overlay, memory, "") for overlay in overlays]
        return _compose(tree, base, over, revision, good, has_git)
    finally:
        memory.turn()


def _take_all(tree: Assembly, blob_ids: Mapping[str, str]) -> dict[str, bool] | None:
    """Read every file, or remember having done so; ``None`` when there are too many documents."""
    paths = sorted(path for path in tree.files if is_document(path))
    good: dict[str, bool] = {}
    count = 0
    with _resting_collector(len(paths) - len(tree.cache) >= _MANY):
        for path in paths:
            version = blob_ids.get(path)
            result = tree.cache.get(path, version) if version else None
            if result is None:
                result = tree.cache.read(path, tree.files[path], version)
            count += len(result.entries)
            if count > MAX_TREE_DOCUMENTS:
                return None
            good[path] = result.good
            tree.take(path, result)
    return good


@contextmanager
def _resting_collector(rests: bool) -> Iterator[None]:
    if not (rests and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _refused(text: str, revision: str) -> Loaded:
    found = Diagnostic("error", "", "", 0, 0, "", text)
    return Loaded(Desired(revision=revision, has_git=False, incomplete=True), (found,), {}, {}, text)


def _plain_layer(files: Mapping[str, bytes], memory: LoadCache, prefix: str) -> Assembly:
    """A layer of policies without older versions."""
    named = {f"{prefix}{path}": data for path, data in files.items()} if prefix else files
    layer = Assembly(named, {}, memory)
    for path in sorted(named):
        if is_document(path.removeprefix(prefix)):
            layer.take(path, memory.read(path, named[path]))
    layer.refuse_manifests("")
    layer.recover()
    return layer


def _compose(
    tree: Assembly, base: Assembly, over: Sequence[Assembly], revision: str, good: dict[str, bool], has_git: bool
) -> Loaded:
    """Lay the layers over each other, settle what they name in each other, and sum up."""
    everything: Layer = {**base.layer, **tree.layer}
    broken = {**base.broken, **tree.broken}
    for overlay in over:
        everything.update(overlay.layer)
        broken.update(overlay.broken)
    names = names_of(everything, broken)
    for part in (base, tree, *over):
        part.settle_references(names)
    merged: Layer = {**base.layer, **tree.layer}
    for overlay in over:
        merged.update(overlay.layer)
    parts = (base, tree, *over)
    diagnostics = _sorted(parts, _too_many_settings(merged))
    desired = _desired(merged, parts, revision, has_git)
    for diagnostic in diagnostics:
        if diagnostic.severity == "error" and diagnostic.file in good:
            good[diagnostic.file] = False
    fallbacks = {str(key): version for key, version in sorted(tree.fallbacks.items())}
    return Loaded(desired, diagnostics, fallbacks, good)


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
        products=documents_of(belay, Product),
        fault_tables=documents_of(belay, FaultTable),
        templates=documents_of(belay, VNPUTemplates),
        budget_broken=any(part.budget_broken for part in parts),
        has_git=has_git,
        held=tuple(sorted(held)),
        incomplete=any(part.lost for part in parts),
    )


def _too_many_settings(layer: Layer) -> list[Diagnostic]:
    """Only one SchedulingSettings can be in force besides the shipped one."""
    own = [
        declared
        for declared in documents_of(layer, SchedulingSettings).values()
        if not declared.origin.file.startswith(SHIPPED)
    ]
    return [
        Diagnostic(
            "warning", f"SchedulingSettings/{extra.document.name}", extra.origin.file, extra.origin.line,
            extra.origin.column, "", f"not in force: {own[0].document.name} at {own[0].origin} is",
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
    return (*errors_first, Diagnostic("error", "", "", 0, 0, "", text))


__all__ = [
    "LoadCache", "Loaded", "MAX_TREE_DOCUMENTS", "digest", "is_document", "load", "load_directory", "schema_text",
    "schemas", "shipped_policies",
]  # fmt: skip
