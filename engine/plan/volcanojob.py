"""Volcano Jobs become pods, follow their policies, and end: what Volcano's job controller does.

The phase in ``.status.state`` is the state machine's state; everything else is derived from the pods. Sources:
github.com/volcano-sh/volcano/pkg/controllers/job/{job_controller_actions,job_controller_util}.go and its state/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from engine.model.cluster import Pod
from engine.model.history import JobMemory
from engine.model.times import parse_rfc3339
from engine.plan import podgroup, resilience, volcanoplugins
from engine.plan.lifecycle import Bench, Job, part
from engine.plan.memo import Memo
from engine.plan.podtemplate import GROUP_NAME, TASK_SPEC, min_resources, pod
from engine.plan.volcanoplugins import JOB_NAME, JOB_NAMESPACE
from engine.plan.volcanospec import Task, VolcanoSpec, read
from engine.plan.volcanostatus import Counts, write
from engine.wire.podannotations import RANK_INDEX

API: Final = "batch.volcano.sh/v1alpha1"
KIND: Final = "Job"
TASK_INDEX: Final = "volcano.sh/task-index"
QUEUE_NAME: Final = "volcano.sh/queue-name"
JOB_VERSION: Final = "volcano.sh/job-version"
TEMPLATE_UID: Final = "volcano.sh/template-uid"
RETRY_COUNT: Final = "volcano.sh/job-retry-count"
ENDS: Final = frozenset({"Completed", "Failed", "Terminated", "Aborted"})
_ENDING: Final = {"Completing": "Completed", "Terminating": "Terminated", "Aborting": "Aborted"}
_BY_ACTION: Final = {"AbortJob": "Aborting", "TerminateJob": "Terminating", "CompleteJob": "Completing"}
_ACTIVE: Final = ("", "Pending", "Inqueue", "Running")
#: Job annotations that Volcano copies to the pods.
_COPIED: Final = ("volcano.sh/preemptable", "volcano.sh/cooldown-time", "volcano.sh/revocable-zone")
_SPECS: Memo[VolcanoSpec] = Memo(8192)


class _Event(NamedTuple):
    """The first event of this pass that the job's policies answer."""

    name: str
    action: str
    task: Task
    pod: Pod | None


@dataclass(slots=True)
class _Case:
    """One job in one pass; ``retries`` counts the restarts of the whole job."""

    bench: Bench
    job: Job
    spec: VolcanoSpec
    memory: JobMemory
    pods: dict[str, Pod]
    phase: str
    reason: str = ""
    message: str = ""

    @property
    def retries(self) -> int:
        """Every restart of the job is a new version of its pods."""
        return self.memory.version

    def stale(self, one: Pod) -> bool:
        """Whether a pod belongs to a round that has been told to go."""
        return _version(one) <= self.memory.killed


def expand(bench: Bench, job: Job) -> bool:
    """Plans what one job needs next.

    Returns whether that depends on nothing but the job, its pods, its memory, its PodGroup and what ``svc`` keeps.
    """
    phase = phase_of(job)
    spec = _SPECS.of(job.key, job.raw, lambda: read(job))
    pods = {p.name: p for p in bench.pods_of(job)}
    case = _Case(bench, job, spec, bench.memory(job), pods, phase)
    if phase in ENDS:
        _clean_up(case)
        return spec.ttl is None
    if spec.problem:
        bench.warn(job, "spec", f"{spec.problem}; the job gets no pods until it is valid")
        write(bench, job, spec, case.memory.version, [], "Pending", "InvalidJob", spec.problem)
        return False
    _size(case)
    _look(case)
    podgroup.ensure(bench, job, _pod_group_spec(spec))
    volcanoplugins.prepare(bench, job, case.spec)
    if case.phase in _ACTIVE:
        _answer(case)
    _remove(case)
    counts = _count(case)
    case.phase = _next_phase(case, counts)
    if case.phase in _ACTIVE:
        _create(case, counts)
    bench.remember(job, case.memory)
    write(bench, job, spec, case.memory.version, counts, case.phase, case.reason, case.message)
    whole = all(name in case.pods for name, _, _ in spec.expected)
    whole = whole and resilience.rule_of(job, spec) is None  # else the room there is decides, too
    return whole and not any(p.phase == "Failed" for p in case.pods.values())


def _size(case: _Case) -> None:
    """An elastic job may have to be made smaller than declared."""
    rule = resilience.rule_of(case.job, case.spec)
    case.memory = resilience.sized(case.bench, case.job, case.spec, case.memory, list(case.pods.values()))
    case.spec = resilience.applied(case.spec, rule, case.memory)
    outgrown = resilience.outgrown(rule, case.memory, list(case.pods.values()))
    if outgrown:
        _restart(case, outgrown)


def phase_of(job: Job) -> str:
    """The job's phase, empty for a new one."""
    return str(part(job.status, "state").get("phase") or "")


def _version(one: Pod) -> int:
    """The round a pod was made in; a pod that does not say belongs to the first, so that no round before it ended."""
    text = one.annotations.get(JOB_VERSION, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def _look(case: _Case) -> None:
    """Remembers that every pod of this version has been seen, so that a missing one is known to have vanished."""
    memory = _taken_over(case)
    present = {p.uid for p in case.pods.values()}
    removed = tuple(uid for uid in memory.removed if uid in present)
    if removed != memory.removed:
        memory = msgspec.structs.replace(memory, removed=removed)
    staying = {
        name
        for name, p in case.pods.items()
        if p.deleting is None and not case.stale(p) and p.uid not in memory.removed
    }
    complete = bool(staying) and all(name in staying for name, _, _ in case.spec.expected)
    if complete and memory.settled != memory.version:
        memory = msgspec.structs.replace(memory, settled=memory.version)
    case.memory = memory


def _taken_over(case: _Case) -> JobMemory:
    """The memory, with the restarts that Volcano counted before Belay came."""
    counted = case.job.status.get("version")
    known = [_version(one) for one in case.pods.values()]
    current = max([case.memory.version, counted if isinstance(counted, int) else 0, *known])
    return case.memory if current == case.memory.version else msgspec.structs.replace(case.memory, version=current)


def _answer(case: _Case) -> None:
    """Takes the action that the policies give the first event they answer."""
    event = next(_events(case), None)
    if event is None:
        return
    what = f"pod {event.pod.name}" if event.pod is not None else f"task {event.task.name}"
    case.reason, case.message = event.name, f"{event.name} ({what}): policy says {event.action}"
    if event.action == "RestartJob":
        version = case.memory.version
        case.memory = msgspec.structs.replace(case.memory, killed=version, version=version + 1)
        case.phase = "Restarting"
    elif event.action in _BY_ACTION:
        case.phase = _BY_ACTION[event.action]
    elif event.action == "RestartTask":
        _restart(case, [p for p in case.pods.values() if p.annotations.get(TASK_SPEC) == event.task.name])
    elif event.action == "RestartPod" and event.pod is not None:
        _restart(case, [event.pod])


def _events(case: _Case) -> Any:
    """Events that the policies answer with more than a sync, in the order of pod names."""
    seen: dict[str, int] = {}
    for name, position, _ in case.spec.expected:
        task = case.spec.tasks[position]
        one = case.pods.get(name)
        happened = _event_of(case, one)
        if happened is not None:
            action = case.spec.action(task, happened, _exit_code(one))
            if action not in ("SyncJob", "Ignore"):
                yield _Event(happened, action, task, one)
        seen[task.name] = seen.get(task.name, 0) + (one is not None and one.phase == "Succeeded")
    for task in case.spec.tasks:
        if task.replicas and seen.get(task.name) == task.replicas:
            action = case.spec.action(task, "TaskCompleted", None)
            if action not in ("SyncJob", "Ignore"):
                yield _Event("TaskCompleted", action, task, None)


def _event_of(case: _Case, one: Pod | None) -> str | None:
    """What happened to a pod of this version, as Volcano names it."""
    if one is None:
        return "PodEvicted" if case.memory.settled == case.memory.version else None
    if case.stale(one) or one.uid in case.memory.removed:
        return None
    if one.deleting is not None:
        return "PodEvicted"
    if one.key in case.bench.scope.evicting:
        return None
    return {"Failed": "PodFailed", "Unknown": "Unknown"}.get(one.phase)


def _exit_code(one: Pod | None) -> int | None:
    if one is None or one.phase != "Failed":
        return None
    return next((c.exit_code for c in one.containers if c.exit_code), None)


def _restart(case: _Case, pods: list[Pod]) -> None:
    """Pods of a task, or one pod, go and come again; the version stays."""
    removed = sorted({*case.memory.removed, *(one.uid for one in pods)})
    case.memory = msgspec.structs.replace(case.memory, removed=tuple(removed), settled=-1)


def _remove(case: _Case) -> None:
    """Pods that must go: of a killed round, of a job that is ending, or that the job no longer asks for."""
    wanted = {name for name, _, _ in case.spec.expected}
    for one in case.pods.values():
        if case.stale(one):
            case.bench.remove(case.job, one, "JobRestart", f"{case.job.key} restarts: pod {one.name} goes")
        elif case.phase in _ENDING and not one.finished:
            case.bench.remove(case.job, one, "JobEnding", f"{case.job.key} is {case.phase}: pod {one.name} goes")
        elif one.uid in case.memory.removed:
            case.bench.remove(case.job, one, "PolicyRestart", f"{case.job.key}: a policy restarts pod {one.name}")
        elif one.name not in wanted:
            case.bench.remove(case.job, one, "ScaledDown", f"{case.job.key} no longer asks for pod {one.name}")


def _count(case: _Case) -> list[Counts]:
    """Pods per task and phase; what is deleted or of a killed round is terminating."""
    phases: dict[str, dict[str, int]] = {task.name: {} for task in case.spec.tasks}
    terminating: dict[str, int] = dict.fromkeys(phases, 0)
    for one in case.pods.values():
        task = one.annotations.get(TASK_SPEC, "")
        if task not in phases:
            continue
        if one.deleting is not None or case.stale(one):
            terminating[task] += 1
        else:
            phases[task][one.phase] = phases[task].get(one.phase, 0) + 1
    return [Counts(task.name, phases[task.name], terminating[task.name]) for task in case.spec.tasks]


def _next_phase(case: _Case, counts: list[Counts]) -> str:
    spec, phase = case.spec, case.phase
    going = sum(c.terminating for c in counts)
    if phase == "Restarting":
        if case.retries >= spec.max_retry:
            case.reason = "MaxRetryReached"
            case.message = f"restarted {case.retries} times, maxRetry is {spec.max_retry}"
            return "Failed"
        return "Pending" if spec.total - going >= spec.min_available else phase
    if phase in _ENDING:
        left = going + sum(c.of("Pending") + c.of("Running") for c in counts)
        return phase if left else _ENDING[phase]
    if phase == "Running":
        return _result(spec, counts) or phase
    started = sum(c.of("Running") + c.of("Succeeded") + c.of("Failed") for c in counts)
    return "Running" if started and started >= spec.min_available else "Pending"


def _result(spec: VolcanoSpec, counts: list[Counts]) -> str:
    """How a running job has ended; empty while it has not."""
    succeeded = sum(c.of("Succeeded") for c in counts)
    failed = sum(c.of("Failed") for c in counts)
    if spec.min_success is not None and succeeded >= spec.min_success:
        return "Completed"
    if not spec.total or succeeded + failed != spec.total:
        return ""
    if spec.min_available >= sum(task.least for task in spec.tasks):
        by_name = {c.task: c for c in counts}
        for task in spec.tasks:
            if task.min_available is not None and by_name[task.name].of("Succeeded") < task.min_available:
                return "Failed"
    if spec.min_success is not None:
        return "Failed"
    return "Completed" if succeeded >= spec.min_available else "Failed"


def _create(case: _Case, counts: list[Counts]) -> None:
    """Plans the missing pods of tasks whose dependencies run, once Volcano (if alive) has admitted the group."""
    bench, job, spec = case.bench, case.job, case.spec
    missing = [row for row in spec.expected if row[0] not in case.pods]
    if not missing or podgroup.waits_for_volcano(bench, job) is not None:
        return
    ready = {c.task for c, task in zip(counts, spec.tasks, strict=True) if _ready(c, task)}
    ranks = {name: rank for rank, (name, _, _) in enumerate(spec.expected)}
    for name, position, index in missing:
        task = spec.tasks[position]
        waits = task.depends_on and not (any if task.depends_any else all)(d in ready for d in task.depends_on)
        if waits or f"{job.key.namespace}/{name}" in bench.scope.observed.pods:
            continue
        body = _pod(case, task, index, name, ranks[name])
        bench.create_pod(job, body, "PodMissing", f"{job.key} wants pod {name}: creating it")


def _ready(counts: Counts, task: Task) -> bool:
    return counts.of("Running") + counts.of("Succeeded") >= task.least


def _pod(case: _Case, task: Task, index: int, name: str, rank: int) -> dict[str, Any]:
    job, spec = case.job, case.spec
    labels = {
        TASK_INDEX: str(index),
        JOB_NAME: job.key.name,
        TASK_SPEC: task.name,
        JOB_NAMESPACE: job.key.namespace,
        QUEUE_NAME: spec.queue,
    }
    annotations = {
        TASK_INDEX: str(index),
        TASK_SPEC: task.name,
        JOB_NAME: job.key.name,
        QUEUE_NAME: spec.queue,
        JOB_VERSION: str(case.memory.version),
        TEMPLATE_UID: f"{job.key.name}-{task.name}",
        RETRY_COUNT: str(case.retries),
    }
    annotations |= {key: spec.annotations[key] for key in _COPIED if key in spec.annotations}
    if spec.wants_npu:
        # The scheduler would use the index within the task, which two tasks share.
        annotations[RANK_INDEX] = str(rank)
    if case.bench.pod_groups:
        annotations[GROUP_NAME] = podgroup.name_of(job)
    body = pod(job, task.template, name, labels=labels, annotations=annotations)
    inner = body["spec"]
    inner["schedulerName"] = inner.get("schedulerName") or spec.scheduler
    if spec.priority_class and not inner.get("priorityClassName"):
        inner["priorityClassName"] = spec.priority_class
    volcanoplugins.furnish(case.bench, job, spec, body, index)
    return body


def _pod_group_spec(spec: VolcanoSpec) -> dict[str, Any]:
    out: dict[str, Any] = {
        "minMember": spec.min_available,
        "minTaskMember": {task.name: task.least for task in spec.tasks},
        "queue": spec.queue,
    }
    if spec.priority_class:
        out["priorityClassName"] = spec.priority_class
    resources = min_resources([(task.template, task.replicas) for task in spec.tasks], spec.min_available)
    if resources:
        out["minResources"] = resources
    return out


def _clean_up(case: _Case) -> None:
    """A job that has ended: pods still alive go, then the PodGroup, what plugins made, and after its time the job."""
    bench, job, phase = case.bench, case.job, case.phase
    for one in case.pods.values():
        if not one.finished:
            bench.remove(job, one, "JobFinished", f"{job.key} is {phase}: cleaning up pod {one.name}")
    bench.delete(job, podgroup.key_of(job), "JobFinished", f"{job.key} is {phase}: deleting its PodGroup")
    volcanoplugins.discard(bench, job, case.spec)
    if case.spec.ttl is None or phase == "Aborted" or job.key in bench.scope.desired.manifest_index:
        return  # Git would only bring a job back that still stands there
    since = _time(part(job.status, "state").get("lastTransitionTime"))
    if since is not None and bench.scope.now >= since + case.spec.ttl:
        bench.delete(job, job.key, "TTLExpired", f"{job.key} has been {phase} for {case.spec.ttl} s: deleting it")


def _time(text: object) -> float | None:
    try:
        return parse_rfc3339(str(text))
    except ValueError:
        return None
