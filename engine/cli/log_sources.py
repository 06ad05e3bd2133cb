"""Pods of a job whose logs are wanted, what is wanted of them, and how lines are printed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from belay.engine.model.labels import (
    BATCH_JOB_NAME,
    DEFAULT_CONTAINER,
    DEPLOY_NAME,
    JOB_COMPLETION_INDEX,
    JOB_NAME_LABEL,
    KUBEFLOW_JOB_NAME,
    KUBEFLOW_REPLICA_INDEX,
    RANK_INDEX,
    STATEFUL_SET_POD_INDEX,
    VOLCANO_JOB_NAME,
    VOLCANO_TASK_INDEX,
)
from belay.engine.model.wording import counted

if TYPE_CHECKING:
    from belay.engine.cli.job_pods import PublishedPods
    from belay.engine.cli.log_lines import LogLine
    from belay.engine.kube import Kube

MOST_PODS: Final = 256
_AT_ONCE: Final = 16
_ALL_BYTES: Final = 256 * 1024 * 1024
"""Bytes of all logs together that are put in order; each pod has its share."""
_DEFAULT_TAIL: Final = 100
_RANKS: Final = (
    RANK_INDEX, JOB_COMPLETION_INDEX, STATEFUL_SET_POD_INDEX,
    VOLCANO_TASK_INDEX, KUBEFLOW_REPLICA_INDEX,
)  # fmt: skip
"""Annotations and labels that number a job's pods; the first is written with the placement."""
_JOB_LABELS: Final = (
    "jobset.sigs.k8s.io/jobset-name", VOLCANO_JOB_NAME, BATCH_JOB_NAME, JOB_NAME_LABEL,
    KUBEFLOW_JOB_NAME, "ray.io/cluster", DEPLOY_NAME,
)  # fmt: skip
"""Labels with a job's name that controllers give to its pods."""


class RankPod(NamedTuple):
    """A pod of a job, and the number that it has among them; None if it has none."""

    uid: str
    name: str
    namespace: str
    node: str
    phase: str
    container: str
    rank: int | None

    @property
    def prefix(self) -> str:
        """``[3 llm-worker-3]``: the rank and the pod."""
        return f"[{self.name}]" if self.rank is None else f"[{self.rank} {self.name}]"


class LogQuestion(NamedTuple):
    """Which lines of which pods are wanted."""

    job: str
    namespace: str | None
    ranks: frozenset[int]
    container: str
    tail: int | None
    since: float | None
    previous: bool

    def params(self, pod: RankPod) -> dict[str, str]:
        """The parameters of a call for a pod's log."""
        found = {"container": pod.container, "timestamps": "true"}
        if self.since is not None:
            found["sinceSeconds"] = str(max(1, round(self.since)))
        if self.previous:
            found["previous"] = "true"
        return found


class LogPrinter:
    """Prints lines with the prefix of their pod where there are several, and remarks beside them."""

    def __init__(self, *, prefixed: bool | None, timestamps: bool) -> None:
        self._prefixed, self._timestamps = prefixed, timestamps
        self._terminal = sys.stdout.isatty()

    def several(self, pods: Sequence[RankPod]) -> None:
        """Decide by the first pods whether lines need a prefix, where that was not asked for or refused."""
        if self._prefixed is None:
            self._prefixed = len(pods) > 1

    def line(self, prefix: str, line: LogLine) -> None:
        """Print one line."""
        from belay.engine.cli.log_lines import shown

        words = (prefix if self._prefixed else "", line.stamp if self._timestamps else "")
        text = shown(line.text, terminal=self._terminal)
        sys.stdout.write(" ".join((*filter(None, words), text)) + "\n")

    def remark(self, text: str) -> None:
        """Say something that is no line of a log."""
        from belay.engine.cli.output import plain

        sys.stdout.flush()
        click.echo(f"belay: {plain(text)}", err=True)


async def found_job(kube: Kube, asked: LogQuestion) -> tuple[PublishedPods, str]:
    """The job that is meant, and the name of the ConfigMap that publishes it.

    Raises:
        InputError: there is no such job.
    """
    from belay.engine.cli.job_pods import SELECTOR, meant_job, published_jobs
    from belay.engine.kube import CONFIGMAP
    from belay.engine.wire import history, names

    maps = (await kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)).items
    job = meant_job(published_jobs(maps), asked.job, asked.namespace)
    keys = {str((raw.get("data") or {}).get(history.JOB_NAME_KEY)): str(raw["metadata"]["name"]) for raw in maps}
    return job, keys[job.key]


async def pods_of(
    kube: Kube, asked: LogQuestion, job: PublishedPods, selector: str | None = None
) -> tuple[list[RankPod], str | None]:
    """The job's pods that have a node, by rank, and the selector that finds all of them; None if no label does.

    Raises:
        InputError: there is no such rank or container.
    """
    from belay.engine.errors import InputError
    from belay.engine.kube import POD

    if not job.pods:
        return [], selector
    listed = (await kube.list(POD, job.namespace, selector)).items
    own = [raw for raw in listed if raw["metadata"]["name"] in job.pods]
    if selector and len(own) < len(job.pods):
        # some are gone, or have another label than those that came first
        listed, selector = (await kube.list(POD, job.namespace)).items, None
        own = [raw for raw in listed if raw["metadata"]["name"] in job.pods]
    found = [rank_pod(raw, asked.container) for raw in own]
    wanted = [pod for pod in found if not asked.ranks or pod.rank in asked.ranks]
    if found and not wanted:
        known = ", ".join(str(pod.rank) for pod in by_rank(found)[:20] if pod.rank is not None) or "none"
        raise InputError(f"{job.short} has no pod of this rank now; it has {known}", where="--rank")
    return by_rank(wanted), selector or common_label(own)


def common_label(pods: Sequence[Mapping[str, Any]]) -> str | None:
    """The label of a job's name that all of these pods have, as a selector; those of a recovery have it too."""
    for key in _JOB_LABELS:
        values = {str((raw["metadata"].get("labels") or {}).get(key) or "") for raw in pods}
        if len(values) == 1 and "" not in values:
            return f"{key}={values.pop()}"
    return None


def by_rank(pods: Iterable[RankPod]) -> list[RankPod]:
    """Pods in order of their numbers; those without one come last."""
    return sorted(pods, key=lambda pod: (pod.rank is None, pod.rank or 0, pod.name))


def rank_pod(raw: Mapping[str, Any], container: str) -> RankPod:
    """A pod of the API server.

    Raises:
        InputError: it has no container of that name.
    """
    from belay.engine.errors import InputError

    metadata, spec = raw["metadata"], raw.get("spec") or {}
    marks = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    known = [str(row["name"]) for row in containers]
    if container and container not in known:
        raise InputError(f"pod {metadata['name']} has no container {container!r}; it has {', '.join(known[:10])}",
                         where="-c")  # fmt: skip

    return RankPod(
        uid=str(metadata.get("uid") or ""),
        name=str(metadata["name"]),
        namespace=str(metadata["namespace"]),
        node=str(spec.get("nodeName") or ""),
        phase=str((raw.get("status") or {}).get("phase") or ""),
        container=container or _usual_container(known, marks),
        rank=_rank_of(marks),
    )


def _usual_container(known: Sequence[str], marks: Mapping[str, Any]) -> str:
    """The container that kubectl would choose: the one that an annotation names, else the first."""
    named = str(marks.get(DEFAULT_CONTAINER) or "")
    return named if named in known else next(iter(known), "")


def _rank_of(marks: Mapping[str, Any]) -> int | None:
    """The pod's number within its job, from the first label or annotation that holds one."""
    for key in _RANKS:
        number = str(marks.get(key, ""))
        if number.isascii() and number.isdecimal() and len(number) <= 9:
            return int(number)
    return None


def tail_params(asked: LogQuestion, pods: Sequence[RankPod]) -> dict[str, str]:
    """How many lines are wanted of each of these pods."""
    tail = asked.tail
    if tail is None and len(pods) > 1 and asked.since is None:
        tail = _DEFAULT_TAIL
    return {"tailLines": str(tail)} if tail is not None and tail >= 0 else {}


async def show_once(kube: Kube, asked: LogQuestion, printer: LogPrinter) -> bool:
    """Print what there is, in order of time; False if no pod has a log."""
    from belay.engine.cli.log_lines import merged
    from belay.engine.errors import InputError

    job = (await found_job(kube, asked))[0]
    pods = (await pods_of(kube, asked, job))[0]
    if len(pods) > MOST_PODS:
        raise InputError(f"{job.short} has {len(pods)} pods, more than {MOST_PODS} at once", where=asked.job,
                         hint="Choose some: --rank 0-63.")  # fmt: skip
    if not pods:
        printer.remark(f"no pod of {job.short} has a node: it is {job.phase}. belay explain job {job.short} says why")
        return False
    printer.several(pods)
    limited = asyncio.Semaphore(_AT_ONCE)
    tail = tail_params(asked, pods)

    share = _ALL_BYTES // len(pods)

    async def read(pod: RankPod) -> list[LogLine] | None:
        async with limited:
            return await _read(kube, pod, {**asked.params(pod), **tail}, share, printer.remark)

    found = await asyncio.gather(*map(read, pods))
    logs_of = [(pod.prefix, lines) for pod, lines in zip(pods, found, strict=True) if lines is not None]
    for prefix, line in merged(logs_of):
        printer.line(prefix, line)
    if logs_of and not any(lines for _, lines in logs_of):
        printer.remark(f"{counted(len(logs_of), 'log')} of {job.short} read: no line in what was asked for")
    return bool(logs_of)


async def _read(
    kube: Kube, pod: RankPod, params: Mapping[str, str], most: int, remark: Callable[[str], None]
) -> list[LogLine] | None:
    """The lines of one pod, of at most so many bytes; None if it has no log, which is said."""
    from belay.engine.cli.log_lines import read_line
    from belay.engine.kube import KubeError

    lines, size = [], 0
    try:
        async for line in kube.log(pod.namespace, pod.name, {**params, "limitBytes": str(most)}):
            lines.append(read_line(line))
            size += len(line) + 1
            if size >= most:
                remark(f"{pod.prefix} is cut after {most} bytes: --tail or --since shows less, --rank fewer pods")
                break
    except KubeError as error:
        remark(f"{pod.prefix} has no log here: {error}")
        return None
    return lines
