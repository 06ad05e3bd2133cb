"""Whole nodes on a topology tree: a new gang, one that returns after a fault, and one that runs and misses pods.

Source: component/ascend-for-volcano/internal/npu/policy/multilevelscheduling (scheduling.go, rescheduling.go).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from engine.model.cluster import Node, Pod
from engine.model.history import JobMemory
from engine.plan.place import multilevel, regroup
from engine.plan.place.bench import Bench
from engine.plan.place.job import Job
from engine.plan.place.slots import Slot, staying_pods
from engine.plan.place.verdict import TOPOLOGY, Refusal

#: The level above all others: its unit is the tree.
ANYWHERE: Final = multilevel.MAX_LEVELS + 1


def slots(
    bench: Bench,
    job: Job,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
    candidates: Sequence[str],
) -> dict[str, Slot] | Refusal:
    """A slot among the candidates for every waiting pod by its key, or why there is none."""
    wish = multilevel.read_wish(job.shape)
    if isinstance(wish, Refusal):
        return wish
    waiting_keys = {pod.key for pod in waiting}
    # where a node stands that is gone, or another shard's, nobody knows: its pods hold no place for the others
    known = [pod for pod in staying_pods(job, waiting_keys) if pod.key in ranks and pod.node in bench.views]
    staying = {ranks[pod.key]: pod.node for pod in known}
    ordered = sorted(waiting, key=lambda pod: ranks[pod.key])
    failed = frozenset(memory.fault_nodes) if memory else frozenset[str]()
    nodes = {name: bench.views[name].node for name in candidates}
    if staying:
        return _Beside(bench, wish, staying, nodes, failed).slots([(ranks[pod.key], pod.key) for pod in ordered])
    found = _former_tree(bench, wish, len(waiting), memory, nodes)
    if found is None:
        # A queue may let in fewer pods than whole groups: these go where the rest of their groups has room. So do pods
        # whose mates are on nodes that are gone, each in its own group.
        places = [ranks[pod.key] for pod in ordered]
        if places[-1] >= job.shape.pods:
            places = list(range(len(ordered)))
        whole = -(-(places[-1] + 1) // wish[-1]) * wish[-1]
        sound = [node for name, node in nodes.items() if name not in failed]
        found = multilevel.select(sound, bench.trees, wish, whole)
        if isinstance(found, Refusal) and len(sound) < len(nodes):  # where the job failed before comes last
            found = multilevel.select(nodes.values(), bench.trees, wish, whole)
        if not isinstance(found, Refusal):
            found = tuple(found[place] for place in places)
    if isinstance(found, Refusal):
        return found
    return {pod.key: Slot(name) for pod, name in zip(ordered, found, strict=True)}


def _former_tree(
    bench: Bench, wish: tuple[int, ...], pods: int, memory: JobMemory | None, nodes: Mapping[str, Node]
) -> tuple[str, ...] | Refusal | None:
    """The job's former nodes, the faulty ones replaced; None when it has none or must be placed anew."""
    if memory is None or len(memory.nodes) != pods or not all(rank.isdecimal() for rank in memory.nodes):
        return None
    former = {int(rank): name for rank, name in memory.nodes.items()}
    whole = all(name in nodes for name in former.values())
    if not memory.fault_nodes and not (whole and bench.params.prefer_previous_node):
        return None
    usable = set(nodes) - set(memory.fault_nodes)
    return regroup.on_tree(former, usable, nodes, bench.trees, wish, lambda name, at: unit(bench, name, at))


class _Beside:
    """Completes a running job: what groups miss comes from the units where they run; groups that are missing whole go
    where the group above them runs, and are packed there as a job of their own.
    """

    def __init__(
        self,
        bench: Bench,
        wish: tuple[int, ...],
        staying: Mapping[int, str],
        nodes: Mapping[str, Node],
        failed: Collection[str],
    ) -> None:
        """``staying``: the node of every rank that runs; ``nodes``: candidates, those of ``failed`` come last."""
        self._bench, self._wish, self._staying, self._failed = bench, wish, staying, failed
        self._free = {name: nodes[name] for name in sorted(nodes, key=lambda name: (name in failed, name))}

    def slots(self, missing: Sequence[tuple[int, str]]) -> dict[str, Slot] | Refusal:
        """A slot for every (rank, key), ranks ascending."""
        out: dict[str, Slot] = {}
        left: list[tuple[int, str]] = []
        for rank, key in missing:
            home = self._home(rank, self._wish[0], 1)
            if home is None:
                left.append((rank, key))
                continue
            name = next((name for name in self._free if unit(self._bench, name, 1) == home), None)
            if name is None:
                return self._full(rank)
            out[key] = self._take(name)
        for depth in range(1, len(self._wish) + 1):
            groups, left = self._groups(depth, left), []
            for home, members in groups:
                if home is None:
                    left += members
                elif not self._pack(depth, home, members, out):
                    return self._full(members[0][0])
        return out

    def _groups(
        self, depth: int, missing: Sequence[tuple[int, str]]
    ) -> list[tuple[tuple[str, ...] | None, list[tuple[int, str]]]]:
        """What is missing by the groups above a level, with the unit where each of these runs: None while nowhere."""
        above = self._wish[depth] if depth < len(self._wish) else None
        parents: dict[int, list[tuple[int, str]]] = {}
        for rank, key in missing:
            parents.setdefault(rank // above if above else 0, []).append((rank, key))
        return [(self._home(members[0][0], above, depth + 1), members) for members in parents.values()]

    def _pack(
        self, depth: int, home: tuple[str, ...], members: Sequence[tuple[int, str]], out: dict[str, Slot]
    ) -> bool:
        """Seats groups of a level that are missing whole in a unit; False when it lacks the room."""
        size = self._wish[depth - 1]
        groups = sorted({rank // size for rank, _ in members})
        at = depth + 1 if depth < len(self._wish) else ANYWHERE
        inside = [node for name, node in self._free.items() if unit(self._bench, name, at) == home]
        sound = [node for node in inside if node.name not in self._failed]
        for nodes in (sound, inside):
            found = multilevel.select(nodes, self._bench.trees, self._wish[:depth], len(groups) * size)
            if not isinstance(found, Refusal):
                for rank, key in members:
                    out[key] = self._take(found[groups.index(rank // size) * size + rank % size])
                return True
        return False

    def _home(self, rank: int, size: int | None, depth: int) -> tuple[str, ...] | None:
        """The unit where the group of ``size`` runs that the rank is in, the tree for no size; None: nowhere."""
        mates = (node for other, node in self._staying.items() if size is None or other // size == rank // size)
        homes = (unit(self._bench, node, depth if size is not None else ANYWHERE) for node in mates)
        return next((home for home in homes if home is not None), None)

    def _take(self, name: str) -> Slot:
        del self._free[name]
        return Slot(name)

    def _full(self, rank: int) -> Refusal:
        return Refusal(TOPOLOGY, f"there is no node left in the groups of rank {rank} for multilevel scheduling")


def unit(bench: Bench, name: str, depth: int) -> tuple[str, ...] | None:
    """The unit of a node at a level: its tree and the labels from the top down to that level."""
    view = bench.views.get(name)
    if view is None:
        return None
    labels = view.node.labels
    tree = labels.get(multilevel.TREE_LABEL, multilevel.DEFAULT_TREE)
    levels = bench.trees.get(tree, ())
    return (tree, *(labels.get(level.label, "") for level in levels[depth - 1 :]))
