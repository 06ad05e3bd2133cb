"""The bodies of all status ConfigMaps of a pass, and those that are left over from earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.status.cluster_map import map_bodies
from belay.engine.status.diagnoses import rule_bodies
from belay.engine.status.exceptions import exceptions
from belay.engine.status.links import link_bodies, published_links
from belay.engine.status.mindcluster import ClusterInfo
from belay.engine.status.queues import queue_body
from belay.engine.status.readers import NOTHING
from belay.engine.status.rescheduling import scheduler_bodies
from belay.engine.status.shard_views import with_other_shards
from belay.engine.status.statistics import statistic
from belay.engine.status.summaries import job_summaries, published_summaries
from belay.engine.status.switches import share_bodies
from belay.engine.status.sync_status import SyncState, manual_bodies, pool_bodies, sync_bodies
from belay.engine.wire import shardview
from belay.engine.wire.names import MAIN_SHARD


def status_bodies(
    plan: Plan,
    observed: Observed,
    state: SyncState,
    info: ClusterInfo | None,
    desired: Desired = NOTHING,
    cache: PlanCache | None = None,
    shard: str = MAIN_SHARD,
) -> list[dict[str, Any]]:
    """Every status ConfigMap of a pass of ``shard``; ``info`` is None if a live ClusterD holds the aggregate role.

    The NPU scheduler's ConfigMaps are included unless a live Volcano holds that role (``state.roles``). ``desired``
    holds the products that policies may name; ``cache`` is the one that the pass used.
    """
    bodies = sync_bodies(state, plan, observed, desired, shard)
    bodies += pool_bodies(plan)
    bodies += map_bodies(plan, observed, desired, shard, cache)
    bodies.append(queue_body(plan, observed, desired, shard, cache))
    bodies += share_bodies(plan, observed)
    bodies += link_bodies(plan)
    bodies += rule_bodies(desired, observed)
    if shard != MAIN_SHARD:
        return [*bodies, *shardview.build(shard, plan)]

    # one list of all nodes and jobs has one writer
    whole = with_other_shards(plan, observed, desired, cache or PlanCache())
    bodies += manual_bodies(whole, observed)
    if info is not None:
        bodies.extend(info.bodies(whole, observed, desired, cache))
        bodies.extend(job_bodies(whole, observed, cache))
    if state.roles.get("schedule", "off") == "on":
        bodies.extend(scheduler_bodies(whole, observed, desired, cache))
    return bodies


def job_bodies(plan: Plan, observed: Observed, cache: PlanCache | None = None) -> list[dict[str, Any]]:
    """ClusterD's ConfigMaps about jobs: summaries, statistics, and scheduling exceptions."""
    summaries = job_summaries(observed, plan.now, cache)
    bodies = [body for one in summaries for body in one.bodies()]
    return [*bodies, statistic(observed, summaries, plan.now), exceptions(plan, observed, summaries, cache)]


def surplus(
    observed: Observed, bodies: Sequence[dict[str, Any]], *, jobs: bool = True, links: bool = True
) -> list[tuple[str, str]]:
    """Namespace and name of the job summaries and link states that are no longer in ``bodies``. ``jobs`` and ``links``
    say which of the two this pass derived.
    """
    current = {(body["metadata"].get("namespace", ""), body["metadata"]["name"]) for body in bodies}
    published = [*(published_summaries(observed) if jobs else ()), *(published_links(observed) if links else ())]
    return sorted(place for place in published if place not in current)
