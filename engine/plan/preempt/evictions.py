"""The eviction of one victim set for a gang."""

from __future__ import annotations

from belay.engine.model.actions import EvictPod, Evidence, Owner, Preconditions
from belay.engine.model.jobs import Gang
from belay.engine.plan import causes
from belay.engine.plan.draft import Displacement, Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.preempt import messages
from belay.engine.plan.preempt.victim_sets import VictimSet


def evict(facts: Facts, draft: Draft, gang: Gang, victims: VictimSet, reason: str, rule: str, *, counted: bool) -> None:
    """Evict the pods of a victim set.

    Args:
        gang: the gang that they make room for.
        reason: ``Preempted`` or ``Reclaimed``.
        rule: what allows it, for the evidence.
        counted: False for an eviction that an earlier pass decided already.
    """
    victim = victims.gang
    pods = tuple(pod.key for pod in victims.pods)
    draft.displaced[victims.budget] = Displacement(gang.key, victim.key, pods, reason, counted)
    for pod in victims.pods:
        draft.evicting.add(pod.key)
        draft.actions.append(
            EvictPod(
                namespace=pod.namespace,
                pod=pod.name,
                grace_period_seconds=pod.grace_seconds,
                force=False,
                owner=Owner(victim.kind, victim.name),
                budget_unit=victims.budget,
                reason=reason,
                message=messages.eviction_message(gang, victims, pod, reason),
                evidence=Evidence(rule=rule, revision=facts.desired.revision, cause=causes.of_claim(gang, rule)),
                preconditions=Preconditions(uid=pod.uid, node=pod.node),
            )
        )
