"""Volcano Jobs: pods, policies, phases and clean-up, as Volcano's job controller does them.

The phase in ``.status.state`` is the state of the state machine; the rest is derived from the pods. Sources:
github.com/volcano-sh/volcano/pkg/controllers/job/{job_controller_actions,job_controller_util}.go and its state/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, assert_never

import msgspec

from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.history import JobMemory
from belay.engine.model.labels import (
    GROUP_NAME,
    RANK_INDEX,
    VOLCANO_COOLDOWN_TIME,
    VOLCANO_JOB_NAME,
    VOLCANO_JOB_NAMESPACE,
    VOLCANO_JOB_RETRY_COUNT,
    VOLCANO_JOB_VERSION,
    VOLCANO_PREEMPTABLE,
    VOLCANO_QUEUE_NAME,
    VOLCANO_REVOCABLE_ZONE,
    VOLCANO_TASK_INDEX,
    VOLCANO_TASK_SPEC,
    VOLCANO_TEMPLATE_UID,
)
from belay.engine.model.phases import VolcanoJobPhase
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.model.quantities import whole_number
from belay.engine.model.reasons import ActionReason
from belay.engine.model.times import parse_rfc3339
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.jobs import podgroup, resilience, volcanojob_plugins
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject
from belay.engine.plan.jobs.pod_template import min_resources, pod
from belay.engine.plan.jobs.volcanojob_commands import RESUME, next_command
from belay.engine.plan.jobs.volcanojob_spec import TaskSpec, VolcanoSpec, read
from belay.engine.plan.jobs.volcanojob_status import TaskCounts, write

API: Final = "batch.volcano.sh/v1alpha1"
KIND: Final = "Job"
TERMINAL_PHASES: Final[frozenset[str]] = frozenset(
    (VolcanoJobPhase.COMPLETED, VolcanoJobPhase.FAILED, VolcanoJobPhase.TERMINATED, VolcanoJobPhase.ABORTED)
)
_ENDING: Final[dict[str, VolcanoJobPhase]] = {
    VolcanoJobPhase.COMPLETING: VolcanoJobPhase.COMPLETED,
    VolcanoJobPhase.TERMINATING: VolcanoJobPhase.TERMINATED,
    VolcanoJobPhase.ABORTING: VolcanoJobPhase.ABORTED,
}
_BY_ACTION: Final = {
    "AbortJob": VolcanoJobPhase.ABORTING,
    "TerminateJob": VolcanoJobPhase.TERMINATING,
    "CompleteJob": VolcanoJobPhase.COMPLETING,
}
_ACTIVE: Final = ("", VolcanoJobPhase.PENDING, VolcanoJobPhase.INQUEUE, VolcanoJobPhase.RUNNING)
_PHASES: Final = {phase.value: phase for phase in VolcanoJobPhase}
#: Job annotations that Volcano copies to the pods.
_COPIED: Final = (VOLCANO_PREEMPTABLE, VOLCANO_COOLDOWN_TIME, VOLCANO_REVOCABLE_ZONE)
_SPECS: Final = CacheKey("Volcano Job specs", Memo[VolcanoSpec], limit=8192)


class _Event(NamedTuple):
    """An event of this pass and the action that the job's policies give it."""

    name: str
    action: str
    task: TaskSpec
    pod: Pod | None


@dataclass(slots=True)
class _Expansion:
    """One job in one pass; ``retries`` counts the restarts of the whole job."""

    context: ExpansionContext
    job: JobObject
    spec: VolcanoSpec
    memory: JobMemory
    pods: dict[str, Pod]
    phase: str
    reason: str = ""
    message: str = ""

    @property
    def retries(self) -> int:
        """Restarts of the job so far: the version of its pods."""
        return self.memory.version

    def stale(self, one: Pod) -> bool:
        """Whether a pod belongs to a round that is being removed."""
        return _version(one) <= self.memory.killed

    def stays(self, one: Pod) -> bool:
        """Whether a pod is of this round and is not being removed."""
        return one.deleting is None and not self.stale(one) and one.uid not in self.memory.removed


def expand(context: ExpansionContext, job: JobObject) -> bool:
    """Plan the next actions of one job.

    Returns:
        Whether they follow from the job, its pods, its memory, its PodGroup and the objects of its plugins alone.
    """
    phase = phase_of(job)
    spec = context.facts.cache[_SPECS].of(job.key, job.raw, lambda: read(job))
    pods = {p.name: p for p in context.pods_of(job)}
    expansion = _Expansion(context, job, spec, context.memory(job), pods, phase)
    _obey(expansion)
    if expansion.phase in TERMINAL_PHASES:
        _clean_up(expansion)
        return spec.ttl is None
    if spec.problem:
        context.warn(job, "spec", f"{spec.problem}; the job gets no pods until it is valid", PassCode.INVALID_JOB)
        write(context, job, spec, expansion.memory.version, [], VolcanoJobPhase.PENDING, "InvalidJob", spec.problem)
        return False
    for where, text in spec.ignored:
        context.warn(job, f"spec.{where}", text, PassCode.FIELD_IGNORED)
    _resize(expansion)
    _refresh_memory(expansion)
    asked = _pod_group_spec(expansion.spec)
    podgroup.ensure(context, job, asked)
    podgroup.adjust(context, job, asked)
    volcanojob_plugins.prepare(context, job, expansion.spec)
    if expansion.phase in _ACTIVE:
        _apply_policy(expansion)
    resilience.make_way_for_growth(context, job, spec, expansion.memory, list(expansion.pods.values()))
    _remove_pods(expansion)
    counts = _count(expansion)
    expansion.phase = _next_phase(expansion, counts)
    if expansion.phase in _ACTIVE:
        _create(expansion, counts)
    context.remember(job, expansion.memory)
    write(context, job, spec, expansion.memory.version, counts, expansion.phase, expansion.reason, expansion.message)
    whole = all(name in expansion.pods for name, _, _ in spec.expected)
    whole = whole and resilience.rule_of(job, spec) is None  # an elastic job also depends on free chips
    return whole and not any(p.phase == "Failed" for p in expansion.pods.values())


def _obey(expansion: _Expansion) -> None:
    """Carry out the next Command for the job."""
    action, uid = next_command(expansion.context, expansion.job, expansion.phase, expansion.memory.commanded)
    if not action:
        return
    expansion.memory = msgspec.structs.replace(_adopted_memory(expansion), commanded=uid)
    expansion.reason, expansion.message = "CommandIssued", f"a Command asked for {action}"
    _take(expansion, action)


def _take(expansion: _Expansion, action: str) -> None:
    """Change the phase of the whole job, by a policy or a Command."""
    if action in ("RestartJob", RESUME):
        version = expansion.memory.version
        expansion.memory = msgspec.structs.replace(expansion.memory, killed=version, version=version + 1)
        expansion.phase = VolcanoJobPhase.RESTARTING
    elif action in _BY_ACTION:
        expansion.phase = _BY_ACTION[action]


def _resize(expansion: _Expansion) -> None:
    """Apply the current size of an elastic job."""
    rule = resilience.rule_of(expansion.job, expansion.spec)
    expansion.memory = resilience.resize(
        expansion.context,
        expansion.job,
        expansion.spec,
        expansion.memory,
        list(expansion.pods.values()),
        [one for one in expansion.pods.values() if expansion.stays(one)],
    )
    expansion.spec = resilience.resized_spec(expansion.spec, rule, expansion.memory)
    if rule is not None:
        # neither a fault nor a growth is a failure of the job
        allowed = expansion.spec.max_retry + expansion.memory.rescheduled + expansion.memory.grown
        expansion.spec = expansion.spec._replace(max_retry=allowed)
    outgrown = resilience.wrongly_sized(rule, expansion.memory, list(expansion.pods.values()))
    if outgrown:
        _restart(expansion, outgrown)


def phase_of(job: JobObject) -> str:
    """The job's phase, empty for a new one."""
    return str(nested_map(job.status, "state").get("phase") or "")


def _version(one: Pod) -> int:
    """The round a pod was created in; a pod without the annotation belongs to the first."""
    return whole_number(one.annotations.get(VOLCANO_JOB_VERSION, "")) or 0


def _refresh_memory(expansion: _Expansion) -> None:
    """Remember that every pod of this version has been seen, so that a missing one counts as vanished."""
    memory = _adopted_memory(expansion)
    present = {p.uid for p in expansion.pods.values()}
    removed = tuple(uid for uid in memory.removed if uid in present)
    if removed != memory.removed:
        memory = msgspec.structs.replace(memory, removed=removed)
    expansion.memory = memory
    staying = {name for name, one in expansion.pods.items() if expansion.stays(one)}
    complete = bool(staying) and all(name in staying for name, _, _ in expansion.spec.expected)
    if complete and memory.settled != memory.version:
        memory = msgspec.structs.replace(memory, settled=memory.version)
    expansion.memory = memory


def _adopted_memory(expansion: _Expansion) -> JobMemory:
    """The memory, with the restarts that Volcano counted before Belay took over."""
    counted = expansion.job.status.get("version")
    known = [_version(one) for one in expansion.pods.values()]
    current = max([expansion.memory.version, counted if isinstance(counted, int) else 0, *known])
    return (
        expansion.memory
        if current == expansion.memory.version
        else msgspec.structs.replace(expansion.memory, version=current)
    )


def _apply_policy(expansion: _Expansion) -> None:
    """Take the action of the first event that the policies answer."""
    event = next(_policy_events(expansion), None)
    if event is None:
        return
    what = f"pod {event.pod.name}" if event.pod is not None else f"task {event.task.name}"
    expansion.reason, expansion.message = event.name, f"{event.name} ({what}): policy says {event.action}"
    _take(expansion, event.action)
    if event.action == "RestartTask":
        _restart(
            expansion, [p for p in expansion.pods.values() if p.annotations.get(VOLCANO_TASK_SPEC) == event.task.name]
        )
    elif event.action == "RestartPod" and event.pod is not None:
        _restart(expansion, [event.pod])


def _policy_events(expansion: _Expansion) -> Any:
    """Events that the policies answer with more than a sync, in order of pod name."""
    seen: dict[str, int] = {}
    for name, position, _ in expansion.spec.expected:
        task = expansion.spec.tasks[position]
        one = expansion.pods.get(name)
        happened = _event_of(expansion, one)
        if happened is not None:
            action = expansion.spec.action(task, happened, _exit_code(one))
            if action not in ("SyncJob", "Ignore"):
                yield _Event(happened, action, task, one)
        seen[task.name] = seen.get(task.name, 0) + (one is not None and one.phase == "Succeeded")
    for task in expansion.spec.tasks:
        if task.replicas and seen.get(task.name) == task.replicas:
            action = expansion.spec.action(task, "TaskCompleted", None)
            if action not in ("SyncJob", "Ignore"):
                yield _Event("TaskCompleted", action, task, None)


def _event_of(expansion: _Expansion, one: Pod | None) -> str | None:
    """Volcano's name of the event that happened to a pod of this version, if any."""
    if one is None:
        return "PodEvicted" if expansion.memory.settled == expansion.memory.version else None
    if expansion.stale(one) or one.uid in expansion.memory.removed:
        return None
    if one.deleting is not None:
        return "PodEvicted"
    if one.key in expansion.context.draft.evicting:
        return None
    return {"Failed": "PodFailed", "Unknown": "Unknown"}.get(one.phase)


def _exit_code(one: Pod | None) -> int | None:
    if one is None or one.phase != "Failed":
        return None
    return next((c.exit_code for c in one.containers if c.exit_code), None)


def _restart(expansion: _Expansion, pods: list[Pod]) -> None:
    """Remove and re-create pods of a task, or one pod; the version stays."""
    removed = sorted({*expansion.memory.removed, *(one.uid for one in pods)})
    expansion.memory = msgspec.structs.replace(expansion.memory, removed=tuple(removed), settled=-1)


def _remove_pods(expansion: _Expansion) -> None:
    """Remove pods of a killed round, of a job that is ending, and those that the job no longer asks for."""
    wanted = {name for name, _, _ in expansion.spec.expected}
    for one in expansion.pods.values():
        if expansion.stale(one):
            expansion.context.remove_pod(
                expansion.job, one, ActionReason.JOB_RESTART, f"{expansion.job.key} restarts: removing pod {one.name}"
            )
        elif expansion.phase in _ENDING and not one.finished:
            expansion.context.remove_pod(
                expansion.job,
                one,
                ActionReason.JOB_ENDING,
                f"{expansion.job.key} is {expansion.phase}: removing pod {one.name}",
            )
        elif one.uid in expansion.memory.removed:
            expansion.context.remove_pod(
                expansion.job,
                one,
                ActionReason.POLICY_RESTART,
                f"{expansion.job.key}: a policy restarts pod {one.name}",
            )
        elif one.name not in wanted:
            expansion.context.remove_pod(
                expansion.job, one, ActionReason.SCALED_DOWN, f"{expansion.job.key} no longer asks for pod {one.name}"
            )


def _count(expansion: _Expansion) -> list[TaskCounts]:
    """Pods per task and phase; deleted pods and those of a killed round count as terminating."""
    phases: dict[str, dict[str, int]] = {task.name: {} for task in expansion.spec.tasks}
    terminating: dict[str, int] = dict.fromkeys(phases, 0)
    for one in expansion.pods.values():
        task = one.annotations.get(VOLCANO_TASK_SPEC, "")
        if task not in phases:
            continue
        if one.deleting is not None or expansion.stale(one):
            terminating[task] += 1
        else:
            phases[task][one.phase] = phases[task].get(one.phase, 0) + 1
    return [TaskCounts(task.name, phases[task.name], terminating[task.name]) for task in expansion.spec.tasks]


def _next_phase(expansion: _Expansion, counts: list[TaskCounts]) -> str:
    spec, phase = expansion.spec, expansion.phase
    going = sum(c.terminating for c in counts)
    known = _PHASES.get(phase)
    match known:
        case VolcanoJobPhase.RESTARTING:
            if expansion.retries >= spec.max_retry:
                expansion.reason = "MaxRetryReached"
                expansion.message = f"restarted {expansion.retries} times, maxRetry is {spec.max_retry}"
                return VolcanoJobPhase.FAILED
            return VolcanoJobPhase.PENDING if spec.total - going >= spec.min_available else known
        case VolcanoJobPhase.COMPLETING | VolcanoJobPhase.TERMINATING | VolcanoJobPhase.ABORTING:
            left = going + sum(c.of("Pending") + c.of("Running") for c in counts)
            return known if left else _ENDING[known]
        case VolcanoJobPhase.RUNNING:
            return _result(spec, counts) or known
        case VolcanoJobPhase.COMPLETED | VolcanoJobPhase.FAILED | VolcanoJobPhase.TERMINATED | VolcanoJobPhase.ABORTED:
            return known
        case VolcanoJobPhase.PENDING | VolcanoJobPhase.INQUEUE | None:
            started = sum(c.of("Running") + c.of("Succeeded") + c.of("Failed") for c in counts)
            enough = bool(started) and started >= spec.min_available
            return VolcanoJobPhase.RUNNING if enough else VolcanoJobPhase.PENDING
        case _:
            assert_never(known)


def _result(spec: VolcanoSpec, counts: list[TaskCounts]) -> VolcanoJobPhase | None:
    """The terminal phase of a running job; None while it has not ended."""
    succeeded = sum(c.of("Succeeded") for c in counts)
    failed = sum(c.of("Failed") for c in counts)
    if spec.min_success is not None and succeeded >= spec.min_success:
        return VolcanoJobPhase.COMPLETED
    if not spec.total or succeeded + failed != spec.total:
        return None
    if spec.min_available >= sum(task.required for task in spec.tasks):
        by_name = {c.task: c for c in counts}
        for task in spec.tasks:
            if task.min_available is not None and by_name[task.name].of("Succeeded") < task.min_available:
                return VolcanoJobPhase.FAILED
    if spec.min_success is not None:
        return VolcanoJobPhase.FAILED
    return VolcanoJobPhase.COMPLETED if succeeded >= spec.min_available else VolcanoJobPhase.FAILED


def _create(expansion: _Expansion, counts: list[TaskCounts]) -> None:
    """Plan the missing pods of tasks whose dependencies run, once a live Volcano has admitted the PodGroup."""
    context, job, spec = expansion.context, expansion.job, expansion.spec
    missing = [row for row in spec.expected if row[0] not in expansion.pods]
    if not missing or podgroup.unadmitted_phase(context, job, spec.schedulers) is not None:
        return
    ready = {c.task for c, task in zip(counts, spec.tasks, strict=True) if _ready(c, task)}
    ranks = {name: rank for rank, (name, _, _) in enumerate(spec.expected)}
    for name, position, index in missing:
        task = spec.tasks[position]
        waits = task.depends_on and not (any if task.depends_any else all)(d in ready for d in task.depends_on)
        if waits or f"{job.key.namespace}/{name}" in context.facts.observed.pods:
            continue
        body = _pod(expansion, task, index, name, ranks[name])
        context.create_pod(job, body, ActionReason.POD_MISSING, f"{job.key} wants pod {name}: creating it")


def _ready(counts: TaskCounts, task: TaskSpec) -> bool:
    return counts.of("Running") + counts.of("Succeeded") >= task.required


def _pod(expansion: _Expansion, task: TaskSpec, index: int, name: str, rank: int) -> dict[str, Any]:
    job, spec = expansion.job, expansion.spec
    labels = {
        VOLCANO_TASK_INDEX: str(index),
        VOLCANO_JOB_NAME: job.key.name,
        VOLCANO_TASK_SPEC: task.name,
        VOLCANO_JOB_NAMESPACE: job.key.namespace,
        VOLCANO_QUEUE_NAME: spec.queue,
    }
    annotations = {
        VOLCANO_TASK_INDEX: str(index),
        VOLCANO_TASK_SPEC: task.name,
        VOLCANO_JOB_NAME: job.key.name,
        VOLCANO_QUEUE_NAME: spec.queue,
        VOLCANO_JOB_VERSION: str(expansion.memory.version),
        VOLCANO_TEMPLATE_UID: f"{job.key.name}-{task.name}",
        VOLCANO_JOB_RETRY_COUNT: str(expansion.retries),
    }
    annotations |= {key: spec.annotations[key] for key in _COPIED if key in spec.annotations}
    if spec.wants_npu:
        # The scheduler would use the index within the task, which two tasks share.
        annotations[RANK_INDEX] = str(rank)
    if expansion.context.pod_groups:
        annotations[GROUP_NAME] = podgroup.name_of(job)
    body = pod(job, task.template, name, labels=labels, annotations=annotations)
    inner = body["spec"]
    inner["schedulerName"] = inner.get("schedulerName") or spec.scheduler
    if spec.priority_class and not inner.get("priorityClassName"):
        inner["priorityClassName"] = spec.priority_class
    volcanojob_plugins.apply_to_pod(job, spec, task, body, index)
    return body


def _pod_group_spec(spec: VolcanoSpec) -> dict[str, Any]:
    out: dict[str, Any] = {
        "minMember": spec.min_available,
        "minTaskMember": {task.name: task.required for task in spec.tasks},
        "queue": spec.queue,
    }
    if spec.priority_class:
        out["priorityClassName"] = spec.priority_class
    resources = min_resources([(task.template, task.replicas) for task in spec.tasks], spec.min_available)
    if resources:
        out["minResources"] = resources
    return out


def _clean_up(expansion: _Expansion) -> None:
    """Clean up an ended job: live pods, its PodGroup, objects of plugins, and after its TTL the job itself."""
    context, job, phase = expansion.context, expansion.job, expansion.phase
    for one in expansion.pods.values():
        if not one.finished:
            context.remove_pod(job, one, ActionReason.JOB_FINISHED, f"{job.key} is {phase}: cleaning up pod {one.name}")
    context.delete(job, podgroup.key_of(job), ActionReason.JOB_FINISHED, f"{job.key} is {phase}: deleting its PodGroup")
    volcanojob_plugins.discard(context, job, expansion.spec)
    declared = job.key in context.facts.desired.manifest_index or job.key in context.undeclared
    if expansion.spec.ttl is None or phase == VolcanoJobPhase.ABORTED or declared:
        return  # Git would re-create a declared job; the pass sync decides about one that is no longer declared
    since = _time(nested_map(job.status, "state").get("lastTransitionTime"))
    if since is not None and context.facts.now >= since + expansion.spec.ttl:
        context.delete(
            job,
            job.key,
            ActionReason.TTL_EXPIRED,
            f"{job.key} has been {phase} for {expansion.spec.ttl} s: deleting it",
        )


def _time(text: object) -> float | None:
    try:
        return parse_rfc3339(str(text))
    except ValueError:
        return None
