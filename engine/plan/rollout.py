"""The parts in which a gang is placed while Kubernetes rolls its workload from one template to another.

Templates that ask for the same stay one gang, so that a new image changes nothing about where its pods may go. Where
they ask for different things, each is a request of its own, the newest first: what its controller wants of it so far
starts together, and pods of other templates that run count towards the job's minimum, for they keep the job up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from belay.engine.model.jobs import Gang
from belay.engine.model.plan import Pending
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.queue.waiting_pods import MAX_MESSAGE, WaitingPods


def parts(gang: Gang, waiting_pods: WaitingPods, read: Callable[[Gang], SchedulerJob | Refusal]) -> Sequence[Gang]:
    """The gang's parts with pods that wait, the newest template first; the gang itself where it is not divided."""
    if not gang.rollout:
        return (gang,)

    alike: list[tuple[object, list[Gang]]] = []
    for part in gang.rollout:
        asked = _asked(part, read(part))
        row = next((members for other, members in alike if other == asked), None)
        if row is None:
            alike.append((asked, [part]))
        else:
            row.append(part)
    if len(alike) == 1:
        return (gang,)

    started = len(waiting_pods.started(gang))
    found = [_sized(_joined(gang, members), started, waiting_pods) for _, members in alike]
    return [part for part in found if waiting_pods.waiting(part)] or (gang,)


def one_entry(entries: Sequence[Pending]) -> Sequence[Pending]:
    """One pending entry of a gang for those of its parts: the newest template's, with the pods of all."""
    if len(entries) < 2:
        return entries

    first, older = entries[0], entries[1:]
    pods = {name for entry in entries for name in entry.pods}
    others = "; ".join(f"{len(entry.pods)} of an older template: {entry.message}" for entry in older)
    message = f"{first.message}; {others}"
    cut = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
    return [replace(first, pods=tuple(sorted(pods)), message=cut)]


def _asked(part: Gang, job: SchedulerJob | Refusal) -> object:
    """What a template asks for; equal for templates whose pods are interchangeable to placement."""
    if isinstance(job, Refusal):
        return part.template
    chips = tuple(sorted({pod.count for pod in job.pods}))
    return (job.resource, chips, repr(job.family), job.topology, job.node_chips, job.blocks, job.strict, job.shared)


def _joined(gang: Gang, members: Sequence[Gang]) -> Gang:
    """The pods of several templates under the newest of them."""
    if len(members) == 1:
        return members[0]
    keys = {key for part in members for key in part.pods}
    return replace(
        members[0],
        pods=tuple(key for key in gang.pods if key in keys),
        wanted=sum(part.wanted for part in members),
    )


def _sized(part: Gang, started: int, waiting_pods: WaitingPods) -> Gang:
    """The part with the number of its own pods that start together."""
    own = len(waiting_pods.started(part))
    elsewhere = started - own
    return replace(part, min_available=max(0, min(part.min_available - elsewhere, part.wanted)))
