"""`belay logs JOB`: the logs of a job's pods as one, also while recoveries replace them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from engine.cli.invocation import access_options, fails_clearly
from engine.cli.known_names import completes

if TYPE_CHECKING:
    from engine.cli.job_pods import PublishedPods
    from engine.cli.log_lines import LogLine
    from engine.kube import Kube

_MOST_PODS: Final = 256
_AT_ONCE: Final = 16
_ALL_BYTES: Final = 256 * 1024 * 1024
"""Bytes of all logs together that are put in order; each pod has its share."""
_DEFAULT_TAIL: Final = 100
_RANKS: Final = (
    "hccl/rankIndex", "batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index",
    "volcano.sh/task-index", "training.kubeflow.org/replica-index",
)  # fmt: skip
"""Annotations and labels that number a job's pods; the first is written with the placement."""
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


class RankPod(NamedTuple):
    """A pod of a job, and the number that it has among them; None where it has none."""

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
        from engine.cli.log_lines import shown

        words = (prefix if self._prefixed else "", line.stamp if self._timestamps else "")
        text = shown(line.text, terminal=self._terminal)
        sys.stdout.write(" ".join((*filter(None, words), text)) + "\n")

    def remark(self, text: str) -> None:
        """Say something that is no line of a log."""
        from engine.cli.output import plain

        sys.stdout.flush()
        click.echo(f"belay: {plain(text)}", err=True)


@click.command(short_help="Show the logs of a job's pods as one, and follow its recoveries.")
@click.argument("job", shell_complete=completes("job"))
@click.option("-n", "--namespace", metavar="NAMESPACE", help="The job's namespace, where the name alone is not enough.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends, also with the pods of a recovery.")
@click.option("--rank", "ranks", metavar="RANKS", help="Only these pods by number: 0, 0,3 or 4-7. Default: all.")
@click.option("-c", "--container", metavar="NAME", default="", help="Default: the pod's default, or first, container.")
@click.option("--tail", type=click.IntRange(-1), metavar="LINES",
              help="The last so many lines of each pod; -1: all. Default: 100, all of a single pod.")  # fmt: skip
@click.option("--since", metavar="DURATION", help="Only lines that are younger: 15m.")
@click.option("-p", "--previous", is_flag=True, help="Of the containers' runs before their last start.")
@click.option("--timestamps", is_flag=True, help="With the time of each line.")
@click.option(
    "--prefix/--no-prefix", "prefixed", default=None, help="Rank and pod before each line. Default: if several."
)
@access_options
@fails_clearly
def logs(
    job: str, namespace: str | None, follow: bool, ranks: str | None, container: str, tail: int | None,
    since: str | None, previous: bool, timestamps: bool, prefixed: bool | None, kubeconfig: str | None,
    context: str | None,
) -> None:  # fmt: skip
    """Show the logs of all pods of JOB (NAME or NAMESPACE/NAME) in order of time, each line with rank and pod.

    The API server asks the nodes' kubelets, so a pod that is gone has no log any more: `belay diagnose` reads what was
    collected. With -f a pod that a recovery puts in the place of another is followed from its first line.
    Exit 1: no pod has a log.

    Examples: belay logs default/llm; belay logs llm -f --rank 0; belay logs llm --rank 4-7 --tail 20 -p
    """
    from engine.cli.invocation import seconds
    from engine.errors import InputError
    from engine.observe.live import with_kube

    if follow and previous:
        raise InputError("a run that is over does not go on", where="-f, -p")
    asked = LogQuestion(
        job, namespace, rank_numbers(ranks) if ranks else frozenset(), container, tail, seconds(since, "--since"),
        previous,
    )  # fmt: skip
    printer = LogPrinter(prefixed=prefixed, timestamps=timestamps)

    async def run(kube: Kube) -> bool:
        from engine.cli.log_follower import LogFollower

        if follow:
            return await LogFollower(kube, asked, printer).run()
        return await show_once(kube, asked, printer)

    if not with_kube(kubeconfig, run, context=context):
        sys.exit(1)


VERBS = (logs,)


def rank_numbers(text: str) -> frozenset[int]:
    """The numbers of ``0``, ``0,3`` or ``4-7``.

    Raises:
        InputError: it is none of these.
    """
    from engine.errors import InputError

    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdecimal() and len(end) <= 6 for end in ends):
            raise InputError(f"{text[:60]!r} names no ranks", where="--rank", hint="Write 0, 0,3 or 4-7.")
        found.update(range(int(ends[0]), min(int(ends[1]), int(ends[0]) + _MOST_PODS) + 1))
    return frozenset(found)


async def pods_of(kube: Kube, asked: LogQuestion) -> tuple[PublishedPods, list[RankPod]]:
    """The job, and its pods that have a node, by rank.

    Raises:
        InputError: there is no such job, no such rank or container, or too many pods to show at once.
    """
    from engine.cli.job_pods import SELECTOR, meant_job, published_jobs
    from engine.errors import InputError
    from engine.kube import CONFIGMAP, POD
    from engine.wire import names

    maps = await kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)
    job = meant_job(published_jobs(maps.items), asked.job, asked.namespace)
    if not job.pods:
        return job, []

    listed = (await kube.list(POD, job.namespace)).items
    found = [rank_pod(raw, asked.container) for raw in listed if raw["metadata"]["name"] in job.pods]
    wanted = [pod for pod in found if not asked.ranks or pod.rank in asked.ranks]
    if found and not wanted:
        known = ", ".join(str(pod.rank) for pod in by_rank(found)[:20] if pod.rank is not None) or "none"
        raise InputError(f"{job.short} has no pod of this rank now; it has {known}", where="--rank")
    if len(wanted) > _MOST_PODS:
        raise InputError(f"{job.short} has {len(wanted)} pods, more than {_MOST_PODS} at once", where=asked.job,
                         hint="Choose some: --rank 0-63.")  # fmt: skip
    return job, by_rank(wanted)


def by_rank(pods: Iterable[RankPod]) -> list[RankPod]:
    """Pods in order of their numbers; those without one come last."""
    return sorted(pods, key=lambda pod: (pod.rank is None, pod.rank or 0, pod.name))


def rank_pod(raw: Mapping[str, Any], container: str) -> RankPod:
    """A pod of the API server.

    Raises:
        InputError: it has no container of that name.
    """
    from engine.errors import InputError

    metadata, spec = raw["metadata"], raw.get("spec") or {}
    marks = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    known = [str(one["name"]) for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))]
    if container and container not in known:
        raise InputError(f"pod {metadata['name']} has no container {container!r}; it has {', '.join(known[:10])}",
                         where="-c")  # fmt: skip
    usual = str(marks.get(_DEFAULT_CONTAINER) or "")
    numbers = (str(marks.get(key, "")) for key in _RANKS)
    rank = next((int(text) for text in numbers if text.isascii() and text.isdecimal() and len(text) <= 9), None)
    return RankPod(
        uid=str(metadata.get("uid") or ""),
        name=str(metadata["name"]),
        namespace=str(metadata["namespace"]),
        node=str(spec.get("nodeName") or ""),
        phase=str((raw.get("status") or {}).get("phase") or ""),
        container=container or (usual if usual in known else known[0] if known else ""),
        rank=rank,
    )


def tail_params(asked: LogQuestion, pods: Sequence[RankPod]) -> dict[str, str]:
    """How many lines are wanted of each of these pods."""
    tail = asked.tail
    if tail is None and len(pods) > 1 and asked.since is None:
        tail = _DEFAULT_TAIL
    return {"tailLines": str(tail)} if tail is not None and tail >= 0 else {}


async def show_once(kube: Kube, asked: LogQuestion, printer: LogPrinter) -> bool:
    """Print what there is, in order of time; False where no pod has a log."""
    from engine.cli.log_lines import merged

    job, pods = await pods_of(kube, asked)
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
    return bool(logs_of)


async def _read(
    kube: Kube, pod: RankPod, params: Mapping[str, str], most: int, remark: Callable[[str], None]
) -> list[LogLine] | None:
    """The lines of one pod, of at most so many bytes; None where it has no log, which is said."""
    from engine.cli.log_lines import read_line
    from engine.kube import KubeError

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
