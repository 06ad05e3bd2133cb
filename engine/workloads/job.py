"""Job (batch/v1): a number of successful pods, with limits on parallel pods and on failures.

Finished pods are counted as long as they exist; the counts in the status never fall, so that a deleted pod does not run
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from belay.engine.model.labels import JOB_COMPLETION_INDEX
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write, create, delete, status

FIRST_BACKOFF_S = 10.0
MAX_BACKOFF_S = 360.0
BURST = 500


def reconcile(job: Json, pods: Sequence[Json], now: float, scale: float = 1.0) -> Reconciled:
    """One step; ``pods`` are those that it controls, ``scale`` multiplies back-off, deadline and time to live."""
    if o.deleting(job):
        return Reconciled()
    if over(job):
        return _expire(job, now, scale)
    live = [pod for pod in pods if o.active(pod)]
    failed = _count(job, pods, "Failed", "failed")
    succeeded = _count(job, pods, "Succeeded", "succeeded")
    if verdict := _failure(job, failed, pods, now, scale):
        return _end(job, pods, live, "Failed", *verdict, now)
    if _done(job, pods, succeeded, live):
        return _end(job, pods, live, "Complete", "CompletionsReached", "Reached expected number of succeeded pods", now)
    writes, again = _sizes(job, pods, live, succeeded, failed, now, scale)
    body = _body(job, pods, live, now)
    body["conditions"] = _suspended(job, now)
    if write := status(job, "Job", body):
        writes.append(write)
    deadline = _deadline(job, now, scale)
    return Reconciled(tuple(writes), min((wait for wait in (again, deadline) if wait is not None), default=None))


def over(job: Json) -> bool:
    """Whether the job has ended, either way."""
    return any((found := o.condition(job, kind)) and found.get("status") == "True" for kind in ("Complete", "Failed"))


def _spec_int(job: Json, field: str, default: int) -> int:
    value = job["spec"].get(field)
    return default if value is None else int(value)


def _completions(job: Json) -> int | None:
    """Required successes; None: any success ends the job (its pods coordinate among themselves)."""
    value = job["spec"].get("completions")
    if value is None:
        return 1 if job["spec"].get("parallelism") is None else None
    return int(value)


def _indexed(job: Json) -> bool:
    return str(job["spec"].get("completionMode")) == "Indexed"


def _count(job: Json, pods: Sequence[Json], phase: str, field: str) -> int:
    return max(sum(o.phase(pod) == phase for pod in pods), int((job.get("status") or {}).get(field) or 0))


def _restarts(pods: Sequence[Json]) -> int:
    """Restarts in place; with restartPolicy OnFailure they count against the back-off limit."""
    return sum(
        int(status.get("restartCount") or 0)
        for pod in pods
        if (pod.get("spec") or {}).get("restartPolicy") == "OnFailure" and not o.finished(pod)
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
    )


def _failure(job: Json, failed: int, pods: Sequence[Json], now: float, scale: float) -> tuple[str, str] | None:
    limit = _spec_int(job, "backoffLimit", 6)
    restarts = _restarts(pods)
    if failed > limit or (restarts and failed + restarts >= max(1, limit)):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    left = _deadline(job, now, scale)
    return (
        ("DeadlineExceeded", "Job was active longer than specified deadline")
        if left is not None and left <= 0
        else None
    )


def _deadline(job: Json, now: float, scale: float) -> float | None:
    """Seconds until ``activeDeadlineSeconds`` is over; None when there is no deadline or it has not begun to run."""
    limit = job["spec"].get("activeDeadlineSeconds")
    started = o.time_of((job.get("status") or {}).get("startTime"))
    return None if limit is None or not started or job["spec"].get("suspend") else started + float(limit) * scale - now


def _index(pod: Json) -> int:
    text = str((pod["metadata"].get("annotations") or {}).get(JOB_COMPLETION_INDEX, ""))
    return int(text) if text.isdecimal() else -1


def _done_indexes(job: Json, pods: Sequence[Json]) -> set[int]:
    recorded = _parse_indexes(str((job.get("status") or {}).get("completedIndexes") or ""))
    return recorded | {_index(pod) for pod in pods if o.phase(pod) == "Succeeded" and _index(pod) >= 0}


def _done(job: Json, pods: Sequence[Json], succeeded: int, live: Sequence[Json]) -> bool:
    total = _completions(job)
    if total is None:
        return succeeded > 0 and not live
    return len(_done_indexes(job, pods)) >= total if _indexed(job) else succeeded >= total


def _sizes(
    job: Json, pods: Sequence[Json], live: Sequence[Json], succeeded: int, failed: int, now: float, scale: float
) -> tuple[list[Write], float | None]:
    if job["spec"].get("suspend"):
        return [delete(pod, "Pod") for pod in live], None
    wanted = _wanted(job, succeeded, live, len(_done_indexes(job, pods)))
    if len(live) > wanted:
        return [delete(pod, "Pod") for pod in o.deletion_order(live)[: len(live) - wanted]], None
    if len(live) < wanted and (wait := _backoff(pods, failed, now, scale)) > 0:
        return [], wait
    count = min(BURST, wanted - len(live))
    if not _indexed(job):
        return [create(_pod(job, None)) for _ in range(count)], None
    taken = {_index(pod) for pod in live} | _done_indexes(job, pods)
    missing = [index for index in range(_completions(job) or 0) if index not in taken]
    return [create(_pod(job, index)) for index in missing[:count]], None


def _wanted(job: Json, succeeded: int, live: Sequence[Json], indexes: int) -> int:
    parallelism = _spec_int(job, "parallelism", 1)
    total = _completions(job)
    if total is None:
        return len(live) if succeeded else parallelism
    return max(0, min(parallelism, total - (indexes if _indexed(job) else succeeded)))


def _backoff(pods: Sequence[Json], failed: int, now: float, scale: float) -> float:
    """Seconds left before a failed pod is replaced: 10 s, doubled by every failure, at most 6 minutes."""
    ends = [_ended(pod) for pod in pods if o.phase(pod) == "Failed"]
    if not ends or not failed:
        return 0.0
    delay = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failed - 1, 10)) * scale
    return max(0.0, max(ends) + delay - now)


def _ended(pod: Json) -> float:
    states = [
        (c.get("state") or {}).get("terminated") or {} for c in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return max(
        [o.time_of(state.get("finishedAt")) for state in states] + [o.time_of(pod["metadata"].get("creationTimestamp"))]
    )


def _pod(job: Json, index: int | None) -> Json:
    pod = o.pod_from_template(job, "Job", "batch/v1", job["spec"].get("template") or {})
    meta, name, uid = pod["metadata"], job["metadata"]["name"], job["metadata"]["uid"]
    for prefix in ("", "batch.kubernetes.io/"):
        meta["labels"] |= {f"{prefix}controller-uid": uid, f"{prefix}job-name": name}
    meta["generateName"] = f"{name}-"
    if index is not None:
        meta["generateName"] = f"{name}-{index}-"
        meta["annotations"][JOB_COMPLETION_INDEX] = str(index)
        pod["spec"]["hostname"] = f"{name}-{index}"
        for container in pod["spec"].get("containers") or ():
            container["env"] = [*(container.get("env") or ()), {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]
    return pod


def _body(job: Json, pods: Sequence[Json], live: Sequence[Json], now: float) -> Json:
    body: Json = {
        "active": len(live),
        "ready": sum(o.ready(pod) for pod in live),
        "succeeded": _count(job, pods, "Succeeded", "succeeded"),
        "failed": _count(job, pods, "Failed", "failed"),
    }
    if not job["spec"].get("suspend"):
        body["startTime"] = (job.get("status") or {}).get("startTime") or o.stamp(now)
    if _indexed(job) and (done := _done_indexes(job, pods)):
        body["completedIndexes"] = _format_indexes(sorted(done))
    return body


def _suspended(job: Json, now: float) -> list[Json]:
    if job["spec"].get("suspend"):
        return o.set_condition(job, "Suspended", "True", "JobSuspended", "Job suspended", now, updated=False)
    if o.condition(job, "Suspended"):
        return o.set_condition(job, "Suspended", "False", "JobResumed", "Job resumed", now, updated=False)
    return list((job.get("status") or {}).get("conditions") or ())


def _end(
    job: Json, pods: Sequence[Json], live: Sequence[Json], kind: str, reason: str, message: str, now: float
) -> Reconciled:
    """Record the end; running pods of a failed job are deleted."""
    body = _body(job, pods, live, now) | {
        "conditions": o.set_condition(job, kind, "True", reason, message, now, updated=False)
    }
    body["active"] = 0
    if kind == "Complete":
        body["completionTime"] = o.stamp(now)
    writes = [delete(pod, "Pod") for pod in live]
    if write := status(job, "Job", body):
        writes.append(write)
    return Reconciled(tuple(writes))


def _expire(job: Json, now: float, scale: float) -> Reconciled:
    """Delete an ended job after ``ttlSecondsAfterFinished``."""
    limit = job["spec"].get("ttlSecondsAfterFinished")
    if limit is None:
        return Reconciled()
    ended = max(
        o.time_of(c.get("lastTransitionTime"))
        for c in job["status"]["conditions"]
        if c["type"] in ("Complete", "Failed")
    )
    left = ended + float(limit) * scale - now
    return Reconciled(again_in=left) if left > 0 else Reconciled((delete(job, "Job"),))


def _format_indexes(indexes: Sequence[int]) -> str:
    """``1,3-5``: runs of three and more become ranges, as the Job API writes them."""
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _parse_indexes(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found.update(range(int(first), int(last if last.isdecimal() else first) + 1))
    return found
