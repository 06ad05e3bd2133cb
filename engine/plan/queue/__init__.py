"""Who deserves to run, and in which order: queues, priorities, complete gangs.

``lines`` are the queues and what each may have and deserves (``share``), ``order`` says whose turn it is, ``roster``
which pods wait. What happens when there is no room is decided around placement: ``consent`` (who may be evicted for
whom), ``shields`` (whom PodDisruptionBudgets protect), ``units`` (what can be evicted), ``candidates`` (who of these at
all), ``leaving`` (terminating pods), ``contention`` (the least that must go), ``reserve`` (nodes kept for a
job that has waited too long). Queues may use everything up to their capability while nobody else wants it.
"""

from __future__ import annotations

from typing import Final

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.model.plan import Pending
from engine.plan import roles
from engine.plan.gangs import MIN_AVAILABLE_KEY, parse_min_available, shard_of
from engine.plan.memo import Settled
from engine.plan.queue.lines import Quota
from engine.plan.queue.order import Rank, in_order, rank, turns
from engine.plan.queue.roster import Roster, pending_entry
from engine.plan.scope import Scope

#: Gangs of which every pod has a node, while their pods are what they are.
_PLACED: Final = Settled(32768)

__all__ = ["Quota", "Roster", "pending_entry", "run", "turns"]


def run(scope: Scope) -> None:
    """Fills ``scope.queue`` with the gangs that may be placed, in order; the others become pending with a reason."""
    if not roles.plays(scope, "schedule") or scope.observed.ledger_broken:
        return
    quota, roster = Quota(scope), Roster(scope)
    entries: list[tuple[int, Rank]] = []
    for gang in scope.gangs.values():
        members = (scope.members[gang.key],)
        if _PLACED.holds(gang.key, members):
            continue
        waiting = roster.waiting(gang)
        if not waiting and all(pod.node or pod.finished for pod in scope.members[gang.key]):
            _PLACED.note(gang.key, members)
        if not waiting or shard_of(scope, gang) != scope.shard:
            continue
        held = _held_back(gang, waiting, roster.beside(gang, waiting), quota)
        if held is not None:
            scope.pending.append(held)
            continue
        line = quota.lines.get(gang.queue)
        entries.append((-(line.priority if line else 0), rank(scope, gang, quota)))
    scope.queue = in_order(entries)


def _held_back(gang: Gang, waiting: list[Pod], started: list[Pod], quota: Quota) -> Pending | None:
    closed = quota.refusal(gang.queue)
    if closed is not None:
        reason, message, unblock = closed
        return pending_entry(gang, waiting, reason, message, nodes={}, unblock=unblock)
    stated = gang.annotations.get(MIN_AVAILABLE_KEY)
    if stated is not None and parse_min_available(gang.annotations) is None:
        return pending_entry(
            gang,
            waiting,
            "InvalidRequest",
            f"InvalidArgument: job {gang.name} task minAvailable {stated} is invalid",
            nodes={},
            unblock=f"write a whole number into annotation {MIN_AVAILABLE_KEY}",
        )
    created = len(waiting) + len(started)
    if created < gang.min_available:
        if gang.kind in ("Deployment", "ReplicaSet"):
            message = f"job {gang.name} task num {created} less than replicas {gang.min_available}"
        else:
            message = f"the pods of job is not enough, req: {gang.min_available}, actual: {created}"
        return pending_entry(
            gang,
            waiting,
            "GangIncomplete",
            f"NotEnoughPod: {message}",
            nodes={},
            unblock=f"{gang.min_available - created} more pods of this job must be created (or the old ones be gone)",
        )
    return None
