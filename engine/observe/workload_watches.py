"""Which kinds of the table of workloads a cluster serves, so that only these are watched.

A kind is known by its CustomResourceDefinition. Rows are those that ship with Belay, and the copies of a repository's
own in the cluster, which count before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from pydantic import ValidationError

from engine.documents import WorkloadKind
from engine.kube import Resource
from engine.load import load
from engine.load.files import shipped_policies
from engine.model.unstructured import nested_list, nested_map
from engine.model.workload_kinds import WorkloadRow, table_of
from engine.observe.resources import WATCHED, Watched

_FOLDER: Final = "policies/workloads/"
_ROWS: Final = "WorkloadKind"
_DEFINITIONS: Final = "CustomResourceDefinition"
#: Kinds whose objects decide what is watched.
DECIDING: Final = frozenset({_ROWS, _DEFINITIONS})
_FIXED: Final = frozenset((one.resource.api_version.rpartition("/")[0], one.resource.kind) for one in WATCHED)


def served_kinds(objects: Iterable[Mapping[str, Any]]) -> list[Watched]:
    """The kinds of the table that a cluster with these definitions and rows serves, sorted."""
    rows: list[WorkloadRow] = []
    definitions: list[Mapping[str, Any]] = []
    for obj in objects:
        if obj.get("kind") == _ROWS and str(obj.get("apiVersion") or "").startswith("belay.dev/"):
            rows += filter(None, (_row(obj),))
        elif obj.get("kind") == _DEFINITIONS:
            definitions.append(obj)

    table = table_of([*sorted(rows, key=lambda row: row.name), *shipped_rows()])
    found = (_served(table.rows, definition) for definition in definitions)
    return sorted((one for one in found if one is not None), key=lambda one: one.resource)


@cache
def shipped_rows() -> tuple[WorkloadRow, ...]:
    """The rows that ship with Belay, by name."""
    files = {path: body for path, body in shipped_policies().items() if path.startswith(_FOLDER)}
    declared = load({}, shipped=files).desired.workloads
    return tuple(declared[name].document.row() for name in sorted(declared))


def _row(obj: Mapping[str, Any]) -> WorkloadRow | None:
    """The row of a copy in the cluster; one that Belay would refuse declares nothing."""
    name = nested_map(obj, "metadata").get("name")
    body = {"apiVersion": obj.get("apiVersion"), "kind": _ROWS, "metadata": {"name": name}, "spec": obj.get("spec")}
    try:
        return WorkloadKind.model_validate(body).row()
    except ValidationError:
        return None


def _served(rows: Mapping[tuple[str, str], WorkloadRow], definition: Mapping[str, Any]) -> Watched | None:
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
