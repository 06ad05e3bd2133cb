"""`belay status`: what the engine publishes about itself, as a person reads it; once, or as it changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from belay.engine.cli import output as show
from belay.engine.cli.phrases import ranges
from belay.engine.errors import BelayError
from belay.engine.kube.lister import Lister
from belay.engine.kube.one_shot import ask_once, server_address
from belay.engine.kube.resources import CONFIGMAP
from belay.engine.model.freshness import NO_PASS
from belay.engine.status.status_reader import SELECTOR, PublishedStatus, read_status
from belay.engine.wire import names

#: Seconds between two readings of a watched status.
EVERY: Final = 1.0
_CALL_WITHIN: Final = 4.0


def show_status(kubeconfig: str | None, output: str, watch: bool, context: str | None = None) -> None:
    """Print the status ConfigMaps; with ``watch`` again on every change until interrupted, in place on a terminal.

    Raises:
        BelayError: the cluster does not answer, or Belay has written nothing there.
    """
    documents = output in ("json", "yaml")
    if watch and not documents:
        from belay.engine.cli.watching import follow

        follow(
            kubeconfig,
            _read,
            lambda status, out: print_status(status, out, wide=output == "wide", now=time.time()),
            every=EVERY,
            within=_CALL_WITHIN,
            context=context,
        )
    elif watch:
        from belay.engine.cli.watching import stream

        stream(kubeconfig, _read, _Documents(output).take, every=EVERY, context=context)
    else:
        status = ask_once(kubeconfig, _once, _CALL_WITHIN, context)
        if documents:
            show.document(status, output)
        else:
            print_status(status, sys.stdout, wide=output == "wide", now=time.time())


class _Documents:
    """Prints a document whenever the status differs from the last one."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._shown: PublishedStatus | None = None

    def take(self, status: PublishedStatus) -> None:
        if self._shown is not None and _lasting(status) == _lasting(self._shown):
            return
        if self._shown is not None and self._output == "yaml":
            sys.stdout.write("---\n")
        show.document(status, self._output)
        self._shown = status


async def _read(kube: Lister) -> PublishedStatus:
    return read_status((await kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)).items, time.time())


async def _once(kube: Lister) -> PublishedStatus:
    status = await _read(kube)
    if not status.found:
        raise BelayError(
            f"there is no ConfigMap {names.SYSTEM}/{names.SYNC} at {server_address(kube.host)}",
            hint="Does a controller run for this cluster?",
        )
    return status


class _Section(NamedTuple):
    """A table of the status; one without rows is not printed."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def print_status(status: PublishedStatus, out: TextIO, *, wide: bool, now: float) -> None:
    """Print a status; ``wide`` adds every job and the repeat offenders that placement does not avoid."""
    if not status.found:
        show.text("nothing is published yet: does a controller run for this cluster?", out)
        return

    for line in _passes(status, now):
        show.text(line, out)
    show.text(f"revision attempted {status.attempted or '-'}", out)
    show.text(f"revision applied   {status.applied or '-'}", out)

    for block in (*_hardware(status, wide), *_jobs(status, wide), *_held_back(status), *_findings(status)):
        if isinstance(block, str):
            show.text(block, out)
        elif block.rows:
            out.write("\n")
            show.table(block.columns, block.rows, out, now=now)


def _hardware(status: PublishedStatus, wide: bool) -> Iterator[_Section]:
    """Whether the engine works, then pools, and the nodes and chips in them that need a look."""
    columns: tuple[str, ...] = ("type", "status", "reason", "message")
    yield _Section(("condition", *columns[1:]), _picked(status.condition_rows, columns))

    yield _Section(
        ("pool", "nodes", "states"), [(pool.name, sum(pool.states.values()), pool.states) for pool in status.pools]
    )
    columns = ("node", "state", "level", "codes")
    yield _Section(columns, _picked(chain.from_iterable(pool.nodes for pool in status.pools), columns))
    columns = ("node", "chip", "state", "level", "codes", "usedBy")
    yield _Section(columns, _picked(chain.from_iterable(pool.chips for pool in status.pools), columns))

    offenders = chain.from_iterable(pool.lemons for pool in status.pools)
    shown = [offender for offender in offenders if wide or offender.get("avoided")]
    columns = ("node", "chip", "failures", "threshold")
    yield _Section(("fails again and again", *columns[1:]), _picked(shown, columns))


def _jobs(status: PublishedStatus, wide: bool) -> Iterator[_Section | str]:
    if status.jobs:
        phases = ", ".join(f"{number} {phase}" for phase, number in status.phases.items())
        yield f"\njobs: {phases}"

    rows = []
    for job in status.jobs:
        why = job.failure or job.pending
        if wide or why:
            rows.append((job.name, job.phase, why.get("reason"), why.get("message")))
    yield _Section(("job", "phase", "reason", "message"), rows)


def _held_back(status: PublishedStatus) -> Iterator[_Section | str]:
    """What waits for a budget or a person."""
    columns = ("action", "budget", "until", "what")
    yield _Section(("held back", *columns[1:]), _picked(status.deferred, columns))

    waiting = _picked(_listed(status.held_prune), ("object", "chips"))
    yield _Section(("deletion that waits for a person", "chips"), waiting)
    if status.held_prune:
        yield f"to delete exactly these, push a commit with the trailer {status.held_prune.get('release')}"


def _findings(status: PublishedStatus) -> Iterator[_Section]:
    """What policies in shadow mode ask for, and what is wrong with declarations."""
    columns = ("policy", "change", "action", "budget", "what")
    yield _Section(("shadow policy", *columns[1:]), _picked(status.shadow, columns))

    rows = []
    for finding in status.diagnostics:
        message = ranges(str(finding.get("message") or ""))
        rows.append((finding.get("severity"), _place(finding), finding.get("field"), f"{message}{_code(finding)}"))
    yield _Section(("finding", "where", "field", "message"), rows)


def _picked(rows: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> list[list[object]]:
    return [list(map(row.get, keys)) for row in rows]


def _lasting(status: PublishedStatus) -> PublishedStatus:
    """The status without what changes every second: how long ago the last pass was."""
    rows = [{**row, "message": ""} if row.get("reason") == NO_PASS else row for row in status.conditions]
    return msgspec.structs.replace(status, passes=[], no_pass=NO_PASS * bool(status.no_pass), conditions=rows)


def _passes(status: PublishedStatus, now: float) -> Iterator[str]:
    """How old what follows is, or why no pass comes."""
    if status.no_pass:
        yield f"{status.no_pass}; what follows is of then"
        return
    for one in status.passes:
        shard = "" if one.shard == names.MAIN_SHARD else f" of shard {one.shard}"
        yield f"last pass{shard}      {max(0, round(now - one.time))} s ago, of revision {one.revision[:12] or '-'}"


def _listed(held: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The objects of a deletion that waits, and how many more there are."""
    rows: list[Mapping[str, Any]] = [item for item in held.get("list") or [] if isinstance(item, dict)]
    if more := held.get("leftOut"):
        rows.append({"object": f"and {more} more"})
    return rows


def _code(finding: Mapping[str, Any]) -> str:
    """The word for `belay explain`, as belay validate and belay plan print it."""
    return f" [{finding['code']}]" if finding.get("code") else ""


def _place(finding: Mapping[str, Any]) -> str:
    if finding.get("file"):
        return f"{finding['file']}:{finding.get('line')}:{finding.get('column')}"
    return str(finding.get("object") or "")
