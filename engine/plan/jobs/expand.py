"""The pass that turns jobs into pods, Services, PodGroups and rank tables, and keeps their status.

Deployments, StatefulSets and Jobs get their pods from Kubernetes; here they get PodGroups and rank tables.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan_cache import CacheKey, NoOps
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.jobs import ascendjob, hot_switch, podgroup, rank_tables, volcanojob, workload_groups
from belay.engine.plan.jobs.inference import services
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject, forget_gone
from belay.engine.plan.jobs.volcanojob_commands import commands_of
from belay.engine.plan.node_view import PassNodes

#: Jobs that needed nothing, by what that followed from.
_EXPANDED: Final = CacheKey("expanded jobs", NoOps, limit=16384)


def expand_jobs(
    facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, undeclared: AbstractSet[ObjectKey]
) -> set[tuple[str, str]]:
    """Expand the jobs of the snapshot; what ``sync`` creates in this pass is expanded in the next.

    Returns:
        Namespace and name of the PodGroups that this pass makes for workloads.
    """
    context = ExpansionContext.of(facts, draft, nodes, gangs, undeclared)
    if context.plays("expand_ascend_job"):
        _each(context, ascendjob.API, ascendjob.KIND, _ascend_job)
    if context.plays("expand_volcano_job"):
        _each(context, volcanojob.API, volcanojob.KIND, _volcano_job)
    services.expand(context)
    workload_groups.expand(context)
    rank_tables.of_deployments(context)
    return context.made_groups


def _each(
    context: ExpansionContext, api_version: str, kind: str, expand: Callable[[ExpansionContext, JobObject], bool]
) -> None:
    for job in context.jobs(api_version, kind):
        if not job.deleting and rank_tables.in_this_shard(context, job):
            _expand_unless_settled(context, job, expand)
    forget_gone(context, kind, api_version)


def _ascend_job(context: ExpansionContext, job: JobObject) -> bool:
    closed = ascendjob.expand(context, job)
    hot_switch.expand(context, job)
    rank_tables.of_ascend_job(context, job)
    return closed


def _volcano_job(context: ExpansionContext, job: JobObject) -> bool:
    closed = volcanojob.expand(context, job)
    rank_tables.of_volcano_job(context, job)
    return closed


def _expand_unless_settled(
    context: ExpansionContext, job: JobObject, expand: Callable[[ExpansionContext, JobObject], bool]
) -> None:
    """Expand a job unless the same inputs led to no action before."""
    facts, draft = context.facts, context.draft
    inputs = _inputs(context, job)
    disturbed = any(pod.key in draft.evicting for pod in context.pods_of(job)) if draft.evicting else False
    if not disturbed and facts.cache[_EXPANDED].holds(job.key, inputs):
        return
    before = len(draft.actions), len(draft.diagnostics), draft.memory.jobs.get(job.gang)
    closed = expand(context, job)
    after = len(draft.actions), len(draft.diagnostics), draft.memory.jobs.get(job.gang)
    if closed and not disturbed and before == after:
        facts.cache[_EXPANDED].add(job.key, inputs)


def _inputs(context: ExpansionContext, job: JobObject) -> tuple[Any, ...]:
    """Every input of the expansion of a complete job."""
    objects = context.facts.observed.objects
    namespace, name = job.key.namespace, job.key.name
    return (
        job.raw,
        context.pods_of(job),
        context.draft.memory.jobs.get(job.gang),
        context.pod_groups,
        context.queues,
        objects.get(podgroup.key_of(job)),
        objects.get(rank_tables.config_map_of(job.key)),
        objects.get(rank_tables.file_of(job.key)),
        objects.get(ObjectKey("v1", "ConfigMap", namespace, f"{name}-svc")),
        objects.get(ObjectKey("v1", "Service", namespace, name)),
        objects.get(ObjectKey("v1", "Service", namespace, f"{name}-head-svc")),
        context.facts.desired.manifest_index.get(job.key) is None,
        job.key in context.undeclared,
        [key for key, _ in commands_of(context, job)],
    )
