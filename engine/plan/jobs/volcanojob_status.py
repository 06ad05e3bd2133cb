"""``.status`` of a Volcano Job, as Volcano's job controller writes it.

Source: volcano.sh/apis/pkg/apis/batch/v1alpha1/job.go (JobStatus).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from belay.engine.gangs.job_status import go_duration, merge_patch
from belay.engine.model.reasons import ActionReason
from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject
from belay.engine.plan.jobs.volcanojob_plugins import controlled_resources
from belay.engine.plan.jobs.volcanojob_spec import VolcanoSpec

#: Transitions kept in ``status.conditions``, newest last.
MAX_CONDITIONS: Final = 32


class TaskCounts(NamedTuple):
    """Pods of one task by phase, and terminating ones."""

    task: str
    phases: dict[str, int]
    terminating: int

    def of(self, phase: str) -> int:
        """Return the number of pods in a phase."""
        return self.phases.get(phase, 0)


def write(
    context: ExpansionContext,
    job: JobObject,
    spec: VolcanoSpec,
    version: int,
    counts: Sequence[TaskCounts],
    phase: str,
    reason: str,
    message: str,
) -> None:
    """Plan the status patch if anything changes."""
    old = job.status
    changed = nested_map(old, "state").get("phase") != phase
    new = {
        **{key: value for key, value in old.items() if key not in _OWN},
        **_counted(counts),
        **_progress(context, job, old, phase, reason, message, changed),
        "minAvailable": spec.min_available,
    }
    if version:
        new["version"] = version
        new["retryCount"] = version
    resources = controlled_resources(spec)
    if resources:
        new["controlledResources"] = resources
    if new == old:
        return
    detail = f": {message}" if changed and message else ""
    text = f"{job.key} is now {phase}{detail}" if changed else f"{job.key}: its pods have changed"
    context.patch_status(
        job, merge_patch(old, new), f"Job{phase}" if changed else ActionReason.JOB_STATUS_CHANGED, text
    )


_OWN: Final = frozenset(
    {"pending", "running", "succeeded", "failed", "terminating", "unknown", "taskStatusCount", "state", "conditions",
     "runningDuration", "version", "retryCount", "controlledResources", "minAvailable"}
)  # fmt: skip


def _counted(counts: Sequence[TaskCounts]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown"):
        number = sum(c.of(phase) for c in counts)
        if number:
            out[phase.lower()] = number
    terminating = sum(c.terminating for c in counts)
    if terminating:
        out["terminating"] = terminating
    by_task = {c.task: {"phase": dict(sorted(c.phases.items()))} for c in counts if c.phases}
    if by_task:
        out["taskStatusCount"] = by_task
    return out


def _progress(
    context: ExpansionContext, job: JobObject, old: dict[str, Any], phase: str, reason: str, message: str, changed: bool
) -> dict[str, Any]:
    """State, past states and running time; times change only with a transition."""
    if not changed:
        return {key: old[key] for key in ("state", "conditions", "runningDuration") if key in old}
    stamp = rfc3339(float(int(context.facts.now)))
    state = {"phase": phase, "lastTransitionTime": stamp}
    if reason:
        state |= {"reason": reason, "message": message}
    past = job.conditions
    out: dict[str, Any] = {
        "state": state,
        "conditions": [*past, {"status": phase, "lastTransitionTime": stamp}][-MAX_CONDITIONS:],
    }
    try:
        created = parse_rfc3339(str(job.metadata.get("creationTimestamp")))
    except ValueError:
        return out  # a job from a file may lack its creation time
    return out | {"runningDuration": go_duration(context.facts.now - created)}
