"""AscendJobs that are suspended (``spec.runPolicy.suspend``), as training jobs of Kubeflow are.

Their pods, Service and PodGroup go, so that their chips are free, and the job says ``Suspended``. Resumed, it starts
when the last pod of before is gone; a suspension is no failure and costs no retry.
Source: github.com/kubeflow/training-operator, pkg/controller.v1/common/job.go (ReconcileJobs), release 1.8.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.gangs.job_status import SUSPENDED, JobCondition, is_suspended
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.reasons import ActionReason
from belay.engine.plan.jobs import podgroup
from belay.engine.plan.jobs.ascendjob_spec import AscendSpec
from belay.engine.plan.jobs.ascendjob_status import ReplicaCounts, write
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject

_NONE: Final = ReplicaCounts(0, 0, 0)
#: No round of pods has been seen whole, so that pods that are gone are no lost ones.
_UNSETTLED: Final = -1


def step(context: ExpansionContext, job: JobObject, spec: AscendSpec) -> bool:
    """Plan the next step of a job that is suspended, or that was and is about to start; whether it is one of these."""
    wanted, was = spec.policy.get("suspend") is True, is_suspended(job.raw)
    if not wanted and not was:
        return False

    pods = context.pods_of(job)
    context.remember(job, msgspec.structs.replace(context.memory(job), settled=_UNSETTLED))
    if wanted or pods:
        _clear(context, job, spec)
    if wanted:
        _say(
            context, job, spec, JobCondition(SUSPENDED, "AscendJobSuspended", f"AscendJob {job.key.name} is suspended.")
        )
    elif not pods:
        text = f"AscendJob {job.key.name} is resumed."
        _say(context, job, spec, JobCondition(SUSPENDED, "AscendJobResumed", text, "False"), begins=True)
    return True


def _clear(context: ExpansionContext, job: JobObject, spec: AscendSpec) -> None:
    why = f"{job.key} is suspended (spec.runPolicy.suspend)"
    for one in context.pods_of(job):
        context.remove_pod(job, one, ActionReason.JOB_SUSPENDED, f"{why}: pod {one.name} ends")
    if spec.leader is not None:
        service = ObjectKey("v1", "Service", job.key.namespace, spec.pod_name(job, spec.leader, 0))
        context.delete(job, service, ActionReason.JOB_SUSPENDED, f"{why}: its Service goes")
    context.delete(job, podgroup.key_of(job), ActionReason.JOB_SUSPENDED, f"{why}: its PodGroup goes")


def _say(
    context: ExpansionContext, job: JobObject, spec: AscendSpec, condition: JobCondition, *, begins: bool = False
) -> None:
    counts = {replica.type: _NONE for replica in spec.replicas}
    write(context, job, counts, condition, begins=begins)
