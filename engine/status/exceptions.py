"""``scheduling-exception-report``: jobs that do not get on, and why, in ClusterD's form.

A job that Belay places is explained by its plan; one that a live Volcano places, by the conditions of its PodGroup;
one whose pods fail or do not start, by these. Source: component/clusterd/pkg/application/schedulingexception.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import grouping
from belay.engine.gangs.job_status import CREATED
from belay.engine.gangs.job_status import FAILED as ENDED_BADLY
from belay.engine.gangs.owners import ASCEND_API, POD_GROUP_APIS, VOLCANO_API, controller_of
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.pending_reasons import ENQUEUE_FAILED, INVALID_REQUEST, NODE_UNSTABLE, QUEUE_EXHAUSTED, TOPOLOGY
from belay.engine.model.phases import PodGroupPhase, VolcanoJobPhase
from belay.engine.model.plan import Pending, Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.times import parse_rfc3339
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.status.bodies import MAX_BYTES, config_map
from belay.engine.status.summaries import FAILED, PENDING, JobSummary
from belay.engine.wire.gojson import go_json
from belay.engine.wire.names import SCHEDULING_EXCEPTIONS as EXCEPTIONS

EXCEPTIONS_NAMESPACE: Final = "cluster-system"
MAX_MESSAGE: Final = 500
#: Seconds for which a pod may start, or a job be picked up, before that is an exception (ClusterD looks twice).
SETTLES: Final = 20
#: Our reason for a pending job → ClusterD's.
_REASONS: Final = {
    QUEUE_EXHAUSTED: "JobEnqueueFailed", INVALID_REQUEST: "JobValidateFailed", TOPOLOGY: "BatchOrderFailed",
    NODE_UNSTABLE: "NodePredicateFailed", ENQUEUE_FAILED: ENQUEUE_FAILED,
}  # fmt: skip
#: Reasons of a PodGroup's conditions while it is enqueued: the first that is present counts.
_STEPS: Final = ("BatchOrderFailed", "NodePredicateFailed", "JobValidateFailed", "NotEnoughResources")
#: ClusterD's sentences to the letter, missing blanks included: people and pages search for them.
_NO_SCHEDULER: Final = (
    "pg phase is empty, volcano-scheduler maybe not running, you can check the status by"
    "executing command: kubectl get pod -n volcano-system -l app=volcano-scheduler"
)
_NO_CONTROLLER: Final = (
    "job condition is empty, volcano-controller maybe not running, you can check the status by executing command: "
    "kubectl get pod -n volcano-system -l app=volcano-controller"
)
_NO_OPERATOR: Final = (
    "job condition is empty, ascend-operator maybe not running, you can check the status by executing command: "
    "kubectl get pod -n mindx-dl -l app=controller-manager"
)
_NO_RESOURCES: Final = (
    "the resources such as cpu, memory is not enough in Queue, you can check them by executing command: "
    "kubectl describe q {queue}, or view the log of volcano-scheduler"
)
_LOOK_AT_JOB: Final = "you can check the job status by executing command: kubectl describe vcjob {where}"


class Trouble(NamedTuple):
    """``conditions`` of one job."""

    status: str
    reason: str
    message: str


class _Job(NamedTuple):
    """The job that a row is about; ``trouble`` is None while it gets on."""

    name: str
    uid: str
    kind: str
    namespace: str
    trouble: Trouble | None


def exceptions(
    plan: Plan, observed: Observed, summaries: Sequence[JobSummary] = (), cache: PlanCache | None = None
) -> dict[str, Any]:
    """``cluster-system/scheduling-exception-report``: jobs that cannot proceed, by ``<job name>.<uid>``, and why.

    ``summaries`` are those of all jobs with chips; running and completed ones have no exception.
    """
    rows: dict[str, str] = {}
    used = 0
    for job in _jobs(plan, observed, summaries, cache or PlanCache()):
        key = f"{job.name}.{job.uid}"[:253]
        if job.trouble is None or not job.uid or key in rows:
            continue
        # as ClusterD has it, so that no page reads a text like idle<0> as HTML
        message = job.trouble.message.replace("<", " ").replace(">", "")[:MAX_MESSAGE]
        conditions = job.trouble._replace(message=message)._asdict()
        body = {"jobName": job.name, "jobType": job.kind, "nameSpace": job.namespace, "conditions": conditions}
        rows[key] = go_json(body)
        used += len(key) + len(rows[key])
        if used > MAX_BYTES:
            break
    return config_map(EXCEPTIONS_NAMESPACE, EXCEPTIONS, dict(sorted(rows.items())))


def _jobs(plan: Plan, observed: Observed, summaries: Sequence[JobSummary], cache: PlanCache) -> Iterator[_Job]:
    """Jobs in the order in which a full report takes them: those of the plan, others with pods, those without."""
    found = grouping(observed, cache)
    waiting = pending_by_gang(plan.pending, found.gangs)
    for key, entry in waiting.items():
        gang = found.gangs.get(key)
        if gang is not None and gang.kind != "Pod":
            trouble = Trouble(_phase(observed, gang.namespace, gang.pod_group), _reason(entry), entry.message)
            yield _Job(entry.name, gang.uid, entry.kind, entry.namespace, trouble)
    stuck = {one.id for one in summaries if one.status in (PENDING, FAILED) and one.data.get("operator") != "delete"}
    known = set()
    for key, gang in found.gangs.items():
        known.add(gang.uid)
        if gang.uid in stuck and key not in waiting:
            pods = found.members.get(key, ())
            raw = _group(observed, gang.namespace, gang.pod_group)
            yield _Job(gang.name, gang.uid, gang.kind, gang.namespace, of_group(raw, pods, plan.now))
    for job in _of_groups(observed, stuck - known, plan.now):
        known.add(job.uid)
        yield job
    for object_key, body in observed.objects.items():
        if (object_key.api_version, object_key.kind) in ((ASCEND_API, "AscendJob"), (VOLCANO_API, "Job")):
            uid = str(nested_map(body, "metadata").get("uid") or "")
            refused = _refused(body)
            if refused is None and uid in known:
                continue
            yield _Job(object_key.name, uid, object_key.kind, object_key.namespace, refused or of_job(body, plan.now))


def _of_groups(observed: Observed, uids: set[str], now: float) -> Iterator[_Job]:
    """Jobs that have only a PodGroup so far."""
    for key, raw in observed.objects.items() if uids else ():
        owner = controller_of(raw) if key.kind == "PodGroup" and key.api_version in POD_GROUP_APIS else {}
        uid = str(owner.get("uid") or "")
        if uid in uids:
            kind = str(owner.get("kind") or "")
            yield _Job(str(owner.get("name") or ""), uid, kind, key.namespace, of_group(raw, (), now))


def of_group(group: Mapping[str, Any] | None, pods: Iterable[Pod], now: float) -> Trouble | None:
    """Why a job that no plan explains does not get on, by its PodGroup and pods; None while it may."""
    if group is None:
        return _of_pods(f"PodGroup{PodGroupPhase.UNKNOWN}", pods, now)

    young = now - _created(nested_map(group, "metadata")) <= SETTLES
    status = nested_map(group, "status")
    phase = str(status.get("phase") or "")
    if phase in (PodGroupPhase.UNKNOWN, PodGroupPhase.RUNNING):
        return _of_pods(f"PodGroup{phase}", pods, now)
    if phase == PodGroupPhase.PENDING:
        return _not_enqueued(group, _unschedulable(status), young=young)
    if phase == PodGroupPhase.INQUEUE:
        return _not_placed(_unschedulable(status))
    if phase or young:
        return None
    return Trouble("PodGroupCreated", "PgNotInitialized", _NO_SCHEDULER)


def _unschedulable(status: Mapping[str, Any]) -> dict[str, str]:
    """What Volcano says of a PodGroup that it can't schedule: messages by reason."""
    return {
        str(row.get("reason")): str(row.get("message") or "")
        for row in nested_list(status, "conditions")
        if row.get("type") == "Unschedulable" and row.get("status") == "True"
    }


def _not_enqueued(group: Mapping[str, Any], said: Mapping[str, str], *, young: bool) -> Trouble | None:
    if young and ENQUEUE_FAILED not in said:
        return None
    queue = str(nested_map(group, "spec").get("queue") or "default")
    usual = _NO_RESOURCES.format(queue=queue)
    return Trouble("PodGroupPending", ENQUEUE_FAILED, said.get(ENQUEUE_FAILED, usual))


def _not_placed(said: Mapping[str, str]) -> Trouble | None:
    """The first step of scheduling that fails; the first one is explained by what the second says, too."""
    step = next((reason for reason in _STEPS if reason in said), None)
    if step is None:
        return None
    message = said[step]
    if step == _STEPS[0] and _STEPS[1] in said:
        message = f"{message}; {said[_STEPS[1]]}"
    return Trouble("PodGroupInqueue", step, message)


def _of_pods(status: str, pods: Iterable[Pod], now: float) -> Trouble | None:
    ordered = sorted(pods, key=lambda pod: (pod.phase != "Failed", pod.name))
    for pod in ordered:
        look = f"kubectl describe pod -n {pod.namespace} {pod.name}"
        if pod.phase == "Failed":
            text = f"pod is failed, please check the pod status using the following command: {look}"
            return Trouble("PodGroupUnknown", "PodFailed", text)
        if pod.phase == "Pending" and now - (pod.started or pod.created) > SETTLES:
            unknown = status == f"PodGroup{PodGroupPhase.UNKNOWN}"
            how = ", executing command" if unknown else " using the following command"
            return Trouble(status, "PodPending", f"pod is pending, please check the pod status{how}: {look}")
    return None


def of_job(raw: Mapping[str, Any], now: float) -> Trouble | None:
    """Why a job has neither pods nor a PodGroup; None while it may be about to get them, or has ended well."""
    metadata, status = nested_map(raw, "metadata"), nested_map(raw, "status")
    where = f"-n {metadata.get('namespace')} {metadata.get('name')}"
    trouble = _of_ascend_job(status) if raw.get("kind") == "AscendJob" else _of_volcano_job(status, where)
    young = now - _created(metadata) <= SETTLES
    return None if young and trouble is not None and trouble.status != "JobFailed" else trouble


def _created(metadata: Mapping[str, Any]) -> float:
    try:
        return parse_rfc3339(str(metadata.get("creationTimestamp") or ""))
    except ValueError:
        return 0.0


def _of_ascend_job(status: Mapping[str, Any]) -> Trouble | None:
    rows = [row for row in nested_list(status, "conditions") if row.get("status") != "False"]
    if not status.get("conditions"):
        return Trouble("JobEmptyStatus", "JobNoInitialized", _NO_OPERATOR)
    for kind, state in ((ENDED_BADLY, "JobFailed"), (CREATED, "JobInitialized")):
        row = next((row for row in rows if row.get("type") == kind), None)
        if row is not None and (kind == ENDED_BADLY or row is rows[-1]):
            return Trouble(state, str(row.get("reason") or ""), str(row.get("message") or ""))
    return None


def _of_volcano_job(status: Mapping[str, Any], where: str) -> Trouble | None:
    phase = str(nested_map(status, "state").get("phase") or "")
    if not phase:
        return Trouble("JobEmptyStatus", "JobNoInitialized", _NO_CONTROLLER)
    look = _LOOK_AT_JOB.format(where=where)
    if phase == VolcanoJobPhase.PENDING:
        return Trouble("JobInitialized", "JobPending", f"job is pending, {look}")
    if phase == VolcanoJobPhase.FAILED:
        return Trouble("JobFailed", "JobFailed", f"job is failed, {look}")
    return None


def _refused(raw: Mapping[str, Any]) -> Trouble | None:
    """Why the job was refused; None when it was not."""
    status = nested_map(raw, "status")
    text = ""
    for row in nested_list(status, "conditions"):
        if row.get("type") == ENDED_BADLY and row.get("reason") == "JobValidFailed":
            text = str(row.get("message") or "")
    state = nested_map(status, "state")
    if state.get("reason") == "InvalidJob":
        text = str(state.get("message") or "")
    return Trouble("JobFailed", "JobValidateFailed", text) if text else None


def _group(observed: Observed, namespace: str, name: str) -> Mapping[str, Any] | None:
    for api in POD_GROUP_APIS:
        raw = observed.objects.get(ObjectKey(api, "PodGroup", namespace, name)) if name else None
        if raw is not None:
            return raw
    return None


def _phase(observed: Observed, namespace: str, group_name: str) -> str:
    """The job's state by its PodGroup, ``JobInitialized`` where it has none."""
    raw = _group(observed, namespace, group_name)
    if raw is None:
        return "JobInitialized"
    phase = str(nested_map(raw, "status").get("phase") or "")
    known = set(PodGroupPhase) - {PodGroupPhase.COMPLETED}
    return f"PodGroup{phase}" if phase in known else "PodGroupCreated"


def _reason(entry: Pending) -> str:
    return _REASONS.get(entry.reason, "NotEnoughResources")
