"""Which addresses of Ascend950 chips ping each other: every one a few others on its plane, near and far.

Each address pings the same chip of the next nodes of its rack (through the switch of the rack), and of as many next
racks (through that of the super pod), so that each part of the network is crossed by many paths with different ends.
Source: component/ascend-faultdiag-online/pkg/algo_src/netfault/algo/gen_pinglist.go (rings of racks and boards by
plane). The mesh inside a server or rack (level 0) is left out: which of its ports are joined only the driver's own
topology files say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from belay.engine.model.pings import PathEnd

REACH: Final = 3
"""Nodes of the rack, and other racks, that each address pings."""
PLANES: Final = 1
"""The level of the network whose addresses lead through switches."""
_EID: Final = 2
_SIZE: Final = 28


def ping_lists(ends: Iterable[PathEnd]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The rows of each node's ping list, as ``ping_list_<server>.json`` has them: node by node, in order.

    Rows are made when their node is asked for: those of a thousand nodes together fill tens of megabytes.
    """
    racks: dict[tuple[int, int, int], dict[int, dict[str, PathEnd]]] = defaultdict(lambda: defaultdict(dict))
    for end in sorted(ends):
        if end.layer == PLANES and end.super_pod >= 0:
            racks[(end.super_pod, end.plane, end.chip)][end.rack].setdefault(end.node, end)
    ordered = {
        key: [[nodes[name] for name in sorted(nodes)] for _, nodes in sorted(by_rack.items())]
        for key, by_rack in sorted(racks.items())
    }
    places: dict[str, list[tuple[list[list[PathEnd]], int, int]]] = defaultdict(list)
    for rings in ordered.values():
        for at, own in enumerate(rings):
            for place, source in enumerate(own):
                places[source.node].append((rings, at, place))
    for node in sorted(places):
        yield node, [row for rings, at, place in places[node] for row in _rows(rings, at, place)]


def _rows(rings: Sequence[Sequence[PathEnd]], at: int, place: int) -> Iterator[dict[str, Any]]:
    """The rows of the address at ``place`` of rack ``at``."""
    own = rings[at]
    source = own[place]
    near = [own[(place + step) % len(own)] for step in range(1, REACH + 1)]
    others = [rings[(at + step) % len(rings)] for step in range(1, REACH + 1)]
    far = [nodes[place % len(nodes)] for nodes in others]
    for target in sorted({*near, *far} - {source}):
        yield _row(source, target)


def _row(source: PathEnd, target: PathEnd) -> dict[str, Any]:
    return {
        "srcType": _EID, "dstType": _EID, "pktSize": _SIZE, "srcCardPhyId": source.chip, "srcAddr": source.address,
        "dstAddr": target.address, "dstCardPhyId": target.chip,
    }  # fmt: skip


__all__ = ["PLANES", "ping_lists"]
