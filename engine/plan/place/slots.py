"""Slots of gangs whose nodes are chosen together, and pods of such a gang that ask for different things.

A selector for the master only, more memory for one task: the rules of super pods and trees choose among nodes that are
alike to all pods. Where that finds no place, they are asked again with fewer or more candidates, and pods that are
close together change places until each fits its node. Gangs whose pods ask alike never need this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.model.cluster import Pod
from engine.plan.place.bench import Bench, Seated
from engine.plan.place.job import Job


class Slot(NamedTuple):
    """A node for one rank; ``logical`` and ``super_pod`` are -1 outside super pods."""

    node: str
    logical: int = -1
    super_pod: int = -1


def staying_pods(job: Job, waiting: Collection[str]) -> list[Pod]:
    """The job's other pods that run and stay."""
    return [pod for pod in job.pods if pod.key not in waiting and pod.node and pod.deleting is None]


def kinds(bench: Bench, job: Job, pods: Sequence[Pod]) -> list[Pod]:
    """The first pod of every kind: pods of a kind have the same candidates."""
    first: dict[int, Pod] = {}
    for pod in pods:
        first.setdefault(id(bench.table(job, pod)), pod)
    return list(first.values())


def hopeless(bench: Bench, job: Job, pods: Sequence[Pod]) -> Pod | None:
    """The first pod that fits no node at all, whatever becomes of the others."""
    return next((pod for pod in kinds(bench, job, pods) if not bench.table(job, pod).scores), None)


def pools(
    bench: Bench, job: Job, pods: Sequence[Pod], homes: Sequence[Callable[[str], Hashable]] = ()
) -> Iterator[list[str]]:
    """Candidates to try, in the order of names: nodes that fit every kind of pod, nodes of places where every kind fits
    some, all nodes that fit any. None when the pods ask alike.

    Args:
        homes: what tells the places of nodes apart, the narrowest places first.
    """
    samples = kinds(bench, job, pods)
    if len(samples) < 2:
        return
    fits = [set(bench.candidates(job, pod)) for pod in samples]
    anywhere = sorted(set[str]().union(*fits))
    yield sorted(set.intersection(*fits))
    for home in homes:
        shared = set.intersection(*({home(name) for name in names} for names in fits))
        yield [name for name in anywhere if home(name) in shared]
    yield anywhere


def exchanged(
    bench: Bench,
    job: Job,
    pods: Sequence[Pod],
    slots: Mapping[str, Slot],
    close: Callable[[Slot], Hashable],
    among: Sequence[str],
) -> dict[str, Slot] | None:
    """A slot for every pod that fits it, as near to ``slots`` as that can be; None when there is no such way.

    Args:
        slots: a slot for every pod by its key, whether it fits or not.
        close: pods whose slots it finds equal may change places, and nodes may change for those that it finds equal.
        among: candidates, in the order in which they are taken.
    """
    groups: dict[Hashable, list[Pod]] = {}
    for pod in pods:
        groups.setdefault(close(slots[pod.key]), []).append(pod)
    used = {slot.node for slot in slots.values()}
    out: dict[str, Slot] = {}
    for key, members in groups.items():
        offered = [slots[pod.key] for pod in members]
        others = (offered[0]._replace(node=name) for name in among if name not in used)
        offered += [slot for slot in others if close(slot) == key]
        taken = _matched([_row(bench, job, pod, offered) for pod in members])
        if taken is None:
            return None
        out.update((pod.key, offered[at]) for pod, at in zip(members, taken, strict=True))
        used.update(offered[at].node for at in taken)
    return out


def one_by_one(
    bench: Bench, job: Job, pods: Sequence[Pod], slots: Mapping[str, Slot], home: Callable[[str], Hashable]
) -> dict[str, Slot] | None:
    """Slots as given, but a pod that does not go beside those before it gets another node of the same ``home``.

    Nothing stays on the bench; None when a pod finds no such node.
    """
    used = {slot.node for slot in slots.values()}
    spare: dict[Hashable, list[str]] = {}
    for name in sorted(bench.table(job, pods[0]).scores):
        if name not in used:
            spare.setdefault(home(name), []).append(name)
    out: dict[str, Slot] = {}
    placed: list[Seated] = []
    for pod in pods:
        table, slot = bench.table(job, pod), slots[pod.key]
        options = [slot.node, *spare.get(home(slot.node), ())]
        node = next((name for name in options if name in table.scores and bench.allowed(pod, name) is None), None)
        if node is None:
            break
        if node != slot.node:
            spare[home(node)].remove(node)
        out[pod.key] = slot._replace(node=node)
        item = Seated(pod, node, table.chips(node))
        bench.put(item)
        placed.append(item)
    bench.take_back(placed)
    return out if len(out) == len(pods) else None


def _row(bench: Bench, job: Job, pod: Pod, offered: Sequence[Slot]) -> list[bool]:
    """Which of the slots fit the pod."""
    scores = bench.table(job, pod).scores
    concerned = bench.neighbours.concerns(pod)
    return [slot.node in scores and not (concerned and bench.allowed(pod, slot.node) is not None) for slot in offered]


def _matched(fits: Sequence[Sequence[bool]]) -> list[int] | None:
    """A column for each row where the table says yes, the row's own number where that does; None: there is no way.

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
    """The nearest column that no row has, by paths from ``start``; ``came`` says from which row each is reached."""
    rows = [start]
    for row in rows:
        for column, fit in enumerate(fits[row]):
            if fit and column not in came:
                came[column] = row
                if column not in row_of:
                    return column
                rows.append(row_of[column])
    return None
