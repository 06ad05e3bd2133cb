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
    draft = Draft(Memory.of(facts.observed.history))

    # what the steps share
    clock_skew.correct_times(facts, draft)
    nodes = views.derive_views(facts, draft)
    memberships.report_memberships(facts, draft)
    gangs = grouping.group_pods(facts)

    # Git, faults, jobs
    undeclared = objects.sync_objects(facts, draft, gangs)
    ignored = foreign.find_ignored(facts, draft)
    health = states.assess_nodes(facts, draft, nodes, gangs)
    in_place_recovery.heal_in_place(facts, draft, nodes, gangs, health.rules)
    recovery = evictions.evict_hit_pods(facts, draft, nodes, gangs, health)
    made_groups = expand.expand_jobs(facts, draft, nodes, gangs, undeclared)

    # placement
    chips = layout.cut_chips(facts, draft, nodes, gangs, health)
    extended_claims.create_claims(facts, draft, gangs)
    queue = enqueue.enqueue_gangs(facts, draft, nodes, gangs)
    scores = placement.place_gangs(Scope(facts, draft, nodes, gangs, queue, health.rules, recovery, made_groups))
    elastic.record_sizes(facts, draft, gangs)
    podgroup_status.write_status(facts, draft, gangs)
    native_group_status.write_status(facts, draft, gangs)
    queue_status.write_status(facts, draft, gangs)
    reset.order_resets(facts, draft, nodes, health)

    # what of it may be done now; these add no disruption
    refused = refusals.hold_refused(facts, draft)
    admission = deferral.defer_disruption(facts, draft, nodes, gangs)
    links = orders.order_links(facts, draft, nodes)
    conditions.write_conditions(facts, draft, nodes, links, ignored, refused)
    refused = refusals.hold_refused(facts, draft, refused)

    # memory and words
    training_time.record_recoveries(facts, draft, nodes, gangs, recovery)
    forget.forget_gone(facts, draft, gangs)
    causes.name_causes(facts, draft, nodes, health.rules)
    found = explain.Findings(health, chips, scores, links, ignored, admission.held_prune, admission.budgets, refused)
    return explain.document(facts, draft, nodes, found)


def assess(facts: Facts) -> HealthOutcome:
    """The steps up to health: what becomes of each chip."""
    draft = Draft(Memory.of(facts.observed.history))
    clock_skew.correct_times(facts, draft)
    nodes = views.derive_views(facts, draft)
    gangs = grouping.group_pods(facts)
    health = states.assess_nodes(facts, draft, nodes, gangs)
    return HealthOutcome(nodes, health.rules, draft.memory.frozen())
