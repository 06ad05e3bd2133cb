"""What differs between two readings of an answer, for `belay get -w`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from belay.engine.cli.selection import RESTLESS, name_of

Row = Mapping[str, Any]
Event = Literal["ADDED", "MODIFIED", "DELETED"]


class RowChanges:
    """Remembers the rows of one kind; rows that left are given a last time, as they were."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: dict[str, Row] = {}

    def of(self, rows: Iterable[Row], columns: Sequence[str] | None) -> list[tuple[Event, Row]]:
        """The rows that are new, or differ in one of ``columns`` (None: in any field that is not always in motion)."""
        now = {name_of(self._kind, row): row for row in rows}
        found: list[tuple[Event, Row]] = []
        for name, row in now.items():
            if name not in self._known:
                found.append(("ADDED", row))
            elif _seen(self._known[name], columns) != _seen(row, columns):
                found.append(("MODIFIED", row))
        found += [("DELETED", row) for name, row in self._known.items() if name not in now]
        self._known = now
        return found


def _seen(row: Row, columns: Sequence[str] | None) -> dict[str, Any]:
    return {name: row.get(name) for name in (row if columns is None else columns) if name not in RESTLESS}
