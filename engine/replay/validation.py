"""What a repository declares against a clock and a cluster: what its documents alone cannot show."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from belay.engine.documents import Declared, Desired, Isolation, Manifest
from belay.engine.model.cluster import Observed
from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.diagnostics import Diagnostic, Origin
from belay.engine.model.labels import GROUP_QUEUE_NAME
from belay.engine.model.times import rfc3339
from belay.engine.model.unstructured import nested_map
from belay.engine.plan import idle_declarations

_QUEUE_API: Final = "scheduling.volcano.sh/v1beta1"
_PRIORITY_API: Final = "scheduling.k8s.io/v1"
_OF_KUBERNETES: Final = frozenset({"system-cluster-critical", "system-node-critical"})
_EVERYWHERE: Final = frozenset({"default", "root"})
_SHOWN: Final = 8


def against_clock(desired: Desired, now: float) -> Iterator[Diagnostic]:
    """Isolations whose end has passed: they isolate nothing any more."""
    for declared in desired.isolations:
        until = declared.document.spec.until
        if until is not None and until <= now:
            text = f"ended at {rfc3339(until)}, so it isolates nothing: remove it, or give a later time"
            yield _finding(declared.document.KIND, declared.document.name, declared.origin, "spec.until", text)


def undeclared_queues(desired: Desired, existing: Iterable[str] | None) -> Iterator[Diagnostic]:
    """Jobs in queues that neither Git nor the cluster has; without a cluster (None) only where Git declares queues."""
    declared = {queue.name for queue in desired.settings.queues} | _names(desired, _QUEUE_API, "Queue")
    if existing is None and not declared:
        return
    known, where = _EVERYWHERE | declared | set(existing or ()), _nowhere(existing)
    for manifest in desired.manifests:
        queue = _queue_of(manifest)
        if queue and queue not in known:
            text = f"{where} queue {queue!r:.80}, and a job there waits for ever: {_meant(queue, known)}"
            yield _about(manifest, "queue", text)


def undeclared_priorities(desired: Desired, existing: Iterable[str] | None) -> Iterator[Diagnostic]:
    """Jobs of a PriorityClass that neither Git nor the cluster has; as for queues."""
    declared = _names(desired, _PRIORITY_API, "PriorityClass")
    if existing is None and not declared:
        return
    known, where = _OF_KUBERNETES | declared | set(existing or ()), _nowhere(existing)
    for manifest in desired.manifests:
        for name in sorted(_priorities_of(manifest) - known):
            what = "and the API server refuses pods that name it, a PodGroup counts as 0"
            yield _about(manifest, "priority", f"{where} PriorityClass {name!r:.80}, {what}: {_meant(name, known)}")


def _names(desired: Desired, api_version: str, kind: str) -> set[str]:
    """The declared manifests of a kind."""
    return {m.key.name for m in desired.manifests if (m.key.api_version, m.key.kind) == (api_version, kind)}


def _nowhere(existing: Iterable[str] | None) -> str:
    return "neither Git nor the cluster has" if existing is not None else "Git declares no"


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return f"did you mean {close[0]}?" if close else f"the known ones are {_listed(known)}"


def _about(manifest: Manifest, field: str, text: str) -> Diagnostic:
    origin = manifest.origin
    code = FindingCode.UNKNOWN_NAME
    return Diagnostic("warning", str(manifest.key), origin.file, origin.line, origin.column, field, text, code)


def against_cluster(desired: Desired, observed: Observed) -> Iterator[Diagnostic]:
    """Selectors and policies that cover no node, and Isolations of nodes or chips that do not exist."""
    yield from idle_declarations(desired, observed.nodes)
    for isolation in desired.isolations:
        yield from _isolation(isolation, observed)
    yield from names_of_nothing(desired, observed)


def names_of_nothing(desired: Desired, observed: Observed) -> Iterator[Diagnostic]:
    """Queues and PriorityClasses that jobs name and neither Git nor the cluster has; a running job shows it at its next
    start only. A List may have been made without them.
    """
    yield from undeclared_queues(desired, _of_kind(observed, _QUEUE_API, "Queue") or None)
    yield from undeclared_priorities(desired, _of_kind(observed, _PRIORITY_API, "PriorityClass") or None)


def _isolation(declared: Declared[Isolation], observed: Observed) -> Iterator[Diagnostic]:
    document, spec = declared.document, declared.document.spec
    for name in (*spec.nodes, *(row.node for row in spec.chips)):
        if name not in observed.nodes:
            close = difflib.get_close_matches(name, sorted(observed.nodes), n=1, cutoff=0.7)
            meant = f": did you mean {close[0]}?" if close else ""
            text = f"the cluster has no node {name}{meant}"
            yield _finding(document.KIND, document.name, declared.origin, "spec.nodes", text)
    for row in spec.chips:
        there = _chips_of(row.node, observed)
        beyond = [chip for chip in row.chips if there and not there >> chip & 1]
        if beyond:
            text = f"node {row.node} has no chip {', '.join(map(str, beyond))}: it has {there.bit_count()}"
            yield _finding(document.KIND, document.name, declared.origin, "spec.chips", text)


def _chips_of(node: str, observed: Observed) -> int:
    """The mask of a node's chips; 0 if they are not known. A report alone does not name healthy chips in use."""
    found = observed.nodes.get(node)
    if found is None or not found.base_chips:
        return 0
    report = observed.reports.get(node)
    return found.base_chips | (report.listed if report is not None else 0)


def _queue_of(manifest: Manifest) -> str:
    """The queue that a job or its pods name; empty for none."""
    body: Mapping[str, Any] = manifest.body
    places = (
        nested_map(body, "spec", "runPolicy", "schedulingPolicy").get("queue"),
        nested_map(body, "spec").get("queue") if manifest.key.api_version.startswith("batch.volcano.sh") else None,
        nested_map(body, "metadata", "annotations").get(GROUP_QUEUE_NAME),
        nested_map(body, "spec", "template", "metadata", "annotations").get(GROUP_QUEUE_NAME),
    )
    return next((str(place) for place in places if place), "")


def _priorities_of(manifest: Manifest) -> set[str]:
    """The PriorityClasses that a job or its pods name."""
    body: Mapping[str, Any] = manifest.body
    names = (
        nested_map(body, "spec", "runPolicy", "schedulingPolicy").get("priorityClass"),
        nested_map(body, "spec").get("priorityClassName"),
        nested_map(body, "spec", "template", "spec").get("priorityClassName"),
    )
    return {str(name) for name in names if name}


def _of_kind(observed: Observed, api_version: str, kind: str) -> list[str]:
    return [key.name for key in observed.objects if (key.api_version, key.kind) == (api_version, kind)]


def _finding(kind: str, name: str, origin: Origin, field: str, text: str) -> Diagnostic:
    code = FindingCode.COVERS_NOTHING
    return Diagnostic("warning", f"{kind}/{name}", origin.file, origin.line, origin.column, field, text, code)


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
