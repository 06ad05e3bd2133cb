"""Nodes and chips as columns: which index of a column is which chip. It stays while no node comes or goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.model.cluster import ids_of
from belay.engine.serve.console.texts import line, name
from belay.engine.wire import names
from belay.engine.wire.clustermap import COLUMNS, NODES_KEY, columns_of

MOST_CHIPS: Final = 64
"""Most chips of a node; a map that says more was edited."""
MOST_NODES: Final = 50_000


class Layout:
    """The nodes in order of their names, and the chips of each in order of their ids."""

    def __init__(self, parts: Sequence[str]) -> None:
        rows: dict[str, tuple[Any, ...]] = {}
        for part in parts:
            columns = columns_of(part)
            for row in zip(*(columns[key] for key in COLUMNS), strict=True):
                if isinstance(row[0], str):
                    rows.setdefault(name(row[0]), row)
        ordered = [rows[key] for key in sorted(rows)[:MOST_NODES]]
        self.left_out = len(rows) - len(ordered)
        self.names = [name(row[0]) for row in ordered]
        self.index = {key: at for at, key in enumerate(self.names)}
        masks = [_mask(row[7]) for row in ordered]
        rings = [row[8] if isinstance(row[8], int) and 0 < row[8] <= MOST_CHIPS else 0 for row in ordered]
        self.ids = [ids_of(mask) for mask in masks]
        self.offsets: list[int] = []
        self.chip_node: list[int] = []
        self.chip_id: list[int] = []
        self.chip_ring: list[int] = []
        for node, (ids, ring) in enumerate(zip(self.ids, rings, strict=True)):
            self.offsets.append(len(self.chip_id))
            self.chip_node += [node] * len(ids)
            self.chip_id += ids
            self.chip_ring += [chip // ring for chip in ids] if ring else [0] * len(ids)
        self.columns: dict[str, list[Any]] = {
            "name": self.names,
            "pool": [name(row[1]) for row in ordered],
            "product": [line(row[2], 120) for row in ordered],
            "superPod": [row[3] if isinstance(row[3], int) else -1 for row in ordered],
            "rack": [line(row[4], 64) for row in ordered],
            "switch": [line(row[5], 64) for row in ordered],
            "prefix": [line(row[6], 32) for row in ordered],
        }
        self.cordoned = [int(bool(row[9])) for row in ordered]
        self.closed = [bool(row[10]) for row in ordered]

    def at(self, node: str, chip: int) -> int:
        """The index of a chip; -1 where the map has none."""
        row = self.index.get(node)
        if row is None:
            return -1
        ids = self.ids[row]
        if chip < len(ids) and ids[chip] == chip:  # ids without gaps, as almost always
            return self.offsets[row] + chip
        return self.offsets[row] + ids.index(chip) if chip in ids else -1

    @property
    def chips(self) -> int:
        """How many chips there are."""
        return len(self.chip_id)


def map_parts(found: Mapping[str, Mapping[str, str]], prefix: str = names.MAP_PREFIX) -> dict[str, Mapping[str, str]]:
    """The data of a kind's parts in force, by name; parts left over from a larger cluster do not count."""
    kept = {}
    for key in sorted(found):
        shard, _, number = key.removeprefix(prefix).rpartition("-")
        if not key.startswith(prefix) or not number.isdecimal() or len(number) > 6:
            continue
        most = found.get(f"{prefix}{shard}-0", {}).get("parts", "")
        if most.isascii() and most.isdecimal() and len(most) <= 6 and int(number) < int(most):
            kept[key] = found[key]
    return kept


def map_texts(found: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The texts that make a layout."""
    return tuple([str(data.get(NODES_KEY, "")) for data in map_parts(found).values()])


def _mask(text: Any) -> int:
    try:
        found = int(text, 16) if isinstance(text, str) and len(text) <= MOST_CHIPS // 4 else 0
    except ValueError:
        return 0
    return max(0, found)
