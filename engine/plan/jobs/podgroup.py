"""PodGroups: created where the cluster has their CRD, respected where Volcano schedules, never required.

Source: component/ascend-operator/pkg/controllers/v1/job.go (newPodGroupSpec, createPodGroup).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from belay.engine.model import quantities
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import (
    APPLIED_DIGEST,
    FAULT_RETRY_TIMES,
    FAULT_SCHEDULING,
    LAST_APPLIED,
    MANAGED_BY,
    POD_RESCHEDULING,
    PROCESS_RECOVER_ENABLE,
    RECOVER_STRATEGY,
    SUB_HEALTHY_STRATEGY,
    WAIT_RESCHEDULE_TIMEOUT,
)
from belay.engine.model.phases import PodGroupPhase
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.jobs.lifecycle import POD_GROUP_API, ExpansionContext, JobObject

VOLCANO: Final = "volcano"
#: Annotations about how the job itself was applied; its PodGroup does not copy them.
_OWN_ANNOTATIONS: Final = (LAST_APPLIED, APPLIED_DIGEST)

#: Switches of a job that its owner may change while it runs. The PodGroup's values win over the job's, so they follow;
#: other keys may be written by others (Volcano, the recovery of processes) and stay as they are.
_FOLLOWED_LABELS: Final = (FAULT_SCHEDULING, FAULT_RETRY_TIMES, POD_RESCHEDULING, SUB_HEALTHY_STRATEGY)
_FOLLOWED_ANNOTATIONS: Final = (RECOVER_STRATEGY, WAIT_RESCHEDULE_TIMEOUT)


def name_of(job: JobObject) -> str:
    """``<job>-<uid>``; the job's name while it has no uid."""
    return f"{job.key.name}-{job.uid}" if job.uid else job.key.name


def key_of(job: JobObject) -> ObjectKey:
    """Return the key of the job's PodGroup."""
    return ObjectKey(POD_GROUP_API, "PodGroup", job.key.namespace, name_of(job))


def ensure(context: ExpansionContext, job: JobObject, spec: dict[str, Any]) -> None:
    """Create the job's PodGroup if the cluster has PodGroups and this one is missing."""
    if not context.pod_groups or key_of(job) in context.facts.observed.objects:
        return
    labels, annotations = job.labels, job.annotations
    for key in _OWN_ANNOTATIONS:
        annotations.pop(key, None)
    labels.pop(MANAGED_BY, None)
    if job.options.recover_strategies:
        labels[PROCESS_RECOVER_ENABLE] = "on"
    metadata: dict[str, Any] = {"name": name_of(job), "namespace": job.key.namespace}
    if labels:
        metadata["labels"] = dict(sorted(labels.items()))
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    owners = job.owner_references()
    if owners:
        metadata["ownerReferences"] = owners
    body = {"apiVersion": POD_GROUP_API, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    context.create_object(
        job, body, ActionReason.POD_GROUP_MISSING, f"pods of {job.key} start together: creating their PodGroup"
    )


def adjust(context: ExpansionContext, job: JobObject, spec: dict[str, Any]) -> None:
    """Patch a job's PodGroup where it differs from the job: what it asks for, as after ``kubectl scale``, and the
    switches for faults, which the job's owner may change.

    Without it a gang would wait for ever for pods that its job no longer has. Source:
    github.com/volcano-sh/volcano/pkg/controllers/job/job_controller_actions.go (createOrUpdatePodGroup).
    """
    raw = context.facts.observed.objects.get(key_of(job)) if context.pod_groups else None
    if raw is None or nested_map(raw, "metadata").get("deletionTimestamp"):
        return
    live, patch = nested_map(raw, "spec"), {}
    if live.get("minMember") != spec["minMember"]:
        patch["minMember"] = spec["minMember"]
    tasks, known = spec["minTaskMember"], nested_map(live, "minTaskMember")
    if tasks != known:
        patch["minTaskMember"] = {**dict.fromkeys(known), **tasks}
    if str(live.get("priorityClassName") or "") != spec.get("priorityClassName", ""):
        patch["priorityClassName"] = spec.get("priorityClassName")
    resources, asked = spec.get("minResources", {}), nested_map(live, "minResources")
    if any(not _equal(asked.get(name), amount) for name, amount in resources.items()):
        patch["minResources"] = {**dict.fromkeys(asked), **resources}
    marks = _marks(job, nested_map(raw, "metadata"))
    if patch or marks:
        changes = {"spec": patch} if patch else {}
        names = ", ".join(sorted({*patch, *(key for rows in marks.values() for key in rows)}))
        text = f"{job.key} asks for other pods than its PodGroup: changing its {names}"
        if not patch:
            text = f"{job.key} has other switches than its PodGroup: changing its {names}"
        uid = str(nested_map(raw, "metadata").get("uid") or "")
        body = {**changes, **({"metadata": marks} if marks else {})}
        context.patch(job, key_of(job), body, ActionReason.POD_GROUP_CHANGED, text, uid=uid)


def _marks(job: JobObject, live: Mapping[str, Any]) -> dict[str, dict[str, str | None]]:
    """Labels and annotations of a PodGroup that no longer are as the job's; None takes one away."""
    found: dict[str, dict[str, str | None]] = {}
    for field, wanted, followed in (
        ("labels", job.labels, _FOLLOWED_LABELS), ("annotations", job.annotations, _FOLLOWED_ANNOTATIONS),
    ):  # fmt: skip
        now = nested_map(live, field)
        changed = {key: wanted.get(key) for key in followed if wanted.get(key) != now.get(key)}
        if changed:
            found[field] = changed
    return found


def _equal(one: object, other: str) -> bool:
    """Whether two amounts are equal: Volcano may write ``16384Mi`` where Belay writes ``16Gi``."""
    return str(one) == other or quantities.parse(str(one)) == quantities.parse(other) is not None


def starts_together(context: ExpansionContext, schedulers: Collection[str]) -> bool:
    """Whether pods of these schedulers start as a gang: Belay or Volcano places them, and the cluster has PodGroups.

    Any other scheduler places pods one by one and reads no PodGroup.
    """
    if not context.pod_groups:
        return False
    gang_schedulers = {VOLCANO, *context.facts.desired.settings.scheduler_names}
    return any(name in gang_schedulers for name in schedulers)


def unadmitted_phase(context: ExpansionContext, job: JobObject, schedulers: Collection[str]) -> str | None:
    """Phase of a PodGroup that a live Volcano has not admitted ("" or Pending); None when pods may be created.

    Args:
        schedulers: the ``schedulerName`` of each of the job's pods.
    """
    if context.plays("schedule") or not starts_together(context, schedulers):
        return None
    raw = context.facts.observed.objects.get(key_of(job))
    phase = str(nested_map(raw, "status").get("phase") or "") if raw is not None else ""
    if phase == "" and not context.live_volcano:
        return None  # nothing runs that would ever set a phase
    return phase if phase in ("", PodGroupPhase.PENDING) else None
