"""Sentences about room: who goes for whom, what a job waits for, what would be the cheapest way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.model.plan import Pending
from engine.plan.queue.units import Unit
from engine.plan.scope import Scope

MAX_NAMES: Final = 3
MAX_UNBLOCK: Final = 1024
#: Below so many seconds: in which unit of which size, in steps of how many.
_ROUGHLY: Final = ((60, "s", 1, 10), (600, "min", 60, 1), (3600, "min", 60, 10), (86_400, "h", 3600, 1))


def makes_way(gang: Gang, unit: Unit, pod: Pod, reason: str) -> str:
    """Why a pod is evicted."""
    victim = unit.gang
    if reason == "Reclaimed":
        why = f"queue {gang.queue} is below its share, queue {victim.queue} above"
    else:
        why = f"priority {gang.priority} over {victim.priority}"
    whole = f" with its whole job ({len(unit.pods)} pods)" if unit.ends and len(unit.pods) > 1 else ""
    return f"pod {pod.key} of {named(victim)} makes way{whole} for {named(gang)} ({why})"


def waits_for(pods: Sequence[Pod]) -> str:
    """What a job waits for whose room is being made."""
    names = _some([pod.key for pod in pods])
    return f"room is being made: {len(pods)} pod{'s' if len(pods) > 1 else ''} told to go for it ({names})"


def ends_by_itself(pods: Sequence[Pod]) -> str:
    """What a job waits for whose room comes without anybody being told to go for it."""
    return f"nobody is evicted for it: room comes with the end of {_leaving(pods)}"


def end_would_do(pods: Sequence[Pod]) -> str:
    """What would make room although nobody keeps it for the job."""
    return f"room would come with the end of {_leaving(pods)}"


def _leaving(pods: Sequence[Pod]) -> str:
    names = _some(sorted(pod.key for pod in pods))
    return f"pod {names}, which is leaving" if len(pods) == 1 else f"{len(pods)} pods that are leaving ({names})"


def held_back(units: int, budget: str, until: str) -> str:
    """What a job waits for whose room a budget does not let be made."""
    what, them = (f"{units} evictions", "them") if units > 1 else ("an eviction", "it")
    when = f"until {until}" if until else "until somebody changes that"
    return f"{what} would make room, {budget} holds {them} back {when}"


def would_do(gang: Gang, units: Sequence[Unit], why_not: str) -> str:
    """The cheapest set that would make room, and why it does not go by itself."""
    rows = [f"{_what(unit)} ({_importance(gang, unit)}, {_time(unit.seconds)} lost)" for unit in units]
    below = all(unit.gang.priority < gang.priority for unit in units)
    shown = _some(rows)
    if not below:
        return f"the end of {shown} would do"
    return f"evicting {shown} would do; {why_not}" if why_not else f"evicting {shown} would do"


def named(gang: Gang) -> str:
    """``AscendJob train/big``."""
    return f"{gang.kind} {gang.namespace}/{gang.name}"


def amend(scope: Scope, gang: Gang, unblock: str, *, reason: str | None = None) -> None:
    """Replaces the way out in the gang's pending entry, and its reason where one is given."""
    _edit(scope, gang, lambda entry: unblock, reason)


def extend(scope: Scope, gang: Gang, more: str) -> None:
    """Adds to the way out in the gang's pending entry."""
    _edit(scope, gang, lambda entry: f"{entry.unblock}; {more}" if entry.unblock else more, None)


def entry_of(scope: Scope, gang: Gang) -> Pending | None:
    """The gang's pending entry of this pass."""
    index = _index(scope, gang)
    return scope.pending[index] if index is not None else None


def _edit(scope: Scope, gang: Gang, text: object, reason: str | None) -> None:
    index = _index(scope, gang)
    if index is None:
        return
    entry = scope.pending[index]
    unblock = str(text(entry)) if callable(text) else str(text)
    unblock = unblock if len(unblock) <= MAX_UNBLOCK else unblock[: MAX_UNBLOCK - 1] + "…"
    scope.pending[index] = msgspec.structs.replace(entry, unblock=unblock, reason=reason or entry.reason)


def _index(scope: Scope, gang: Gang) -> int | None:
    wanted = (gang.namespace, gang.name, gang.kind)
    for index in range(len(scope.pending) - 1, -1, -1):
        entry = scope.pending[index]
        if (entry.namespace, entry.name, entry.kind) == wanted:
            return index
    return None


def _what(unit: Unit) -> str:
    if unit.ends and len(unit.pods) > 1:
        return f"job {unit.gang.namespace}/{unit.gang.name}"
    return f"pod {unit.pods[0].key}" if not unit.ends else f"job {unit.gang.namespace}/{unit.gang.name}"


def _importance(gang: Gang, unit: Unit) -> str:
    mine, theirs = gang.priority, unit.gang.priority
    return "priority lower" if theirs < mine else "priority equal" if theirs == mine else "priority higher"


def _time(seconds: int) -> str:
    """Roughly how long: what is told must not change with every second."""
    for below, unit, size, step in _ROUGHLY:
        if seconds < below:
            return f"{seconds // size // step * step} {unit}"
    return f"{seconds // 86_400} d"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown
