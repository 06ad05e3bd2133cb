"""The ConfigMaps of the memory, written before any disruptive action and only where the pass changed it."""

from __future__ import annotations

from typing import Any

from belay.engine.documents import Desired
from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.model.cluster import Observed
from belay.engine.model.history import History, NodeMemory
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.status.bodies import config_map
from belay.engine.status.jobs import job_status
from belay.engine.wire import history, names, rankfile

_JOB_KINDS = frozenset({"AscendJob", "Job", "Deployment", "StatefulSet"})


def forgotten(plan: Plan, observed: Observed, cache: PlanCache | None = None) -> list[str]:
    """Names of the ``belay-job-*`` and ``belay-ranktable-*`` ConfigMaps (``belay-system``) of deleted jobs."""
    gone = sorted(set(observed.history.jobs) - set(plan.history.jobs))
    kept = pending_by_gang(plan.pending, group(observed, cache)[0]) if gone else {}
    return [names.job_config_map(*_parts(key)) for key in gone if key not in kept] + _rank_files(observed)


def _rank_files(observed: Observed) -> list[str]:
    """ConfigMaps with rank tables of deleted jobs; agents then remove the files."""
    found = []
    jobs: set[str] | None = None
    for key, raw in observed.objects.items():
        if key.kind != "ConfigMap" or key.namespace != names.SYSTEM or not key.name.startswith(rankfile.PREFIX):
            continue
        if jobs is None:
            jobs = {f"{k.namespace}/{k.name}" for k in observed.objects if k.kind in _JOB_KINDS}
        if str((raw.get("data") or {}).get(rankfile.JOB_KEY)) not in jobs:
            found.append(key.name)
    return sorted(found)


def _parts(key: str) -> tuple[str, str, str]:
    namespace, kind, name = key.split("/", 2)
    return namespace, kind, name


def _of_cluster(memory: History) -> tuple[object, ...]:
    """The memory of no single node or job."""
    return (
        memory.budgets,
        memory.ready_drops,
        memory.policy_revision,
        memory.prunes,
        memory.repeats,
        memory.pool_edit,
        memory.retemplated,
    )


def memory_bodies(
    plan: Plan,
    observed: Observed,
    shard: str = names.MAIN_SHARD,
    desired: Desired | None = None,
    cache: PlanCache | None = None,
) -> list[dict[str, Any]]:
    """ConfigMaps of every memory that differs from the observed one, jobs with their readable status.

    A node whose memory became empty gets an empty ConfigMap rather than none, so that a lost write cannot revive an old
    memory. What belongs to no node or job is kept per ``shard``.
    """
    before, after = observed.history, plan.history
    bodies = []
    for node in sorted({*before.nodes, *after.nodes}):
        memory = after.nodes.get(node, NodeMemory())
        if before.nodes.get(node, NodeMemory()) != memory:
            bodies.append(config_map(names.SYSTEM, names.HISTORY_PREFIX + node, history.node_data(memory)))
    if _of_cluster(before) != _of_cluster(after):
        bodies.append(config_map(names.SYSTEM, names.history_config_map(shard), history.cluster_data(after)))
    bodies.extend(job_status(plan, observed, desired, cache))
    return bodies
