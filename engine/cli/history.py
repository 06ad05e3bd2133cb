"""Verbs about the past: `history`, `report`, `usage`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from belay.engine.cli.invocation import WholeNumber, access_options, fails_clearly
from belay.engine.cli.known_names import complete_row
from belay.engine.model.wording import counted

_SUBJECTS: Final = ("job", "node", "chip", "pool", "user")
_DAY: Final = 86_400.0
_TIMES: Final = "A time (22:00, yesterday, monday, 2026-12-24, 2026-12-24T18:00:00Z) or how long ago (36h)."


def _sources(command: Callable[..., None]) -> Callable[..., None]:
    """Where the history is read."""
    for option in (
        click.option("--server", metavar="URL", help="Where belay server is. Default: $BELAY_SERVER, the kubeconfig."),
        click.option("--database", metavar="URL", help="Read the history's database itself."),
    ):
        command = option(command)
    return access_options(command)


@click.command(short_help="Show what happened: faults, decisions, placements, waits, commits.")
@click.argument("subject", required=False, type=click.Choice(_SUBJECTS), metavar="[job|node|chip|pool|user]")
@click.argument("name", required=False, shell_complete=complete_row)
@click.option("--since", metavar="TIME", help=f"{_TIMES} Default: 24h before the end.")
@click.option("--until", metavar="TIME", help="Likewise. Default: now.")
@click.option("--limit", type=WholeNumber(1, 10_000), default=500, show_default=True, help="The newest so many.")
@click.option("--audit", is_flag=True, help="Who asked for what, by which commit; with the hashes of the chain.")
@click.option("--verify", is_flag=True, help="Check that no record was changed or removed; prints the chain's head.")
@click.option("--head", metavar="NUMBER:HASH", help="With --verify: a head that was noted earlier must be in it.")
@_sources
@click.option("-o", "--output", type=click.Choice(("table", "wide", "json", "yaml", "csv")), default="table",
              show_default=True, help="How to print; wide: with the whole reason of what waits.")  # fmt: skip
@fails_clearly
def history(
    subject: str | None, name: str | None, since: str | None, until: str | None, limit: int, audit: bool,
    verify: bool, head: str | None, output: str, **sources: Any,
) -> None:  # fmt: skip
    """Show what happened, oldest first: of everything, or of one job, node, chip (NODE/3), pool or user.

    A row of a job that waits says its state; -o wide, or belay explain job, says the whole reason.

    Examples: belay history --since 22:00; belay history job default/llm --since 7d; belay history node node-3
    """
    from belay.engine.cli.history_source import ask, asked_times

    if verify or head:
        _verify(head or "", output, sources)
        return
    end = moment(until, "--until")
    begin = moment(since, "--since") if since else (end or time.time()) - _DAY
    asked = {"subject": subject or "", "name": name or "", "limit": str(limit), "audit": "1" if audit else ""}
    answer = ask("records", {key: value for key, value in asked.items() if value} | asked_times(begin, end), **sources)
    rows = answer.body.get("records") or []
    _note(answer.note)
    if left := answer.body.get("leftOut"):
        _note(f"{left} older records are not shown: --limit shows more")
    if output in ("json", "yaml"):
        from belay.engine.cli import output as show

        show.document(answer.body, output)
    elif output == "csv":
        _csv(rows, _AUDIT if audit else _COLUMNS)
    elif audit:
        _show_audit(rows)
    else:
        about_what = f"of {subject} {name}" if subject and name else "that happened"
        _show(rows, f"nothing is recorded {about_what} {_asked_time(since, until)}", wide=output == "wide")


_WAITING: Final = "waiting"
_COLUMNS: Final = (
    "time", "kind", "job", "node", "chip", "pool", "queue", "user", "text", "cause", "revision", "author",
)  # fmt: skip
_AUDIT: Final = ("number", *_COLUMNS, "previous", "hash")


def _verify(head: str, output: str, sources: Mapping[str, Any]) -> None:
    from belay.engine.cli import output as show
    from belay.engine.cli.history_source import ask

    found = ask("verify", {"expected": head} if head else {}, **sources).body
    if output in ("json", "yaml"):
        show.document(found, output)
    elif found["broken"]:
        show.text(f"broken: {found['broken']}")
    else:
        removed = f", {found['removed']} older ones were removed by the history's bounds" if found["removed"] else ""
        show.text(f"whole: {counted(found['records'], 'record')}{removed}")
    if not found["broken"] and output in ("table", "wide"):
        show.text(f"head: {found['head']}:{found['headHash']}")
    if found["broken"]:
        sys.exit(1)


def _asked_time(since: str | None, until: str | None) -> str:
    """The time that was asked for, in the user's words."""
    if since:
        return f"since {since}, until {until}" if until else f"since {since}"
    return f"in the 24h until {until}" if until else "in the last 24h (--since 7d looks further)"


def _show(rows: Sequence[Mapping[str, Any]], nothing: str, *, wide: bool) -> None:
    """The rows; without any, what ``nothing`` says."""
    from belay.engine.cli import output as show

    if not rows:
        click.echo(nothing, err=True)
        return
    cells = [[when(row["time"]), row["kind"], about(row), said(row, more, wide=wide)] for row, more in collapsed(rows)]
    show.table(("time", "kind", "about", "what"), cells)


def _show_audit(rows: Sequence[Mapping[str, Any]]) -> None:
    """Who wrote the commit that was the cause, which commit, and what was done."""
    from belay.engine.cli import output as show

    cells = [
        [row["number"], when(row["time"]), row["author"] or "-", row["revision"][:12] or "-", about(row), row["text"]]
        for row in rows
    ]
    show.table(("number", "time", "by", "commit", "about", "what"), cells)


def collapsed(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """Rows, and how many alike follow each: the pods of a job that went at once are one line."""
    found: list[tuple[Mapping[str, Any], int]] = []
    for row in rows:
        last = found[-1][0] if found else None
        if last is not None and row["kind"] == "action" and row["job"] and _alike(last) == _alike(row):
            found[-1] = (last, found[-1][1] + 1)
        else:
            found.append((row, 0))
    return found


def _alike(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["job"], str(row["text"]).partition(":")[0], str(row["time"])[:16]


def about(row: Mapping[str, Any]) -> str:
    """What a record is about: its job, its node or chip, or who wrote the commit."""
    node = f"{row['node']}/{row['chip']}" if row.get("chip") is not None else row["node"]
    return str(row["job"] or node or row["author"] or row["pool"])


def said(row: Mapping[str, Any], more: int, *, wide: bool = True) -> str:
    """The words of a record. Unless ``wide``, a wait says its state: what MindCluster would say follows it."""
    rest = f" (and {more} more alike)" if more else ""
    text = str(row["text"])
    if not wide and row["kind"] == _WAITING:
        state, _, whole = text.partition("; ")
        text = f"{state}; …" if whole else text
    return f"{text}{rest}"


def when(text: str) -> str:
    """A time as the clock on the wall shows it here."""
    from belay.engine.model.times import parse_rfc3339

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(parse_rfc3339(text)))


_DATES: Final = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
"""Days and times as people write them; the last two as the table of the history shows them."""
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def _days_ago(word: str, weekday: int) -> int | None:
    """How many days ago a day began that is named by a word; None for no such word. ``weekday``: today's, Monday 0."""
    if word in ("today", "yesterday"):
        return ("today", "yesterday").index(word)
    if word in _WEEKDAYS:
        # the last one that is over: people who mean today say so
        return (weekday - _WEEKDAYS.index(word) - 1) % 7 + 1
    return None


def moment(text: str | None, option: str) -> float | None:
    """A time of the past: of a clock (the last time it was so late), a day, RFC 3339, or how long ago.

    Raises:
        InputError: it is none of these.
    """
    from belay.engine.errors import InputError
    from belay.engine.model.durations import parse_duration
    from belay.engine.model.times import parse_rfc3339

    if text is None:
        return None
    now = time.time()
    here = time.localtime(now)
    if (days := _days_ago(text.casefold(), here.tm_wday)) is not None:
        return time.mktime((here.tm_year, here.tm_mon, here.tm_mday - days, 0, 0, 0, 0, 0, -1))
    for form in _DATES:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            clock = time.strptime(text, form)
        except ValueError:
            continue
        today = time.mktime((*here[:3], clock.tm_hour, clock.tm_min, clock.tm_sec, 0, 0, -1))
        return today if today <= now else today - _DAY
    try:
        return parse_rfc3339(text) if "T" in text else now - parse_duration(_days(text))
    except (ValueError, OverflowError) as error:
        raise InputError(f"{text[:40]!r} is no time of the past", where=option, hint=_TIMES) from error


def _days(text: str) -> str:
    """Days as hours: durations of Kubernetes know none."""
    number = text.removesuffix("d")
    return f"{int(number) * 24}h" if text.endswith("d") and number.isascii() and number.isdecimal() else text


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    import csv

    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(columns)
    for row in rows:
        out.writerow(["" if row.get(column) is None else _harmless(row[column]) for column in columns])


def _harmless(value: Any) -> Any:
    """A value that a spreadsheet does not take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _note(text: str) -> None:
    from belay.engine.cli.output import plain

    if text:
        click.echo(plain(text), err=True)


@click.command(short_help="Report goodput, losses, recoveries, waits and idle chips of a time.")
@click.option("--week", is_flag=True, help="The last seven days, which is the default.")
@click.option("--month", metavar="YYYY-MM", help="A month.")
@click.option("--since", metavar="TIME", help=_TIMES)
@click.option("--until", metavar="TIME", help="Likewise. Default: now.")
@_sources
@click.option("-o", "--output", type=click.Choice(("table", "json", "yaml")), default="table", show_default=True,
              help="How to print.")  # fmt: skip
@fails_clearly
def report(week: bool, month: str | None, since: str | None, until: str | None, output: str, **sources: Any) -> None:
    """Report a time: goodput by pool, queue and user, chip-hours lost by cause, MTTR and MTTI, waits by size of job,
    chips that fail again and again, chips held without running. Recoveries and waits that last count until now.

    Example: belay report --week
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.history_report import show_report
    from belay.engine.cli.history_source import ask, asked_times

    answer = ask("report", asked_times(*_span(month, since or ("7d" if week else None), until)), **sources)
    _note(answer.note)
    if output == "table":
        show_report(answer.body)
    else:
        show.document(answer.body, output)


@click.command(short_help="Sum up chip-hours by user, queue, namespace or pool, for chargeback.")
@click.option("--by", type=click.Choice(("user", "queue", "namespace", "pool")), default="user", show_default=True,
              help="What each row is.")  # fmt: skip
@click.option("--month", metavar="YYYY-MM", help="A month. Default: the current one.")
@click.option("--since", metavar="TIME", help=_TIMES)
@click.option("--until", metavar="TIME", help="Likewise. Default: now.")
@_sources
@click.option("-o", "--output", type=click.Choice(("csv", "table", "json", "yaml")), default="csv", show_default=True,
              help="How to print.")  # fmt: skip
@fails_clearly
def usage(by: str, month: str | None, since: str | None, until: str | None, output: str, **sources: Any) -> None:
    """Sum up what was used: hours of whole chips and of vNPUs, and chip-hours lost to recoveries.

    A month is one of the local time zone. Example: belay usage --by user --month 2026-11 > november.csv
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.history_source import ask, asked_times

    current = time.strftime("%Y-%m") if since is None else None
    asked = {"by": by} | asked_times(*_span(month or current, since, until))
    answer = ask("usage", asked, **sources)
    rows = answer.body["usage"]
    columns = (by, "jobs", "chipHours", "vnpuHours", "lostChipHours", "goodput")
    _note(answer.note)
    if output == "csv":
        _csv(rows, columns)
    elif output == "table":
        show.table(columns, [[row[column] for column in columns] for row in rows])
    else:
        show.document(answer.body, output)


def _span(month: str | None, since: str | None, until: str | None) -> tuple[float | None, float | None]:
    """The time that is asked for: a month, or from one time to another.

    Raises:
        InputError: both are given, or one cannot be read.
    """
    from belay.engine.errors import InputError

    if month is None:
        return moment(since, "--since"), moment(until, "--until")
    if since or until:
        raise InputError("give a month, or --since and --until")
    try:
        begin = time.strptime(month, "%Y-%m")
        after = (begin.tm_year + begin.tm_mon // 12, begin.tm_mon % 12 + 1)
        first = time.mktime((begin.tm_year, begin.tm_mon, 1, 0, 0, 0, 0, 0, -1))
        end = time.mktime((*after, 1, 0, 0, 0, 0, 0, -1))
    except (ValueError, OverflowError) as error:
        raise InputError(f"{month[:40]!r} is not a month", where="--month", hint="Write 2026-11.") from error
    if first > time.time():
        raise InputError("this month has not begun", where=f"--month {month}")
    return first, end


VERBS = (history, report, usage)
