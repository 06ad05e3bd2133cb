"""Slots of gangs whose nodes are chosen together, for pods of such a gang that ask for different things.

Examples: a selector for the master only, more memory for one task. The rules of super pods and trees choose among nodes
that suit all pods equally. Where that fails, they are asked again with fewer or more candidates, and pods that are
close together change places until each fits its node. Gangs of equal pods never need this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from belay.engine.model.cluster import Pod
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.state import Assignment, PlacementState


class RankSlot(NamedTuple):
    """A node for one rank; ``logical`` and ``super_pod`` are -1 outside super pods."""

    node: str
    logical: int = -1
    super_pod: int = -1


def running_pods(job: SchedulerJob, waiting: Collection[str]) -> list[Pod]:
    """The job's pods that are bound and not terminating, apart from the waiting ones."""
    return [pod for pod in job.pods if pod.key not in waiting and pod.node and pod.deleting is None]


def distinct_pods(state: PlacementState, job: SchedulerJob, pods: Sequence[Pod]) -> list[Pod]:
    """The first pod of every kind: pods of a kind have the same candidates."""
    first: dict[int, Pod] = {}
    for pod in pods:
        first.setdefault(id(state.table(job, pod)), pod)
    return list(first.values())


def unplaceable(state: PlacementState, job: SchedulerJob, pods: Sequence[Pod]) -> Pod | None:
    """The first pod that fits no node at all, whatever happens to the others."""
    return next((pod for pod in distinct_pods(state, job, pods) if not state.table(job, pod).scores), None)


def candidate_pools(
    state: PlacementState, job: SchedulerJob, pods: Sequence[Pod], domains: Sequence[Callable[[str], Hashable]] = ()
) -> Iterator[list[str]]:
    """Candidates to try, sorted by name: nodes that fit every kind of pod, nodes of domains where every kind fits some
    node, all nodes that fit any kind. Nothing when all pods ask for the same.

    Args:
        domains: identify the domains of a node, the narrowest first.
    """
    samples = distinct_pods(state, job, pods)
    if len(samples) < 2:
        return
    fits = [set(state.candidates(job, pod)) for pod in samples]
    anywhere = sorted(set[str]().union(*fits))
    yield sorted(set.intersection(*fits))
    for domain in domains:
        shared = set.intersection(*({domain(name) for name in names} for names in fits))
        yield [name for name in anywhere if domain(name) in shared]
    yield anywhere


def reassigned(
    state: PlacementState,
    job: SchedulerJob,
    pods: Sequence[Pod],
    slots: Mapping[str, RankSlot],
    close: Callable[[RankSlot], Hashable],
    among: Sequence[str],
) -> dict[str, RankSlot] | None:
    """A slot for every pod that fits it, as near to ``slots`` as possible; None when there is none.

    Args:
        slots: a slot for every pod by its key, whether it fits or not.
        close: pods may exchange slots for which it is equal, and nodes may replace each other where it is equal.
        among: candidates, in the order in which they are taken.
    """
    groups: dict[Hashable, list[Pod]] = {}
    for pod in pods:
        groups.setdefault(close(slots[pod.key]), []).append(pod)
    used = {slot.node for slot in slots.values()}
    out: dict[str, RankSlot] = {}
    for key, members in groups.items():
        offered = [slots[pod.key] for pod in members]
        others = (offered[0]._replace(node=name) for name in among if name not in used)
        offered += [slot for slot in others if close(slot) == key]
        taken = _matched([_row(state, job, pod, offered) for pod in members])
        if taken is None:
            return None
        out.update((pod.key, offered[at]) for pod, at in zip(members, taken, strict=True))
        used.update(offered[at].node for at in taken)
    return out


def with_replacements(
    state: PlacementState,
    job: SchedulerJob,
    pods: Sequence[Pod],
    slots: Mapping[str, RankSlot],
    domain: Callable[[str], Hashable],
) -> dict[str, RankSlot] | None:
    """The given slots, but a pod that is refused beside those before it gets another node of the same ``domain``.

    Nothing stays assigned; None when a pod finds no such node.
    """
    used = {slot.node for slot in slots.values()}
    spare: dict[Hashable, list[str]] = {}
    for name in sorted(state.table(job, pods[0]).scores):
        if name not in used:
            spare.setdefault(domain(name), []).append(name)
    out: dict[str, RankSlot] = {}
    placed: list[Assignment] = []
    for pod in pods:
        table, slot = state.table(job, pod), slots[pod.key]
        options = [slot.node, *spare.get(domain(slot.node), ())]
        node = next(
            (name for name in options if name in table.scores and state.affinity_refusal(pod, name) is None), None
        )
        if node is None:
            break
        if node != slot.node:
            spare[domain(node)].remove(node)
        out[pod.key] = slot._replace(node=node)
        item = Assignment(pod, node, table.chips(node))
        state.assign(item)
        placed.append(item)
    state.unassign(placed)
    return out if len(out) == len(pods) else None


def _row(state: PlacementState, job: SchedulerJob, pod: Pod, offered: Sequence[RankSlot]) -> list[bool]:
    """Which of the slots fit the pod."""
    scores = state.table(job, pod).scores
    concerned = state.depends_on_others(pod)
    return [
        slot.node in scores and not (concerned and state.affinity_refusal(pod, slot.node) is not None)
        for slot in offered
    ]


def _matched(fits: Sequence[Sequence[bool]]) -> list[int] | None:
    """A column for each row where ``fits`` is true, preferably the row's own number; None when there is none.

    Augmenting paths, each searched breadth first.
    """
    column_of = {row: row for row in range(len(fits)) if fits[row][row]}
    row_of = dict(column_of)
    for start in range(len(fits)):
        if start in column_of:
            continue
        came: dict[int, int] = {}
        end = _free_column(fits, row_of, start, came)
        if end is None:
            return None
        while True:  # every column of the path goes to the row that reached it
            row = came[end]
            row_of[end] = row
            if row == start:
                column_of[row] = end
                break
            column_of[row], end = end, column_of[row]
    return [column_of[row] for row in range(len(fits))]


def _free_column(
    fits: Sequence[Sequence[bool]], row_of: Mapping[int, int], start: int, came: dict[int, int]
) -> int | None:
    """The nearest column that no row has, by paths from ``start``; ``came`` records from which row each is reached."""
    rows = [start]
    for row in rows:
        for column, fit in enumerate(fits[row]):
            if fit and column not in came:
                came[column] = row
                if column not in row_of:
                    return column
                rows.append(row_of[column])
    return None
