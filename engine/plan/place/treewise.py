"""Whole nodes on a topology tree: a new gang, one that returns after a fault, and one that runs and misses pods.

Source: component/ascend-for-volcano/internal/npu/policy/multilevelscheduling (scheduling.go, rescheduling.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.model.cluster import Node, Pod
from engine.model.history import JobMemory
from engine.plan.place import multilevel, regroup
from engine.plan.place.bench import Bench
from engine.plan.place.job import Job
from engine.plan.place.slots import Slot, staying_pods
from engine.plan.place.verdict import TOPOLOGY, Refusal


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
    staying = {ranks[pod.key]: pod.node for pod in staying_pods(job, waiting_keys) if pod.key in ranks}
    ordered = sorted(waiting, key=lambda pod: ranks[pod.key])
    if staying:
        return _beside(bench, wish, ordered, ranks, staying, list(candidates))
    nodes = {name: bench.views[name].node for name in candidates}
    found = _former_tree(bench, wish, len(waiting), memory, nodes)
    if found is None:
        failed = set(memory.fault_nodes) if memory else set()
        sound = [node for name, node in nodes.items() if name not in failed]
        found = multilevel.select(sound, bench.trees, wish, len(waiting))
        if isinstance(found, Refusal) and len(sound) < len(nodes):  # where the job failed before comes last
            found = multilevel.select(nodes.values(), bench.trees, wish, len(waiting))
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


def _beside(
    bench: Bench,
    wish: Sequence[int],
    ordered: Sequence[Pod],
    ranks: Mapping[str, int],
    staying: dict[int, str],
    free: list[str],
) -> dict[str, Slot] | Refusal:
    """Completes a running job: each pod joins the units of the ranks it shares groups with, deepest level first."""
    out: dict[str, Slot] = {}
    for pod in ordered:
        rank = ranks[pod.key]
        options = [name for name in sorted(free) if _fits_groups(bench, wish, rank, name, staying)]
        if not options:
            text = f"there is no node left in the groups of rank {rank} for multilevel scheduling"
            return Refusal(TOPOLOGY, text)
        out[pod.key] = Slot(options[0])
        staying[rank] = options[0]
        free.remove(options[0])
    return out


def _fits_groups(bench: Bench, wish: Sequence[int], rank: int, name: str, taken: Mapping[int, str]) -> bool:
    """Whether a node lies in the same unit as every rank of the same group, at every level that the job names."""
    for depth, size in enumerate(wish, 1):
        mates = [node for other, node in taken.items() if other // size == rank // size]
        if any(unit(bench, mate, depth) != unit(bench, name, depth) for mate in mates):
            return False
    return True


def unit(bench: Bench, name: str, depth: int) -> tuple[str, ...] | None:
    """The unit of a node at a level: its tree and the labels from the top down to that level."""
    view = bench.views.get(name)
    if view is None:
        return None
    labels = view.node.labels
    tree = labels.get(multilevel.TREE_LABEL, multilevel.DEFAULT_TREE)
    levels = bench.trees.get(tree, ())
    return (tree, *(labels.get(level.label, "") for level in levels[depth - 1 :]))
