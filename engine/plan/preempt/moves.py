"""Pods that are moved for a job: which may be moved, and the eviction that moves one.

A move evicts a pod whose owner makes a new one elsewhere. ``repartition`` moves pods for vNPUs, ``consolidation`` for
whole chips.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from belay.engine.model.actions import (
    EvictPod,
    Evidence,
    Owner,
    Preconditions,
)
from belay.engine.model.cluster import Pod
from belay.engine.model.disruption import settled
from belay.engine.model.history_lines import HistoryLine, LineKind, read_line
from belay.engine.model.jobs import Gang
from belay.engine.model.reasons import ActionReason
from belay.engine.plan.draft import Displacement, Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.preempt import messages
from belay.engine.plan.preempt.outcome import GangOutcome
from belay.engine.plan.restart_scope import memory_of

MOVED: Final = ActionReason.MOVED
#: No pod of a job moves again for so long after a move, in milliseconds.
REST_MS: Final = 600_000
#: Owners that replace single pods.
MOVABLE: Final = frozenset({"Deployment", "ReplicaSet"})


def together(facts: Facts, outcome: GangOutcome) -> Sequence[Pod]:
    """The waiting pods of a gang that must start together, else one of them."""
    needs = outcome.gang.min_available - sum(1 for key in outcome.gang.pods if facts.observed.pods[key].node)
    return outcome.unplaced[: max(1, needs)]


def owner_of(facts: Facts, draft: Draft, gangs: PassGangs, pod: Pod, gang: Gang) -> Gang | None:
    """The job of a pod that may be moved for the gang, else None: its owner replaces pods, its priority is not higher,
    it was not moved recently, and no annotation keeps it where it is.
    """
    owner = gangs.get(gangs.of_pod.get(pod.key, ""))
    if owner is None or owner.kind not in MOVABLE or owner.key == gang.key or owner.priority > gang.priority:
        return None
    if settled(pod):  # nor does Belay move it to make room
        return None
    recent = facts.now_ms - REST_MS
    story = memory_of(draft, owner).timeline
    return None if any(at > recent and _is_move(read_line(text)) for at, text in story) else owner


def _is_move(line: HistoryLine) -> bool:
    return line.kind is LineKind.MOVED or (line.kind is LineKind.DISPLACED and line.reason == MOVED)


def displaced_for(draft: Draft, owner: Gang, gang: Gang) -> str:
    """Why pods of the owner were last evicted for the gang, by the owner's history; empty where it says nothing."""
    lines = (read_line(text) for _, text in reversed(memory_of(draft, owner).timeline))
    return next((line.reason for line in lines if line.gang == gang.key), "")


def order(draft: Draft, gangs: PassGangs, gang: Gang, pod: Pod, evidence: Evidence) -> None:
    """Evict a pod, so that the gang fits on its node."""
    owner = gangs[gangs.of_pod[pod.key]]
    draft.displaced[pod.key] = Displacement(gang.key, owner.key, (pod.key,), MOVED)
    draft.evicting.add(pod.key)
    draft.actions.append(
        EvictPod(
            namespace=pod.namespace,
            pod=pod.name,
            grace_period_seconds=pod.grace_seconds,
            force=False,
            owner=Owner(owner.kind, owner.name),
            budget_unit=pod.key,
            reason=MOVED,
            message=f"pod {pod.key} of {messages.named(owner)} moves, "
            f"so that {messages.named(gang)} fits on {pod.node}",
            evidence=evidence,
            preconditions=Preconditions(uid=pod.uid, node=pod.node),
        )
    )
