"""Tables, as `kubectl get` shows them.

Columns of custom kinds come from their definitions, those of built-in kinds from printers.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from belay.engine.sandbox.api import versions
from belay.engine.sandbox.api.durations import age
from belay.engine.sandbox.api.kinds import JSON, Column, ServedResource
from belay.engine.sandbox.api.printers import PRINTERS
from belay.engine.sandbox.api.printing import Printer
from belay.engine.sandbox.api.store import ObjectVersion

NAME = Column("Name", "string", "name", "Name must be unique within a namespace.")
CREATED = Column("Created At", "date", "", "CreationTimestamp is when the object was created.")


_STEP = re.compile(
    r"""\.?([A-Za-z0-9_/-]+(?:\\\.[A-Za-z0-9_/-]+)*)|\[(-?\d+)(:)?\]|\[\*\]|\['([^']+)'\]|\[\?\(@\.([\w.]+)\s*==\s*["']([^"']*)["']\)\]"""
)


def json_path(obj: Any, path: str) -> Any:
    """Return the first value at a printer column's JSONPath, None when there is none.

    Supported: fields, `['quoted']`, `[n]`, `[-1:]`, `[*]` and filters of the form `[?(@.type=="Ready")]`.
    """
    values: list[Any] = [obj]
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None or step.end() == position:
            return None
        position = step.end()
        values = [item for value in values for item in _walk(value, step)]
        if not values:
            return None
    return values[0]


def _walk(value: Any, step: re.Match[str]) -> Iterable[Any]:
    name = step[1] or step[4]
    if name:
        name = name.replace("\\.", ".")
        return [value[name]] if isinstance(value, dict) and name in value else []
    if not isinstance(value, list):
        return list(value.values()) if isinstance(value, dict) and step[0] == "[*]" else []
    if step[2]:
        index = int(step[2])
        return value[index:] if step[3] else value[index : index + 1 or None]
    if step[5]:
        return [item for item in value if str(json_path(item, f".{step[5]}")) == step[6]]
    return value


class TableBuilder:
    """Makes Tables of one kind for one request."""

    def __init__(self, resource: ServedResource, include: str, now: float) -> None:
        self._resource = resource
        self._include = include or "Metadata"
        self._now = now
        self._columns, self._cells = self._printer()

    def _printer(self) -> tuple[tuple[Column, ...], Callable[[JSON], list[Any]]]:
        if self._resource.custom:
            columns = self._resource.columns
            return (NAME, *columns), lambda obj: [
                obj["metadata"]["name"],
                *(self._custom_cell(obj, c) for c in columns),
            ]
        printer: Printer | None = PRINTERS.get(self._resource.storage)
        if printer is None:
            return (NAME, CREATED), lambda obj: [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")]
        made = printer
        return made.columns, lambda obj: made.cells(obj, lambda text: age(text, self._now))

    def _custom_cell(self, obj: JSON, column: Column) -> Any:
        value = json_path(obj, column.path)
        if column.type == "date":
            return age(value, self._now)
        if value is None or (isinstance(value, bool) and column.type == "boolean"):
            return value
        if column.type in ("integer", "number") and isinstance(value, int | float):
            return value
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    def row(self, entry: ObjectVersion) -> JSON:
        """Return the row of one object."""
        row: JSON = {"cells": self._cells(entry.obj)}
        if self._include == "Object":
            row["object"] = versions.object_for(self._resource, entry)
        elif self._include == "Metadata":
            row["object"] = partial(entry)
        return row

    def table(self, entries: Iterable[ObjectVersion], metadata: JSON) -> bytes:
        """Return the serialised Table."""
        columns = [
            {
                "name": c.name,
                "type": c.type,
                "format": c.format,
                "description": c.description or c.name,
                "priority": c.priority,
            }
            for c in self._columns
        ]
        rows = [self.row(entry) for entry in entries]
        return orjson.dumps(
            {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "columnDefinitions": columns,
                "rows": rows,
            }
        )

    def single(self, entry: ObjectVersion) -> bytes:
        """Return the Table of one object."""
        return self.table([entry], {"resourceVersion": entry.obj["metadata"].get("resourceVersion", "")})


def partial(entry: ObjectVersion) -> JSON:
    """Return the object's metadata alone."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": entry.obj["metadata"]}


def partial_list(entries: Iterable[ObjectVersion], metadata: JSON) -> bytes:
    """Return the serialised PartialObjectMetadataList."""
    items = [partial(entry) for entry in entries]
    return orjson.dumps(
        {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items}
    )
