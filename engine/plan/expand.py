"""The pass that turns jobs into pods, services, PodGroups and rank tables, and keeps their status.

Deployments, StatefulSets and Jobs get their pods from Kubernetes; here they only get rank tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from engine.model.diagnostics import ObjectKey
from engine.plan import ascendjob, hotswitch, inferservice, podgroup, ranktables, volcanojob
from engine.plan.lifecycle import Bench, Job, forget_gone
from engine.plan.memo import Settled
from engine.plan.scope import Scope

#: Jobs that needed nothing, by what that followed from.
_SETTLED: Final = Settled(16384)


def run(scope: Scope) -> None:
    """Expands the jobs of the snapshot; what ``sync`` creates in this pass is expanded in the next."""
    bench = Bench.of(scope)
    if bench.holds("expand_ascend_job"):
        _each(bench, ascendjob.API, ascendjob.KIND, _ascend_job)
    if bench.holds("expand_volcano_job"):
        _each(bench, volcanojob.API, volcanojob.KIND, _volcano_job)
    inferservice.expand(bench)
    ranktables.of_deployments(bench)


def _each(bench: Bench, api_version: str, kind: str, expand: Callable[[Bench, Job], bool]) -> None:
    for job in bench.jobs(api_version, kind):
        if not job.deleting and ranktables.is_mine(bench, job):
            _once(bench, job, expand)
    forget_gone(bench, kind, api_version)


def _ascend_job(bench: Bench, job: Job) -> bool:
    closed = ascendjob.expand(bench, job)
    hotswitch.expand(bench, job)
    ranktables.of_ascend_job(bench, job)
    return closed


def _volcano_job(bench: Bench, job: Job) -> bool:
    closed = volcanojob.expand(bench, job)
    ranktables.of_volcano_job(bench, job)
    return closed


def _once(bench: Bench, job: Job, expand: Callable[[Bench, Job], bool]) -> None:
    """Expands a job unless the same inputs have led to nothing before."""
    scope = bench.scope
    inputs = _inputs(bench, job)
    disturbed = any(pod.key in scope.evicting for pod in bench.pods_of(job)) if scope.evicting else False
    if not disturbed and _SETTLED.holds(job.key, inputs):
        return
    before = len(scope.actions), len(scope.diagnostics), scope.memory.jobs.get(job.gang)
    closed = expand(bench, job)
    after = len(scope.actions), len(scope.diagnostics), scope.memory.jobs.get(job.gang)
    if closed and not disturbed and before == after:
        _SETTLED.note(job.key, inputs)


def _inputs(bench: Bench, job: Job) -> tuple[Any, ...]:
    """Everything that the expansion of a complete job reads."""
    objects = bench.scope.observed.objects
    namespace, name = job.key.namespace, job.key.name
    return (
        job.raw,
        bench.pods_of(job),
        bench.scope.memory.jobs.get(job.gang),
        bench.pod_groups,
        bench.queues,
        objects.get(podgroup.key_of(job)),
        objects.get(ranktables.config_map_of(job.key)),
        objects.get(ranktables.file_of(job.key)),
        objects.get(ObjectKey("v1", "ConfigMap", namespace, f"{name}-svc")),
        objects.get(ObjectKey("v1", "Service", namespace, name)),
        bench.scope.desired.manifest_index.get(job.key) is None,
    )
