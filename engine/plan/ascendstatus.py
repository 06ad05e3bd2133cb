"""``.status`` of an AscendJob, as MindCluster's operator writes it.

Source: component/ascend-operator/pkg/controllers/v1/job.go (checkSpecStatus, reconcileWithFailed, UpdateJobStatus).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from engine.model.history import JobMemory
from engine.model.times import rfc3339
from engine.plan.ascendspec import AscendSpec
from engine.plan.jobstatus import (
    CREATED,
    ENDS,
    FAILED,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    Condition,
    merge_patch,
    with_condition,
)
from engine.plan.lifecycle import Bench, Job, part

#: Where Volcano's plugin keeps how many retries a job has left.
_FAULT_CONFIG_MAP: Final = ("volcano-system", "vcjob-fault-npu-cm")
_RETRIES_KEY: Final = "remain-retry-times"


class Counts(NamedTuple):
    """Pods of one replica type."""

    active: int
    failed: int
    succeeded: int


def condition_of(
    bench: Bench,
    job: Job,
    spec: AscendSpec,
    memory: JobMemory,
    counts: Mapping[str, Counts],
    restarting: Condition | None,
) -> Condition | None:
    """What the pods say about the job now; None when they say nothing new."""
    active = sum(c.active for c in counts.values())
    failed = sum(c.failed for c in counts.values())
    succeeded = sum(c.succeeded for c in counts.values())
    name = f"{job.key.namespace}/{job.key.name}"
    if failed or restarting is not None:
        return restarting or _after_failure(bench, job, spec, memory, name)
    if active and active + succeeded >= spec.total:
        return Condition(RUNNING, "JobRunning", f"Job {name} is running.")
    if succeeded and not active:
        text = f"Job<{job.key.namespace}-{job.key.name}> successfully completed."
        # The operator passes the running reason here; readers may know it by that.
        return Condition(SUCCEEDED, "JobRunning", text)
    return None


def retries_left(bench: Bench, job: Job, spec: AscendSpec, memory: JobMemory) -> int:
    """How many unconditional retries remain: Volcano's record and the memory, whichever is less; -1 when the job
    asks for none, or its pods restart by another policy.
    """
    text = spec.labels.get("fault-retry-times", "")
    allowed = int(text[:9]) if text.isascii() and text.isdecimal() else 0
    if allowed <= 0 or any(replica.restart_policy != "Never" for replica in spec.replicas):
        return -1
    left = memory.retries if memory.retries >= 0 else allowed
    recorded = _recorded_retries(bench, job)
    return left if recorded is None else min(left, recorded)


def settle(bench: Bench, job: Job, counts: Mapping[str, Counts], condition: Condition) -> None:
    """Ends a job."""
    write(bench, job, counts, condition)


def write(bench: Bench, job: Job, counts: Mapping[str, Counts], condition: Condition | None) -> None:
    """Plans the status patch, if anything but the time of looking would change."""
    old = job.status
    now = bench.scope.now
    stamp = rfc3339(float(int(now)))
    conditions = job.conditions
    if not conditions:
        conditions = with_condition((), Condition(CREATED, "JobCreated", f"Job {job.key.name} is create."), now)
    if condition is not None:
        conditions = with_condition(conditions, condition, now)
    new: dict[str, Any] = {
        **old,
        "conditions": conditions,
        "replicaStatuses": {
            **part(old, "replicaStatuses"),
            **{kind: msgspec.to_builtins(count._asdict()) for kind, count in counts.items()},
        },
        "startTime": old.get("startTime") or stamp,
    }
    if condition is not None and condition.type in ENDS:
        new["completionTime"] = old.get("completionTime") or stamp
    if new == old:
        return
    new["lastReconcileTime"] = stamp
    changed = conditions != old.get("conditions")
    last = conditions[-1]
    message = f"{job.key}: {last['type']}: {last['message']}" if changed else f"{job.key}: its pods have changed"
    bench.patch_status(job, merge_patch(old, new), f"Job{last['type']}" if changed else "JobStatusChanged", message)


def _after_failure(bench: Bench, job: Job, spec: AscendSpec, memory: JobMemory, name: str) -> Condition:
    """A pod failed: the job restarts while retries remain, else it has failed."""
    left = retries_left(bench, job, spec, memory)
    if left < 0:
        return Condition(FAILED, "JobFailed", f"Job <{name}> has failed because has pod failed.")
    if left == 0:
        text = f"Job <{name}> has failed because pod failed and remain retry times is 0."
        return Condition(FAILED, "JobFailed", text)
    return retry_condition(job, left)


def retry_condition(job: Job, left: int) -> Condition:
    """The job restarts because it asked for retries and has some left."""
    name = f"{job.key.namespace}/{job.key.name}"
    text = f"Job <{name}> is unconditional retry job and remain retry times is <{left}>."
    return Condition(RESTARTING, "jobRestarting", text)


def _recorded_retries(bench: Bench, job: Job) -> int | None:
    raw = bench.object("v1", "ConfigMap", *_FAULT_CONFIG_MAP)
    text = part(raw or {}, "data").get(_RETRIES_KEY)
    if not isinstance(text, str):
        return None
    try:
        records = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None  # a record that nobody can read limits nothing; the memory still does
    entry = records.get(f"{job.key.namespace}/{job.key.name}-{job.uid}") if isinstance(records, dict) else None
    times = entry.get("Times") if isinstance(entry, dict) else None
    return times if isinstance(times, int) else None
