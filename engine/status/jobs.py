"""``belay-job-<namespace>.<kind>.<name>``: a job's status, beside the memory that passes carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from belay.engine.documents import Desired
from belay.engine.gangs.evidence import by_job
from belay.engine.gangs.forming import declared_rank, pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.gangs.job_status import end_message, ended, standing
from belay.engine.gangs.owners import ASCEND_API, VOLCANO_API
from belay.engine.model.attribution import HEALTHY, FaultRank, PodPlacement, fault_ranks, health, quiet
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import JobMemory
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import ABOUT_LABEL, USER_KEY
from belay.engine.model.log_evidence import PodEvidence
from belay.engine.model.plan import Pending, Plan
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.times import rfc3339
from belay.engine.plan import graded_reports
from belay.engine.status.bodies import config_map, text
from belay.engine.status.diagnoses import diagnosis_body
from belay.engine.status.recoveries import recovery_body
from belay.engine.wire import history, names
from belay.engine.wire.podannotations import chip_ids

_LONGEST_USER: Final = 253
_MAX_PODS = 2000
#: API versions of the kinds whose objects make pods, by the kind in a job's key (`gang_key`).
_OBJECTS: Final[Mapping[str, str]] = {
    "AscendJob": ASCEND_API,
    "Job": VOLCANO_API,
    "Job.batch": "batch/v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
}
_MAX_RANKS = 200

#: Bodies by job, valid while gang, pods and memory stay the same; bodies are never changed.
_BODIES: Final = CacheKey("bodies of jobs", Memo[dict[str, Any]], limit=16384)
#: Diagnoses by job, while evidence and rules stay the same.
_DIAGNOSES: Final = CacheKey("diagnoses of jobs", Memo[dict[str, Any]], limit=1024)
_NOTHING: Final = Desired()
#: Kinds whose pods keep their names when they are made again.
_NAMED_KINDS: Final = frozenset({"AscendJob", "Job", "StatefulSet"})
#: Agents have read and reported the logs of a failure after this.
_READING_MS: Final = 120_000


def graded(plan: Plan, observed: Observed, desired: Desired, cache: PlanCache | None = None) -> Observed:
    """The snapshot with the levels that the policies in force give its codes."""
    return graded_reports(desired, cache or PlanCache()).of(observed, plan.history.policy_revision)


def job_status(
    plan: Plan, observed: Observed, desired: Desired | None = None, cache: PlanCache | None = None
) -> list[dict[str, Any]]:
    """One ConfigMap per NPU job or remembered job. ``desired`` holds the products that policies may name."""
    cache = cache or PlanCache()
    gangs, gang_of = group(observed, cache)
    pending = pending_by_gang(plan.pending, gangs)
    done = succeeded(observed, gang_of)
    judged = graded(plan, observed, desired or _NOTHING, cache)
    desired = desired or _NOTHING
    found = by_job(observed)
    bodies, known = [], cache[_BODIES]
    for key in shown_jobs(plan, observed, gangs, pending):
        gang = gangs.get(key)
        pods = tuple(observed.pods[pod] for pod in (gang.pods if gang else ())[:_MAX_PODS])
        hit = impact(pods, judged)
        raw = job_object(key, gang, observed)
        why = broken(key, gang, pods, found.get(key, ()), desired, plan.now, cache)
        inputs = (
            gang,
            user_of(gang, desired),
            pods,
            pending.get(key),
            plan.history.jobs.get(key),
            done.get(key, 0),
            hit,
            standing(raw),
            end_message(raw),
            awaits_pods(raw),
            why,
        )
        bodies.append(known.of(key, inputs, partial(_body, key, *inputs)))
    return bodies


def job_object(key: str, gang: Gang | None, observed: Observed) -> dict[str, Any] | None:
    """The object of a job. Of one without pods, which may be suspended, or wait for them, it is found by the key."""
    if gang is not None:
        return observed.objects.get(ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name))
    namespace, kind, name = key.split("/", 2)
    if kind not in _OBJECTS:
        return None
    return observed.objects.get(ObjectKey(_OBJECTS[kind], kind.partition(".")[0], namespace, name))


def awaits_pods(raw: Mapping[str, Any] | None) -> bool:
    """Whether a job object is there that has not ended and is about to have pods: they are not made yet, or are made
    again.
    """
    if raw is None or ended(raw) or "deletionTimestamp" in raw["metadata"]:
        return False
    spec = raw.get("spec")
    return not isinstance(spec, Mapping) or spec.get("replicas") != 0


def broken(
    key: str,
    gang: Gang | None,
    pods: Sequence[Pod],
    evidence: tuple[PodEvidence, ...],
    desired: Desired,
    now: float,
    cache: PlanCache | None = None,
) -> dict[str, Any]:
    """What the logs of a job's last failure say; empty without any.

    Pods that were replaced since and whose logs nothing is known of count as silent, once agents had time to read.
    Evidence of an earlier job of the same name does not count.
    """
    evidence = tuple(one for one in evidence if gang is None or one.collected_ms >= gang.created * 1000)
    if not evidence:
        return {}
    last = max(one.collected_ms for one in evidence)
    missing: tuple[str, ...] = ()
    if gang is not None and gang.kind in _NAMED_KINDS and now * 1000 >= last + _READING_MS:
        replaced = {pod.name for pod in pods if pod.created * 1000 >= last - _READING_MS}
        missing = tuple(sorted(replaced - {one.pod for one in evidence}))
    inputs = (evidence, missing, desired.revision)
    memo = (cache or PlanCache())[_DIAGNOSES]
    return memo.of(key, inputs, lambda: diagnosis_body(evidence, desired, dict.fromkeys(missing, "")))


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
        places.append(PodPlacement(pod, position if rank is None else rank, chips))
    ranks = fault_ranks(places, observed.nodes, observed.reports, observed.node_reports)
    return health(places, ranks), ranks


def impact_body(hit: tuple[str, tuple[FaultRank, ...]]) -> dict[str, Any]:
    """The impact of faults on a job; empty for a job without any."""
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
    """The number of succeeded pods of each gang; they count as started."""
    found: dict[str, int] = {}
    for key, gang in gang_of.items():
        if observed.pods[key].phase == "Succeeded":
            found[gang] = found.get(gang, 0) + 1
    return found


def runs(gang: Gang, running: int, ended: int) -> bool:
    """Whether a job runs: at least as many pods as it needs are running or have succeeded."""
    return running > 0 and running + ended >= gang.min_available


def shown_jobs(plan: Plan, observed: Observed, gangs: Mapping[str, Gang], pending: Mapping[str, Pending]) -> list[str]:
    """The jobs in status and commands, by key: those that request NPUs, wait, or are remembered."""
    return sorted({*plan.history.jobs, *(k for k, g in gangs.items() if _wants_npu(g, observed)), *pending})


def _wants_npu(gang: Gang, observed: Observed) -> bool:
    return any(observed.pods[pod].count for pod in gang.pods)


def _body(
    key: str,
    gang: Gang | None,
    user: str,
    pods: tuple[Pod, ...],
    pending: Pending | None,
    memory: JobMemory | None,
    ended: int,
    hit: tuple[str, tuple[FaultRank, ...]],
    end: str,
    end_said: str,
    due: bool,
    why: Mapping[str, Any],
) -> dict[str, Any]:
    namespace, kind, name = key.split("/", 2)
    placement = {}
    running = 0
    for pod in pods:
        if pod.node:
            placement[pod.name] = {"node": pod.node, "chips": list(pod.chips), "phase": pod.phase}
            running += pod.phase == "Running"
    phase = phase_of(gang, pending, end, placed=bool(placement), running=running, ended=ended, due=due)
    status: dict[str, Any] = {"phase": phase, "placement": placement, **_asked(gang, user, pods), **impact_body(hit)}
    if pending is not None:
        status["pending"] = {
            "reason": pending.reason,
            "message": pending.message,
            "nodes": pending.nodes,
            "unblock": pending.unblock,
            **({"near": list(pending.near)} if pending.near else {}),
        }
    if memory is not None and (memory.reschedules or memory.timeline):
        if memory.retries >= 0:
            status["retriesLeft"] = memory.retries
        status["reschedules"] = [rfc3339(ms / 1000) for ms in memory.came_about]
        status["history"] = [{"time": rfc3339(ms / 1000), "what": what} for ms, what in memory.timeline]
    status |= recovery_body(memory)
    status |= why
    status["conditions"] = _conditions(gang, pending, running, ended, end, end_said)
    data = {
        history.JOB_PHASE_KEY: phase,
        history.JOB_STATUS_KEY: text(status),
        **history.job_data(key, memory or JobMemory()),
    }
    label = {ABOUT_LABEL: "job"}
    return config_map(names.SYSTEM, names.job_config_map(namespace, kind, name), data, label)


def user_of(gang: Gang | None, desired: Desired) -> str:
    """Whose job it is: as its annotation or label says, else who wrote the commit that declares it; empty where
    neither is known.
    """
    if gang is None:
        return ""
    said = gang.annotations.get(USER_KEY) or gang.labels.get(USER_KEY)
    if said:
        return said[:_LONGEST_USER]
    declared = desired.manifest_index.get(ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name))
    return desired.place_of(declared.origin).author[:_LONGEST_USER] if declared is not None else ""


def _asked(gang: Gang | None, user: str, pods: Sequence[Pod]) -> dict[str, Any]:
    """Since when the job exists, its queue and user, and what it asks for; empty for a job without live pods."""
    if gang is None:
        return {}
    requests: dict[str, int] = {}
    for pod in pods:
        if pod.count:
            requests[pod.resource] = requests.get(pod.resource, 0) + pod.count
    asked = gang.options.fault_retry_times
    return {
        "since": rfc3339(gang.created) if gang.created else None,
        "queue": gang.queue,
        "priority": gang.priority,
        **({"user": user} if user else {}),
        "wanted": gang.replicas,
        "requests": dict(sorted(requests.items())),
        **({"retries": asked} if asked else {}),
    }


def phase_of(
    gang: Gang | None, pending: Pending | None, end: str, *, placed: bool, running: int, ended: int, due: bool
) -> str:
    """A job's phase in status and commands.

    ``end`` is what the job object says of itself (Succeeded, Failed, Suspended), or empty; ``placed``: a pod of it has
    a node; ``running`` and ``ended``: numbers of its pods that run, and that have succeeded; ``due``: it has no
    pods yet, but will get some (`awaits_pods`).
    """
    if end:
        return end
    if gang is None or not gang.pods:
        return "Pending" if due or pending is not None else "Finished"
    if pending is not None and not placed:
        return "Pending"
    if runs(gang, running, ended):
        return "Running"
    return "Starting" if placed else "Pending"


def _conditions(
    gang: Gang | None, pending: Pending | None, running: int, ended: int, end: str, end_said: str
) -> list[dict[str, str]]:
    """``Placed`` and ``Ready``; of a job that has ended ``Ready`` names the end and what the job object says of it."""
    placed = pending is None and gang is not None and bool(gang.pods)
    ready = placed and gang is not None and runs(gang, running, ended) and not end
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
            "reason": end or ("Running" if ready else "NotRunning"),
            "message": end_said,
        },
    ]
