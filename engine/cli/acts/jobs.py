"""Jobs and pools: how many pods a job has, its priority, and whether it is suspended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from belay.engine.cli.acts import splices
from belay.engine.cli.acts.edits import RepositoryEdit
from belay.engine.cli.acts.placed_documents import (
    FileText,
    PlacedDocument,
    one_named,
    value_at,
)
from belay.engine.errors import InputError

JOB_KINDS: Final[Mapping[str, Sequence[str]]] = {
    "AscendJob": ("spec", "replicaSpecs", "Worker", "replicas"),
    "Deployment": ("spec", "replicas"),
    "StatefulSet": ("spec", "replicas"),
    "ReplicaSet": ("spec", "replicas"),
    "LeaderWorkerSet": ("spec", "replicas"),
    "InstanceSet": ("spec", "replicas"),
    "Job": ("spec", "parallelism"),
}
"""Kinds of jobs, and where the number of their pods stands."""
_PRIORITY: Final[Mapping[str, Sequence[str]]] = {
    "AscendJob": ("spec", "runPolicy", "schedulingPolicy", "priorityClass"),
    "Deployment": ("spec", "template", "spec", "priorityClassName"),
    "StatefulSet": ("spec", "template", "spec", "priorityClassName"),
    "ReplicaSet": ("spec", "template", "spec", "priorityClassName"),
    "Job": ("spec", "template", "spec", "priorityClassName"),
}
_SUSPENDED: Final[Mapping[str, Sequence[str]]] = {
    "NodePool": ("spec", "suspend"),
    "AscendJob": ("spec", "runPolicy", "suspend"),
    "Job": ("spec", "suspend"),
}
"""Kinds that can be suspended, and where it is said."""
_MINIMUM: Final = ("spec", "runPolicy", "schedulingPolicy", "minAvailable")


def scale(files: Mapping[str, bytes], name: str, replicas: int, task: str = "") -> RepositoryEdit:
    """Change the number of a job's pods; ``task`` names the task of a job of Volcano's.

    Of an AscendJob it is the number of workers; where all its pods had to start together, they still have to.
    """
    job, typed = _job(files, name)
    text, path = FileText.of(files, job.file), _replicas_path(job, task)
    old = _number(job, path)
    text = text.edited(splices.with_value, job.number, path, replicas)
    tail = f" --task {task}" if task else ""
    undo: tuple[str, ...] = (f"belay scale {typed} {old}{tail}",)
    if job.kind == "AscendJob":
        pods, minimum = _pods(job), _number(job, _MINIMUM, -1)
        if minimum == pods:
            text = text.edited(splices.with_value, job.number, _MINIMUM, pods - old + replicas)
        elif minimum == pods - old + replicas:
            undo = ()  # scaled back, all its pods would have to start together from then on
    return RepositoryEdit({job.file: text.data}, f"Scale {job.kind} {job.name} from {old} to {replicas}", undo)


def prioritise(files: Mapping[str, bytes], name: str, priority: str) -> RepositoryEdit:
    """Give a job another PriorityClass."""
    job, typed = _job(files, name)
    path = ("spec", "priorityClassName") if job.is_volcano else _PRIORITY.get(job.kind)
    if path is None:
        raise InputError(f"{job.kind} has no priority of its own", where=f"{job.file}: {job.name}",
                         hint="Its roles have: edit the document")  # fmt: skip
    old = value_at(job.body, path, "")
    text = FileText.of(files, job.file).edited(splices.with_value, job.number, path, priority)
    undo = (f"belay priority {typed} {old}",) if old else ()
    return RepositoryEdit({job.file: text.data}, f"Set the priority of {job.kind} {job.name} to {priority}", undo)


def suspend(files: Mapping[str, bytes], name: str, wanted: bool) -> RepositoryEdit:
    """Suspend or resume a NodePool (no new pods), an AscendJob or a Job of Kubernetes (their pods end)."""
    one, typed = one_named(name, _can_be_suspended, "NodePool, AscendJob or Job of Kubernetes", files)
    path = _SUSPENDED[one.kind]
    if bool(value_at(one.body, path, False)) == wanted:
        raise InputError(
            "it is suspended already" if wanted else "it is not suspended",
            where=f"{one.file}: {one.name}",
            code="NothingToChange",
        )
    text = FileText.of(files, one.file).edited(splices.with_value, one.number, path, wanted)
    verb, back = ("Suspend", "resume") if wanted else ("Resume", "suspend")
    return RepositoryEdit({one.file: text.data}, f"{verb} {one.kind} {one.name}", (f"belay {back} {typed}",))


def _can_be_suspended(one: PlacedDocument) -> bool:
    return one.kind in _SUSPENDED and not one.is_volcano


def _job(files: Mapping[str, bytes], name: str) -> tuple[PlacedDocument, str]:
    return one_named(name, lambda one: one.kind in JOB_KINDS, "job", files)


def _replicas_path(job: PlacedDocument, task: str) -> Sequence[str | int]:
    if not job.is_volcano:
        if task:
            raise InputError(
                "only jobs of Volcano's have tasks", where=f"{job.file}: {job.name}", hint="Leave --task out"
            )
        path = JOB_KINDS[job.kind]
        if job.kind == "AscendJob" and "Worker" not in value_at(job.body, ("spec", "replicaSpecs"), {}):
            raise InputError("this AscendJob has no workers to scale", where=f"{job.file}: {job.name}")
        return path
    tasks = [str(one.get("name")) for one in value_at(job.body, ("spec", "tasks"), []) if isinstance(one, dict)]
    if not task and len(tasks) == 1:
        return ("spec", "tasks", 0, "replicas")
    if task not in tasks:
        raise InputError(f"its tasks are {', '.join(tasks) or 'none'}", where=f"{job.file}: {job.name}",
                         hint="Name one: --task NAME")  # fmt: skip
    return ("spec", "tasks", tasks.index(task), "replicas")


def _pods(job: PlacedDocument) -> int:
    specs = value_at(job.body, ("spec", "replicaSpecs"), {})
    return sum(_number(job, ("spec", "replicaSpecs", role, "replicas")) for role in specs)


def _number(job: PlacedDocument, path: Sequence[str | int], default: int = 1) -> int:
    """A number of the document, in quotes or not. Raises InputError where something else stands there."""
    found = value_at(job.body, path, default)
    try:
        return int(found)
    except (TypeError, ValueError) as error:
        where = f"{job.file}: {job.name}: {'.'.join(map(str, path))}"
        raise InputError(f"{str(found)[:40]!r} is no number", where=where, hint="Mend the document first") from error
