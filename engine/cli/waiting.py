"""`belay wait`: until a job is in a state, or a revision is in force, or the time is up."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from belay.engine.cli.invocation import access_options, fails_clearly, seconds
from belay.engine.cli.known_names import complete_row

if TYPE_CHECKING:
    from belay.engine.status.status_reader import PublishedJob, PublishedStatus

    Judge = Callable[[PublishedStatus], "WaitStanding"]

_EVERY: Final = 0.5
_RUNNING: Final = "Running"
_DONE: Final = frozenset({"Succeeded", "Finished"})
_ENDED: Final = frozenset({"Succeeded", "Finished", "Failed"})
_MOST_PLACES: Final = 2000
"""Pods of one job whose places are published at most."""
_SHORTEST: Final = 7
"""Fewest digits by which a revision is named, as in Git."""


class WaitStanding(NamedTuple):
    """How far a thing is that people wait for: reached, never to be reached, or neither; and a sentence about it."""

    reached: bool
    hopeless: bool
    text: str


@click.command(name="wait", short_help="Wait until a job runs or a revision is in force.")
@click.argument("kind", type=click.Choice(["job", "revision"], case_sensitive=False))
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_row)
@click.option("--for", "state", type=click.Choice(["placed", "running", "recovered", "ended", "gone"]),
              default="running", show_default=True, help="The state of a job to wait for: all its pods have a node "
              "(placed), enough run (running), all run and no recovery is under way (recovered).")  # fmt: skip
@click.option("--timeout", "limit", default="10m", show_default=True, metavar="DURATION", help="How long at most.")
@access_options
@fails_clearly
def wait(kind: str, name: str | None, state: str, limit: str, kubeconfig: str | None, context: str | None) -> None:
    """Wait until a job (NAME or NAMESPACE/NAME) is in a state, or a revision is in force with all its documents.

    Without NAME the revision is the commit that is checked out here. Exit 1 when the time is up, or when it cannot come
    to that any more; then the last line says what it waits for.

    Examples: belay wait job default/llm --for running --timeout 10m; belay wait job default/llm --for recovered;
    belay wait revision
    """
    from belay.engine.cli.output import plain
    from belay.engine.errors import InputError

    longest = seconds(limit, "--timeout")
    assert longest is not None
    if kind == "job" and not name:
        raise InputError("a job has a name", where="belay wait job", hint="belay get jobs lists them")
    judge = _job_judge(name, state) if kind == "job" and name else _revision_judge(name)
    final = until_reached(kubeconfig, judge, longest, context)
    click.echo(plain(final.text), err=not final.reached)
    sys.exit(0 if final.reached else 1)


VERBS = (wait,)


def job_standing(status: PublishedStatus, name: str, state: str) -> WaitStanding:
    """How far a job is, by what the engine published of it."""
    from belay.engine.errors import InputError

    rows = [job for job in status.jobs if name in (_short(job.name), _short(job.name).rpartition("/")[2], job.name)]
    if len(rows) > 1:
        several = ", ".join(_short(job.name) for job in rows[:5])
        raise InputError(f"several jobs have this name: {several}", where=name, hint="Write NAMESPACE/NAME")
    if not rows:
        text = f"there is no job {name}"
        return WaitStanding(state == "gone", False, text if state == "gone" else f"{text} yet")
    job = rows[0]
    text = f"{_short(job.name)} is {job.phase}"
    if job.pending:
        text = f"{text}: {job.pending.get('reason', '')}: {job.pending.get('message', '')}"
    if job.failure:
        text = f"{text}: {job.failure.get('message', '')}"
    if state == "gone":
        return WaitStanding(False, False, text)
    if state == "ended":
        return WaitStanding(job.phase in _ENDED, False, text)
    if job.phase in _ENDED:
        return WaitStanding(job.phase in _DONE, job.phase == "Failed", text)
    lacking = _lacking(job, state)
    return WaitStanding(not lacking, False, text if job.pending or not lacking else f"{text}: {lacking}")


def _lacking(job: PublishedJob, state: str) -> str:
    """What keeps a job that has not ended from a state; empty once it is there."""
    if state == "running":
        return "" if job.phase == _RUNNING else "too few of its pods run"
    if job.pending:
        return "a pod waits"
    wanted = min(job.wanted, _MOST_PLACES)
    placed, started = len(job.placement), job.phase in (_RUNNING, "Starting")
    if state == "placed":
        # of a job that runs the pods that it may do without need not exist yet
        return "" if started and (job.phase == _RUNNING or placed >= wanted) else f"{placed} of {wanted} pods placed"
    run = sum(place.get("phase") in (_RUNNING, "Succeeded") for place in job.placement.values())
    if job.phase != _RUNNING or run < max(placed, wanted):
        return f"{run} of {max(placed, wanted)} pods run"
    last = job.recoveries[-1] if job.recoveries else {}
    return f"the recovery of {last.get('time')} is under way" if last and not last.get("actual") else ""


def revision_standing(status: PublishedStatus, revision: str, is_within: Callable[[str], bool]) -> WaitStanding:
    """How far a revision is: in force, or what the engine says. ``is_within``: whether a later one contains it."""
    short = revision[:12]
    if status.no_pass:
        return WaitStanding(False, False, status.no_pass)
    known = status.applied.startswith(revision) or (status.applied != "" and is_within(status.applied))
    if not known:
        attempted = status.attempted[:12] or "none"
        bad = [one for one in status.conditions if one.get("status") == "False" and one.get("type") != "Ready"]
        why = f"; {bad[0].get('message', '')}" if bad and status.attempted.startswith(revision) else ""
        return WaitStanding(False, False, f"{short} is not in force: the revision last read is {attempted}{why}")
    applied = next((one for one in status.conditions if one.get("type") == "Applied"), {})
    if applied.get("status") == "True":
        return WaitStanding(True, False, f"{short} is in force: {applied.get('message', '')}")
    return WaitStanding(False, False, f"{short} is read, but not all of it is in force: {applied.get('message', '')}")


def _job_judge(name: str, state: str) -> Judge:
    return lambda status: job_standing(status, name, state)


def _revision_judge(name: str | None) -> Judge:
    """Judges a revision by its id; where this is a clone of the repository, a later commit brings it into force too."""
    from belay.engine.cli.acts.clone import Clone
    from belay.engine.errors import InputError

    try:
        clone = Clone(".")
        revision = clone.resolve(name or "HEAD")
    except InputError as error:
        if name is None or len(name) < _SHORTEST:
            hint = "Name the revision, or go to the clone of the state repository"
            raise InputError(error.message, where=error.where, hint=hint) from error
        return lambda status: revision_standing(status, name, lambda later: False)
    return lambda status: revision_standing(status, revision, lambda later: clone.contains(later, revision))


def until_reached(kubeconfig: str | None, judge: Judge, longest: float, context: str | None = None) -> WaitStanding:
    """Read the published status until the judge is content, or sees no hope, or the time is up."""
    from belay.engine.kube import CONFIGMAP, Kube, KubeError
    from belay.engine.observe.live import with_kube
    from belay.engine.status.status_reader import SELECTOR, read_status
    from belay.engine.wire import names

    async def run(kube: Kube) -> WaitStanding:
        ends, last = time.monotonic() + longest, WaitStanding(False, False, "the cluster did not answer")
        answered = False
        while True:
            try:
                items = (await kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)).items
                last, answered = judge(read_status(items, time.time())), True
            except KubeError as error:
                if not answered:
                    raise
                last = WaitStanding(False, False, str(error))
            if last.reached or last.hopeless:
                return last
            if time.monotonic() >= ends:
                return WaitStanding(False, False, f"not within {longest:g} s: {last.text}")
            await asyncio.sleep(min(_EVERY, max(0.0, ends - time.monotonic())))

    return with_kube(kubeconfig, run, context=context)


def _short(name: str) -> str:
    """``namespace/name`` of ``namespace/Kind/name``."""
    parts = name.split("/", 2)
    return f"{parts[0]}/{parts[2]}" if len(parts) == 3 else name
