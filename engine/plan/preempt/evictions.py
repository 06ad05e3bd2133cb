"""The eviction of one victim set for a gang."""

from __future__ import annotations

from belay.engine.model.actions import EvictPod, Evidence, Owner, Preconditions
from belay.engine.model.jobs import Gang
from belay.engine.plan import causes
from belay.engine.plan.preempt import messages
from belay.engine.plan.preempt.victim_sets import VictimSet
from belay.engine.plan.scope import Displacement, Scope


def evict(scope: Scope, gang: Gang, victims: VictimSet, reason: str, rule: str, *, counted: bool) -> None:
    """Evict the pods of a victim set.

    Args:
        gang: the gang that they make room for.
        reason: ``Preempted`` or ``Reclaimed``.
        rule: what allows it, for the evidence.
        counted: False for an eviction that an earlier pass decided already.
    """
    victim = victims.gang
    pods = tuple(pod.key for pod in victims.pods)
    scope.displaced[victims.budget] = Displacement(gang.key, victim.key, pods, reason, counted)
    for pod in victims.pods:
        scope.evicting.add(pod.key)
        scope.actions.append(
            EvictPod(
                namespace=pod.namespace,
                pod=pod.name,
                grace_period_seconds=pod.grace_seconds,
                force=False,
                owner=Owner(victim.kind, victim.name),
                budget_unit=victims.budget,
                reason=reason,
                message=messages.eviction_message(gang, victims, pod, reason),
                evidence=Evidence(rule=rule, revision=scope.desired.revision, cause=causes.of_claim(gang, rule)),
                preconditions=Preconditions(uid=pod.uid, node=pod.node),
            )
        )
