"""``belay-job-<namespace>.<kind>.<name>``: how a job stands, for people, beside the memory it carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from engine.documents import Desired
from engine.model.attribution import HEALTHY, FaultRank, Place, fault_ranks, health
from engine.model.cluster import Observed, Pod
from engine.model.diagnostics import ObjectKey
from engine.model.history import JobMemory
from engine.model.jobs import Gang
from engine.model.plan import Pending, Plan
from engine.model.times import rfc3339
from engine.plan.gangs import declared_rank, pending_by_gang
from engine.plan.grading import Grading
from engine.plan.groups import group
from engine.plan.jobstatus import ended
from engine.plan.memo import Memo
from engine.status.bodies import config_map, text
from engine.status.recoveries import recovery_body
from engine.wire import history, names
from engine.wire.podannotations import chip_ids

STATUS_KEY = "status.json"
PHASE_KEY = "phase"
_MAX_PODS = 2000
_MAX_RANKS = 200

#: Bodies by job, while gang, pods and memory stay what they are; nobody changes a body.
_BODIES: Final[Memo[dict[str, Any]]] = Memo(16384)
_NOTHING: Final = Desired()
_GRADINGS: Final[list[tuple[Desired, Grading]]] = []


def graded(plan: Plan, observed: Observed, desired: Desired) -> Observed:
    """The snapshot with the levels that the policies give its codes, as the plan has them in force."""
    if not _GRADINGS or _GRADINGS[0][0] is not desired:
        _GRADINGS[:] = [(desired, Grading(desired))]
    return _GRADINGS[0][1].of(observed, plan.history.policy_revision)


def job_status(plan: Plan, observed: Observed, desired: Desired | None = None) -> list[dict[str, Any]]:
    """One ConfigMap per NPU job or remembered job. ``desired`` tells the products that policies may be for."""
    gangs, gang_of = group(observed)
    pending = pending_by_gang(plan.pending, gangs)
    done = succeeded(observed, gang_of)
    judged = graded(plan, observed, desired or _NOTHING)
    bodies = []
    for key in sorted({*plan.history.jobs, *(k for k, g in gangs.items() if _wants_npu(g, observed)), *pending}):
        gang = gangs.get(key)
        pods = tuple(observed.pods[pod] for pod in (gang.pods if gang else ())[:_MAX_PODS])
        hit = impact(pods, judged)
        raw = observed.objects.get(ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name)) if gang else None
        inputs = (gang, pods, pending.get(key), plan.history.jobs.get(key), done.get(key, 0), hit, ended(raw))
        bodies.append(_BODIES.of(key, inputs, partial(_body, key, *inputs)))
    return bodies


def impact(pods: Sequence[Pod], observed: Observed) -> tuple[str, tuple[FaultRank, ...]]:
    """How healthy a job is, and which faults hit which of its ranks."""
    places = []
    for position, pod in enumerate(pods):
        report = observed.reports.get(pod.node)
        if not pod.holds_chips or not pod.chips:
            continue
        rank = declared_rank(pod)
        chips: tuple[int, ...] = ()
        if not quiet(pod.node, observed):
            prefix = report.prefix if report is not None else pod.chips[0].rpartition("-")[0] + "-"
            chips = chip_ids(pod.chips, prefix)
        places.append(Place(pod, position if rank is None else rank, chips))
    ranks = fault_ranks(places, observed.nodes, observed.reports, observed.node_reports)
    return health(places, ranks), ranks


def quiet(node: str, observed: Observed) -> bool:
    """Whether nothing at all is known against a node, as is the rule: its jobs then need no closer look."""
    report, known = observed.reports.get(node), observed.nodes.get(node)
    if report is None or known is None or not known.ready or node in observed.node_reports:
        return False
    return not report.faults and (report.switch is None or report.switch.node_status == HEALTHY)


def impact_body(hit: tuple[str, tuple[FaultRank, ...]]) -> dict[str, Any]:
    """The impact as people read it; a job that nothing hits has none."""
    state, ranks = hit
    if state == HEALTHY and not ranks:
        return {}
    rows = [
        {
            "rank": r.rank, "pod": r.pod, "node": r.node, "chip": r.chip, "code": r.code, "level": r.level,
            "since": rfc3339(r.time_ms / 1000) if r.time_ms else None,
        }
        for r in ranks[:_MAX_RANKS]
    ]  # fmt: skip
    more = {"leftOut": len(ranks) - _MAX_RANKS} if len(ranks) > _MAX_RANKS else {}
    return {"impact": {"state": state, "faults": rows, **more}}


def succeeded(observed: Observed, gang_of: Mapping[str, str]) -> dict[str, int]:
    """How many pods of each gang have succeeded: they count as started though they run no more."""
    found: dict[str, int] = {}
    for key, gang in gang_of.items():
        if observed.pods[key].phase == "Succeeded":
            found[gang] = found.get(gang, 0) + 1
    return found


def runs(gang: Gang, running: int, ended: int) -> bool:
    """Whether a job runs: as many pods as it needs at least do, or have done their work."""
    return running > 0 and running + ended >= gang.min_available


def _wants_npu(gang: Gang, observed: Observed) -> bool:
    return any(observed.pods[pod].count for pod in gang.pods)


def _body(
    key: str,
    gang: Gang | None,
    pods: tuple[Pod, ...],
    pending: Pending | None,
    memory: JobMemory | None,
    ended: int,
    hit: tuple[str, tuple[FaultRank, ...]],
    end: str,
) -> dict[str, Any]:
    namespace, kind, name = key.split("/", 2)
    placement = {}
    running = 0
    for pod in pods:
        if pod.node:
            placement[pod.name] = {"node": pod.node, "chips": list(pod.chips), "phase": pod.phase}
            running += pod.phase == "Running"
    phase = end or _phase(gang, pending, placement, running, ended)
    status: dict[str, Any] = {"phase": phase, "placement": placement, **impact_body(hit)}
    if pending is not None:
        status["pending"] = {
            "reason": pending.reason,
            "message": pending.message,
            "nodes": pending.nodes,
            "unblock": pending.unblock,
        }
    if memory is not None and (memory.reschedules or memory.timeline):
        status["reschedules"] = [rfc3339(ms / 1000) for ms in memory.reschedules]
        status["history"] = [{"time": rfc3339(ms / 1000), "what": what} for ms, what in memory.timeline]
    status |= recovery_body(memory)
    status["conditions"] = _conditions(gang, pending, running, ended)
    data = {PHASE_KEY: phase, STATUS_KEY: text(status), **history.job_data(key, memory or JobMemory())}
    label = {names.ABOUT_LABEL: "job"}
    return config_map(names.SYSTEM, names.job_config_map(namespace, kind, name), data, label)


def _phase(gang: Gang | None, pending: Pending | None, placement: dict[str, Any], running: int, ended: int) -> str:
    if gang is None or not gang.pods:
        return "Pending" if pending is not None else "Finished"
    if pending is not None and not placement:
        return "Pending"
    if runs(gang, running, ended):
        return "Running"
    return "Starting" if placement else "Pending"


def _conditions(gang: Gang | None, pending: Pending | None, running: int, ended: int) -> list[dict[str, str]]:
    placed = pending is None and gang is not None and bool(gang.pods)
    ready = placed and gang is not None and runs(gang, running, ended)
    return [
        {
            "type": "Placed",
            "status": "True" if placed else "False",
            "reason": "Placed" if placed else (pending.reason if pending else "NoPods"),
            "message": pending.message if pending else "",
        },
        {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": "Running" if ready else "NotRunning",
            "message": "",
        },
    ]
