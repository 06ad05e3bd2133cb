"""Volcano's Commands: what `vcctl job suspend` and `vcctl job resume` ask of a job.

A Command is carried out once: its uid is remembered, and it is deleted once its effect is visible. Sources:
github.com/volcano-sh/volcano, pkg/controllers/job/job_controller_handler.go (processNextCommand) and
pkg/controllers/job/state.
"""

from __future__ import annotations

from typing import Any, Final

from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.phases import VolcanoJobPhase
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject

API: Final = "bus.volcano.sh/v1alpha1"
KIND: Final = "Command"
RESUME: Final = "ResumeJob"
ACTIONS: Final = ("AbortJob", RESUME, "RestartJob", "TerminateJob", "CompleteJob")
#: Phases that a command changes: an ended job starts again by ``ResumeJob`` after ``AbortJob`` only.
_ABORTED: Final = (VolcanoJobPhase.ABORTING, VolcanoJobPhase.ABORTED)
_LIVE: Final = ("", VolcanoJobPhase.PENDING, VolcanoJobPhase.INQUEUE, VolcanoJobPhase.RUNNING)


def commands_of(context: ExpansionContext, job: JobObject) -> list[tuple[ObjectKey, dict[str, Any]]]:
    """The Commands for a job, the oldest first; those for an earlier job of its name are left out."""
    if (API, KIND) not in context.kinds:
        return []
    objects, found = context.facts.observed.objects, []
    for key in context.kinds[(API, KIND)]:
        raw = objects[key]
        target, created = nested_map(raw, "target"), str(nested_map(raw, "metadata").get("creationTimestamp") or "")
        if key.namespace != job.key.namespace or (target.get("kind"), target.get("name")) != ("Job", job.key.name):
            continue
        if str(target.get("apiVersion") or job.key.api_version) != job.key.api_version:
            continue
        younger = created >= str(job.metadata.get("creationTimestamp") or "")
        if (target["uid"] == job.uid if target.get("uid") else younger) and not nested_map(raw, "metadata").get(
            "deletionTimestamp"
        ):
            found.append((created, key, raw))
    return [(key, raw) for _, key, raw in sorted(found, key=lambda row: (row[0], row[1]))]


def next_command(context: ExpansionContext, job: JobObject, phase: str, done: str) -> tuple[str, str]:
    """The action to carry out now and the uid of its Command; both empty where there is none.

    Args:
        phase: the job's phase, empty for a new job.
        done: uid of the Command carried out last.
    """
    for key, raw in commands_of(context, job):
        action, uid = str(raw.get("action") or ""), str(nested_map(raw, "metadata").get("uid") or "")
        if action not in ACTIONS:
            text = f"action {action!r:.60} is not one of {', '.join(ACTIONS)}: delete the Command"
            context.warn(job, f"Command {key.name}", text, PassCode.UNKNOWN_COMMAND)
            continue
        fits = phase in (_ABORTED if action == RESUME else _LIVE)
        if fits and (uid != done or action != "RestartJob"):
            return action, uid  # again, where the phase could not be written
        effect = "" if uid == done else f", without effect on a job {phase}"
        text = f"{job.key}: Command {key.name} asks for {action}{effect}: deleting it"
        context.delete_command(job, key, uid, ActionReason.COMMAND_ISSUED, text)
    return "", ""
