"""A job that returns after a fault: when it waits, which rank a backup takes, which of its former tree nodes it keeps.

Sources: component/ascend-for-volcano/internal/npu/ascend910/ascend910a3/superpod/frame.go (selectNodes),
internal/npu/policy/chip8node8ra64sp/reschedule.go and internal/npu/policy/multilevelscheduling/rescheduling.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from belay.engine.gangs.forming import declared_rank
from belay.engine.model.cluster import Node, Pod
from belay.engine.model.history import JobMemory
from belay.engine.model.pod_options import backup_source_name, is_backup
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.place.families import multilevel
from belay.engine.plan.place.families.multilevel import Level
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.state import PlacementState

WAITING: Final = "WaitingForRelease"
#: How long a super-pod job waits for the nodes of its healthy pods, in seconds.
RELEASE_WAIT: Final = 10.0
#: How long a job's former nodes are kept after the last of its pods left, in ms: the lifetime of MindCluster's
#: cache (component/ascend-for-volcano/common/cache/previous_node.go).
REMEMBERED: Final = 72 * 3_600_000


def not_released(
    state: PlacementState, job: SchedulerJob, waiting: Sequence[Pod], memory: JobMemory | None
) -> Refusal | None:
    """Why a super-pod job under rescheduling must wait for its own old pods; None when it need not.

    On racks it waits until they are gone; elsewhere at most ten seconds, and only for those on healthy nodes.
    """
    if memory is None or not (memory.fault_nodes or memory.evicted):
        return None
    terminating = [pod for pod in job.pods if pod.deleting is not None and pod.node]
    if job.topology == "rack":
        if not terminating:
            return None
        return Refusal(WAITING, f"pod {terminating[0].key} is being graceful delete, unable to reschedule")
    healthy = [pod for pod in terminating if pod.node not in memory.fault_nodes]
    if not healthy or state.scope.facts.now - min(pod.created for pod in waiting) >= RELEASE_WAIT:
        return None
    nodes = ", ".join(sorted({pod.node for pod in healthy})[:3])
    return Refusal(WAITING, f"selectNode failed, wait for normal node resource release ({nodes})")


def unexpired(memory: JobMemory, now_ms: int) -> JobMemory:
    """The memory, without former nodes once none of the job's pods has run for 72 hours."""
    if not memory.away or now_ms - memory.away <= REMEMBERED:
        return memory
    return msgspec.structs.replace(memory, nodes={}, super_pods={})


def record_absence(facts: Facts, draft: Draft, key: str) -> None:
    """Record since when none of the job's pods has a node, which limits how long former nodes are kept."""
    memory = draft.memory.jobs.get(key)
    if memory is not None and not memory.away and (memory.nodes or memory.super_pods):
        draft.memory.jobs[key] = msgspec.structs.replace(memory, away=facts.now_ms)


def backup_source(pod: Pod) -> str:
    """The key of the pod that this backup stands by for; empty when it is no backup."""
    source = backup_source_name(pod) if is_backup(pod) else ""
    return f"{pod.namespace}/{source}" if source else ""


def ranks(job: SchedulerJob, waiting: Sequence[Pod]) -> dict[str, int]:
    """A rank for every pod of the job with chips; see ``ranks_of``."""
    return ranks_of(job.pods or waiting)


def ranks_of(pods: Sequence[Pod]) -> dict[str, int]:
    """A rank for every pod: the declared one, else the smallest number that is free among them.

    A backup has the rank of the pod that it stands by for. A terminating pod is no longer in any rank table
    (component/ascend-operator/pkg/ranktable), so the pod in its place takes its rank; terminating pods get theirs last.
    """
    if len(pods) == 1 and not backup_source(pods[0]):
        return {pods[0].key: declared_rank(pods[0]) or 0}
    staying = [pod for pod in pods if pod.deleting is None]
    terminating = [pod for pod in pods if pod.deleting is not None]
    sources = {pod.key: backup_source(pod) for pod in staying}
    found: dict[str, int] = {}
    taken: set[int] = set()
    for pod in staying:
        rank = declared_rank(pod)
        if rank is not None and rank not in taken and not sources[pod.key]:
            found[pod.key] = rank
            taken.add(rank)
    terminating_ranks = {pod.key: declared_rank(pod) for pod in terminating}
    for key, source in sources.items():
        rank = found.get(source, terminating_ranks.get(source)) if source else None
        if rank is not None:
            found[key] = rank
            taken.add(rank)
    free = 0
    for pod in (*staying, *terminating):
        if pod.key in found:
            continue
        rank = terminating_ranks.get(pod.key)
        if rank is None or rank in taken:
            while free in taken:
                free += 1
            rank = free
        found[pod.key] = rank
        taken.add(rank)
    return found


def former_tree_nodes(
    former: Mapping[int, str],
    usable: Collection[str],
    nodes: Mapping[str, Node],
    trees: Mapping[str, tuple[Level, ...]],
    group_sizes: Sequence[int],
    unit: Callable[[str, int], object],
) -> tuple[str, ...] | None:
    """Nodes for ranks 0, 1, 2 … of a job that keeps its healthy nodes; None when all of it must be placed again.

    The faulty ones are replaced in the smallest unit that has room: first node by node in their level1 unit, then group
    by group, level by level upwards. A job whose rank 0 is hit is placed again as a whole.

    Args:
        former: the former node of every rank.
        usable: candidates, without the nodes that failed.
        nodes: all candidates by name.
        group_sizes: pods per group from level1 up.
        unit: identifies the unit of a node at a level (level1 is 1).
    """
    pods = len(former)
    if sorted(former) != list(range(pods)) or former[0] not in usable:
        return None
    kept = {rank: name for rank, name in former.items() if name in usable}
    lost = [[rank] for rank in range(pods) if rank not in kept]
    depth = max((len(levels) for levels in trees.values()), default=0)
    for level in range(1, depth + 2):
        lost = _refill(former, kept, lost, usable, nodes, trees, group_sizes[: level - 1], partial(_at, unit, level))
        if not lost:
            return tuple(kept[rank] for rank in range(pods))
        if level <= len(group_sizes):  # next: whole groups of this level are moved
            size = group_sizes[level - 1]
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
    group_sizes: Sequence[int],
    unit: Callable[[str], object],
) -> list[list[int]]:
    """Put each lost group back in the unit where it was; return the groups that find no room."""
    left: list[list[int]] = []
    for ranks in lost:
        former_unit = unit(former[ranks[0]])
        free = sorted(name for name in usable if name not in kept.values() and unit(name) == former_unit)
        if not group_sizes:
            found: tuple[str, ...] | Refusal = tuple(free[:1])
        else:
            found = multilevel.select([nodes[name] for name in free], trees, tuple(group_sizes), len(ranks))
        if isinstance(found, Refusal) or len(found) < len(ranks):
            left.append(ranks)
        else:
            kept.update(zip(ranks, _in_order(ranks, found, former, group_sizes), strict=True))
    return left


def _in_order(
    ranks: Sequence[int], found: Sequence[str], former: Mapping[int, str], group_sizes: Sequence[int]
) -> Sequence[str]:
    """Nodes in rank order; in one level1 group nodes keep their former ranks and new ones fill the gaps by name."""
    if len(group_sizes) != 1 or group_sizes[0] != len(ranks):
        return found
    again = {rank: former[rank] for rank in ranks if former[rank] in found}
    fresh = iter(sorted(set(found) - set(again.values())))
    return [again.get(rank) or next(fresh) for rank in ranks]
