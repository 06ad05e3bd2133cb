"""Switch affinity: the nodes under leaf switches that a job's pods take, so that its traffic stays apart from other
jobs'.

Two versions of the rules for two layers of switches, one rule for a single layer. Source:
component/ascend-for-volcano/internal/nslb (nslbv1.go, nslbv2.go, single_layer_tor.go, util.go) and plugin/tor.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from belay.engine.model.labels import IS_HEALTHY_TOR, IS_SHARED_TOR, SHARED_TOR_IP
from belay.engine.model.pending_reasons import TOPOLOGY
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.switch_config import LARGE, NORMAL

#: A switch without jobs over several switches; one that several such jobs may use; one that a single such job uses.
FREE, SHARED, EXCLUSIVE = 0, 1, 2

#: A large-model job of fewer pods fills gaps that others leave: it stays under one switch.
FILL_PODS: Final = 4


@dataclass(slots=True)
class LeafSwitch:
    """One leaf switch from the view of a job.

    ``nodes``: its candidates by position under the switch (slice); ``kind`` and ``unhealthy``: state left by running
    jobs (version 2.0); ``large``: a large-model job over several switches runs here.
    """

    id: int
    address: str
    nodes: dict[int, str]
    kind: int = FREE
    unhealthy: bool = False
    large: bool = False

    @property
    def room(self) -> int:
        """How many candidates it has."""
        return len(self.nodes)


class NodeGroup(NamedTuple):
    """Nodes that a job takes together, in the order of their ranks; ``leaf`` is None if they are under several
    switches.
    """

    nodes: tuple[str, ...]
    leaf: LeafSwitch | None = None
    kind: int = FREE
    unhealthy: bool = False


class SwitchRequest(NamedTuple):
    """``pods`` nodes for a job of ``schema`` that has ``total`` pods with chips."""

    pods: int
    schema: str
    total: int

    @property
    def fills(self) -> bool:
        """Whether the job is so small that it must stay under one switch."""
        return self.schema == LARGE and self.total < FILL_PODS


def single_layer(leaves: Sequence[LeafSwitch], width: int, request: SwitchRequest) -> list[NodeGroup] | Refusal:
    """All pods under the switch with the fewest candidates that holds them."""
    if request.total > width:
        return Refusal(TOPOLOGY, f"job's task number({request.total}) is bigger than torCount({width})")
    found = _tightest(leaves, request.pods)
    return [_first_nodes(found, request.pods)] if found else _short("job", request, leaves)


def version_1(leaves: Sequence[LeafSwitch], width: int, request: SwitchRequest) -> list[NodeGroup] | Refusal:
    """One switch for a small job; whole switches for others, else the same positions under many switches."""
    order = sorted(leaves, key=lambda leaf: (-leaf.room, leaf.id))
    if request.pods < width or request.fills:
        found = _tightest(order, request.pods)
        if found is not None:
            return [_first_nodes(found, request.pods)]
        if request.fills:
            return _short("fill job", request, leaves)
    parts = _rows(order, width, request.pods) or _positions(order, width, request.pods)
    if parts is None and request.schema == NORMAL:
        parts = _fill_in_order(order, request.pods)
    return _short("job", request, leaves) if parts is None else parts


def version_2(
    leaves: Sequence[LeafSwitch], width: int, request: SwitchRequest, most_shared: int
) -> list[NodeGroup] | Refusal:
    """Free switches for the job alone, at most ``most_shared`` healthy shared ones for the rest; normal jobs also take
    unhealthy shared ones and those that only normal jobs use.
    """
    if request.pods < width or request.fills:
        for found in _switches_for_small_job(leaves):
            leaf = next((leaf for leaf in found if leaf.room >= request.pods), None)
            if leaf is not None:
                return [_first_nodes(leaf, request.pods, leaf.kind, leaf.unhealthy)]
        if request.fills:
            return _short("fill job", request, leaves)
    if request.pods > largest(leaves, most_shared):
        if request.schema == LARGE:
            return Refusal(TOPOLOGY, f"set tor failed by not enough nodes{_shown(leaves)}")
        return _normal(leaves, request.pods)
    return _exclusive_then_shared(leaves, request.pods, most_shared, descending=True)


def complete(
    used: Sequence[LeafSwitch], others: Sequence[LeafSwitch], request: SwitchRequest, most_shared: int
) -> list[NodeGroup] | Refusal:
    """Nodes for the missing pods of a running job under version 2.0: first under the switches it uses."""
    shared = sum(1 for leaf in used if leaf.kind == SHARED)
    if shared > most_shared:
        return Refusal(TOPOLOGY, f"shared tor num({shared}) is over global shared tor num({most_shared})")
    parts: list[NodeGroup] = []
    left = request.pods
    for leaf in sorted(used, key=lambda leaf: leaf.id):
        take = min(left, leaf.room)
        if take:
            kind = EXCLUSIVE if leaf.kind == FREE and len(used) > 1 else leaf.kind
            parts.append(_first_nodes(leaf, take, kind, leaf.unhealthy))
            left -= take
    if not left:
        return parts
    if request.fills:
        return Refusal(TOPOLOGY, f"not enough tor for fill job restart{_shown(used)}")
    if largest(others, most_shared - shared) < left:
        return Refusal(TOPOLOGY, f"not enough tor for job restart{_shown(others)}")
    parts = [part._replace(kind=EXCLUSIVE) if part.kind == FREE else part for part in parts]
    more = _exclusive_then_shared(others, left, most_shared - shared, descending=False)
    return more if isinstance(more, Refusal) else parts + more


def largest(leaves: Iterable[LeafSwitch], most_shared: int) -> int:
    """The most nodes that a large job can take: all free switches and the best healthy shared ones."""
    known = list(leaves)
    rooms = sorted((leaf.room for leaf in known if leaf.kind == SHARED and not leaf.unhealthy), reverse=True)
    return sum(leaf.room for leaf in known if leaf.kind == FREE) + sum(rooms[: max(0, most_shared)])


def scores(parts: Iterable[NodeGroup]) -> dict[str, int]:
    """The raw score of every node that a job takes; the node of each rank then gets ``OWN_SCORE``."""
    return {node: SHARED_SCORE if part.kind == SHARED else TAKEN_SCORE for part in parts for node in part.nodes}


OWN_SCORE: Final = 200
TAKEN_SCORE: Final = 100
SHARED_SCORE: Final = 99


def _tightest(leaves: Iterable[LeafSwitch], count: int) -> LeafSwitch | None:
    fitting = [leaf for leaf in leaves if leaf.room >= count]
    return min(fitting, key=lambda leaf: (leaf.room, leaf.id), default=None)


def _first_nodes(leaf: LeafSwitch, count: int, kind: int = FREE, unhealthy: bool = False) -> NodeGroup:
    nodes = tuple(leaf.nodes[position] for position in sorted(leaf.nodes)[:count])
    return NodeGroup(nodes, leaf, kind, unhealthy)


def _grid(count: int, width: int) -> tuple[int, int]:
    """(whole rows of ``width`` nodes, index of the last node in the row after them) of a job of ``count`` pods."""
    whole = count // width - (count % width == 0)
    return whole, (count % width + width - 1) % width


def _rows(order: Sequence[LeafSwitch], width: int, count: int) -> list[NodeGroup] | None:
    """Whole switches without pods of other jobs, one after the other; None when there are too few of them."""
    row, last = _grid(count, width)
    full = [leaf for leaf in order if leaf.room == width]
    if row + 1 > len(full):
        return None
    return [*(_first_nodes(leaf, width) for leaf in full[:row]), _first_nodes(full[row], last + 1)]


def _positions(order: Sequence[LeafSwitch], width: int, count: int) -> list[NodeGroup] | None:
    """The same positions under many switches, which share no uplink: "logical" switches across the physical ones."""
    row, last = _grid(count, width)
    columns: dict[int, list[str]] = {position: [] for position in range(width)}
    for leaf in order:
        for position, node in leaf.nodes.items():
            columns[position].append(node)
    ranked = sorted(columns, key=lambda position: (-len(columns[position]), position))
    if len(columns[ranked[last]]) < row + 1 or (row and len(columns[ranked[-1]]) < row):
        return None

    def across(index: int, most: int) -> NodeGroup:
        found = [(position, columns[position][index]) for position in ranked if len(columns[position]) > index]
        return NodeGroup(tuple(node for _, node in sorted(found[:most])))

    if row < 1 and last != width - 1:
        depth = len(columns[ranked[0]])
        index = max(i for i in range(depth) if sum(len(nodes) > i for nodes in columns.values()) >= count)
        return [across(index, count)]
    return [*(across(index, width) for index in range(row)), across(row, last + 1)]


def _fill_in_order(order: Sequence[LeafSwitch], count: int) -> list[NodeGroup] | None:
    parts = []
    for leaf in order:
        take = min(count, leaf.room)
        if take:
            parts.append(_first_nodes(leaf, take))
            count -= take
    return None if count else parts


def _switches_of(
    leaves: Iterable[LeafSwitch], kind: int, unhealthy: bool, descending: bool = False
) -> list[LeafSwitch]:
    found = [leaf for leaf in leaves if leaf.kind == kind and leaf.unhealthy == unhealthy]
    return sorted(found, key=lambda leaf: (-leaf.room if descending else leaf.room, leaf.id))


def _switches_for_small_job(leaves: Sequence[LeafSwitch]) -> tuple[list[LeafSwitch], ...]:
    """Switches for a small job, first those that other jobs cannot use."""
    return (
        _switches_of(leaves, EXCLUSIVE, False),
        _switches_of(leaves, SHARED, True),
        _switches_of(leaves, SHARED, False),
        _switches_of(leaves, FREE, False),
    )


def _exclusive_then_shared(
    leaves: Sequence[LeafSwitch], count: int, most_shared: int, *, descending: bool
) -> list[NodeGroup] | Refusal:
    """Free switches whole; the rest on healthy shared ones, else on a part of a free one, which becomes shared."""
    parts: list[NodeGroup] = []
    split: LeafSwitch | None = None
    for leaf in _switches_of(leaves, FREE, False, descending):
        if count < leaf.room:
            split = leaf
            break
        if leaf.room:
            parts.append(_first_nodes(leaf, leaf.room, EXCLUSIVE))
            count -= leaf.room
    if not count:
        return parts
    healthy = _switches_of(leaves, SHARED, False)
    shared = _shared(healthy, count, most_shared)
    if shared is not None:
        return parts + shared
    if split is None:
        return Refusal(TOPOLOGY, f"set tor failed by not enough nodes{_shown(leaves)}")
    return [*parts, _first_nodes(split, count, SHARED if most_shared > 0 else EXCLUSIVE)]


def _shared(ascending: Sequence[LeafSwitch], count: int, most: int) -> list[NodeGroup] | None:
    """The smallest shared switch with room; of two, the first neighbours in size that have it together."""
    if most < 1:
        return None
    alone = next((leaf for leaf in ascending if leaf.room >= count), None)
    if alone is not None:
        return [_first_nodes(alone, count, SHARED)]
    if most < 2:
        return None
    for small, big in pairwise(ascending):
        if small.room + big.room >= count:
            return [_first_nodes(small, small.room, SHARED), _first_nodes(big, count - small.room, SHARED)]
    return None


def _normal(leaves: Sequence[LeafSwitch], count: int) -> list[NodeGroup] | Refusal:
    """A normal job larger than a large one may be: free switches for itself, then shared ones, which become
    unhealthy.
    """
    parts: list[NodeGroup] = []
    lent = [leaf for leaf in leaves if leaf.kind in (SHARED, EXCLUSIVE) and not leaf.unhealthy and not leaf.large]
    stages = (
        _switches_of(leaves, FREE, False, descending=True),
        _switches_of(leaves, SHARED, True),
        sorted(lent, key=lambda leaf: (leaf.room, leaf.id)),
    )
    for stage, found in enumerate(stages):
        for leaf in found:
            take = min(count, leaf.room)
            if take:
                parts.append(_first_nodes(leaf, take, SHARED if stage else EXCLUSIVE, bool(stage)))
                count -= take
    if count:
        return Refusal(TOPOLOGY, f"not enough node for normal job to schedule{_shown(leaves)}")
    return parts


def pod_annotations(part: NodeGroup, alone: bool) -> dict[str, str]:
    """The annotations of a group's pods under version 2.0; ``alone``: the whole job is under one switch."""
    kind, unhealthy = (FREE, False) if alone else (part.kind, part.unhealthy)
    found = {IS_SHARED_TOR: str(kind), IS_HEALTHY_TOR: str(int(unhealthy))}
    return found | ({SHARED_TOR_IP: part.leaf.address} if part.leaf and kind == SHARED else {})


def _short(what: str, request: SwitchRequest, leaves: Iterable[LeafSwitch]) -> Refusal:
    text = f"tor check failed not enough resource for {what}, required {request.pods} nodes{_shown(leaves)}"
    return Refusal(TOPOLOGY, text)


#: Most switches that a message names.
MAX_SHOWN: Final = 20


def _shown(leaves: Iterable[LeafSwitch]) -> str:
    known = sorted(leaves, key=lambda leaf: leaf.id)
    shown = ", ".join(f"{leaf.address}: {leaf.room}" for leaf in known[:MAX_SHOWN])
    more = f" and {len(known) - MAX_SHOWN} more" if len(known) > MAX_SHOWN else ""
    return f" (free nodes per switch: {shown}{more})" if known else " (no switch may be used)"
