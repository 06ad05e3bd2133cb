"""`belay events`: what the engine did and saw, as the Events that Kubernetes keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from belay.engine.cli.invocation import Number, WholeNumber, access_options, fails_clearly
from belay.engine.cli.known_names import complete_row
from belay.engine.model.labels import EVENT_CHIPS, EVENT_NODE

if TYPE_CHECKING:
    from belay.engine.cli.job_pods import PublishedPods
    from belay.engine.kube import Lister

Row = Mapping[str, Any]
_SUBJECTS: Final = ("job", "pod", "node", "chip")
_COLUMNS: Final = ("time", "type", "reason", "object", "message")
_WIDE: Final = ("time", "type", "reason", "object", "node", "chips", "count", "source", "message")
_KEPT: Final = "Kubernetes keeps Events for an hour; belay history shows what was before."
_MOST_SEEN: Final = 50_000


class EventQuestion:
    """Which Events are meant."""

    def __init__(
        self, subject: str, name: str, *, namespace: str | None, since: float | None, warnings: bool, limit: int
    ) -> None:
        self.subject, self.name, self.namespace = subject, name, namespace
        self._since, self._warnings, self._limit = since, warnings, limit

    def rows(self, raw: Iterable[Mapping[str, Any]], jobs: Sequence[PublishedPods]) -> list[Row]:
        """The newest that fit, oldest first.

        Raises:
            InputError: the job is not known.
        """
        fits = self._fitting(jobs)
        found = [row for row in map(event_row, raw) if self._passes(row) and fits(row)]
        return sorted(found, key=lambda row: (row["time"], row["id"]))[-self._limit :]

    def _passes(self, row: Row) -> bool:
        if self._warnings and row["type"] != "Warning":
            return False
        if self.namespace is not None and row["namespace"] != self.namespace:
            return False
        return self._since is None or row["at"] >= self._since

    def _fitting(self, jobs: Sequence[PublishedPods]) -> Callable[[Row], bool]:
        from belay.engine.cli.job_pods import job_of_pod, meant_job

        name = self.name
        if self.subject == "job":
            job = meant_job(jobs, name, self.namespace)
            return lambda row: (
                (row["namespace"], row["kind"], row["name"]) == (job.namespace, job.kind, job.name)
                or (row["kind"] == "Pod" and job_of_pod(jobs, row["namespace"], row["name"]) == job.key)
            )
        if self.subject == "pod":
            return lambda row: row["kind"] == "Pod" and name in (row["name"], f"{row['namespace']}/{row['name']}")
        if self.subject == "node":
            return lambda row: name in (row["node"], row["name"] if row["kind"] == "Node" else "")
        if self.subject == "chip":
            node, _, chip = name.partition("/")
            number = chip.rpartition("-")[2]
            return lambda row: row["node"] == node and number in {one.rpartition("-")[2] for one in row["chips"]}
        return lambda row: True


@click.command(short_help="Show Events: what the engine did and saw in the last hour.")
@click.argument("subject", required=False, type=click.Choice(_SUBJECTS), metavar="[job|pod|node|chip]")
@click.argument("name", required=False, shell_complete=complete_row)
@click.option("-n", "--namespace", metavar="NAMESPACE", help="Only Events of this namespace.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces, which is the default.")
@click.option("-w", "--watch", is_flag=True, help="Then print new ones as they come.")
@click.option("--since", metavar="TIME", help="A time (22:00, 2026-12-24T18:00:00Z) or how long ago (15m).")
@click.option("--warnings", is_flag=True, help="Only Events of type Warning.")
@click.option("--all-sources", is_flag=True, help="Also what kubelet, schedulers and controllers say.")
@click.option("--limit", type=WholeNumber(1, 10_000), default=500, show_default=True, help="The newest so many.")
@click.option("--no-headers", is_flag=True, help="Print a table without its headings.")
@click.option("--every", type=Number(0.5, 3600), default=2.0, show_default=True, metavar="SECONDS",
              help="With -w: how often the cluster is read.")  # fmt: skip
@access_options
@click.option("-o", "--output", type=click.Choice(("table", "wide", "json", "yaml")), default="table",
              show_default=True, help="How to print.")  # fmt: skip
@fails_clearly
def events(
    subject: str | None, name: str | None, namespace: str | None, everywhere: bool, watch: bool, since: str | None,
    warnings: bool, all_sources: bool, limit: int, no_headers: bool, every: float, output: str,
    kubeconfig: str | None, context: str | None,
) -> None:  # fmt: skip
    """Show what the engine did and saw, oldest first: of everything, or of one job with its pods, pod, node, or chip
    (NODE/3).

    Kubernetes keeps Events for an hour; `belay history` shows what was before.

    Examples: belay events -w; belay events job default/llm; belay events node node-3 --since 15m --all-sources
    """
    from belay.engine.cli.history import moment
    from belay.engine.errors import InputError
    from belay.engine.kube import ask_once

    if everywhere and namespace:
        raise InputError("give a namespace, or all of them", where="-n, -A")
    if subject and not name:
        raise InputError(f"which {subject}?", where=f"belay events {subject}", hint=f"belay get {subject}s lists them.")
    if subject == "chip" and "/" not in str(name):
        raise InputError("a chip is named by its node and number", where=str(name), hint="Write NODE/3.")
    asked = EventQuestion(
        subject or "", name or "", namespace=namespace, since=moment(since, "--since"), warnings=warnings, limit=limit
    )

    async def read(kube: Lister) -> list[Row]:
        return await _read(kube, asked, all_sources=all_sources)

    shown = EventTable(output, headings=not no_headers, watched=watch)
    if watch:
        from belay.engine.cli.watching import stream

        stream(kubeconfig, read, shown.add, every=every, context=context)
        return
    rows = ask_once(kubeconfig, read, context=context)
    shown.add(rows)
    if not rows:
        click.echo(f"no Events found. {_KEPT}", err=True)


VERBS = (events,)


class EventTable:
    """Prints Events that were not printed yet; one that came again is printed again with its number."""

    def __init__(self, output: str, *, headings: bool, watched: bool) -> None:
        from belay.engine.cli import output as show

        self._output, self._watched = output, watched
        self._columns = _WIDE if output == "wide" else _COLUMNS
        self._table = show.GrowingTable(self._columns, headings=headings)
        self._seen: set[tuple[str, int]] = set()

    def add(self, rows: Sequence[Row]) -> None:
        """Print the new ones of a reading."""
        from belay.engine.cli import output as show
        from belay.engine.cli.phrases import ranges

        new = [row for row in rows if (row["id"], row["count"]) not in self._seen]
        # what Kubernetes has dropped cannot come again
        known = {(row["id"], row["count"]) for row in rows}
        self._seen = known if len(self._seen) > _MOST_SEEN else self._seen | known
        documents = [{key: value for key, value in row.items() if key not in ("id", "at")} for row in new]
        if self._output in ("json", "yaml") and not self._watched:
            show.document(documents, self._output)
        elif self._output == "yaml":
            for one in documents:
                click.echo("---")
                show.document(one, "yaml")
        elif self._output == "json":
            for one in documents:
                show.line(one)
        elif new:
            cells = [
                [ranges(row[column]) if column == "message" else row[column] for column in self._columns] for row in new
            ]
            self._table.add(cells, now=time.time())


def event_row(raw: Mapping[str, Any]) -> Row:
    """One Event of the API server as a row; what it lacks is empty."""
    from belay.engine.serve.console.texts import mapping
    from belay.engine.serve.records.reading import moment

    metadata, subject = mapping(raw.get("metadata")), mapping(raw.get("involvedObject"))
    annotations, source = mapping(metadata.get("annotations")), mapping(raw.get("source"))
    kind, name, namespace = _text(subject, "kind"), _text(subject, "name"), _text(subject, "namespace")
    when = _newest_time(raw, metadata)
    host = name if kind == "Node" else _text(source, "host")
    chips = _text(annotations, EVENT_CHIPS).split(",")
    count = raw.get("count")
    return {
        "id": _text(metadata, "uid") or f"{metadata.get('namespace')}/{metadata.get('name')}",
        "at": moment(when) / 1000,
        "time": when,
        "type": _text(raw, "type"),
        "reason": _text(raw, "reason"),
        "object": "/".join(filter(None, (kind, namespace, name))),
        "namespace": namespace or _text(metadata, "namespace"),
        "kind": kind,
        "name": name,
        "node": _text(annotations, EVENT_NODE) or host,
        "chips": list(filter(None, chips)),
        "count": count if isinstance(count, int) else 1,
        "source": _text(source, "component") or _text(raw, "reportingComponent"),
        "message": _text(raw, "message"),
    }


def _text(fields: Mapping[str, Any], key: str) -> str:
    return str(fields.get(key) or "")


def _newest_time(raw: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """When an Event last happened, in the first of its fields that says so: newer clients fill fewer of them."""
    times = (_text(raw, "lastTimestamp"), _text(raw, "eventTime"), _text(raw, "firstTimestamp"))
    return next(filter(None, times), _text(metadata, "creationTimestamp"))


async def _read(kube: Lister, asked: EventQuestion, *, all_sources: bool) -> list[Row]:
    from belay.engine.cli.job_pods import SELECTOR, published_jobs
    from belay.engine.kube import CONFIGMAP, EVENT
    from belay.engine.serve.records.events import FIELDS
    from belay.engine.wire import names

    listed = await kube.list(EVENT, asked.namespace, None, None if all_sources else FIELDS)
    if asked.subject != "job":
        return asked.rows(listed.items, ())
    maps = await kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)
    return asked.rows(listed.items, published_jobs(maps.items))
