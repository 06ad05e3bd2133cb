"""The admission rules of Volcano's Job (``batch.volcano.sh/v1alpha1``) that need no cluster.

Source: volcano-sh/volcano pkg/webhooks/admission/jobs/validate/admit_job.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from belay.engine.documents.pods import check_retried, check_template
from belay.engine.documents.problems import Path, Problems
from belay.engine.documents.spelling import misspelt_fields

PLUGINS: Final = ("env", "ssh", "svc", "tensorflow", "mpi", "pytorch", "ray", "hcclrank")
_EVENTS: Final = (
    "*", "PodFailed", "PodEvicted", "PodPending", "PodRunning", "Unknown", "TaskCompleted", "TaskFailed", "OutOfSync",
    "CommandIssued", "JobUpdated",
)  # fmt: skip
_ACTIONS: Final = (
    "AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob", "CompleteJob",
    "ResumeJob", "Ignore",
)  # fmt: skip
_TASK_NAME: Final = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


def check_volcano_job(problems: Problems, body: Mapping[str, Any], name: str) -> None:
    """Report everything that Volcano's admission would refuse."""
    spec = problems.mapping(body, "spec", (), required=True)
    path: Path = ("spec",)
    tasks = problems.sequence(spec, "tasks", path)
    if not tasks:
        problems.error(("spec", "tasks"), "No task specified in job spec")
    minimum = problems.integer(spec, "minAvailable", path, minimum=0)
    problems.integer(spec, "maxRetry", path, minimum=0)
    misspelt_fields(problems, spec, ("minAvailable",), path)
    problems.integer(spec, "ttlSecondsAfterFinished", path, minimum=0)
    problems.text(spec, "queue", path)
    problems.text(spec, "schedulerName", path)
    problems.text(spec, "priorityClassName", path)
    if spec.get("queue") == "root":
        problems.error((*path, "queue"), "jobs do not run in queue root: name one below it")
    plugins = problems.mapping(spec, "plugins", path)
    for plugin in plugins:
        problems.sequence(plugins, plugin, (*path, "plugins"))
        if plugin not in PLUGINS:
            problems.error(("spec", "plugins", plugin), f"unable to find job plugin: {plugin:.63}", at_key=True)
    _check_policies(problems, spec, path)
    _check_network_topology(problems, spec, path)
    metadata = body.get("metadata")
    total = _check_tasks(problems, tasks, name, metadata.get("labels") if isinstance(metadata, dict) else None)
    if minimum is not None and minimum > total:
        text = f"job 'minAvailable' {minimum} should not be greater than total replicas {total} in tasks"
        problems.error(("spec", "minAvailable"), text)


def _check_tasks(problems: Problems, tasks: list[Any], job: str, labels: Any) -> int:
    total = 0
    names: dict[str, int] = {}
    for index, task in enumerate(tasks):
        path: Path = ("spec", "tasks", index)
        if not isinstance(task, dict):
            problems.error(path, "must be a mapping with name, replicas and template")
            continue
        name = _check_task_name(problems, task, index, path, job)
        if name in names:
            problems.error((*path, "name"), f"duplicated task name {name}")
        names.setdefault(name, index)
        replicas = problems.integer(task, "replicas", path, minimum=0)
        count = 1 if replicas is None else max(replicas, 0)
        total += count
        misspelt_fields(problems, task, ("replicas", "minAvailable"), path)
        least = problems.integer(task, "minAvailable", path, minimum=0)
        if least is not None and least > count:
            text = f"'minAvailable' {least} is greater than 'replicas' {count} in task: {name}, job: {job}"
            problems.error((*path, "minAvailable"), text)
        _check_policies(problems, task, path)
        _check_partition(problems, task, path, count)
        check_template(problems, problems.mapping(task, "template", path, required=True), (*path, "template"))
        _check_restart(problems, task, path, labels)
    _check_dependencies(problems, tasks, names)
    return total


def _check_task_name(problems: Problems, task: Mapping[str, Any], index: int, path: Path, job: str) -> str:
    name = problems.text(task, "name", path) or f"default{index}"
    if len(name) > 63 or not _TASK_NAME.match(name):
        problems.error((*path, "name"), f"{name!r:.80} is not a task name: lower-case letters, digits and '-'")
    last = max((task.get("replicas") if isinstance(task.get("replicas"), int) else 1) or 1, 1) - 1
    if len(f"{job}-{name}-{last}") > 63:
        problems.error((*path, "name"), f"pod name {job}-{name}-{last} is longer than 63 characters")
    return name


def _check_restart(problems: Problems, task: Mapping[str, Any], path: Path, labels: Any) -> None:
    template = task.get("template")
    spec = template.get("spec") if isinstance(template, dict) else None
    problems.choice(spec, "restartPolicy", (*path, "template", "spec"), ("Always", "OnFailure", "Never"))
    policy = spec.get("restartPolicy") if isinstance(spec, dict) else None
    check_retried(problems, labels, policy, (*path, "template", "spec", "restartPolicy"))


def _check_policies(problems: Problems, parent: Mapping[str, Any], path: Path) -> None:
    answered: set[Any] = set()
    for index, policy in enumerate(problems.sequence(parent, "policies", path)):
        where = (*path, "policies", index)
        if not isinstance(policy, dict):
            problems.error(where, "must be a mapping with an event and an action")
            continue
        problems.choice(policy, "event", where, _EVENTS)
        for place, event in enumerate(problems.sequence(policy, "events", where)):
            if event not in _EVENTS:
                known = ", ".join(_EVENTS)
                problems.error((*where, "events", place), f"unknown event {event!r:.80}: known are {known}")
        problems.choice(policy, "action", where, _ACTIONS)
        if policy.get("action") is None:
            problems.error((*where, "action"), "required field is missing")
        listed = policy.get("events")
        named = {str(event) for event in [policy.get("event"), *(listed if isinstance(listed, list) else ())] if event}
        for event in sorted(named & answered):
            problems.error(where, f"duplicate event {event:.63}: an earlier policy answers it")
        if "*" in named - answered and len(named | answered) > 1:
            problems.error(where, "if there's * here, no other policy should be here")
        answered |= named
        code = problems.integer(policy, "exitCode", where)
        if code == 0:
            problems.error((*where, "exitCode"), "0 is not a valid error code")
        if code is None and not policy.get("event") and not policy.get("events"):
            problems.error(where, "either event and exitCode should be specified")
        if code is not None and (policy.get("event") or policy.get("events")):
            problems.error(where, "must not specify event and exitCode simultaneously")


def _check_partition(problems: Problems, task: Mapping[str, Any], path: Path, replicas: int) -> None:
    where = (*path, "partitionPolicy")
    policy = problems.mapping(task, "partitionPolicy", path)
    if not policy:
        return
    total = problems.integer(policy, "totalPartitions", where, minimum=1)
    size = problems.integer(policy, "partitionSize", where, minimum=1)
    least = problems.integer(policy, "minPartitions", where, minimum=0)
    if total is not None and size is not None and total * size != replicas:
        text = f"replicas must be totalPartitions × partitionSize = {total * size}, but are {replicas}"
        problems.error((*path, "replicas"), text)
    wanted = task.get("minAvailable")
    if least is not None and size is not None and isinstance(wanted, int) and wanted != least * size:
        text = f"minAvailable must be minPartitions × partitionSize = {least * size}, but is {wanted}"
        problems.error((*path, "minAvailable"), text)


def _check_network_topology(problems: Problems, spec: Mapping[str, Any], path: Path) -> None:
    topology = problems.mapping(spec, "networkTopology", path)
    if topology.get("highestTierAllowed") is not None and topology.get("highestTierName"):
        problems.error((*path, "networkTopology"), "must not specify highestTierAllowed and highestTierName together")


def _check_dependencies(problems: Problems, tasks: list[Any], names: Mapping[str, int]) -> None:
    """Check that every named task exists and the dependencies form no cycle."""
    after: dict[str, list[str]] = {}
    for name, index in names.items():
        depends = tasks[index].get("dependsOn")
        wanted = depends.get("name") if isinstance(depends, dict) else None
        after[name] = [str(other) for other in wanted] if isinstance(wanted, list) else []
        for place, other in enumerate(after[name]):
            if other not in names:
                problems.error(("spec", "tasks", index, "dependsOn", "name", place), f"no task is named {other!r:.80}")
    waiting = {name: {other for other in others if other in names} for name, others in after.items()}
    while ready := [name for name, others in waiting.items() if not others]:
        for name in ready:
            del waiting[name]
        for others in waiting.values():
            others.difference_update(ready)
    for name in sorted(waiting):
        problems.error(("spec", "tasks", names[name], "dependsOn"), f"task {name} depends on itself in a cycle")
