"""``belay-map-<shard>-<n>`` and ``belay-chips-<shard>-<n>``: their keys, columns and codes, for writers and readers."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from belay.engine.model.history import HoldKind
from belay.engine.model.states import ChipHealth

NODES_KEY: Final = "nodes.json"
STATES_KEY: Final = "states.json"
HOLDS_KEY: Final = "holds.json"
CUTS_KEY: Final = "cuts.json"
HELD_KEY: Final = "held.json"
FAULTS_KEY: Final = "faults.json"
BOARDS_KEY: Final = "boards.json"
PARTS_KEY: Final = "parts"
COLUMNS: Final = (
    "name", "pool", "product", "superPod", "rack", "switch", "prefix", "chips", "ring", "cordoned", "closed",
)  # fmt: skip
_LATER: Final = ("closed",)
"""Columns that maps of earlier versions have not: 0 for every node then."""
#: Code of a chip's state: its place here, one digit per chip in :data:`STATES_KEY`.
STATES: Final = (*(state.value for state in ChipHealth), "unknown")
#: Code of what holds a chip: its place here, one digit per chip in :data:`HOLDS_KEY`.
HOLDS: Final = ("", "fault", *(kind.value for kind in HoldKind), "node")


def columns_of(value: str) -> dict[str, list[Any]]:
    """The columns of one part of the map, all of one length; empty lists where the text is not readable."""
    empty: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    try:
        found = msgspec.json.decode(value or "{}", type=dict[str, list[Any]])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return empty
    nodes = len(found.get(COLUMNS[0], ()))
    found = {name: [0] * nodes for name in _LATER} | found
    lengths = {len(found.get(name, ())) for name in COLUMNS}
    return {name: found[name] for name in COLUMNS} if len(lengths) == 1 and lengths != {0} else empty
