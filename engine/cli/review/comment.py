"""A review as Markdown that GitHub, GitLab and Gitea show alike; bounded, and harmless whatever names it holds."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from belay.engine.cli.forecast import GONE, MOVED, PLACED, WAITING, JobOutcome
from belay.engine.cli.phrases import ranges
from belay.engine.cli.review.comparison import HardwareChange, JobChange, Review
from belay.engine.model.wording import counted

LIMIT: Final = 60_000
"""Bytes of one comment. GitHub refuses bodies of more than 65,536 characters; the others take more."""
ROWS: Final = 200
"""Most rows of a table; fewer where the comment would be too long."""
LONGEST: Final = 300
"""Characters of one text; the rest stands in `belay plan`."""
_PLACES: Final = 6
_SEVERITIES: Final = {"error": "❌ error", "warning": "⚠️ warning", "info": "info"}
HARDWARE: Final = {
    "IsolateNode": ("node", "isolated"),
    "IsolateChip": ("chip", "isolated"),
    "ReleaseNode": ("node", "released"),
    "ReleaseChip": ("chip", "released"),
    "ResetChips": ("chip", "reset"),
    "PartitionChip": ("chip", "cut into other vNPUs"),
}
"""What becomes of nodes and chips, by kind of action: which of them, and the word for it."""
_Row = Sequence[str]
_T = TypeVar("_T")


def marker(key: str) -> str:
    """The first line of a comment, by which a later run finds it. ``key`` keeps several reviews apart."""
    return f"<!-- belay-review {key} -->"


def comment(review: Review, key: str = "default", *, commit: str = "", version: str = "") -> str:
    """The whole comment, at most ``LIMIT`` bytes: tables are cut before anything else is."""
    rows = ROWS
    while True:
        text = "\n".join(_lines(review, key, commit, version, rows)) + "\n"
        if len(text.encode()) <= LIMIT or rows == 0:
            return text
        rows //= 2


def summary(review: Review) -> str:
    """The review in one line."""
    parts = []
    for severity in ("error", "warning"):
        if number := review.count(severity):
            parts.append(counted(number, severity))
    if not review.planned:
        return ", ".join(parts) or "no findings"
    for number, words in (
        (review.outcomes(PLACED), "placed"),
        (review.outcomes(MOVED), "moved"),
        (review.outcomes(WAITING), "left waiting"),
        (review.outcomes(GONE), "gone"),
    ):
        if number:
            parts.append(f"{counted(number, 'job')} {words}")
    parts.extend(_ordered(review))
    if review.evicted:
        plural = "" if review.chip_hours_lost == 1 else "s"
        lost = f"{review.chip_hours_lost:g} chip-hour{plural} lost"
        parts.append(f"{counted(len(review.evicted), 'running pod')} evicted ({lost})")
    if review.pruned:
        parts.append(f"{counted(len(review.pruned), 'object')} pruned")
    return ", ".join(parts) or "no job, node or chip changes"


def _ordered(review: Review) -> Iterator[str]:
    """What becomes of nodes and chips, a kind each, and of how many only later."""
    for kind, (noun, words) in HARDWARE.items():
        changes = [one for one in review.hardware if one.kind == kind]
        number, later = _size(changes, noun), _size([one for one in changes if one.held_by], noun)
        if number:
            yield f"{counted(number, noun)} {words}" + (f" ({later} held back)" if later else "")


def _size(changes: Sequence[HardwareChange], noun: str) -> int:
    """How many nodes or chips some changes are of."""
    return len(changes) if noun == "node" else sum(len(one.chips) for one in changes)


def code(text: object) -> str:
    """Text as a code span on one line of a table. Characters that could end span or cell, or hide, are replaced."""
    shown = "".join(_letter(letter) for letter in str(text)[: LONGEST + 1]).strip()
    if len(shown) > LONGEST:
        shown = shown[: LONGEST - 1] + "…"
    return f"`{shown}`" if shown else ""


def _letter(letter: str) -> str:
    if letter in "\n\r\t":
        return " "
    if letter == "`":
        return "'"
    if letter == "|":
        return "│"
    if letter == "\\":
        return "⧵"
    # control, format (right-to-left marks, zero width), surrogate, private and unassigned characters
    return "�" if unicodedata.category(letter).startswith("C") else letter


def _lines(review: Review, key: str, commit: str, version: str, rows: int) -> Iterator[str]:
    yield marker(key)
    yield f"### Belay: {summary(review)}"
    yield ""
    yield from _header(review, commit, version)
    yield from _findings(review, rows)
    for title, words in (("Placed", (PLACED, MOVED)), ("Waiting", (WAITING,)), ("Gone", (GONE,))):
        jobs = [one for one in review.jobs if one.after is not None and one.after.outcome in words]
        yield from _jobs(title, jobs, rows)
    yield from _table(
        "No longer planned",
        ("job", "without the change"),
        [one for one in review.jobs if one.after is None],
        lambda one: (_name(one), _was(one.before)),
        rows,
    )
    yield from _hardware(review, rows)
    yield from _evicted(review, rows)
    yield from _pruned(review, rows)
    yield from _unchanged(review)


def _header(review: Review, commit: str, version: str) -> Iterator[str]:
    """What was compared, and the notes."""
    said = (
        f"commit {code(commit[:12])}" if commit else "",
        f"against {code(review.against)}" if review.against else "",
        f"cluster as of {review.now}" if review.now else "",
        f"Belay {version}" if version else "",
    )
    if any(said):
        yield f"<sub>{' · '.join(word for word in said if word)}</sub>"
        yield ""
    for note in review.notes:
        yield f"- {code(note)}"
    if review.notes:
        yield ""


def _findings(review: Review, rows: int) -> Iterator[str]:
    yield from _table(
        "Findings",
        ("", "where", "field", "what"),
        review.findings,
        lambda one: (
            f"{_SEVERITIES.get(one.severity, 'info')}{' (new)' if one.new else ''}",
            code(one.place),
            code(one.field),
            code(one.message),
        ),
        rows,
        folded=not review.count("error"),
        more="belay validate",
    )
    if review.fixed:
        yield f"{counted(review.fixed, 'finding')} of before {'is' if review.fixed == 1 else 'are'} mended."
        yield ""


def _hardware(review: Review, rows: int) -> Iterator[str]:
    yield from _table(
        "Nodes and chips",
        ("node or chips", "what", "when", "why"),
        review.hardware,
        lambda one: (
            code(where(one)),
            HARDWARE[one.kind][1],
            _held_back(one.held_by, one.until) if one.held_by else "at once",
            code(f"{one.reason}: {one.message}"),
        ),
        rows,
    )


def where(one: HardwareChange) -> str:
    """The node of a change, or the chips: ``node-1/Ascend910-2,3``."""
    return f"{one.node}/{ranges(', '.join(one.chips))}" if one.chips else one.node


def _held_back(budget: str, until: str | None) -> str:
    return f"held back by {code(budget)} until {code(until or 'a person decides')}"


def _evicted(review: Review, rows: int) -> Iterator[str]:
    yield from _table(
        f"Evicted: {review.chip_hours_lost:g} chip-hours lost",
        ("pod", "job", "on", "chips", "after", "why", "chip-hours lost"),
        review.evicted,
        lambda one: (
            code(f"{one.namespace}/{one.pod}"),
            code(one.job),
            code(one.node),
            str(one.chips),
            f"{one.after:g} s",
            code(f"{one.reason}: {one.message}"),
            f"{one.chip_hours_lost:g}",
        ),
        rows,
    )


def _pruned(review: Review, rows: int) -> Iterator[str]:
    yield from _table(
        "Pruned",
        ("object", "when"),
        review.pruned,
        lambda one: (
            code("/".join(filter(None, (one.kind, one.namespace, one.name)))),
            f"after {one.after:g} s" if one.after is not None else _held_back(one.held_by, one.until),
        ),
        rows,
    )


def _unchanged(review: Review) -> Iterator[str]:
    """What is the same with and without the change, as numbers."""
    rest = [f"{counted(number, noun)} {words}" for number, noun, words in (
        (review.unchanged, "job", "as without the change"),
        (review.evicted_anyway, "pod", "evicted without it too"),
        (review.pruned_anyway, "object", "pruned without it too"),
        (review.deferred, "action", "held back by a budget"),
    ) if number]  # fmt: skip
    if rest:
        yield f"<sub>{', '.join(rest)}</sub>"


def _jobs(title: str, jobs: Sequence[JobChange], rows: int) -> Iterator[str]:
    waits = title == "Waiting"
    yield from _table(
        title,
        ("job", "why", "way out", "without the change") if waits else ("job", "on", "after", "without the change"),
        jobs,
        lambda one: (_name(one), *_end(one.after, waits), _was(one.before)),
        rows,
    )


def _end(job: JobOutcome | None, waits: bool) -> _Row:
    if job is None:
        return "", ""
    if waits:
        return code(f"{job.reason}: {job.message}"), code(job.unblock or "")
    return _places(job), "" if job.after is None else f"{job.after:g} s"


def _was(job: JobOutcome | None) -> str:
    if job is None:
        return ""
    if job.outcome == WAITING:
        return f"waiting: {code(job.reason)}"
    return f"{job.outcome} {_places(job)}".strip()


def _places(job: JobOutcome) -> str:
    shown = [f"{node}/{ranges(', '.join(chips))}" if chips else node for node, chips in job.nodes.items()]
    more = f" and {len(shown) - _PLACES} more" if len(shown) > _PLACES else ""
    return ", ".join(code(one) for one in shown[:_PLACES]) + more


def _name(job: JobChange) -> str:
    return code(f"{job.kind} {job.namespace}/{job.name}")


def _table(
    title: str,
    columns: _Row,
    items: Sequence[_T],
    row: Callable[[_T], _Row],
    rows: int,
    *,
    folded: bool = True,
    more: str = "belay plan",
) -> Iterator[str]:
    """A table below its title, folded; nothing where there is no row."""
    if not items:
        return
    yield f"<details{'' if folded else ' open'}><summary><b>{title}</b> ({len(items)})</summary>"
    yield ""
    if rows:
        yield f"| {' | '.join(columns)} |"
        yield "|" + "---|" * len(columns)
        for item in items[:rows]:
            yield f"| {' | '.join(row(item))} |"
        yield ""
    if len(items) > rows:
        yield f"… and {len(items) - rows} more: `{more}` lists them."
        yield ""
    yield "</details>"
    yield ""
