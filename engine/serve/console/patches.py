"""The difference of two documents, small enough to send to every viewer at each change.

Columns change at indexes (``{"i": [...], "v": [...]}``), lists of rows too, with their new length ``n``; what is
neither is replaced whole, as in a JSON merge patch (RFC 7396).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belay.engine.serve.console.document import COLUMNAR, LISTED, StateDocument


def same_places(old: StateDocument, new: StateDocument) -> bool:
    """Whether both have the same nodes and chips at the same indexes, so that one can become the other by a patch."""
    return old.layout.same_places(new.layout)


def difference(old: StateDocument, new: StateDocument) -> dict[str, Any]:
    """What makes ``old`` into ``new``, by section; empty when only the moment differs. Both have the same places."""
    patch: dict[str, Any] = {}
    for name, value in new.sections.items():
        before = old.sections[name]
        if before is value or before == value:
            continue
        if name in COLUMNAR:
            patch[name] = {
                column: _cells(before[column], cells) for column, cells in value.items() if before[column] != cells
            }
        elif name in LISTED:
            patch[name] = {"n": len(value)} | _cells(before, value)
        else:
            patch[name] = value
    return patch


def event(old: StateDocument, new: StateDocument) -> dict[str, Any]:
    """The data of a ``patch`` event."""
    return {"from": old.id, "moment": new.moment, "patch": difference(old, new)}


def patched(sections: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with a patch applied, as a viewer applies it."""
    found = dict(sections)
    for name, change in patch.items():
        if name in COLUMNAR:
            found[name] = {
                column: _set(cells, change[column]) if column in change else cells
                for column, cells in found[name].items()
            }
        elif name in LISTED:
            size = change["n"]
            found[name] = _set([*found[name][:size], *[None] * (size - len(found[name]))], change)
        else:
            found[name] = change
    return found


def _cells(before: list[Any], after: list[Any]) -> dict[str, list[Any]]:
    shared = min(len(before), len(after))
    changed = [at for at in range(shared) if before[at] != after[at]]
    changed += range(shared, len(after))
    return {"i": changed, "v": [after[at] for at in changed]}


def _set(cells: list[Any], change: Mapping[str, list[Any]]) -> list[Any]:
    found = list(cells)
    for at, value in zip(change["i"], change["v"], strict=True):
        found[at] = value
    return found
