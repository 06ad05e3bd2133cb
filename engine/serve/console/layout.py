"""Nodes and chips as columns: which index of a column is which chip. It stays while no node comes or goes.

The map comes in parts. A part that did not change is not read again, and chips keep their columns while a node is only
cordoned or labelled otherwise: of 100,000 nodes that saves seconds at each such change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.model.chip_masks import ids_of
from belay.engine.serve.console.texts import line, name
from belay.engine.wire import names
from belay.engine.wire.clustermap import COLUMNS, NODES_KEY, columns_of

MOST_CHIPS: Final = 64
"""Most chips of a node; a map that says more was edited."""
MOST_NODES: Final = 200_000
"""Twice the nodes of the largest cluster that is tested (``make bench``, section console-nodes)."""


class MapNode(NamedTuple):
    """One node of the map as it may be shown."""

    name: str
    pool: str
    product: str
    super_pod: int
    rack: str
    switch: str
    prefix: str
    ids: tuple[int, ...]
    ring: int
    cordoned: bool
    closed: bool


class _Places(NamedTuple):
    """Which chip has which index; one and the same object while that stays."""

    names: list[str]
    ids: list[tuple[int, ...]]
    rings: list[int]
    by_name: dict[str, int]
    offsets: list[int]
    chip_node: list[int]
    chip_id: list[int]
    chip_ring: list[int]

    @classmethod
    def of(cls, nodes: Sequence[MapNode], before: _Places | None) -> _Places:
        """The places of these nodes' chips; ``before`` where nothing came or went."""
        names, ids, rings = [node.name for node in nodes], [node.ids for node in nodes], [node.ring for node in nodes]
        if before is not None and (before.names, before.ids, before.rings) == (names, ids, rings):
            return before

        found = cls(names, ids, rings, {key: at for at, key in enumerate(names)}, [], [], [], [])
        for node, (own, ring) in enumerate(zip(ids, rings, strict=True)):
            found.offsets.append(len(found.chip_id))
            found.chip_node.extend([node] * len(own))
            found.chip_id.extend(own)
            found.chip_ring.extend([chip // ring for chip in own] if ring else [0] * len(own))
        return found


class Layout:
    """The nodes in order of their names, and the chips of each in order of their ids. ``before``: the layout that this
    one follows, of which it takes what did not change.
    """

    def __init__(self, parts: Sequence[str], before: Layout | None = None) -> None:
        known = before._parts if before is not None else {}
        self._parts: dict[str, list[MapNode]] = {
            part: known[part] if part in known else nodes_of(part) for part in parts
        }
        every: dict[str, MapNode] = {}
        for nodes in self._parts.values():
            for node in nodes:
                every.setdefault(node.name, node)
        ordered = [every[key] for key in sorted(every)[:MOST_NODES]]
        self.left_out = len(every) - len(ordered)

        places = _Places.of(ordered, before._places if before is not None else None)
        self._places: _Places = places
        self.names, self.ids, self.index, self.offsets = places.names, places.ids, places.by_name, places.offsets
        self.chip_node, self.chip_id, self.chip_ring = places.chip_node, places.chip_id, places.chip_ring
        self.columns: dict[str, list[Any]] = {
            "name": self.names,
            "pool": [node.pool for node in ordered],
            "product": [node.product for node in ordered],
            "superPod": [node.super_pod for node in ordered],
            "rack": [node.rack for node in ordered],
            "switch": [node.switch for node in ordered],
            "prefix": [node.prefix for node in ordered],
        }
        self.cordoned = [int(node.cordoned) for node in ordered]
        self.closed = [node.closed for node in ordered]

    def same_places(self, other: Layout) -> bool:
        """Whether every node and chip has the same index in both."""
        return self._places is other._places or (self.names == other.names and self.ids == other.ids)

    def at(self, node: str, chip: int) -> int:
        """The index of a chip; -1 where the map has none."""
        row = self.index.get(node)
        if row is None:
            return -1
        ids = self.ids[row]
        if chip < len(ids) and ids[chip] == chip:  # ids without gaps, as almost always
            return self.offsets[row] + chip
        return self.offsets[row] + ids.index(chip) if chip in ids else -1

    def places(self, node: str, chips: Iterable[int]) -> list[int]:
        """The indexes of a node's chips; those that the map has not are left out."""
        row = self.index.get(node)
        if row is None:
            return []
        ids, offset = self.ids[row], self.offsets[row]
        without_gaps = bool(ids) and ids[-1] == len(ids) - 1
        if without_gaps:
            return [offset + chip for chip in chips if chip <= ids[-1]]
        return [offset + ids.index(chip) for chip in chips if chip in ids]

    @property
    def chips(self) -> int:
        """How many chips there are."""
        return len(self.chip_id)


def nodes_of(part: str) -> list[MapNode]:
    """The nodes of one part of the map; empty where it cannot be read."""
    columns = columns_of(part)
    count = len(columns[COLUMNS[0]])
    # few words stand in many rows, and each is looked at once
    shown = {
        "pool": _each(columns["pool"], name),
        "product": _each(columns["product"], lambda value: line(value, 120)),
        "rack": _each(columns["rack"], lambda value: line(value, 64)),
        "switch": _each(columns["switch"], lambda value: line(value, 64)),
        "prefix": _each(columns["prefix"], lambda value: line(value, 32)),
        "chips": _each(columns["chips"], lambda value: ids_of(_mask(value))),
    }
    found = []
    for at in range(count):
        own, super_pod, ring = columns["name"][at], columns["superPod"][at], columns["ring"][at]
        if not isinstance(own, str):
            continue
        found.append(
            MapNode(
                name=name(own),
                pool=shown["pool"][at],
                product=shown["product"][at],
                super_pod=super_pod if isinstance(super_pod, int) else -1,
                rack=shown["rack"][at],
                switch=shown["switch"][at],
                prefix=shown["prefix"][at],
                ids=shown["chips"][at],
                ring=ring if isinstance(ring, int) and 0 < ring <= MOST_CHIPS else 0,
                cordoned=bool(columns["cordoned"][at]),
                closed=bool(columns["closed"][at]),
            )
        )
    return found


def _each(values: Iterable[Any], shown: Callable[[Any], Any]) -> list[Any]:
    """What each value is shown as; a text is made showable once."""
    known: dict[str, Any] = {}
    found = []
    for value in values:
        if not isinstance(value, str):
            found.append(shown(value))
            continue
        if value not in known:
            known[value] = shown(value)
        found.append(known[value])
    return found


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
