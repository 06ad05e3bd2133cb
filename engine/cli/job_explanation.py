"""Answer of `belay explain job`: its pods, why they wait or stay, what hit it, how it recovered or ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from belay.engine.cli import coming, last_words, staying
from belay.engine.cli.explained_rows import actions_on, find_one, pending_row, phase, slow_findings
from belay.engine.cli.whys import Whys
from belay.engine.documents import Desired
from belay.engine.gangs.evidence import by_job
from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.gangs.job_status import FAILED, end_message, ended, is_suspended
from belay.engine.gangs.owners import JOB_KINDS
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import JobMemory
from belay.engine.model.jobs import Gang
from belay.engine.model.plan import Pending, Plan
from belay.engine.model.refusals import ServerRefusal
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.status.jobs import broken, graded, impact, impact_body, job_object
from belay.engine.status.recoveries import conversation_body, effective, recovery_body, recovery_sentences

_MAX_FAILED_PODS: Final = 10


@dataclass(frozen=True)
class _Job:
    """A job and what is known of it: it may wait without pods, be refused, or be only remembered.

    ``pods`` are those of its gang; ``all_pods`` also hold those that have ended.
    """

    key: str
    gang: Gang | None
    pods: Sequence[Pod]
    all_pods: Sequence[Pod]
    pending: Pending | None
    refusal: ServerRefusal | None
    memory: JobMemory | None

    @property
    def namespace(self) -> str:
        return self.key.split("/", 2)[0]

    @property
    def kind(self) -> str:
        return self.key.split("/", 2)[1]

    @property
    def name(self) -> str:
        return self.key.split("/", 2)[2]


def explain_job(name: str, plan: Plan, observed: Observed, desired: Desired) -> dict[str, Any]:
    """Answer for a job by its name.

    Raises:
        InputError: the job does not exist, or several have the name.
    """
    job = _find_job(name, plan, observed)
    body = _identity(job, plan)

    if job.refusal is not None:
        body["refused"] = job.refusal.document()
    if job.pending is not None:
        body["pending"] = pending_row(job.pending)
    body |= Whys(desired, observed).of_job(job.key)

    if is_suspended(job_object(job.key, job.gang, observed)):
        body["suspended"] = f"`belay resume {job.namespace}/{job.name}` starts it again"
    body |= _end(job, observed)
    body |= _remembered(job.memory)

    hit = impact(job.pods, graded(plan, observed, desired))
    body |= impact_body(hit) | recovery_body(job.memory)
    evidence = by_job(observed).get(job.key, ())
    body |= broken(job.key, job.gang, job.pods, evidence, desired, plan.now)

    # pods of a job that has ended wait for its deletion, not for a move
    spared = ""
    if "ended" not in body:
        spared = staying.why(job.gang, job.pods, hit[1], plan, desired.settings.scheduler_names)
    if spared:
        body["notEvicted"] = spared

    body |= conversation_body(observed.recoveries.get(job.gang.uid) if job.gang is not None else None)
    body |= slow_findings(observed, lambda row: row["name"] == f"{job.namespace}/{job.name}")
    body |= _story(job, plan)

    body["coming"] = coming.of_job(
        job.pods,
        waits=job.pending.reason if job.pending is not None else "",
        ended=body.get("ended", ""),
        suspended=body.get("suspended", ""),
        recovering=_open_recovery(job.memory),
        stays=bool(spared),
    )
    return body | _retries_left(job)


def _find_job(name: str, plan: Plan, observed: Observed) -> _Job:
    gangs, gang_of_pod = group(observed)
    waiting = pending_by_gang(plan.pending, gangs)
    refused = _refused_jobs(plan)
    key = find_one({*gangs, *waiting, *observed.history.jobs, *refused}, "job", name)

    gang = gangs.get(key)
    pods_of_gang = gang.pods if gang is not None else ()
    return _Job(
        key=key,
        gang=gang,
        pods=[observed.pods[pod] for pod in pods_of_gang if pod in observed.pods],
        all_pods=[observed.pods[pod] for pod, owner in gang_of_pod.items() if owner == key],
        pending=waiting.get(key),
        refusal=refused.get(key),
        memory=plan.history.jobs.get(key),
    )


def _refused_jobs(plan: Plan) -> dict[str, ServerRefusal]:
    jobs = [row for row in plan.refusals if row.key.kind in JOB_KINDS]
    return {f"{row.key.namespace}/{row.key.kind}/{row.key.name}": row for row in jobs}


def _identity(job: _Job, plan: Plan) -> dict[str, Any]:
    """Name the job, its pods, and the actions of the next pass on either."""
    pod_names = {pod.name for pod in job.pods}

    def concerns(action: Any) -> bool:
        if getattr(action, "namespace", "") != job.namespace:
            return False
        on_a_pod = getattr(action, "pod", None) in pod_names
        return on_a_pod or (getattr(action, "name", None) == job.name and _is_about(action, job.kind))

    return {
        "job": f"{job.namespace}/{job.name}",
        "kind": job.kind,
        "pods": [_pod_row(pod) for pod in job.pods],
        "next": actions_on(plan, concerns),
    }


def _pod_row(pod: Pod) -> dict[str, Any]:
    return {"pod": pod.name, "phase": phase(pod), "node": pod.node or None, "chips": list(pod.chips)}


def _is_about(action: Any, kind: str) -> bool:
    """Whether an action on an object of the job's name is about the job: no other job's of that name."""
    other = getattr(action, "object_kind", kind)
    return other in (kind.partition(".")[0], "PodGroup") or other not in JOB_KINDS


def _remembered(memory: JobMemory | None) -> dict[str, Any]:
    """What the history holds of the job: reschedules, its timeline, and which pods each fault hit."""
    if memory is None:
        return {}

    hit = []
    for record in memory.records:
        pods = [_faulty_pod(*task) for task in record.tasks]
        hit.append({"time": rfc3339(record.time / 1000), "pods": pods})
    return {
        "reschedules": [rfc3339(ms / 1000) for ms in memory.came_about],
        "history": [f"{rfc3339(ms / 1000)} {what}" for ms, what in memory.timeline],
        "hit": hit,
    }


def _faulty_pod(kind: str, pod: str, node: str, rank: str) -> dict[str, str]:
    return {"fault": kind, "pod": pod, "node": node, "rank": rank}


def _story(job: _Job, plan: Plan) -> dict[str, Any]:
    """The recoveries in sentences, and the share of the job's time that they left to training."""
    body: dict[str, Any] = {}
    if sentences := recovery_sentences(job.memory):
        body["story"] = sentences
    if job.gang is None:
        return body

    chips = sum(pod.count for pod in job.pods)
    share = effective(job.memory, job.gang.created, plan.now, chips)
    return body if share is None else body | {"effectiveTraining": share}


def _open_recovery(memory: JobMemory | None) -> str:
    """The newest sentence of a recovery that is under way; empty without one."""
    if memory is None or not memory.recoveries or memory.recoveries[-1].back:
        return ""
    return recovery_sentences(memory)[-1]


def _retries_left(job: _Job) -> dict[str, int]:
    """How often the job may still be retried; nothing where it asks for no retries."""
    asked = job.gang.options.fault_retry_times if job.gang is not None else 0
    if not asked:
        return {}
    if job.memory is None or job.memory.retries < 0:
        return {"retriesLeft": asked}
    return {"retriesLeft": min(asked, job.memory.retries)}


def _end(job: _Job, observed: Observed) -> dict[str, Any]:
    """How a job ended, by which pods, and the way to run it again; nothing for a job that has not ended."""
    if job.gang is None:
        return {}
    raw = observed.objects.get(ObjectKey(job.gang.api_version, job.gang.kind, job.gang.namespace, job.gang.name))
    end = ended(raw)
    if not end:
        return {}

    fallen = [pod for pod in job.all_pods if pod.phase == "Failed"]
    fallen.sort(key=lambda pod: pod.name)
    failed = [_failed_pod(pod) for pod in fallen[:_MAX_FAILED_PODS]]
    body: dict[str, Any] = {"ended": end, "endMessage": end_message(raw) or None, "failedPods": failed}
    if end == FAILED:
        body["unblock"] = _how_to_run_again(job.gang, fallen, job.pods)
    return body


def _failed_pod(pod: Pod) -> Mapping[str, Any]:
    return {
        "pod": pod.name,
        "node": pod.node or None,
        "reason": pod.reason or None,
        "exit codes": [container.exit_code for container in pod.containers if container.exit_code] or None,
        "last line": last_words.last_line(pod) or None,
    }


def _how_to_run_again(gang: Gang, fallen: Sequence[Pod], live: Sequence[Pod]) -> str:
    logs = f"read `{last_words.read_logs(fallen[0])[0]}`, then " if fallen else ""
    delete = f"kubectl delete -n {gang.namespace} {gang.kind.partition('.')[0].lower()} {gang.name}"

    chips = sum(len(pod.chips) for pod in live if pod.holds_chips)
    held = f"; until then {counted(len(live), 'other pod')} of it keep {counted(chips, 'chip')}" if chips else ""
    return f"{logs}delete the job (`{delete}`): what Git declares is created again{held}"
