"""Which kinds of the table of workloads a cluster serves, so that only these are watched.

A kind is known by its CustomResourceDefinition. Rows are those that ship with Belay, and the copies of a repository's
own in the cluster, which count before them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from belay.engine.kube import Resource
from belay.engine.model.labels import BELAY_PREFIX
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.observe.resources import WATCHED, Watched
from belay.engine.shipped_files import shipped_root
from belay.engine.wire import yamltext

_ROWS: Final = "WorkloadKind"
_DEFINITIONS: Final = "CustomResourceDefinition"
#: Kinds whose objects decide what is watched.
DECIDING: Final = frozenset({_ROWS, _DEFINITIONS})
_FIXED: Final = frozenset((one.resource.api_version.rpartition("/")[0], one.resource.kind) for one in WATCHED)


class ListedKind(msgspec.Struct, frozen=True):
    """What a row of the table says of the kind itself."""

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str


def served_kinds(objects: Iterable[Mapping[str, Any]]) -> list[Watched]:
    """The kinds of the table that a cluster with these definitions and rows serves, sorted."""
    rows: list[Mapping[str, Any]] = []
    definitions: list[Mapping[str, Any]] = []
    for obj in objects:
        if obj.get("kind") == _ROWS and str(obj.get("apiVersion") or "").startswith(BELAY_PREFIX):
            rows.append(obj)
        elif obj.get("kind") == _DEFINITIONS:
            definitions.append(obj)

    table: dict[tuple[str, str], ListedKind] = {}
    for row in (*_accepted(rows), *shipped_kinds()):
        table.setdefault((row.group, row.kind), row)
    found = (_served(table, definition) for definition in definitions)
    return sorted((one for one in found if one is not None), key=lambda one: one.resource)


@cache
def shipped_kinds() -> tuple[ListedKind, ...]:
    """The kinds of the rows that ship with Belay, by name.

    A controller needs nothing else of documents, whose types take 13 MiB; so these files, which are known to be good,
    are read without them.
    """
    found: dict[str, ListedKind] = {}
    for file in (shipped_root() / "policies" / "workloads").glob("*.yaml"):
        for document in yamltext.load_all(file.read_text(encoding="utf-8")):
            found[document["metadata"]["name"]] = msgspec.convert(document["spec"], ListedKind)
    return tuple(found[name] for name in sorted(found))


def _accepted(copies: Sequence[Mapping[str, Any]]) -> list[ListedKind]:
    """The kinds of copies in the cluster, by name; one that Belay would refuse declares nothing."""
    if not copies:
        return []
    # most clusters have none, and need no documents
    from pydantic import ValidationError

    from belay.engine.documents import WorkloadKind

    found: dict[str, ListedKind] = {}
    for obj in copies:
        name = nested_map(obj, "metadata").get("name")
        body = {"apiVersion": obj.get("apiVersion"), "kind": _ROWS, "metadata": {"name": name}, "spec": obj.get("spec")}
        with contextlib.suppress(ValidationError):
            row = WorkloadKind.model_validate(body).row()
            found[row.name] = ListedKind(row.group, row.versions, row.kind, row.plural)
    return [found[name] for name in sorted(found)]


def _served(rows: Mapping[tuple[str, str], ListedKind], definition: Mapping[str, Any]) -> Watched | None:
    spec = nested_map(definition, "spec")
    names = nested_map(spec, "names")
    group, kind, plural = str(spec.get("group")), str(names.get("kind")), str(names.get("plural"))
    row = rows.get((group, kind))
    if row is None or (group, kind) in _FIXED or spec.get("scope") != "Namespaced":
        return None

    served = {str(one.get("name")) for one in nested_list(spec, "versions") if one.get("served")}
    version = next((one for one in row.versions if one in served), None)
    if version is None:
        return None
    return Watched(Resource(f"{group}/{version}", kind, plural), optional=True, may_be_closed=True)
