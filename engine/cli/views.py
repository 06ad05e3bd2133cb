"""Verbs that show a cluster as it is now, once or as it changes: `status`, `get`, `top`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

import click

from belay.engine.cli.invocation import (
    KindChoice,
    Number,
    WholeNumber,
    access_options,
    cluster_options,
    fails_clearly,
    output_option,
)
from belay.engine.cli.known_names import complete_row

if TYPE_CHECKING:
    from belay.engine.cli.inputs import PlannedCluster
    from belay.engine.cli.label_selectors import ChosenObjects, LabelSelector
    from belay.engine.cli.listed import ListedObjects
    from belay.engine.cli.published import PublishedCluster
    from belay.engine.cli.selection import Answer
    from belay.engine.kube import Kube

    Ask = Callable[[PlannedCluster], Answer]
    Rows = list[Mapping[str, Any]]
    Reading: TypeAlias = PlannedCluster | PublishedCluster | ListedObjects
    Used: TypeAlias = PlannedCluster | PublishedCluster

_GET: Final = (
    "nodes", "chips", "jobs", "pods", "faults", "recoveries", "queues", "revisions", "vnpus", "pools", "links",
    "isolations", "budgets", "policies",
)  # fmt: skip
_TOP: Final = ("nodes", "chips", "jobs")
#: The kind of `belay get` that reads all that `belay top` shows.
_TOP_NEEDS: Final = "chips"
_FORMATS: Final = ("table", "wide", "yaml", "json", "name")
_EVERY = click.option(
    "--every", type=Number(0.5, 3600), default=2.0, show_default=True, metavar="SECONDS",
    help="With -w: how often the cluster is read.",
)  # fmt: skip
_FILTER = click.option(
    "--filter", "filters", multiple=True, metavar="CONDITION",
    help="COLUMN=VALUE with * and commas, !=, <, > (numbers, ages such as 10m); may be given again, all must hold.",
)  # fmt: skip


@click.command(short_help="Show repository, pools and what is held back.")
@click.option("-w", "--watch", is_flag=True, help="Keep running: drawn in place on a terminal, else printed on change.")
@access_options
@output_option()
@fails_clearly
def status(watch: bool, kubeconfig: str | None, context: str | None, output: str) -> None:
    """Show the repository's state, the pools, and what is held back.

    Example: belay status -w
    """
    from belay.engine.cli.status_table import show_status

    show_status(kubeconfig, output, watch, context)


@click.command(short_help="List what Belay knows: nodes, chips, jobs, faults, …")
@click.argument("what", type=KindChoice(_GET), metavar="KIND")
@click.argument("name", required=False, shell_complete=complete_row)
@click.option("-n", "--namespace", metavar="NAMESPACE", help="Only jobs, pods and recoveries of this namespace.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces, which is the default.")
@click.option("-l", "--selector", "labels", metavar="SELECTOR", help="Only those with these labels: app=train, "
              "tier!=test, team in (a,b), !gpu; chips, faults and vnpus by those of their node.")  # fmt: skip
@click.option("-w", "--watch", is_flag=True, help="Then print what changes, as it changes.")
@click.option("--output-watch-events", "events", is_flag=True, help="With -w: say ADDED, MODIFIED or DELETED.")
@click.option("--no-headers", is_flag=True, help="Print a table without its headings.")
@_FILTER
@_EVERY
@cluster_options
@click.option("-o", "--output", type=click.Choice(_FORMATS), default="table", show_default=True, help="How to print.")
@fails_clearly
def get(
    what: str, name: str | None, namespace: str | None, everywhere: bool, labels: str | None, watch: bool, events: bool,
    no_headers: bool, filters: tuple[str, ...], every: float, output: str, **inputs: Any,
) -> None:  # fmt: skip
    """List nodes, chips, jobs, pods, faults, recoveries, queues, revisions, vnpus, pools, links, or what is declared:
    isolations, budgets, policies.

    NAME is a node, NODE/CHIP, a job (NAMESPACE/NAME), a queue, the beginning of a revision, … A node's name with chips
    or faults gives those of the node. What the engine publishes of the live cluster answers, as of its last pass; with
    --desired, --policies, --now or a FILE a pass is planned.

    Examples: belay get jobs --filter phase=Pending; belay get chips node-3; belay get pods -n train -l app=llm
    """
    from belay.engine.cli import output as show
    from belay.engine.errors import InputError

    if everywhere and namespace:
        raise InputError("give a namespace, or all of them", where="-n, -A")
    chosen = (*filters, f"namespace={namespace}") if namespace else filters
    asked = AskedRows(what, name, chosen, _selector_of(what, labels), output, inputs)
    if watch:
        _watch(asked, every, events=events, headings=not no_headers)
        return
    reading = asked.read()
    answer, rows = asked.rows(reading)
    if output in ("json", "yaml"):
        show.document(_one_or_all(what, name, rows), output)
    elif output == "name":
        _print_names(what, rows)
    else:
        if not rows:
            click.echo(f"no {what} found", err=True)
        columns = _columns(answer, output)
        show.table(columns, _cells(columns, rows), now=reading.now, headings=not no_headers)


def _selector_of(what: str, labels: str | None) -> LabelSelector | None:
    """The selector that -l gives; None without one."""
    from belay.engine.cli.label_selectors import LabelSelector, check_kind
    from belay.engine.cli.listed import OBJECTS

    if not labels:
        return None
    if what not in OBJECTS:
        check_kind(what)
    return LabelSelector(labels)


class AskedRows:
    """What `belay get` is asked for, and where the answer comes from: the published status, the API, or a plan."""

    def __init__(
        self, what: str, name: str | None, filters: Sequence[str], labels: LabelSelector | None, output: str,
        inputs: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.what, self.output, self.inputs = what, output, inputs
        self._name, self._filters, self._labels = name, filters, labels
        self._chosen: ChosenObjects | None = None

    def read(self) -> Reading:
        """The cluster, read once."""
        from belay.engine.cli.inputs import plan_cluster, published_cluster
        from belay.engine.cli.label_selectors import chosen_once
        from belay.engine.cli.listed import OBJECTS, listed

        if self.what in OBJECTS:
            return listed(self.what, self._labels, self.inputs)
        if self._labels is not None:
            self._chosen = chosen_once(self.what, self._labels, self.inputs)
        published = published_cluster(self.what, self.inputs) if self._is_published() else None
        return published or plan_cluster(**self.inputs)

    def reader(self) -> Callable[[Kube], Awaitable[Reading]]:
        """The same at each call over a connection, for ``-w``."""
        from belay.engine.cli.inputs import cluster_planner, read_published
        from belay.engine.cli.label_selectors import chosen_live
        from belay.engine.cli.listed import OBJECTS, read_objects

        plan = cluster_planner(self.inputs)

        async def read(kube: Kube) -> Reading:
            if self.what in OBJECTS:
                return await read_objects(self.what, self._labels, kube)
            if self._labels is not None:
                self._chosen = await chosen_live(self.what, self._labels, kube)
            published = await read_published(self.what, kube) if self._is_published() else None
            return published or await plan(kube)

        return read

    def rows(self, reading: Reading) -> tuple[Answer, Rows]:
        """The answer, and the rows of it that are meant."""
        answer = reading.answer(self.what)
        rows = _selected(self.what, answer, self._name, self._filters, reading.now)
        return answer, rows if self._chosen is None else [row for row in rows if self._chosen.has(row)]

    def _is_published(self) -> bool:
        from belay.engine.cli.inputs import asks_of_now
        from belay.engine.cli.published import ABOUT, PLANNED_COLUMNS

        if self.what not in ABOUT or not asks_of_now(self.inputs):
            return False
        planned = {column.casefold() for column in PLANNED_COLUMNS.get(self.what, ())}
        if planned and self.output in ("json", "yaml", "wide"):
            return False
        return not any(column in one.replace("_", "").casefold() for one in self._filters for column in planned)


@click.command(short_help="Show nodes, chips or jobs by what they use.")
@click.argument("what", type=KindChoice(_TOP), metavar="[nodes|chips|jobs]", default="nodes")
@click.option("-w", "--watch", is_flag=True, help="Keep running: drawn in place on a terminal, else printed on change.")
@click.option("--sort", "--sort-by", "sort", metavar="COLUMN", help="Largest first; names from A. Default: by use.")
@click.option("-r", "--reverse", is_flag=True, help="The other way round.")
@click.option("-n", "--lines", "most", type=WholeNumber(1), metavar="N", help="Show only the first N rows.")
@click.option("--metrics", "places", multiple=True, metavar="PLACE", envvar="BELAY_METRICS",
              help="What chips measure: a Prometheus server (http://prometheus:9090), or [NODE=]PAGE of an exporter "
              "(its /metrics, or a file); may be given again. Default: $BELAY_METRICS.")  # fmt: skip
@_FILTER
@_EVERY
@cluster_options
@output_option()
@fails_clearly
def top(
    what: str, watch: bool, sort: str | None, reverse: bool, most: int | None, places: tuple[str, ...],
    filters: tuple[str, ...], every: float, output: str, **inputs: Any,
) -> None:  # fmt: skip
    """Show nodes, chips or jobs by what they use: chips in use, free and out of service; with --metrics also AI core
    utilisation (%), HBM (%), power (W) and temperature (°C).

    With -w on a terminal, s sorts by the next column, r turns the order round, n, c and j show nodes, chips and jobs,
    q ends.

    Examples: belay top; belay top jobs --sort chips -n 10
    """
    from belay.engine.cli import output as show

    screen = _TopScreen(what, sort, reverse, most, places, filters)
    if watch and output in ("table", "wide"):
        screen.watch(inputs, every, wide=output == "wide")
        return
    if watch:
        _stream(inputs, screen.reader(inputs), every, lambda found: _print_document(screen.rows(found)[1], output))
        return
    found = screen.read(inputs)
    if output in ("json", "yaml"):
        show.document(screen.rows(found)[1], output)
    else:
        screen.paint(found, sys.stdout, wide=output == "wide")


class _TopScreen:
    """What `belay top` shows: kind, order and filters, which the user changes by keys."""

    def __init__(
        self, what: str, sort: str | None, reverse: bool, most: int | None, places: Sequence[str],
        filters: Iterable[str],
    ) -> None:  # fmt: skip
        self._what, self._sort, self._reverse, self._most = what, sort, reverse, most
        self._places, self._filters = places, tuple(filters)
        self._columns: tuple[str, ...] = ()

    def read(self, inputs: Mapping[str, Any]) -> Used:
        """The cluster, read once: what is published, unless pages of exporters are to be found by nodes' addresses."""
        from belay.engine.cli.inputs import asks_of_now, plan_cluster, published_cluster

        asks = asks_of_now(inputs) and not self._places
        return (published_cluster(_TOP_NEEDS, inputs) if asks else None) or plan_cluster(**inputs)

    def reader(self, inputs: Mapping[str, Any]) -> Callable[[Kube], Awaitable[Used]]:
        """The same at each call over a connection, for ``-w``."""
        from belay.engine.cli.inputs import asks_of_now, cluster_planner, read_published

        plan, asks = cluster_planner(inputs), asks_of_now(inputs) and not self._places

        async def read(kube: Kube) -> Used:
            return (await read_published(_TOP_NEEDS, kube) if asks else None) or await plan(kube)

        return read

    def rows(self, found: Used) -> tuple[Answer, Rows]:
        """The answer and its rows in order."""
        from belay.engine.cli import usage
        from belay.engine.cli.filters import column_of
        from belay.engine.cli.inputs import PlannedCluster

        readings = found.readings(self._places) if isinstance(found, PlannedCluster) else {}
        answer = usage.TOP[self._what](found, readings)
        self._columns = answer.columns
        rows = _selected(self._what, answer, None, self._filters, found.now)
        every = (*answer.columns, *answer.wide)
        if self._sort is not None:
            column = column_of(self._sort, every, "--sort")
        else:
            column = next(name for name in usage.ORDER[self._what] if name in every)
        return answer, usage.ordered(rows, column, reverse=self._reverse)[: self._most]

    def paint(self, found: Used, out: TextIO, *, wide: bool) -> None:
        """Print the table under three lines about the whole cluster."""
        from belay.engine.cli import output as show
        from belay.engine.cli import usage

        answer, rows = self.rows(found)
        if found.note:
            show.text(found.note, out)
        for line in usage.headline(found):
            show.text(line, out)
        out.write("\n")
        columns = _columns(answer, "wide" if wide else "table")
        show.table(columns, _cells(columns, rows), out, now=found.now)

    def watch(self, inputs: Mapping[str, Any], every: float, *, wide: bool) -> None:
        """Show it until interrupted."""
        from belay.engine.cli.watching import follow

        follow(
            inputs["kubeconfig"],
            self.reader(inputs),
            lambda found, out: self.paint(found, out, wide=wide),
            every=every,
            on_key=self._key,
            keys=", s: next column, r: other way round, n c j: nodes, chips, jobs",
            context=inputs["context"],
        )

    def _key(self, key: str) -> None:
        views = {kind[0]: kind for kind in _TOP}
        if key in views:
            self._what, self._sort, self._reverse = views[key], None, False
        elif key == "r":
            self._reverse = not self._reverse
        elif key == "s" and self._columns:
            names = [name.casefold() for name in self._columns]
            here = names.index(self._sort.casefold()) if self._sort and self._sort.casefold() in names else -1
            self._sort = self._columns[(here + 1) % len(self._columns)]


def _selected(what: str, answer: Answer, name: str | None, filters: Iterable[str], now: float) -> Rows:
    from belay.engine.cli.filters import conditions
    from belay.engine.cli.selection import named

    rows: Rows = list(answer.rows) if name is None else named(what, answer.rows, name)
    more = sorted({column for row in rows[:1] for column in row} - {*answer.columns, *answer.wide})
    holds = conditions(filters, (*answer.columns, *answer.wide, *more), now)
    return [row for row in rows if holds(row)]


def _watch(asked: AskedRows, every: float, *, events: bool, headings: bool) -> None:
    from belay.engine.cli import output as show
    from belay.engine.cli.changes import RowChanges

    what, output = asked.what, asked.output
    changes = RowChanges(what)
    table: show.GrowingTable | None = None

    def take(reading: Reading) -> None:
        nonlocal table
        answer, rows = asked.rows(reading)
        columns = _columns(answer, output)
        found = changes.of(rows, columns if output in ("table", "wide") else None)
        if output == "name":
            _print_names(what, [row for _, row in found])
        elif output in ("json", "yaml"):
            for event, row in found:
                _print_document({"type": event, "object": row} if events else row, output)
        elif found:
            shown = ("event", *columns) if events else columns
            table = table or show.GrowingTable(shown, headings=headings)
            cells = _cells(columns, [row for _, row in found])
            table.add(
                [[event, *line] if events else line for (event, _), line in zip(found, cells, strict=True)],
                now=reading.now,
            )

    _stream(asked.inputs, asked.reader(), every, take)


def _stream(
    inputs: Mapping[str, Any], read: Callable[[Kube], Awaitable[Any]], every: float, take: Callable[[Any], None]
) -> None:
    from belay.engine.cli.output import plain
    from belay.engine.cli.watching import MissingPassNotes, stream

    notes = MissingPassNotes()

    def take_with_note(reading: Any) -> None:
        if note := notes.due(reading.note, reading.now):
            click.echo(plain(note), err=True)
        take(reading)

    stream(inputs["kubeconfig"], read, take_with_note, every=every, context=inputs["context"])


def _print_document(value: object, output: str) -> None:
    """One document of a stream: a line of JSON, or YAML after a separator."""
    from belay.engine.cli import output as show

    if output == "yaml":
        sys.stdout.write("---\n")
        show.document(value, output)
    else:
        show.line(value)


def _print_names(what: str, rows: Iterable[Mapping[str, Any]]) -> None:
    from belay.engine.cli.output import plain
    from belay.engine.cli.selection import typed_name

    for row in rows:
        click.echo(plain(typed_name(what, row)))


def _one_or_all(what: str, name: str | None, rows: Rows) -> object:
    """One object where a name means exactly one, as with kubectl."""
    from belay.engine.cli.selection import NAMED_BY

    alone = len(NAMED_BY[what][1]) == 1 or what in ("jobs", "chips")
    return rows[0] if name is not None and len(rows) == 1 and alone else rows


def _columns(answer: Answer, output: str) -> tuple[str, ...]:
    """The columns of a table; a reason may be long, so it is the last one."""
    columns = (*answer.columns, *(answer.wide if output == "wide" else ()))
    return tuple(sorted(columns, key=lambda column: column == "reason"))


def _cells(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    return [[row.get(column) for column in columns] for row in rows]


VERBS = (status, get, top)
