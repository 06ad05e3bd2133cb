"""The NPU scheduler's ConfigMaps on faults and reschedules: ``vcjob-fault-npu-cm`` and ``job-reschedule-reason``.

Keys, their order and what is left out follow component/ascend-for-volcano/internal/rescheduling (type.go, cache.go,
configmap.go) and the samples in docs/zh/scheduling/07_references/02_common_operations.md: without content a value is an
empty text, not an empty list. ``NodeDEnable`` and the element of a node that is not ready are those of the documents;
the newest plugin writes neither.
"""

from __future__ import annotations

from typing import Any, Final

from belay.engine.documents import Desired
from belay.engine.gangs.grouping import group
from belay.engine.gangs.retries import recorded_retries
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import DeviceReport, Observed
from belay.engine.model.faults import HEARTBEAT
from belay.engine.model.history import JobMemory, RescheduleRecord
from belay.engine.model.jobs import Gang
from belay.engine.model.levels import IN_SERVICE
from belay.engine.model.plan import ChipState, Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.states import NodeHealth
from belay.engine.model.times import utc
from belay.engine.status import public_fault_statistics
from belay.engine.status.bodies import config_map
from belay.engine.status.elements import elements, network_unhealthy, unhealthy
from belay.engine.status.readers import NOTHING, graded_for_readers
from belay.engine.wire.gojson import go_json
from belay.engine.wire.names import NODE_NAMESPACE, SCHEDULER_NAMESPACE

FAULT_NPU: Final = "vcjob-fault-npu-cm"
REASONS: Final = "job-reschedule-reason"
RECORDS_KEY: Final = "recent-reschedule-records"
#: Records per job, tasks per record, and bytes of all records together.
MAX_RECORDS: Final = 10
MAX_TASKS: Final = 10
MAX_BYTES: Final = 950 * 1024
# read often: members of an enumeration are slow to look up
_HEALTHY: Final = NodeHealth.HEALTHY
_UNKNOWN: Final = NodeHealth.UNKNOWN
_ELEMENT: Final = ("fault_type", "npu_name", "fault_level", "fault_handling", "large_model_fault_level", "fault_code")
#: The element of a node whose kubelet no longer answers: no chip, no level.
_NOT_READY: Final = [dict.fromkeys(_ELEMENT, "") | {"fault_type": "NodeUnhealthy", "fault_code": HEARTBEAT}]
#: A node's label with which MindCluster's users switched NodeD off.
_NODED: Final = "nodeDEnable"


def scheduler_bodies(
    plan: Plan, observed: Observed, desired: Desired = NOTHING, cache: PlanCache | None = None
) -> list[dict[str, Any]]:
    """The NPU scheduler's ConfigMaps; only the component that schedules may write them. ``desired`` holds the products
    that policies may name.
    """
    return [fault_npu(plan, observed, desired, cache), reschedule_reasons(plan)]


def fault_npu(
    plan: Plan, observed: Observed, desired: Desired = NOTHING, cache: PlanCache | None = None
) -> dict[str, Any]:
    """``volcano-system/vcjob-fault-npu-cm``: nodes with faults and the retries that jobs have left."""
    raw = public_fault_statistics.with_public_faults(plan, observed)  # readers get public faults too
    rows, times = _nodes(plan, raw, graded_for_readers(plan, raw, desired, cache)[0]), _retries(plan, observed, cache)
    data = {"fault-node": go_json(rows) if rows else "", "remain-retry-times": go_json(times) if times else ""}
    return config_map(SCHEDULER_NAMESPACE, FAULT_NPU, data)


def reschedule_reasons(plan: Plan) -> dict[str, Any]:
    """``mindx-dl/job-reschedule-reason``: the newest reschedules of each job and their reasons, newest first.

    If they do not fit, the oldest record of every job is dropped first; each job keeps its newest.
    """
    jobs = {_job_id(key, m): m for key, m in plan.history.jobs.items() if m.records}
    for most in range(MAX_RECORDS, 0, -1):
        text = go_json({name: _reason(name, jobs[name], most) for name in sorted(jobs)}) if jobs else ""
        if len(text.encode()) <= MAX_BYTES:
            break
    return config_map(NODE_NAMESPACE, REASONS, {RECORDS_KEY: text if len(text.encode()) <= MAX_BYTES else ""})


def _nodes(plan: Plan, raw: Observed, observed: Observed) -> list[dict[str, Any]]:
    states: dict[str, list[ChipState]] = {}
    for chip in plan.chips:
        if chip.level not in IN_SERVICE or chip.codes:
            states.setdefault(chip.node, []).append(chip)
    rows = []
    for node in plan.nodes:
        report = observed.reports.get(node.node)
        chips = states.get(node.node, [])
        if report is None or (not chips and node.state == _HEALTHY):
            continue
        own = raw.reports[node.node]
        planes = plan.planes.get(node.node, {})
        network = network_unhealthy(report, own, planes)
        out = unhealthy(report, tuple(chips))
        away = _NOT_READY if node.state == NodeHealth.NOT_READY else []
        faults = [{k: e[k] for k in _ELEMENT} for e in elements(report, tuple(chips), own, planes)]
        if not chips and not out and not network and node.state in (_HEALTHY, _UNKNOWN):
            continue
        rows.append(
            {
                "FaultDeviceList": [*away, *faults],
                "NodeName": node.node,
                "UnhealthyNPU": _names(report, out),
                "NetworkUnhealthyNPU": _names(report, network),
                "NodeDEnable": _has_noded(observed, node.node),
                "NodeHealthState": _health(node.state, out, network),
                "UpdateTime": int(report.update_time),
            }
        )
    return rows


def _retries(plan: Plan, observed: Observed, cache: PlanCache | None) -> dict[str, dict[str, Any]]:
    """Remaining retries of jobs with label ``fault-retry-times``: its value less the used ones."""
    gangs, _ = group(observed, cache)
    found = {}
    for key in sorted({*gangs, *plan.history.jobs}):
        gang, memory = gangs.get(key), plan.history.jobs.get(key, JobMemory())
        uid = gang.uid if gang is not None and gang.uid else memory.uid
        asked = gang.options.fault_retry_times if gang is not None else 0
        if not uid or (asked <= 0 and memory.retries < 0):
            continue
        used = memory.retries if memory.uid in ("", uid) else -1
        if used < 0 and gang is not None:
            used = recorded_retries(observed, gang, uid)
        left = asked if used < 0 else min(asked, used) if asked else used
        found[_scheduler_id(key, gang, uid)] = {"UUID": uid, "Times": left}
    return dict(sorted(found.items()))


def _scheduler_id(key: str, gang: Gang | None, uid: str) -> str:
    """A job as Volcano names it: by its PodGroup, or ``<job>-<uid>`` while that is unknown."""
    namespace, _, name = key.split("/", 2)
    return f"{namespace}/{gang.pod_group if gang is not None and gang.pod_group else f'{name}-{uid}'}"


def _job_id(key: str, memory: JobMemory) -> str:
    namespace, _, name = key.split("/", 2)
    return f"{namespace}/{name}-{memory.uid}" if memory.uid else f"{namespace}/{name}"


def _reason(name: str, memory: JobMemory, most: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "JobID": name,
        "TotalRescheduleTimes": max(memory.rescheduled, len(memory.records)),
        "RescheduleRecords": [_record(record) for record in memory.records[:most]],
    }
    if len(memory.records) > most:
        body["AdditionalInfo"] = f"{len(memory.records) - most} older records are left out for their length"
    return body


def _record(record: RescheduleRecord) -> dict[str, Any]:
    seconds = record.time // 1000
    return {
        "LogFileFormatTime": utc(seconds).strftime("I%m%d %H:%M:%S"),
        "RescheduleTimeStamp": seconds,
        "ReasonOfTask": [
            {"RescheduleReason": kind, "PodName": pod, "NodeName": node, "NodeRankIndex": rank}
            for kind, pod, node, rank in record.tasks[:MAX_TASKS]
        ],
    }


def _health(state: str, unhealthy: int, network: int) -> str:
    if state in (NodeHealth.ISOLATED, NodeHealth.NOT_READY, NodeHealth.MANUALLY_ISOLATED):
        return "NodeUnhealthy"
    if unhealthy:
        return "CardUnhealthy"
    return "CardNetworkUnhealthy" if network else "Healthy"


def _has_noded(observed: Observed, node: str) -> bool:
    found = observed.nodes.get(node)
    return found is None or found.labels.get(_NODED) != "off"


def _names(report: DeviceReport, mask: int) -> list[str]:
    return [f"{report.prefix}{index}" for index in ids_of(mask)]
