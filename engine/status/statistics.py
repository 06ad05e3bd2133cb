"""Statistics and exceptions of jobs: ``current-job-statistic`` and ``scheduling-exception-report``, in ClusterD's form.

The counters continue from the ConfigMap, as ClusterD's do after a restart; applying a rule twice changes nothing.
Sources: component/clusterd/pkg/domain/statistics/{job_utils,job_collect_utils}.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from engine.gangs.forming import pending_by_gang
from engine.gangs.grouping import group
from engine.gangs.job_status import FAILED as ENDED_BADLY
from engine.gangs.owners import ASCEND_API, POD_GROUP_APIS, VOLCANO_API
from engine.model.cluster import Observed
from engine.model.diagnostics import ObjectKey
from engine.model.pending_reasons import ENQUEUE_FAILED, INVALID_REQUEST, NODE_UNSTABLE, QUEUE_EXHAUSTED, TOPOLOGY
from engine.model.phases import PodGroupPhase
from engine.model.plan import Pending, Plan
from engine.model.plan_cache import PlanCache
from engine.status.bodies import MAX_BYTES, bounded_list, config_map
from engine.status.summaries import COMPLETE, FAILED, RUNNING, JobSummary
from engine.wire.gojson import go_json
from engine.wire.names import JOB_STATISTIC as STATISTIC
from engine.wire.names import NODE_NAMESPACE
from engine.wire.names import SCHEDULING_EXCEPTIONS as EXCEPTIONS

EXCEPTIONS_NAMESPACE: Final = "cluster-system"
MAX_JOBS: Final = 10_000
MAX_MESSAGE: Final = 500
#: Our reason for a pending job → ClusterD's.
_REASONS: Final = {
    QUEUE_EXHAUSTED: "JobEnqueueFailed", INVALID_REQUEST: "JobValidateFailed", TOPOLOGY: "BatchOrderFailed",
    NODE_UNSTABLE: "NodePredicateFailed", ENQUEUE_FAILED: ENQUEUE_FAILED,
}  # fmt: skip


class JobStatistic(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One job's statistic; times are Unix seconds, 0 for never."""

    id: str
    custom_id: str = msgspec.field(name="customID", default="")
    card_num: int = 0
    pod_first_run_time: int = 0
    stop_time: int = 0
    pod_last_run_time: int = 0
    pod_last_fault_time: int = 0
    pod_fault_times: int = 0


def updated(old: JobStatistic, status: str, cards: int, deleted: bool, now: int) -> JobStatistic:
    """The statistic of a job that is now in ``status``."""
    if status == RUNNING:
        if not old.pod_first_run_time:
            # a job that failed before it first ran has recovered by running
            again = max(now, old.pod_last_fault_time) if old.pod_last_fault_time else 0
            return msgspec.structs.replace(
                old, pod_first_run_time=now, pod_last_run_time=again, stop_time=0, card_num=cards
            )
        if old.pod_last_fault_time > old.pod_last_run_time:
            # a fault in this second would otherwise stay newer
            return msgspec.structs.replace(old, pod_last_run_time=max(now, old.pod_last_fault_time), stop_time=0)
        return msgspec.structs.replace(old, stop_time=0)
    if status == COMPLETE:
        return old if old.stop_time else msgspec.structs.replace(old, stop_time=now)
    if status == FAILED:
        if old.pod_last_run_time >= old.pod_last_fault_time:
            faulty = max(now, old.pod_last_run_time + 1)
            old = msgspec.structs.replace(old, pod_last_fault_time=faulty, pod_fault_times=old.pod_fault_times + 1)
        return msgspec.structs.replace(old, stop_time=old.pod_last_fault_time) if deleted and not old.stop_time else old
    return old


def statistic(observed: Observed, summaries: Sequence[JobSummary], now: float) -> dict[str, Any]:
    """``mindx-dl/current-job-statistic``."""
    key = ObjectKey("v1", "ConfigMap", NODE_NAMESPACE, STATISTIC)
    before = _read((observed.objects.get(key) or {}).get("data") or {})
    found = []
    for one in summaries:
        sid = one.data.get("sid", "")
        old = before.get(one.id) or JobStatistic(one.id, "" if sid == one.id else sid)
        deleted = one.data.get("operator") == "delete"
        found.append(updated(old, one.status, one.cards, deleted, int(now)))
    found = sorted(found, key=lambda row: row.id)[:MAX_JOBS]
    shown, _ = bounded_list(found, MAX_BYTES)
    data = {"data": go_json(msgspec.to_builtins(shown)), "totalJob": str(len(summaries))}
    return config_map(NODE_NAMESPACE, STATISTIC, data)


def exceptions(plan: Plan, observed: Observed, cache: PlanCache | None = None) -> dict[str, Any]:
    """``cluster-system/scheduling-exception-report``: jobs that cannot proceed, by ``<job name>.<uid>``, and why."""
    gangs, _ = group(observed, cache)
    rows: dict[str, str] = {}
    used = 0
    for job, entry in pending_by_gang(plan.pending, gangs).items():
        gang = gangs.get(job)
        if gang is None or not gang.uid or gang.kind == "Pod":
            continue
        conditions = {"status": _phase(observed, gang.namespace, gang.pod_group), "reason": _reason(entry)}
        used += _add(rows, entry.name, gang.uid, entry.kind, entry.namespace, conditions, entry.message)
        if used > MAX_BYTES:
            break
    for key, raw in observed.objects.items():
        if (key.api_version, key.kind) in ((ASCEND_API, "AscendJob"), (VOLCANO_API, "Job")) and used <= MAX_BYTES:
            why = _invalid(raw)
            if why:
                uid = str((raw.get("metadata") or {}).get("uid") or "")
                conditions = {"status": "JobFailed", "reason": "JobValidateFailed"}
                used += _add(rows, key.name, uid, key.kind, key.namespace, conditions, why)
    return config_map(EXCEPTIONS_NAMESPACE, EXCEPTIONS, dict(sorted(rows.items())))


def _add(
    rows: dict[str, str], name: str, uid: str, kind: str, namespace: str, conditions: dict[str, str], message: str
) -> int:
    body = {
        "jobName": name, "jobType": kind, "nameSpace": namespace,
        "conditions": {**conditions, "message": message[:MAX_MESSAGE]},
    }  # fmt: skip
    rows[f"{name}.{uid}"[:253]] = go_json(body)
    return len(rows[f"{name}.{uid}"[:253]]) + len(name) + len(uid)


def _phase(observed: Observed, namespace: str, group_name: str) -> str:
    """The job's state by its PodGroup, ``JobInitialized`` where it has none."""
    for api in POD_GROUP_APIS:
        raw = observed.objects.get(ObjectKey(api, "PodGroup", namespace, group_name)) if group_name else None
        if raw is not None:
            phase = str((raw.get("status") or {}).get("phase") or "")
            known = set(PodGroupPhase) - {PodGroupPhase.COMPLETED}
            return f"PodGroup{phase}" if phase in known else "PodGroupCreated"
    return "JobInitialized"


def _reason(entry: Pending) -> str:
    return _REASONS.get(entry.reason, "NotEnoughResources")


def _invalid(raw: Mapping[str, Any]) -> str:
    """Why the job was refused; empty when it was not."""
    status = raw.get("status")
    if not isinstance(status, dict):
        return ""
    for row in status.get("conditions") or []:
        if isinstance(row, dict) and row.get("type") == ENDED_BADLY and row.get("reason") == "JobValidFailed":
            return str(row.get("message") or "")
    state = status.get("state")
    invalid = isinstance(state, dict) and state.get("reason") == "InvalidJob"
    return str(state.get("message") or "") if invalid and isinstance(state, dict) else ""


def _read(data: Mapping[str, Any]) -> dict[str, JobStatistic]:
    """The statistics so far; none if the list cannot be read."""
    try:
        found = msgspec.json.decode(str(data.get("data") or "[]"), type=list[JobStatistic])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return {}
    return {row.id: row for row in found}
