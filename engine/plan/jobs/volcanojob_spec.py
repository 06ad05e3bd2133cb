"""A Volcano Job as declared: read once per version, defaulted and checked as Volcano's webhooks do.

Sources: github.com/volcano-sh/volcano/pkg/webhooks/admission/jobs/{mutate,validate} and docs of vcjob policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.model.job_options import JobOptions
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.jobs.lifecycle import JobObject
from belay.engine.plan.jobs.pod_template import containers, misshapen, npu_of, pod_spec

DEFAULT_RETRIES: Final = 3
#: Plugins that Volcano knows.
PLUGINS: Final = ("env", "svc", "ssh", "pytorch", "tensorflow", "mpi", "ray", "hcclrank")
_NOT_KEPT: Final = (
    "is not kept: HyperNodes are not read, topology comes from nodes; annotations huawei.com/schedule_policy, sp-block "
    "and huawei.com/affinity-config keep pods close"
)
#: Volcano uses pod names as label values.
_MAX_POD_NAME: Final = 63


class LifecyclePolicy(NamedTuple):
    """The action for some events of a job's pods, or for an exit code."""

    events: frozenset[str]
    exit_code: int | None
    action: str


class TaskSpec(NamedTuple):
    """One task: pods of one template."""

    name: str
    replicas: int
    min_available: int | None
    template: Mapping[str, Any]
    policies: tuple[LifecyclePolicy, ...]
    depends_on: tuple[str, ...]
    depends_any: bool

    @property
    def required(self) -> int:
        """Number of its pods that must run for the task to count."""
        return self.replicas if self.min_available is None else self.min_available


#: Plugins whose pods find each other by name.
_NETWORKED: Final = frozenset({"tensorflow", "mpi", "pytorch", "ray"})


class VolcanoSpec(NamedTuple):
    """A checked Volcano Job.

    ``expected`` are its pods: name, position in ``tasks``, and index. ``problem`` is set when it is invalid;
    ``ignored`` are fields that are valid and that nothing reads, with what to write instead.
    """

    tasks: tuple[TaskSpec, ...]
    min_available: int
    min_success: int | None
    max_retry: int
    queue: str
    scheduler: str
    priority_class: str
    plugins: dict[str, tuple[str, ...]]
    policies: tuple[LifecyclePolicy, ...]
    ttl: int | None
    options: JobOptions
    annotations: dict[str, str]
    expected: tuple[tuple[str, int, int], ...]
    wants_npu: bool
    problem: str
    ignored: tuple[tuple[str, str], ...] = ()

    @property
    def total(self) -> int:
        """Number of pods of the whole job."""
        return len(self.expected)

    @property
    def schedulers(self) -> set[str]:
        """The schedulers of the job's pods."""
        return {str(nested_map(task.template, "spec").get("schedulerName") or self.scheduler) for task in self.tasks}

    def action(self, task: TaskSpec, event: str, exit_code: int | None) -> str:
        """The action for an event: by the task's policies, then the job's; SyncJob without one."""
        for policy in (*task.policies, *self.policies):
            if event in policy.events or "*" in policy.events:
                return policy.action
            if policy.exit_code is not None and exit_code is not None and policy.exit_code == exit_code:
                return policy.action
        return "SyncJob"


def read(job: JobObject) -> VolcanoSpec:
    """Read the job's spec with Volcano's defaults; ``problem`` names the first error."""
    spec = nested_map(job.raw, "spec")
    listed = spec.get("tasks")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    tasks = tuple(_task(row, position) for position, row in enumerate(rows))
    total = sum(max(0, task.replicas) for task in tasks)
    default_least = sum(max(0, task.required) for task in tasks)
    plugins = _plugins(nested_map(spec, "plugins"))
    least = _number(spec.get("minAvailable"))
    retries = _number(spec.get("maxRetry"))
    out = VolcanoSpec(
        tasks=tasks,
        min_available=least if least else default_least,
        min_success=_number(spec.get("minSuccess")),
        max_retry=retries if retries else DEFAULT_RETRIES,
        queue=str(spec.get("queue") or "default"),
        scheduler=str(spec.get("schedulerName") or "volcano"),
        priority_class=str(spec.get("priorityClassName") or ""),
        plugins=plugins,
        policies=_policies(spec.get("policies")),
        ttl=_number(spec.get("ttlSecondsAfterFinished")),
        options=job.options,
        annotations=job.annotations,
        expected=tuple(
            (f"{job.key.name}-{task.name}-{index}", position, index)
            for position, task in enumerate(tasks)
            for index in range(max(0, task.replicas))
        ),
        wants_npu=any(npu_of(task.template)[1] for task in tasks),
        problem="",
        ignored=tuple(_ignored(spec, rows)),
    )
    problem = _problem(out, total) or _topology_problem(nested_map(spec, "networkTopology")) or _partition_problem(rows)
    return out._replace(problem=problem, expected=() if problem else out.expected)


def _ignored(spec: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Constraints of Volcano's other topology: a job that states one must not believe that it is kept."""
    rows = [("networkTopology", spec)] + [(f"tasks[{at}].networkTopology", row) for at, row in enumerate(tasks)]
    for where, row in rows:
        if row.get("networkTopology"):
            yield where, _NOT_KEPT
    for at, row in enumerate(tasks):
        if row.get("topologyPolicy") not in (None, "", "none"):
            text = "is not kept: NumaTopology is not read, kubelet's topology manager places CPUs beside chips"
            yield f"tasks[{at}].topologyPolicy", text


def _plugins(listed: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The plugins with their arguments; those of frameworks bring ``svc``, and ``mpi`` brings ``ssh``."""
    found = {str(name): _words(args) for name, args in listed.items()}
    if not _NETWORKED.isdisjoint(found):
        found.setdefault("svc", ())
    if "mpi" in found:
        found.setdefault("ssh", ())
    return dict(sorted(found.items()))


def _task(row: Mapping[str, Any], position: int) -> TaskSpec:
    depends = nested_map(row, "dependsOn")
    replicas = _number(row.get("replicas"))
    return TaskSpec(
        name=str(row.get("name") or f"default{position}"),
        replicas=1 if replicas is None else replicas,
        min_available=_number(row.get("minAvailable")),
        template=nested_map(row, "template"),
        policies=_policies(row.get("policies")),
        depends_on=_words(depends.get("name")),
        depends_any=depends.get("iteration") == "any",
    )


def _policies(listed: object) -> tuple[LifecyclePolicy, ...]:
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    out = []
    for row in rows:
        events = set(_words(row.get("events")))
        if row.get("event"):
            events.add(str(row["event"]))
        out.append(
            LifecyclePolicy(frozenset(events), _number(row.get("exitCode")), str(row.get("action") or "SyncJob"))
        )
    return tuple(out)


def _problem(spec: VolcanoSpec, total: int) -> str:
    names = [task.name for task in spec.tasks]
    if not names:
        return "no task specified in job spec"
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        return f"duplicated task name {twice[0]}"
    for task in spec.tasks:
        if task.replicas < 0:
            return f"'replicas' < 0 in task: {task.name}"
        if task.min_available is not None and not 0 <= task.min_available <= task.replicas:
            return f"'minAvailable' must lie between 0 and 'replicas' in task: {task.name}"
        if not containers(pod_spec(task.template)):
            return f"task {task.name} has no containers"
        wrong = misshapen(task.template)
        if wrong:
            return f"template of task {task.name}: {wrong}"
    if not 0 <= spec.min_available <= total:
        return f"job 'minAvailable' must not be greater than total replicas {total}"
    unknown = sorted(name for name in spec.plugins if name not in PLUGINS)
    if unknown:
        return f"unable to find job plugin: {unknown[0]}"
    longest = max((len(name) for name, _, _ in spec.expected), default=0)
    if longest > _MAX_POD_NAME:
        return f"pod names would be {longest} characters long, at most {_MAX_POD_NAME} are allowed"
    return _dependency_problem(spec)


def _topology_problem(topology: Mapping[str, Any]) -> str:
    if topology.get("highestTierAllowed") is not None and topology.get("highestTierName"):
        return "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"
    return ""


def _partition_problem(rows: Sequence[Mapping[str, Any]]) -> str:
    """The pods of a task in partitions, and its minimum, must add up to its partitions."""
    for position, row in enumerate(rows):
        policy = nested_map(row, "partitionPolicy")
        count, size = _number(policy.get("totalPartitions")), _number(policy.get("partitionSize"))
        least = _number(policy.get("minPartitions"))
        task = _task(row, position)
        if count is None or size is None:
            continue
        if task.replicas != count * size:
            return f"'replicas' must be totalPartitions × partitionSize = {count * size} in task: {task.name}"
        if least and task.min_available is not None and task.min_available != least * size:
            return f"'minAvailable' must be minPartitions × partitionSize = {least * size} in task: {task.name}"
    return ""


def _dependency_problem(spec: VolcanoSpec) -> str:
    """Tasks must depend on known tasks, without cycles."""
    needs = {task.name: set(task.depends_on) for task in spec.tasks}
    for name, others in sorted(needs.items()):
        unknown = sorted(others - needs.keys())
        if unknown:
            return f"task {name} depends on unknown task {unknown[0]}"
    while needs:
        free = {name for name, others in needs.items() if not others}
        if not free:
            return f"job has dependencies between tasks, but doesn't form a directed acyclic graph: {sorted(needs)}"
        needs = {name: others - free for name, others in needs.items() if name not in free}
    return ""


def _words(value: object) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
