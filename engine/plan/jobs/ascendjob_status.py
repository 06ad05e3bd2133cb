"""``.status`` of an AscendJob, as MindCluster's operator writes it.

Source: component/ascend-operator/pkg/controllers/v1/job.go (checkSpecStatus, reconcileWithFailed, UpdateJobStatus).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.gangs.job_status import (
    CREATED,
    FAILED,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    TERMINAL_CONDITIONS,
    JobCondition,
    merge_patch,
    with_condition,
)
from belay.engine.model.history import JobMemory
from belay.engine.model.reasons import ActionReason
from belay.engine.model.times import rfc3339
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.jobs.ascendjob_spec import AscendSpec
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject

#: Where Volcano's plugin keeps how many retries a job has left.
_FAULT_CONFIG_MAP: Final = ("volcano-system", "vcjob-fault-npu-cm")
_RETRIES_KEY: Final = "remain-retry-times"


class ReplicaCounts(NamedTuple):
    """Pods of one replica type."""

    active: int
    failed: int
    succeeded: int

    def written(self) -> dict[str, int]:
        """As a job's status has them: without those that are 0."""
        return {name: count for name, count in self._asdict().items() if count}


def condition_of(
    context: ExpansionContext,
    job: JobObject,
    spec: AscendSpec,
    memory: JobMemory,
    counts: Mapping[str, ReplicaCounts],
    restarting: JobCondition | None,
) -> JobCondition | None:
    """The condition that follows from the pods; None when nothing has changed."""
    active = sum(c.active for c in counts.values())
    failed = sum(c.failed for c in counts.values())
    succeeded = sum(c.succeeded for c in counts.values())
    name = f"{job.key.namespace}/{job.key.name}"
    if failed or restarting is not None:
        return restarting or _after_failure(context, job, spec, memory, name)
    if active and active + succeeded >= spec.total:
        return JobCondition(RUNNING, "JobRunning", f"Job {name} is running.")
    if succeeded and not active:
        text = f"Job<{job.key.namespace}-{job.key.name}> successfully completed."
        # The operator sets the reason JobRunning here too; its readers may rely on it.
        return JobCondition(SUCCEEDED, "JobRunning", text)
    return None


def retries_left(context: ExpansionContext, job: JobObject, spec: AscendSpec, memory: JobMemory) -> int:
    """Unconditional retries left: the lesser of Volcano's record and the memory; -1 when the job asks for none or its
    pods restart by another policy.
    """
    allowed = spec.options.fault_retry_times
    if allowed <= 0 or any(replica.restart_policy != "Never" for replica in spec.replicas):
        return -1
    left = memory.retries if memory.retries >= 0 else allowed
    recorded = _recorded_retries(context, job)
    return left if recorded is None else min(left, recorded)


def end_job(
    context: ExpansionContext, job: JobObject, counts: Mapping[str, ReplicaCounts], condition: JobCondition
) -> None:
    """Write the status of a job that ends."""
    write(context, job, counts, condition)


def write(
    context: ExpansionContext,
    job: JobObject,
    counts: Mapping[str, ReplicaCounts],
    condition: JobCondition | None,
    *,
    begins: bool = False,
) -> None:
    """Plan the status patch unless only ``lastReconcileTime`` would change; ``begins``: the job starts now."""
    old = job.status
    now = context.facts.now
    stamp = rfc3339(float(int(now)))
    conditions = job.conditions
    if not conditions:
        conditions = with_condition((), JobCondition(CREATED, "JobCreated", f"Job {job.key.name} is create."), now)
    if condition is not None:
        conditions = with_condition(conditions, condition, now)
    new: dict[str, Any] = {
        **old,
        "conditions": conditions,
        "replicaStatuses": {
            **nested_map(old, "replicaStatuses"),
            **{kind: count.written() for kind, count in counts.items()},
        },
        "startTime": stamp if begins else old.get("startTime") or stamp,
    }
    if condition is not None and condition.type in TERMINAL_CONDITIONS:
        new["completionTime"] = old.get("completionTime") or stamp
    if new == old:
        return
    new["lastReconcileTime"] = stamp
    changed = conditions != old.get("conditions")
    last = conditions[-1]
    message = f"{job.key}: {last['type']}: {last['message']}" if changed else f"{job.key}: its pods have changed"
    context.patch_status(
        job, merge_patch(old, new), f"Job{last['type']}" if changed else ActionReason.JOB_STATUS_CHANGED, message
    )


def _after_failure(
    context: ExpansionContext, job: JobObject, spec: AscendSpec, memory: JobMemory, name: str
) -> JobCondition:
    """The condition after a pod failed: the job restarts while retries remain, else it has failed."""
    left = retries_left(context, job, spec, memory)
    if left < 0:
        return JobCondition(FAILED, "JobFailed", f"Job <{name}> has failed because has pod failed.")
    if left == 0:
        text = f"Job <{name}> has failed because pod failed and remain retry times is 0."
        return JobCondition(FAILED, "JobFailed", text)
    return retry_condition(job, left)


def retry_condition(job: JobObject, left: int) -> JobCondition:
    """The condition of a job that restarts with ``left`` retries remaining."""
    name = f"{job.key.namespace}/{job.key.name}"
    text = f"Job <{name}> is unconditional retry job and remain retry times is <{left}>."
    return JobCondition(RESTARTING, "jobRestarting", text)


def _recorded_retries(context: ExpansionContext, job: JobObject) -> int | None:
    raw = context.object("v1", "ConfigMap", *_FAULT_CONFIG_MAP)
    text = nested_map(raw or {}, "data").get(_RETRIES_KEY)
    if not isinstance(text, str):
        return None
    try:
        records = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None  # an unreadable record limits nothing; the memory still does
    entry = records.get(f"{job.key.namespace}/{job.key.name}-{job.uid}") if isinstance(records, dict) else None
    times = entry.get("Times") if isinstance(entry, dict) else None
    return times if isinstance(times, int) else None
