"""Sentences about room: which pod is evicted for which job, what a job waits for, the cheapest way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.plan import MAX_NEAR, Pending
from belay.engine.model.reasons import ActionReason
from belay.engine.model.remedies import Remedy, Step
from belay.engine.plan.draft import Draft
from belay.engine.plan.preempt.victim_sets import VictimSet

MAX_NAMES: Final = 3
MAX_UNBLOCK: Final = 1024
#: Rounding of durations: below (seconds), unit, its size in seconds, step.
_ROUGHLY: Final = ((60, "s", 1, 10), (600, "min", 60, 1), (3600, "min", 60, 10), (86_400, "h", 3600, 1))


def eviction_message(gang: Gang, victims: VictimSet, pod: Pod, reason: str) -> str:
    """Why a pod is evicted."""
    victim = victims.gang
    if reason == ActionReason.GANG_INCOMPLETE:
        have = f"{len(victims.pods)} of {victim.min_available} pods of {named(victim)} run, the others find no room"
        whom = f"{named(gang)} can start" if gang.key != victim.key else "all of them start together elsewhere"
        return f"{have}: {pod.name} gives its chips back, so that {whom}"
    if reason == "Reclaimed":
        why = f"queue {gang.queue} is below its share, queue {victim.queue} above"
    else:
        why = f"priority {gang.priority} over {victim.priority}"
    whole = f" with its whole job ({len(victims.pods)} pods)" if victims.ends_job and len(victims.pods) > 1 else ""
    return f"pod {pod.key} of {named(victim)} makes way{whole} for {named(gang)} ({why})"


def waits_for_evictions(pods: Sequence[Pod]) -> str:
    """What a job waits for after pods were evicted for it."""
    names = _some([pod.key for pod in pods])
    plural = "s" if len(pods) > 1 else ""
    return f"room is being made: waiting for {len(pods)} evicted pod{plural} to end ({names})"


def waits_for_terminating(pods: Sequence[Pod]) -> str:
    """What a job waits for when terminating pods free enough."""
    return f"no eviction is needed: {_terminating(pods)} will free enough"


def terminating_would_help(pods: Sequence[Pod]) -> str:
    """The terminating pods that would free enough, although their chips are not kept for the job."""
    return f"{_terminating(pods)} would free enough"


def _terminating(pods: Sequence[Pod]) -> str:
    names = _some(sorted(pod.key for pod in pods))
    return f"terminating pod {names}" if len(pods) == 1 else f"{len(pods)} terminating pods ({names})"


def held_back(evictions: int, budget: str, until: str) -> str:
    """What a job waits for when a budget defers the evictions that it needs."""
    what, them = (f"{evictions} evictions", "them") if evictions > 1 else ("an eviction", "it")
    when = f"until {until}" if until else "until it is changed"
    return f"{what} would free enough; {budget} defers {them} {when}"


def cheapest_eviction(gang: Gang, victim_sets: Sequence[VictimSet], why_not: str) -> str:
    """The cheapest victim sets that would free enough, and why they are not evicted."""
    rows = [
        f"{_what(victims)} ({_importance(gang, victims)}, {_time(victims.seconds)} lost)" for victims in victim_sets
    ]
    below = all(victims.gang.priority < gang.priority for victims in victim_sets)
    shown = _some(rows)
    if not below:
        return f"ending {shown} would free enough"
    return f"evicting {shown} would free enough" + (f"; {why_not}" if why_not else "")


def named(gang: Gang) -> str:
    """Return the job's kind, namespace and name for messages, e.g. ``AscendJob train/big``."""
    return f"{gang.kind} {gang.namespace}/{gang.name}"


def amend(
    draft: Draft,
    gang: Gang,
    unblock: str,
    *,
    reason: str | None = None,
    near: Iterable[str] | None = None,
    waits: bool = True,
) -> None:
    """Replace the way out in the gang's pending entry, its reason and its nodes where they are given.

    ``waits``: what the new text says is under way, so there is nothing to do; else the step of the entry stays.
    """
    _edit(draft, gang, lambda _: unblock, reason, near, waits=waits)


def extend(draft: Draft, gang: Gang, more: str, *, near: Iterable[str] | None = None) -> None:
    """Append to the way out in the gang's pending entry; its nodes become those that are given."""
    _edit(draft, gang, lambda entry: f"{entry.unblock}; {more}" if entry.unblock else more, None, near, waits=False)


def nodes_of(pods: Iterable[Pod]) -> list[str]:
    """The nodes on which pods run, each once, in the order of the pods."""
    return list(dict.fromkeys(pod.node for pod in pods if pod.node))


def entry_of(draft: Draft, gang: Gang) -> Pending | None:
    """The gang's pending entry of this pass."""
    index = _index(draft, gang)
    return draft.pending[index] if index is not None else None


def _edit(
    draft: Draft,
    gang: Gang,
    way_out: Callable[[Pending], str],
    reason: str | None,
    near: Iterable[str] | None,
    *,
    waits: bool,
) -> None:
    index = _index(draft, gang)
    if index is None:
        return
    entry = draft.pending[index]
    unblock = way_out(entry)
    unblock = unblock if len(unblock) <= MAX_UNBLOCK else unblock[: MAX_UNBLOCK - 1] + "…"
    nodes = entry.near if near is None else tuple(dict.fromkeys(near))[:MAX_NEAR]
    remedy = Remedy(Step.WAIT) if waits else entry.remedy
    draft.pending[index] = msgspec.structs.replace(
        entry, unblock=unblock, reason=reason or entry.reason, near=nodes, remedy=remedy
    )


def _index(draft: Draft, gang: Gang) -> int | None:
    wanted = (gang.namespace, gang.name, gang.kind)
    for index in range(len(draft.pending) - 1, -1, -1):
        entry = draft.pending[index]
        if (entry.namespace, entry.name, entry.kind) == wanted:
            return index
    return None


def _what(victims: VictimSet) -> str:
    if victims.ends_job and len(victims.pods) > 1:
        return f"job {victims.gang.namespace}/{victims.gang.name}"
    return f"pod {victims.pods[0].key}" if not victims.ends_job else f"job {victims.gang.namespace}/{victims.gang.name}"


def _importance(gang: Gang, victims: VictimSet) -> str:
    mine, theirs = gang.priority, victims.gang.priority
    return "priority lower" if theirs < mine else "priority equal" if theirs == mine else "priority higher"


def _time(seconds: int) -> str:
    """A rounded duration, so that the sentence does not change with every second."""
    for below, unit, size, step in _ROUGHLY:
        if seconds < below:
            return f"{seconds // size // step * step} {unit}"
    return f"{seconds // 86_400} d"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown
