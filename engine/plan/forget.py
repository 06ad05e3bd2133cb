"""The forget pass: drops the memory of jobs and nodes that no longer exist.

A job no longer exists when its object and all of its pods are gone and Git does not declare it. Memory is bound to the
UID, so a new job of the same name starts without memory anyway.
"""

from __future__ import annotations

from typing import Final

from belay.engine.model.history import ChipMemory
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.place.gangs import returning

#: How long a deleted node is remembered (30 days): it may register again under its name.
FORGOTTEN_MS: Final = 30 * 86_400_000


def forget_gone(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Drop the memory of jobs and nodes that no longer exist."""
    _jobs(facts, draft, gangs)
    _nodes(facts, draft)


def _jobs(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    away = [key for key in draft.memory.jobs if key not in gangs]
    if not away:
        return
    live = {(key.kind, key.namespace, key.name) for key in facts.observed.objects}
    declared = {(key.kind, key.namespace, key.name) for key in facts.desired.manifest_index}
    for key in away:
        namespace, kind, name = key.split("/", 2)
        owner = (kind.partition(".")[0], namespace, name)
        if owner not in live and owner not in declared:
            del draft.memory.jobs[key]
        else:
            returning.record_absence(facts, draft, key)  # declared or live, but without pods


def _nodes(facts: Facts, draft: Draft) -> None:
    """Drop the memory of nodes that have been gone for long, unless it has a hold that only a person may end.

    Their orders stay, so that epochs keep growing if a node of that name returns.
    """
    oldest = facts.now_ms - FORGOTTEN_MS
    for name in [n for n in draft.memory.nodes if n not in facts.observed.nodes]:
        rows = draft.memory.nodes[name].chips.values()
        times = [moment for row in rows for moment in _times(row)]
        times += [seen.shown or seen.time for seen in draft.memory.nodes[name].public.values()]
        newest = max(times, default=0)
        if newest < oldest and not any(hold.until == 0 for row in rows for hold in row.holds):
            del draft.memory.nodes[name]


def _times(row: ChipMemory) -> tuple[int, ...]:
    """The times in a chip's memory (Unix ms)."""
    return (
        row.isolated,
        row.ordered,
        row.recovering,
        *row.resets,
        *(at for at, _ in row.timeline),
        *(code.last for code in row.codes.values()),
        *(moment for hold in row.holds for moment in (hold.since, hold.until)),
    )
