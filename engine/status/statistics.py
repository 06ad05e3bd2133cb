"""Statistics of jobs: ``current-job-statistic``, in ClusterD's form.

The counters continue from the ConfigMap, as ClusterD's do after a restart; applying a rule twice changes nothing.
Sources: component/clusterd/pkg/domain/statistics/{job_utils,job_collect_utils}.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.status.bodies import MAX_BYTES, bounded_list, config_map
from belay.engine.status.summaries import COMPLETE, FAILED, RUNNING, JobSummary
from belay.engine.wire.gojson import go_json
from belay.engine.wire.names import JOB_STATISTIC as STATISTIC
from belay.engine.wire.names import NODE_NAMESPACE

MAX_JOBS: Final = 10_000


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


def _read(data: Mapping[str, Any]) -> dict[str, JobStatistic]:
    """The statistics so far; none if the list cannot be read."""
    try:
        found = msgspec.json.decode(str(data.get("data") or "[]"), type=list[JobStatistic])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return {}
    return {row.id: row for row in found}
