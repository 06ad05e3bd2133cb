"""The status page: one screen of plain HTML that refreshes itself, without scripts.

All text from the cluster is escaped by the template engine. Lists are cut and say how much was left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from belay.engine import versions
from belay.engine.model.states import CONCERNS
from belay.engine.model.times import rfc3339
from belay.engine.serve.engine_client import PageData
from belay.engine.status.status_reader import PublishedJob, PublishedStatus

if TYPE_CHECKING:
    from jinja2 import Template

REFRESH_SECONDS: Final = 5
ROWS: Final = 50
_CELL: Final = 400
_NODES_SHOWN: Final = 4
_TONES: Final[Mapping[str, str]] = {
    **{word: tone for word, tone in CONCERNS.items() if tone},
    **dict.fromkeys(("error", "Failed", "silent"), "bad"),
    **dict.fromkeys(("warning", "Pending", "Starting"), "warn"),
}

_TEMPLATE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{{ refresh }}">
<meta name="viewport" content="width=device-width"><title>Belay</title><style>
:root{color-scheme:light dark;font:14px/1.45 system-ui,sans-serif}
body{margin:1.2rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.2rem}h2{font-size:1rem;margin:1.4rem 0 .3rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.15rem .9rem .15rem 0;vertical-align:top;border-bottom:1px solid #8883}
th{font-weight:600}td{overflow-wrap:anywhere}code{font-size:.92em}
.bad{color:#c62828}.warn{color:#b26a00}.dim,th{opacity:.65}
</style></head><body>
<h1>Belay <span class="dim">{{ version }} · {{ time }}</span></h1>
{% for problem in problems %}
<p class="bad">{{ problem }}</p>
{% endfor %}
{% for section in sections %}
<h2>{{ section.title }} <span class="dim">{{ section.note }}</span></h2>
{% if section.rows %}
<table><thead><tr>{% for column in section.columns %}<th>{{ column }}</th>{% endfor %}</tr></thead><tbody>
{% for row in section.rows %}
<tr>{% for cell in row %}<td class="{{ tones.get(cell, "") }}">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table>
{% endif %}
{% if section.more %}
<p class="dim">and {{ section.more }} more</p>
{% endif %}
{% endfor %}
<p class="dim"><a href="/console/">Console</a>. The same: <code>belay status</code>,
<code>kubectl get configmaps -n belay-system -l belay.dev/about</code>, <a href="metrics">metrics</a>.</p>
</body></html>
"""


@functools.cache
def _compiled() -> Template:
    """The template. Few ask for this page, and its engine takes 3 MiB."""
    from jinja2 import Environment, StrictUndefined

    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return made.from_string(_TEMPLATE)


class Section(msgspec.Struct, frozen=True):
    """A heading and a table under it."""

    title: str
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    more: int = 0


def render(page: PageData, shard: str) -> str:
    """Return the status page as HTML."""
    problems = page.health.problems(shard)
    if page.status is not None and page.status.no_pass:
        problems.append(f"{page.status.no_pass}; what follows is of then")
    if page.cluster:
        problems.append(f"the cluster's status is not shown: {page.cluster}")
    sections = [*(_cluster(page.status) if page.status else ()), _engine(page)]
    return _compiled().render(
        version=versions.version(),
        refresh=REFRESH_SECONDS,
        time=rfc3339(page.time),
        problems=problems,
        sections=sections,
        tones=_TONES,
    )


def _cluster(status: PublishedStatus) -> Iterable[Section]:
    columns: tuple[str, ...] = ("condition", "status", "reason", "message")
    yield _section(
        "Repository", columns, _picked(status.condition_rows, "type", "status", "reason", "message"), _revision(status)
    )
    yield _section("Pools", ("pool", "nodes"), [(pool.name, _counted(pool.states)) for pool in status.pools])
    nodes = [node for pool in status.pools for node in pool.nodes]
    if nodes:
        columns = ("node", "state", "level", "codes")
        yield _section("Nodes that are not healthy", columns, _picked(nodes, *columns))
    chips = [chip for pool in status.pools for chip in pool.chips]
    if chips:
        columns = ("node", "chip", "state", "level", "codes", "usedBy")
        yield _section("Chips that are not healthy", columns, _picked(chips, *columns))
    jobs = sorted(status.jobs, key=lambda job: (job.phase != "Pending", job.name))
    yield _section("Jobs", ("job", "phase", "on", "waits for"), [_job(job) for job in jobs], _counted(status.phases))
    if status.deferred:
        columns = ("action", "what", "budget", "until")
        yield _section("Held back by a budget", columns, _picked(status.deferred, *columns))
    if status.diagnostics:
        rows = [(_text(f.get("severity")), _place(f), _text(f.get("message"))) for f in status.diagnostics]
        yield _section("Findings", ("severity", "where", "what"), rows)


def _engine(page: PageData) -> Section:
    rows = []
    for name in sorted({*page.summaries, *page.health.controllers}):
        summary = page.summaries.get(name)
        known = name in page.health.controllers
        controller = "silent" if page.health.problems(name) else "lives" if known else "unknown"
        row = [name, controller]
        if summary is not None:
            row += [rfc3339(summary.time), f"{summary.seconds * 1000:.0f} ms", str(summary.pods)]
            row += [_counted(summary.actions), _counted(summary.pending)]
        rows.append(row)
    return _section("Engine", ("shard", "controller", "last pass", "took", "pods", "actions", "pending"), rows)


def _section(title: str, columns: tuple[str, ...], rows: Sequence[Sequence[str]], note: str = "") -> Section:
    return Section(title, columns, rows[:ROWS], note or ("" if rows else "none"), max(0, len(rows) - ROWS))


def _revision(status: PublishedStatus) -> str:
    if not status.found:
        return "Belay has not written its status yet"
    behind = f", newest {status.attempted}" if status.attempted != status.applied else ""
    return f"{status.applied or 'none'} is in force{behind}"


def _job(job: PublishedJob) -> tuple[str, ...]:
    nodes = sorted({str(pod.get("node")) for pod in job.placement.values() if isinstance(pod, dict)})
    more = f" and {len(nodes) - _NODES_SHOWN} more" if len(nodes) > _NODES_SHOWN else ""
    waits = f"{_text(job.pending.get('reason'))}: {_text(job.pending.get('message'))}" if job.pending else ""
    return job.name, job.phase, ", ".join(nodes[:_NODES_SHOWN]) + more, waits


def _place(finding: Mapping[str, Any]) -> str:
    if finding.get("file"):
        return f"{finding['file']}:{finding.get('line', 0)}:{finding.get('column', 0)}"
    return " ".join(filter(None, (_text(finding.get("object")), _text(finding.get("field")))))


def _picked(items: Iterable[Mapping[str, Any]], *keys: str) -> list[tuple[str, ...]]:
    return [tuple(_text(item.get(key)) for key in keys) for item in items]


def _text(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(numbers.items()))
