"""A job that returns after a fault: what it waits for, whose rank a backup takes, which of its former tree nodes stay.

Sources: component/ascend-for-volcano/internal/npu/ascend910/ascend910a3/superpod/frame.go (selectNodes),
internal/npu/policy/chip8node8ra64sp/reschedule.go and internal/npu/policy/multilevelscheduling/rescheduling.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from engine.model.cluster import Node, Pod
from engine.model.history import JobMemory
from engine.plan.gangs import declared_rank
from engine.plan.place import multilevel
from engine.plan.place.bench import Bench
from engine.plan.place.job import Job
from engine.plan.place.multilevel import Level
from engine.plan.place.verdict import Refusal
from engine.plan.scope import Scope

WAITING: Final = "WaitingForRelease"
#: How long a super-pod job waits for the nodes of its healthy pods, in seconds.
RELEASE_WAIT: Final = 10.0
#: How long a job's former nodes are remembered after the last of its pods left, in ms: the life of the reference's
#: cache (component/ascend-for-volcano/common/cache/previous_node.go).
REMEMBERED: Final = 72 * 3_600_000
BACKUP_TYPE: Final = "podType"
BACKUP_SOURCE: Final = "backupSourcePodName"


def not_released(bench: Bench, job: Job, waiting: Sequence[Pod], memory: JobMemory | None) -> Refusal | None:
    """Why a super-pod job under rescheduling must wait for its own old pods; None when it need not.

    On racks it waits until they are gone, else ten seconds at most and only for those on healthy nodes.
    """
    if memory is None or not (memory.fault_nodes or memory.evicted):
        return None
    leaving = [pod for pod in job.pods if pod.deleting is not None and pod.node]
    if job.topology == "rack":
        if not leaving:
            return None
        return Refusal(WAITING, f"pod {leaving[0].key} is being graceful delete, unable to reschedule")
    healthy = [pod for pod in leaving if pod.node not in memory.fault_nodes]
    if not healthy or bench.scope.now - min(pod.created for pod in waiting) >= RELEASE_WAIT:
        return None
    nodes = ", ".join(sorted({pod.node for pod in healthy})[:3])
    return Refusal(WAITING, f"selectNode failed, wait for normal node resource release ({nodes})")


def recent(memory: JobMemory, now_ms: int) -> JobMemory:
    """The memory, without former nodes once none of the job's pods has run for 72 hours."""
    if not memory.away or now_ms - memory.away <= REMEMBERED:
        return memory
    return msgspec.structs.replace(memory, nodes={}, super_pods={})


def note_away(scope: Scope, key: str) -> None:
    """Takes down that none of the job's pods has a node, for the life of its former ones."""
    memory = scope.memory.jobs.get(key)
    if memory is not None and not memory.away and (memory.nodes or memory.super_pods):
        scope.memory.jobs[key] = msgspec.structs.replace(memory, away=scope.now_ms)


def backup_source(pod: Pod) -> str:
    """The key of the pod that this one stands by for; empty when it is no backup."""
    source = pod.annotations.get(BACKUP_SOURCE, "") if pod.annotations.get(BACKUP_TYPE) == "backup" else ""
    return f"{pod.namespace}/{source}" if source else ""


def ranks(job: Job, waiting: Sequence[Pod]) -> dict[str, int]:
    """A rank for every pod with chips: what it declares, else the smallest number that is still free in the job.

    A backup has the rank of the pod that it stands by for. A pod on its way out is in no rank table any more
    (component/ascend-operator/pkg/ranktable), so that the one in its place takes its rank; what it keeps comes last.
    """
    pods = job.pods or waiting
    if len(pods) == 1 and not backup_source(pods[0]):
        return {pods[0].key: declared_rank(pods[0]) or 0}
    staying = [pod for pod in pods if pod.deleting is None]
    leaving = [pod for pod in pods if pod.deleting is not None]
    sources = {pod.key: backup_source(pod) for pod in staying}
    found: dict[str, int] = {}
    taken: set[int] = set()
    for pod in staying:
        rank = declared_rank(pod)
        if rank is not None and rank not in taken and not sources[pod.key]:
            found[pod.key] = rank
            taken.add(rank)
    lent = {pod.key: declared_rank(pod) for pod in leaving}
    for key, source in sources.items():
        rank = found.get(source, lent.get(source)) if source else None
        if rank is not None:
            found[key] = rank
            taken.add(rank)
    free = 0
    for pod in (*staying, *leaving):
        if pod.key in found:
            continue
        rank = lent.get(pod.key)
        if rank is None or rank in taken:
            while free in taken:
                free += 1
            rank = free
        found[pod.key] = rank
        taken.add(rank)
    return found


def on_tree(
    former: Mapping[int, str],
    usable: Collection[str],
    nodes: Mapping[str, Node],
    trees: Mapping[str, tuple[Level, ...]],
    wish: Sequence[int],
    unit: Callable[[str, int], object],
) -> tuple[str, ...] | None:
    """Nodes for ranks 0, 1, 2 … of a job that keeps its healthy nodes; None when it must be placed anew.

    The faulty ones are replaced in the smallest unit that has room: first node by node in their level1 unit, then
    group by group, level by level upwards. A job whose rank 0 is hit starts anew.

    Args:
        former: the node of every rank before.
        usable: candidates, without the nodes that failed.
        nodes: all candidates by name.
        wish: pods per group from level1 up.
        unit: what tells the units of nodes apart at a level (level1 is 1).
    """
    pods = len(former)
    if sorted(former) != list(range(pods)) or former[0] not in usable:
        return None
    kept = {rank: name for rank, name in former.items() if name in usable}
    lost = [[rank] for rank in range(pods) if rank not in kept]
    depth = max((len(levels) for levels in trees.values()), default=0)
    for level in range(1, depth + 2):
        lost = _refill(former, kept, lost, usable, nodes, trees, wish[: level - 1], partial(_at, unit, level))
        if not lost:
            return tuple(kept[rank] for rank in range(pods))
        if level <= len(wish):  # wider: whole groups of this level leave their places
            size = wish[level - 1]
            groups = sorted({group[0] // size for group in lost})
            lost = [list(range(group * size, (group + 1) * size)) for group in groups]
            for rank in (rank for group in lost for rank in group):
                kept.pop(rank, None)
            if 0 not in kept:
                return None
    return None


def _at(unit: Callable[[str, int], object], level: int, name: str) -> object:
    return unit(name, level)


def _refill(
    former: Mapping[int, str],
    kept: dict[int, str],
    lost: Sequence[list[int]],
    usable: Collection[str],
    nodes: Mapping[str, Node],
    trees: Mapping[str, tuple[Level, ...]],
    wish: Sequence[int],
    unit: Callable[[str], object],
) -> list[list[int]]:
    """Puts each lost group back in the unit where it was; what finds no room is returned."""
    left: list[list[int]] = []
    for ranks in lost:
        home = unit(former[ranks[0]])
        free = sorted(name for name in usable if name not in kept.values() and unit(name) == home)
        if not wish:
            found: tuple[str, ...] | Refusal = tuple(free[:1])
        else:
            found = multilevel.select([nodes[name] for name in free], trees, tuple(wish), len(ranks))
        if isinstance(found, Refusal) or len(found) < len(ranks):
            left.append(ranks)
        else:
            kept.update(zip(ranks, _in_order(ranks, found, former, wish), strict=True))
    return left


def _in_order(
    ranks: Sequence[int], found: Sequence[str], former: Mapping[int, str], wish: Sequence[int]
) -> Sequence[str]:
    """In one level1 group nodes keep their former ranks, new ones fill the gaps by name."""
    if len(wish) != 1 or wish[0] != len(ranks):
        return found
    again = {rank: former[rank] for rank in ranks if former[rank] in found}
    fresh = iter(sorted(set(found) - set(again.values())))
    return [again.get(rank) or next(fresh) for rank in ranks]
