"""A job that waits at the head of its queue without finding room gives up its turn, where its PodGroup allows that.

Annotation ``huawei.com/schedule_enable_dequeue: "on"`` of a PodGroup: when it is Inqueue for more than five minutes
while another job of its queue waits, it goes back to Pending and is counted in
``huawei.com/schedule_dequeue_frequency``, by which ``queue.order`` lets others go first. Source:
component/ascend-for-volcano/plugin/factory.go and job.go of MindCluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belay.engine.model.jobs import Gang
from belay.engine.model.labels import DEQUEUE_FREQUENCY, ENABLE_DEQUEUE, ENQUEUE_TIME
from belay.engine.model.pending_reasons import (
    GANG_INCOMPLETE,
    GATED,
    INVALID_REQUEST,
    NOT_SUPPORTED,
    POD_GROUP_MISSING,
    QUEUE_CLOSED,
    QUEUE_MISSING,
)
from belay.engine.model.phases import PodGroupPhase
from belay.engine.model.quantities import whole_number
from belay.engine.plan.draft import Draft
from belay.engine.plan.grouping import PassGangs

ON: Final = "on"
INQUEUE: Final = PodGroupPhase.INQUEUE
PENDING: Final = PodGroupPhase.PENDING
#: How long a job may be Inqueue while others of its queue wait, in ms.
PATIENCE: Final = 5 * 60_000
#: Gangs that wait for these reasons would not start in their turn.
_HOPELESS: Final = frozenset({
    GANG_INCOMPLETE, GATED, INVALID_REQUEST, NOT_SUPPORTED, POD_GROUP_MISSING, QUEUE_CLOSED, QUEUE_MISSING,
})  # fmt: skip


def waiting_gangs(draft: Draft, gangs: PassGangs) -> dict[str, set[str]]:
    """The jobs that wait for a turn, by queue: keys of gangs."""
    waiting = {(e.namespace, e.kind, e.name) for e in draft.pending if e.reason not in _HOPELESS}
    found: dict[str, set[str]] = {}
    for gang in gangs.values():
        if (gang.namespace, gang.kind, gang.name) in waiting:
            found.setdefault(gang.queue, set()).add(gang.key)
    return found


def allowed(notes: Mapping[str, str]) -> bool:
    """Whether a PodGroup with these annotations may give up its turn."""
    return notes.get(ENABLE_DEQUEUE) == ON


def turn(
    notes: Mapping[str, str], phase: str, gang: Gang | None, waiting: Mapping[str, set[str]], now_ms: int
) -> tuple[str, dict[str, str | None]]:
    """The phase that a PodGroup gets, and its changed annotations (None: removed).

    Args:
        notes: the annotations of the PodGroup.
        phase: the phase that it would have otherwise.
        gang: its gang, None when there is none.
        waiting: see ``waiting_gangs``.
    """
    if phase not in (INQUEUE, PENDING):
        return phase, {key: None for key in (ENQUEUE_TIME, DEQUEUE_FREQUENCY) if key in notes}
    if phase == PENDING or gang is None:
        return phase, {}
    since = whole_number(notes.get(ENQUEUE_TIME, ""), digits=15)
    if since is None or since > now_ms:
        return phase, {ENQUEUE_TIME: str(now_ms)}
    mine = waiting.get(gang.queue, set())
    if now_ms - since <= PATIENCE or gang.key not in mine or len(mine) < 2:
        return phase, {}
    before = whole_number(notes.get(DEQUEUE_FREQUENCY, ""), digits=15) or 0
    return PENDING, {ENQUEUE_TIME: None, DEQUEUE_FREQUENCY: str(before + 1)}
