"""`belay logs JOB`: the logs of a job's pods as one, also while recoveries replace them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from belay.engine.cli.invocation import WholeNumber, access_options, fails_clearly
from belay.engine.cli.known_names import completes

if TYPE_CHECKING:
    from belay.engine.kube import Kube


@click.command(short_help="Show the logs of a job's pods as one, and follow its recoveries.")
@click.argument("job", shell_complete=completes("job"))
@click.option("-n", "--namespace", metavar="NAMESPACE", help="The job's namespace, where the name alone is not enough.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends, also with the pods of a recovery.")
@click.option("--rank", "ranks", metavar="RANKS", help="Only these pods by number: 0, 0,3 or 4-7. Default: all.")
@click.option("-c", "--container", metavar="NAME", default="", help="Default: the pod's default, or first, container.")
@click.option("--tail", type=WholeNumber(-1), metavar="LINES",
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
    from belay.engine.cli.invocation import seconds
    from belay.engine.cli.log_sources import LogPrinter, LogQuestion, show_once
    from belay.engine.errors import InputError
    from belay.engine.observe.live import with_kube

    if follow and previous:
        raise InputError("a run that is over does not go on", where="-f, -p")
    asked = LogQuestion(
        job, namespace, rank_numbers(ranks) if ranks else frozenset(), container, tail, seconds(since, "--since"),
        previous,
    )  # fmt: skip
    printer = LogPrinter(prefixed=prefixed, timestamps=timestamps)

    async def run(kube: Kube) -> bool:
        from belay.engine.cli.log_follower import LogFollower

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
    from belay.engine.cli.log_sources import MOST_PODS
    from belay.engine.errors import InputError

    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdecimal() and len(end) <= 6 for end in ends):
            raise InputError(f"{text[:60]!r} names no ranks", where="--rank", hint="Write 0, 0,3 or 4-7.")
        found.update(range(int(ends[0]), min(int(ends[1]), int(ends[0]) + MOST_PODS) + 1))
    return frozenset(found)
