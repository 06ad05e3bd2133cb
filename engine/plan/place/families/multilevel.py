"""Whole nodes on a tree that administrators describe by node labels: so many pods per group at every level.

Source: component/ascend-for-volcano/internal/npu/policy/multilevelscheduling and
docs/zh/scheduling/04_usage/03_basic_scheduling/04_multi_level_scheduling.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec

from belay.engine.model.cluster import Node
from belay.engine.model.labels import AFFINITY_CONFIG, TOPOLOGY_TREE
from belay.engine.model.node_options import topology_tree
from belay.engine.model.pending_reasons import INVALID_REQUEST, TOPOLOGY
from belay.engine.model.quantities import whole_number
from belay.engine.plan.place.causes import ParameterMissing, UnequalPods, UnlabelledInTree
from belay.engine.plan.place.handler import JobRequest, NodeChips, PodRequest, Refusal, ScoreOrRefusal, listed

_UNSET: Final = ParameterMissing("resource-level-config")
MAX_LEVELS: Final = 10
FRAGMENT_SCALE: Final = 10


@dataclass(frozen=True, slots=True)
class WholeNode:
    """A pod takes every usable chip of its node."""

    max: int = 64
    network_aware: bool = True

    def check(self, job: JobRequest) -> Refusal | None:
        """Every pod that asks for chips asks for the same number."""
        wanted = sorted({task.chips for task in job.tasks if task.chips})
        if len(wanted) > 1:
            text = f"npu num is invalid: pods of a multilevel job ask for {wanted} chips"
            return Refusal(INVALID_REQUEST, text, UnequalPods(tuple(wanted)))
        return None

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """0 for a node whose usable chips are exactly the request."""
        if node.free.bit_count() != request.chips:
            return Refusal(
                TOPOLOGY,
                f"node top<{listed(node.free)}> not equal to task req<{request.chips}> in multilevel scheduling",
            )
        return 0

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """All usable chips."""
        return node.free


class Level(msgspec.Struct, frozen=True):
    """One level of a tree: the node label that names its units, and nodes kept aside in each unit (level1 only)."""

    label: str
    reserved: int = 0


def read_trees(text: str | None) -> dict[str, tuple[Level, ...]] | Refusal:
    """``resource-level-config``: per tree its levels from level1 up, or what is wrong with it."""
    if not text:
        return Refusal(INVALID_REQUEST, "resource-level-config is not set, multilevel scheduling needs it", _UNSET)
    try:
        raw: dict[str, dict[str, dict[str, Any]]] = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, Any]]])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError) as error:
        return Refusal(INVALID_REQUEST, f"resource-level-config cannot be read: {error}", _UNSET)
    trees: dict[str, tuple[Level, ...]] = {}
    for name, rows in sorted(raw.items()):
        levels = []
        for number in range(1, len(rows) + 1):
            row = rows.get(f"level{number}")
            label = row.get("label") if row else None
            if row is None or not isinstance(label, str) or not label or number > MAX_LEVELS:
                text = f"resource-level-config is invalid: tree {name} lacks level{number}"
                return Refusal(INVALID_REQUEST, text, _UNSET)
            kept = row.get("reservedNode", 0)
            levels.append(Level(label, kept if number == 1 and isinstance(kept, int) and kept > 0 else 0))
        if levels:
            trees[name] = tuple(levels)
    return trees


def read_group_sizes(job: JobRequest) -> tuple[int, ...] | Refusal:
    """``huawei.com/affinity-config``: pods per group from level1 up, or why the numbers are illegal."""
    text = job.options.affinity_config or ""
    group_sizes: list[int] = []
    for number, part in enumerate(text.split(","), 1):
        key, _, value = part.strip().partition("=")
        size = whole_number(value)
        if key != f"level{number}" or not size or number > MAX_LEVELS:
            return _invalid(f"annotation {AFFINITY_CONFIG}={text!r} must read level1=x,level2=y with positive numbers")
        group_sizes.append(size)
    for below, above in pairwise(group_sizes):
        if above % below:
            return _invalid(f"annotation {AFFINITY_CONFIG}={text!r}: {above} is not a multiple of {below}")
    wrong = next((size for size in group_sizes if job.pods % size), None)
    if wrong is not None:
        return _invalid(f"annotation {AFFINITY_CONFIG}={text!r}: {job.pods} pods are not a multiple of {wrong}")
    return tuple(group_sizes)


@dataclass(slots=True, eq=False)
class _Unit:
    """A unit of the tree: the root, a group of some level, or (deepest) a node."""

    name: str
    depth: int
    parent: _Unit | None
    children: dict[str, _Unit] = field(default_factory=dict)
    reserved: bool = False
    sufficient: bool = True
    visited: bool = False
    capacity: int = 1
    fragment: int = 0
    ready: list[tuple[str, ...]] = field(default_factory=list)


def select(
    nodes: Iterable[Node], trees: Mapping[str, tuple[Level, ...]], group_sizes: tuple[int, ...], pods: int
) -> tuple[str, ...] | Refusal:
    """Nodes for ranks 0, 1, 2 …, or why no tree holds the job; of several trees the least fragmented one is taken."""
    by_tree: dict[str, list[Node]] = {}
    for node in nodes:
        by_tree.setdefault(topology_tree(node), []).append(node)
    best: tuple[int, str, tuple[str, ...]] | None = None
    for tree in sorted(by_tree):
        levels = trees.get(tree, ())
        if len(group_sizes) > len(levels):
            continue
        size_lists = [(*group_sizes, pods), group_sizes] if len(group_sizes) == 1 and len(levels) > 1 else [group_sizes]
        for sizes in size_lists:
            found = _Tree(by_tree[tree], levels[: len(sizes)], sizes, pods).schedule()
            if found is not None:
                fragment, chosen = found
                if best is None or (fragment, tree) < best[:2]:
                    best = (fragment, tree, chosen)
                break
    if best is None:
        shown = ", ".join(f"level{i}={size}" for i, size in enumerate(group_sizes, 1))
        return Refusal(TOPOLOGY, f"failed to schedule tasks: no tree holds {pods} pods in groups of {shown}")
    return best[2]


def missing_label(node: Node, trees: Mapping[str, tuple[Level, ...]]) -> Refusal | None:
    """Why a node belongs to no configured tree; None when it has all labels."""
    tree = topology_tree(node)
    levels = trees.get(tree)
    if levels is None:
        lacking: tuple[str, ...] = (TOPOLOGY_TREE,)
    else:
        lacking = tuple(level.label for level in levels if not node.labels.get(level.label))
    if not lacking:
        return None
    cause = UnlabelledInTree(node.name, lacking, tree, tuple(sorted(trees)))
    return Refusal("TopologyLabelMissing", "topology label does not match config", cause)


class _Tree:
    """Capacity and fragments per unit, then a greedy walk that fills groups from the bottom."""

    def __init__(self, nodes: list[Node], levels: tuple[Level, ...], group_sizes: tuple[int, ...], pods: int) -> None:
        self._sizes = (pods, *reversed(group_sizes), 1)
        self._kept = len(levels)
        self._reserve = levels[0].reserved if levels else 0
        self._root = _Unit("", 0, None)
        self._depths: list[list[_Unit]] = [[self._root], *([] for _ in range(len(levels) + 1))]
        labels = [level.label for level in reversed(levels)]
        for node in sorted(nodes, key=lambda item: item.name):
            unit = self._root
            for depth, name in enumerate([*(node.labels[label] for label in labels), node.name], 1):
                below = unit.children.get(name)
                if below is None:
                    below = unit.children[name] = _Unit(name, depth, unit)
                    self._depths[depth].append(below)
                unit = below
        for depth in range(len(self._depths) - 2, -1, -1):
            for unit in self._depths[depth]:
                self._measure(unit)

    def schedule(self) -> tuple[int, tuple[str, ...]] | None:
        """(fragment score, node names by rank), None when the tree cannot hold the job."""
        found = self._walk(self._root, 1) or self._walk_rest()
        return (self._root.fragment, found) if found else None

    def _fan(self, depth: int) -> int:
        """How many groups of the next deeper level make one of this level."""
        return self._sizes[depth] // self._sizes[depth + 1]

    def _measure(self, unit: _Unit) -> None:
        children = [unit.children[name] for name in sorted(unit.children)]
        reserve = self._reserve if unit.depth == self._kept else 0
        for child in children[len(children) - min(reserve, len(children)) :]:
            child.reserved = True
        unit.sufficient = len(children) >= reserve
        usable = [child for child in children if not child.reserved and child.sufficient]
        total = sum(child.capacity for child in usable)
        fan = self._fan(unit.depth)
        unit.capacity = total // fan
        spoiled = sum(child.fragment for child in usable)
        unit.fragment = total % fan * self._sizes[unit.depth + 1] + FRAGMENT_SCALE * spoiled

    def _walk(self, unit: _Unit, groups: int) -> tuple[str, ...] | None:
        if unit.depth == len(self._sizes) - 1:
            return self._complete(unit)
        usable = [c for c in unit.children.values() if not c.reserved and c.sufficient and c.capacity > 0]
        return self._siblings(usable, groups * self._fan(unit.depth))

    def _walk_rest(self) -> tuple[str, ...] | None:
        """The nodes that the first walk left, reserved ones included; units with most of the reserve untouched
        first.
        """
        batches: list[tuple[int, str, list[_Unit]]] = []
        for number, parent in enumerate(self._depths[self._kept]):
            left = [child for name, child in sorted(parent.children.items()) if not child.visited]
            reserved = [child for child in left if child.reserved]
            plain = [child for child in left if not child.reserved]
            for count, child in enumerate(reserved, 1):
                tail = plain if count == len(reserved) else []
                batches.append((-count, f"{number:09d}", [child, *tail]))
            if plain and not reserved:
                batches.append((0, f"{number:09d}", plain))
        for _, _, batch in sorted(batches, key=lambda item: item[:2]):
            found = self._siblings(batch, sum(child.capacity for child in batch))
            if found:
                return found
        return None

    def _siblings(self, units: list[_Unit], left: int) -> tuple[str, ...] | None:
        """First units that are used whole, the least fragmented ahead; then bigger ones, the smallest ahead."""
        smaller = sorted(units, key=lambda unit: (unit.fragment, unit.capacity, unit.name))
        skipped = []
        for unit in smaller:
            if unit.capacity > left:
                skipped.append(unit)
                continue
            found, left = self._visit(unit, left)
            if found or left <= 0:
                return found
        for unit in sorted(skipped, key=lambda unit: (unit.capacity, unit.fragment, unit.name)):
            found, left = self._visit(unit, left)
            if found or left <= 0:
                return found
        return None

    def _visit(self, unit: _Unit, left: int) -> tuple[tuple[str, ...] | None, int]:
        unit.visited = True
        take = min(unit.capacity, left)
        return self._walk(unit, take), left - take

    def _complete(self, unit: _Unit) -> tuple[str, ...] | None:
        """A node joins its parent's ready groups; a full group moves up; the root's group is the answer."""
        group: tuple[str, ...] = (unit.name,)
        above = unit.parent
        while above is not None:
            above.ready.append(group)
            fan = self._fan(above.depth)
            if len(above.ready) < fan:
                return None
            group = tuple(name for part in above.ready[:fan] for name in part)
            del above.ready[:fan]
            above = above.parent
        return group


def _invalid(text: str) -> Refusal:
    return Refusal(INVALID_REQUEST, text)
