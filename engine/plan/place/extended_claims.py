"""Makes the claims that waiting pods need for extended resources, as Kubernetes makes those of templates."""

from __future__ import annotations

from belay.engine.plan import roles
from belay.engine.plan.claims.extended import claim_actions
from belay.engine.plan.grouping import shard_of
from belay.engine.plan.scope import Scope


def run(scope: Scope) -> None:
    """Make each claim that a pod of this shard waits for, then name it in the pod's status."""
    for key, wanted in scope.facts.claims.wanted.items():
        pod = scope.facts.observed.pods[key]
        gang = scope.gangs.get(scope.gang_of.get(key, ""))
        if gang is not None and shard_of(scope.facts, gang) == scope.facts.shard and roles.schedules(scope.facts, pod):
            scope.draft.actions.extend(claim_actions(pod, wanted, scope.facts.now))
