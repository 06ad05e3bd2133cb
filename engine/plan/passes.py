"""The steps of a pass in their order, and what each hands to the next.

A step is one file; its name here is that of its file or its room.
"""

from __future__ import annotations

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import causes, clock_skew, explain, forget, grouping, memberships, placement, views
from belay.engine.plan.claims.holding import resolve
from belay.engine.plan.draft import Draft, Memory
from belay.engine.plan.facts import Facts
from belay.engine.plan.health import reset, states
from belay.engine.plan.health.outcome import HealthOutcome
from belay.engine.plan.jobs import expand, native_group_status, podgroup_status, queue_status
from belay.engine.plan.links import orders
from belay.engine.plan.place import extended_claims
from belay.engine.plan.queue import enqueue
from belay.engine.plan.recover import elastic, evictions, in_place_recovery, training_time
from belay.engine.plan.safety import deferral, refusals
from belay.engine.plan.scope import Scope
from belay.engine.plan.sync import conditions, foreign, objects
from belay.engine.plan.vnpu import layout


def facts_of(
    desired: Desired, observed: Observed, now: float, *, shard: str, cache: PlanCache, about: str = ""
) -> Facts:
    """The facts of a pass: the snapshot as these declarations read it, with the chips of claims on its pods."""
    seen, claims = resolve(desired.reading(observed), cache)
    return Facts(desired, seen, now, shard, about, claims, cache)


def decide(facts: Facts) -> Plan:
    """One pass over the facts, all steps."""
    scope = Scope(facts, Draft(Memory.of(facts.observed.history)))
    draft = scope.draft
    clock_skew.run(facts, draft)
    views.run(scope)
    memberships.run(facts, draft)
    grouping.run(scope)
    objects.run(scope)
    foreign.run(scope)
    states.run(scope)
    in_place_recovery.run(scope)
    evictions.run(scope)
    expand.run(scope)
    layout.run(scope)
    extended_claims.run(scope)
    enqueue.run(scope)
    placement.run(scope)
    elastic.run(scope)
    podgroup_status.run(scope)
    native_group_status.run(scope)
    queue_status.run(scope)
    reset.run(scope)
    refusals.run(scope)
    deferral.run(scope)
    orders.run(scope)
    conditions.run(scope)
    refusals.run(scope)
    training_time.run(scope)
    forget.run(scope)
    causes.run(scope)
    explain.run(scope)
    return explain.document(scope)


def assess(facts: Facts) -> HealthOutcome:
    """The steps up to health: what becomes of each chip."""
    scope = Scope(facts, Draft(Memory.of(facts.observed.history)))
    clock_skew.run(facts, scope.draft)
    views.run(scope)
    memberships.run(facts, scope.draft)
    grouping.run(scope)
    objects.run(scope)
    foreign.run(scope)
    states.run(scope)
    return HealthOutcome(scope)
