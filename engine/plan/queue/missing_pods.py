"""Gangs with fewer pods than start together: what lacks, and, once none has come for long, that none seems to come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from belay.engine.gangs.declared import label_or_annotation
from belay.engine.gangs.forming import declared_rank, task_of
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import JOB_COMPLETION_INDEX
from belay.engine.model.pending_reasons import GANG_INCOMPLETE
from belay.engine.model.plan import Pending
from belay.engine.model.quantities import whole_number
from belay.engine.model.remedies import Remedy, Step
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.model.workload_kinds import WorkloadTable
from belay.engine.plan.queue.waiting_pods import pending_entry

#: Controllers make their pods within seconds: a gang of which none came for so long will hardly be complete.
FORMING_SECONDS: Final = 600.0
#: Labels and annotations with a pod's number, whatever the kind of its workload.
_NUMBERS: Final = (JOB_COMPLETION_INDEX,)
_SHOWN: Final = 8


def incomplete(
    gang: Gang, waiting: Sequence[Pod], others: Sequence[Pod], gated: Sequence[Pod], table: WorkloadTable, now: float
) -> Pending | None:
    """The pending entry of a gang of which too few pods are there; else None.

    Args:
        waiting: its pods that may be placed.
        others: those that have started.
        gated: those that are there and may not be scheduled yet.
    """
    created = len(waiting) + len(others)
    if created >= gang.min_available:
        return None

    lacks = gang.min_available - created
    if gang.kind in ("Deployment", "ReplicaSet"):
        message = f"job {gang.name} task num {created} less than replicas {gang.min_available}"
    else:
        message = f"the pods of job is not enough, req: {gang.min_available}, actual: {created}"

    newest = max(pod.created for pod in (*waiting, *gated))
    is_late = not gated and now - newest >= FORMING_SECONDS
    state = f"no pod came since {rfc3339(newest)}, {_which(gang, (*waiting, *others), table)}" if is_late else ""
    return pending_entry(
        gang,
        waiting,
        GANG_INCOMPLETE,
        f"NotEnoughPod: {message}",
        nodes={},
        unblock=_way_out(gang, created, lacks, gated, is_late),
        remedy=Remedy(Step.CREATE_PODS, count=lacks),
        state=state,
    )


def _way_out(gang: Gang, created: int, lacks: int, gated: Sequence[Pod], is_late: bool) -> str:
    pods = "pod" if lacks == 1 else "pods"
    if gated:
        held = f"{counted(len(gated), 'pod')} of it {'is' if len(gated) == 1 else 'are'} there"
        return f"{held}, but held by scheduling gates: {gate_names(gated)}"
    if not gang.declared:
        text = f"{lacks} more {pods} of this job must be created, or its old pods deleted"
    else:
        text = (
            f"{lacks} more {pods} must come: {gang.kind} {gang.namespace}/{gang.name} declares {gang.declared}, and "
            f"{created} of them {'is' if created == 1 else 'are'} there; events of the {gang.kind} say why its "
            "controller makes no more"
        )
    return f"{text}; if none comes, delete the job, or let it state a lower minimum" if is_late else text


def gate_names(pods: Iterable[Pod]) -> str:
    """The scheduling gates of pods, as text."""
    return ", ".join(sorted({name for pod in pods for name in pod.gates}))


def _which(gang: Gang, pods: Sequence[Pod], table: WorkloadTable) -> str:
    """Which pods of a gang lack: by their numbers, else by task, else which ones are there."""
    numbers = [_number(gang, pod, table) for pod in pods]
    known = {number for number in numbers if number is not None}
    total = max(gang.min_available, gang.replicas)
    if len(known) == len(pods) and max(known) < total:
        return f"missing of numbers 0-{total - 1}: {_listed(_gaps(sorted(known), total))}"

    there = Counter(map(task_of, pods))
    short = [f"{task} {there[task]} of {least}" for task, least in sorted(gang.task_min.items()) if there[task] < least]
    if short:
        return f"tasks lack pods: {_listed(short)}"
    return f"there are {_listed(sorted(pod.name for pod in pods))}"


def _number(gang: Gang, pod: Pod, table: WorkloadTable) -> int | None:
    row = table.of(gang.api_version, gang.kind)
    for key in (*_NUMBERS, *(row.rank_keys if row is not None else ())):
        number = whole_number(label_or_annotation(pod, key))
        if number is not None:
            return number
    return declared_rank(pod)


def _gaps(known: Sequence[int], total: int) -> list[str]:
    """The numbers below ``total`` that ascending ``known`` ones leave out, as ``2`` and ``5-7``.

    There are as many gaps as known numbers, and one more at most, however high a minimum an author writes.
    """
    gaps: list[str] = []
    first = 0
    for number in (*known, total):
        if number > first:
            gaps.append(str(first) if number == first + 1 else f"{first}-{number - 1}")
        first = number + 1
    return gaps


def _listed(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more
