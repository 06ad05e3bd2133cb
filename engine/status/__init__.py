"""Plan and outcomes become ConfigMaps and Events: pure bodies, one writer.

``memory_bodies`` are written before anything disruptive, ``status_bodies`` after a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.documents import Desired
from engine.model.cluster import Observed
from engine.model.plan import Plan
from engine.status.events import events
from engine.status.links import link_bodies, standing_links
from engine.status.memory import forgotten, memory_bodies
from engine.status.mindcluster import ClusterInfo
from engine.status.people import Condition, SyncState, manual_bodies, pool_bodies, sync_body
from engine.status.readers import NOTHING
from engine.status.rescheduling import scheduler_bodies
from engine.status.statistics import exceptions, statistic
from engine.status.summaries import standing_summaries, summarised
from engine.status.switches import share_bodies
from engine.status.writer import Ledger, is_foreign

__all__ = [
    "ClusterInfo",
    "Condition",
    "Ledger",
    "SyncState",
    "events",
    "forgotten",
    "is_foreign",
    "memory_bodies",
    "status_bodies",
    "surplus",
    "sync_body",
]


def status_bodies(
    plan: Plan, observed: Observed, state: SyncState, info: ClusterInfo | None, desired: Desired = NOTHING
) -> list[dict[str, Any]]:
    """Every status ConfigMap of a pass; ``info`` is None where a live ClusterD holds the aggregate role.

    What the NPU scheduler writes is written unless a live Volcano holds that role (``state.roles``). ``desired`` tells
    the products that policies may be for.
    """
    bodies = [sync_body(state, plan), *pool_bodies(plan), *manual_bodies(plan, observed)]
    bodies += share_bodies(plan, observed)
    bodies += link_bodies(plan)
    if info is not None:
        bodies.extend(info.bodies(plan, observed, desired))
        bodies.extend(job_bodies(plan, observed))
    if state.roles.get("schedule", "off") == "on":
        bodies.extend(scheduler_bodies(plan, observed, desired))
    return bodies


def job_bodies(plan: Plan, observed: Observed) -> list[dict[str, Any]]:
    """What ClusterD tells of jobs: their summaries, their numbers, and what keeps them from starting."""
    told = summarised(observed, plan.now)
    bodies = [body for one in told for body in one.bodies()]
    return [*bodies, statistic(observed, told, plan.now), exceptions(plan, observed)]


def surplus(
    observed: Observed, bodies: Sequence[dict[str, Any]], *, jobs: bool = True, links: bool = True
) -> list[tuple[str, str]]:
    """Namespace and name of what nobody needs any more: the job summaries and states of links that ``bodies`` tells no
    longer. ``jobs`` and ``links`` say which of the two this pass told.
    """
    told = {(body["metadata"].get("namespace", ""), body["metadata"]["name"]) for body in bodies}
    standing = [*(standing_summaries(observed) if jobs else ()), *(standing_links(observed) if links else ())]
    return sorted(place for place in standing if place not in told)
