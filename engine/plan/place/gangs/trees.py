"""Whole nodes on a topology tree: a new gang, one that returns after a fault, and a running one that misses pods.

Source: component/ascend-for-volcano/internal/npu/policy/multilevelscheduling (scheduling.go, rescheduling.go).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from belay.engine.model.cluster import Node, Pod
from belay.engine.model.history import JobMemory
from belay.engine.model.node_options import topology_tree
from belay.engine.model.pending_reasons import TOPOLOGY
from belay.engine.model.quantities import whole_number
from belay.engine.plan.place.families import multilevel
from belay.engine.plan.place.gangs import returning
from belay.engine.plan.place.gangs.slots import RankSlot, running_pods
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.state import PlacementState

#: The level above all others: its unit is the tree.
WHOLE_TREE: Final = multilevel.MAX_LEVELS + 1


def slots(
    state: PlacementState,
    job: SchedulerJob,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
    candidates: Sequence[str],
) -> dict[str, RankSlot] | Refusal:
    """A slot among the candidates for every waiting pod by its key, or why there is none."""
    group_sizes = multilevel.read_group_sizes(job.request)
    if isinstance(group_sizes, Refusal):
        return group_sizes
    waiting_keys = {pod.key for pod in waiting}
    # the unit of a node that is gone or of another shard is unknown, so its pods do not bind the others
    known = [pod for pod in running_pods(job, waiting_keys) if pod.key in ranks and pod.node in state.views]
    running = {ranks[pod.key]: pod.node for pod in known}
    ordered = sorted(waiting, key=lambda pod: ranks[pod.key])
    failed = frozenset(memory.fault_nodes) if memory else frozenset[str]()
    nodes = {name: state.views[name].node for name in candidates}
    if running:
        return _RunningTreeJob(state, group_sizes, running, nodes, failed).slots(
            [(ranks[pod.key], pod.key) for pod in ordered]
        )
    found = _former_tree(state, group_sizes, len(waiting), memory, nodes)
    if found is None:
        # A queue may let in fewer pods than whole groups: these go where the rest of their groups has room, too. So do
        # pods whose group runs on nodes that are gone, each in its own group.
        places = [ranks[pod.key] for pod in ordered]
        if places[-1] >= job.request.pods:
            places = list(range(len(ordered)))
        whole = -(-(places[-1] + 1) // group_sizes[-1]) * group_sizes[-1]
        sound = [node for name, node in nodes.items() if name not in failed]
        found = multilevel.select(sound, state.trees, group_sizes, whole)
        if isinstance(found, Refusal) and len(sound) < len(nodes):  # nodes where the job failed before come last
            found = multilevel.select(nodes.values(), state.trees, group_sizes, whole)
        if not isinstance(found, Refusal):
            found = tuple(found[place] for place in places)
    if isinstance(found, Refusal):
        return found
    return {pod.key: RankSlot(name) for pod, name in zip(ordered, found, strict=True)}


def _former_tree(
    state: PlacementState, group_sizes: tuple[int, ...], pods: int, memory: JobMemory | None, nodes: Mapping[str, Node]
) -> tuple[str, ...] | Refusal | None:
    """The job's former nodes, the faulty ones replaced; None when it has none or must be placed again as a whole."""
    if memory is None or len(memory.nodes) != pods or any(whole_number(rank) is None for rank in memory.nodes):
        return None
    former = {int(rank): name for rank, name in memory.nodes.items()}
    whole = all(name in nodes for name in former.values())
    if not memory.fault_nodes and not (whole and state.params.prefer_previous_node):
        return None
    usable = set(nodes) - set(memory.fault_nodes)
    return returning.former_tree_nodes(
        former, usable, nodes, state.trees, group_sizes, lambda name, at: unit(state, name, at)
    )


class _RunningTreeJob:
    """Completes a running job: pods that groups miss come from the units where the groups run; groups that are missing
    whole go where the group above them runs, packed like a job of their own.
    """

    def __init__(
        self,
        state: PlacementState,
        group_sizes: tuple[int, ...],
        running: Mapping[int, str],
        nodes: Mapping[str, Node],
        failed: Collection[str],
    ) -> None:
        """Prepare the candidates.

        Args:
            running: the node of every rank that runs.
            nodes: candidates by name; those in ``failed`` come last.
        """
        self._state, self._group_sizes, self._running, self._failed = state, group_sizes, running, failed
        self._free = {name: nodes[name] for name in sorted(nodes, key=lambda name: (name in failed, name))}

    def slots(self, missing: Sequence[tuple[int, str]]) -> dict[str, RankSlot] | Refusal:
        """A slot for every (rank, key), ranks ascending."""
        out: dict[str, RankSlot] = {}
        left: list[tuple[int, str]] = []
        for rank, key in missing:
            group_unit = self._unit_of_group(rank, self._group_sizes[0], 1)
            if group_unit is None:
                left.append((rank, key))
                continue
            name = next((name for name in self._free if unit(self._state, name, 1) == group_unit), None)
            if name is None:
                return self._full(rank)
            out[key] = self._take(name)
        for depth in range(1, len(self._group_sizes) + 1):
            groups, left = self._groups(depth, left), []
            for group_unit, members in groups:
                if group_unit is None:
                    left += members
                elif not self._pack(depth, group_unit, members, out):
                    return self._full(members[0][0])
        return out

    def _groups(
        self, depth: int, missing: Sequence[tuple[int, str]]
    ) -> list[tuple[tuple[str, ...] | None, list[tuple[int, str]]]]:
        """The missing ranks by the groups above a level, with the unit where each of these runs, None where it does not
        run.
        """
        above = self._group_sizes[depth] if depth < len(self._group_sizes) else None
        parents: dict[int, list[tuple[int, str]]] = {}
        for rank, key in missing:
            parents.setdefault(rank // above if above else 0, []).append((rank, key))
        return [(self._unit_of_group(members[0][0], above, depth + 1), members) for members in parents.values()]

    def _pack(
        self, depth: int, group_unit: tuple[str, ...], members: Sequence[tuple[int, str]], out: dict[str, RankSlot]
    ) -> bool:
        """Whether whole missing groups of a level found nodes in a unit; adds their slots to ``out``."""
        size = self._group_sizes[depth - 1]
        groups = sorted({rank // size for rank, _ in members})
        at = depth + 1 if depth < len(self._group_sizes) else WHOLE_TREE
        inside = [node for name, node in self._free.items() if unit(self._state, name, at) == group_unit]
        sound = [node for node in inside if node.name not in self._failed]
        for nodes in (sound, inside):
            found = multilevel.select(nodes, self._state.trees, self._group_sizes[:depth], len(groups) * size)
            if not isinstance(found, Refusal):
                for rank, key in members:
                    out[key] = self._take(found[groups.index(rank // size) * size + rank % size])
                return True
        return False

    def _unit_of_group(self, rank: int, size: int | None, depth: int) -> tuple[str, ...] | None:
        """The unit where the rank's group of ``size`` runs (without a size: the tree); None where none of it runs."""
        peers = (node for other, node in self._running.items() if size is None or other // size == rank // size)
        units = (unit(self._state, node, depth if size is not None else WHOLE_TREE) for node in peers)
        return next((group_unit for group_unit in units if group_unit is not None), None)

    def _take(self, name: str) -> RankSlot:
        del self._free[name]
        return RankSlot(name)

    def _full(self, rank: int) -> Refusal:
        return Refusal(TOPOLOGY, f"there is no node left in the groups of rank {rank} for multilevel scheduling")


def unit(state: PlacementState, name: str, depth: int) -> tuple[str, ...] | None:
    """The unit of a node at a level: its tree and the labels from the top down to that level."""
    view = state.views.get(name)
    if view is None:
        return None
    labels = view.node.labels
    tree = topology_tree(view.node)
    levels = state.trees.get(tree, ())
    return (tree, *(labels.get(level.label, "") for level in levels[depth - 1 :]))
