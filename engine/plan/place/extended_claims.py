"""Makes the claims that waiting pods need for extended resources, as Kubernetes makes those of templates."""

from __future__ import annotations

from belay.engine.plan import roles
from belay.engine.plan.claims.extended import claim_actions
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs, shard_of


def create_claims(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Make each claim that a pod of this shard waits for, then name it in the pod's status."""
    for key, wanted in facts.claims.wanted.items():
        pod = facts.observed.pods[key]
        gang = gangs.get(gangs.of_pod.get(key, ""))
        if gang is not None and shard_of(facts, gang) == facts.shard and roles.schedules(facts, pod):
            draft.actions.extend(claim_actions(pod, wanted, facts.now))
