"""PodGroups: created where the cluster knows them, honoured where Volcano owns them, never required.

Source: component/ascend-operator/pkg/controllers/v1/job.go (newPodGroupSpec, createPodGroup).
"""

from __future__ import annotations

from typing import Any, Final

from engine.model.diagnostics import ObjectKey
from engine.plan.lifecycle import POD_GROUP_API, Bench, Job, part

RECOVER_STRATEGY: Final = "recover-strategy"
PROCESS_RECOVER: Final = "process-recover-enable"
#: Notes about how the job itself was applied; they say nothing about its PodGroup.
_OWN_NOTES: Final = ("kubectl.kubernetes.io/last-applied-configuration", "belay.dev/applied-digest")


def name_of(job: Job) -> str:
    """``<job>-<uid>``; the job's name while it has no uid."""
    return f"{job.key.name}-{job.uid}" if job.uid else job.key.name


def key_of(job: Job) -> ObjectKey:
    """The job's PodGroup."""
    return ObjectKey(POD_GROUP_API, "PodGroup", job.key.namespace, name_of(job))


def ensure(bench: Bench, job: Job, spec: dict[str, Any]) -> None:
    """Creates the job's PodGroup where the cluster knows PodGroups and this one is missing."""
    if not bench.pod_groups or key_of(job) in bench.scope.observed.objects:
        return
    labels, annotations = job.labels, job.annotations
    for note in _OWN_NOTES:
        annotations.pop(note, None)
    labels.pop("app.kubernetes.io/managed-by", None)
    if annotations.get(RECOVER_STRATEGY):
        labels[PROCESS_RECOVER] = "on"
    metadata: dict[str, Any] = {"name": name_of(job), "namespace": job.key.namespace}
    if labels:
        metadata["labels"] = dict(sorted(labels.items()))
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    owners = job.owner_references()
    if owners:
        metadata["ownerReferences"] = owners
    body = {"apiVersion": POD_GROUP_API, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    bench.create_object(job, body, "PodGroupMissing", f"pods of {job.key} start together: creating their PodGroup")


def waits_for_volcano(bench: Bench, job: Job) -> str | None:
    """Phase of a PodGroup that a live Volcano has not admitted yet ("" or Pending), None when pods may be created."""
    if not bench.pod_groups or bench.holds("schedule"):
        return None
    raw = bench.scope.observed.objects.get(key_of(job))
    phase = str(part(raw, "status").get("phase") or "") if raw is not None else ""
    return phase if phase in ("", "Pending") else None
