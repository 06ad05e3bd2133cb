"""Take back a gang whose binding was interrupted and can no longer be completed.

A worker that dies while it binds a gang leaves some pods bound and claims of the others in the ledger. The next pass
repeats the claimed assignments. Where it cannot, because a node has gone and no other fits, the bound pods would hold
their chips for a job that never starts: they are evicted, and their owner makes new ones, which wait for the whole
gang. A job that has run before is left to recovery: there the waiting pods are younger than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from belay.engine.model.actions import (
    EvictPod,
    Evidence,
    Owner,
    Preconditions,
)
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import INDEPENDENT_KINDS, Gang
from belay.engine.model.reasons import ActionReason
from belay.engine.plan import causes
from belay.engine.plan.budgets import unit_of
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs

REASON: Final = ActionReason.GANG_INCOMPLETE
RULE: Final = "place/rollback"


def take_back(
    facts: Facts, draft: Draft, gangs: PassGangs, gang: Gang, started: Sequence[Pod], waiting: Sequence[Pod]
) -> None:
    """Evict the bound pods of a gang that lacks its minimum and whose ``waiting`` pods, though claimed, find no
    nodes.
    """
    if gang.kind in INDEPENDENT_KINDS or not _never_ran(started, waiting):
        return
    for pod in started:
        if pod.key in draft.evicting:
            continue
        draft.evicting.add(pod.key)
        draft.actions.append(
            EvictPod(
                namespace=pod.namespace,
                pod=pod.name,
                grace_period_seconds=pod.grace_seconds,
                force=False,
                owner=Owner(pod.owner_kind, pod.owner_name),
                budget_unit=unit_of(gangs, pod.key),
                reason=REASON,
                message=f"{gang.kind} {gang.namespace}/{gang.name}: its binding was interrupted and cannot be "
                f"completed, {len(started)} of {gang.min_available} pods are bound: {pod.name} gives its chips back",
                evidence=Evidence(rule=RULE, revision=facts.desired.revision, cause=causes.of_claim(gang, RULE)),
                preconditions=Preconditions(uid=pod.uid, node=pod.node),
            )
        )


def _never_ran(started: Sequence[Pod], waiting: Sequence[Pod]) -> bool:
    """Whether every pod is the gang's first: all existed before any of them began, and each has an owner that replaces
    it.
    """
    if not started or any(pod.phase == "Succeeded" or not pod.owner_kind or pod.deleting for pod in started):
        return False
    began = min(inf if pod.started is None else pod.started for pod in started)
    return max(pod.created for pod in waiting) <= began
