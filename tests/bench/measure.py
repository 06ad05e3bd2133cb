"""Five runs, their median and spread, and the table they end in."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RUNS = 5
BUSY = 0.1
"""Share of the processors in other work above which a section's times say little."""
LOOK = 1.0
"""Seconds in which other work is looked at."""
RESULTS = Path(__file__).with_name("RESULTS.md")
ROOT = Path(__file__).resolve().parents[2]
_HEAD = """\
# Benchmarks

`make bench` measures everything and rewrites this file; `python -m tests.bench SECTION…` renews single sections.
Each row is the median of five runs with their spread, unless it says otherwise; ✓ means that the goal was reached in
that measurement. Times are wall time on the machine named; "beside it" is a naive baseline from the same run, or what
was measured.
"""


class Skipped(Exception):
    """A section cannot run here; the reason is shown and its last table is kept."""


@dataclass
class Result:
    """One row: what was measured in which unit, the goal as a most (or a least), the runs, and a remark (peer or
    baseline).

    ``percentile`` other than 50 makes the headline that percentile (nearest rank) of all runs instead of their median.
    """

    work: str
    unit: str
    limit: float | None = None
    runs: list[float] = field(default_factory=list)
    remark: str = ""
    percentile: float = 50
    at_least: bool = False

    @property
    def value(self) -> float:
        """The headline number."""
        return statistics.median(self.runs) if self.percentile == 50 else nearest(self.runs, self.percentile)

    @property
    def reached(self) -> bool:
        """Whether the goal was reached; true where there is none."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def row(self) -> str:
        """The row of the table."""
        sign = "≥" if self.at_least else "≤"
        goal = "" if self.limit is None else f"{sign} {self.limit:,g} {self.unit} {'✓' if self.reached else '✗ missed'}"
        return f"| {self.work} | {goal} | **{number(self.value)} {self.unit}** | {self.spread} | {self.remark} |"

    def line(self) -> str:
        """The row for a terminal."""
        sign = "≥" if self.at_least else "≤"
        goal = "" if self.limit is None else f", goal {sign} {self.limit:,g}{'' if self.reached else ': MISSED'}"
        return f"{self.work}: {number(self.value)} {self.unit} ({self.spread}{goal}) {self.remark}".rstrip()

    @property
    def spread(self) -> str:
        """The least and the most."""
        low, high = number(min(self.runs)), number(max(self.runs))
        return low if low == high else f"{low}–{high}"


def number(value: float) -> str:
    """Three significant digits, thousands set apart."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def nearest(samples: Sequence[float], percentile: float) -> float:
    """A percentile by nearest rank."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(percentile / 100 * len(ordered)) - 1)]


def timed(
    work: str,
    limit: float | None,
    run: Callable[[], object],
    *,
    unit: str = "ms",
    remark: str = "",
    runs: int = RUNS,
    before: Callable[[], object] | None = None,
) -> Result:
    """Wall time of ``run``, five times, in ms or s; ``before`` prepares each run and is not timed."""
    factor = 1000 if unit == "ms" else 1
    result = Result(work, unit, limit, remark=remark)
    for _ in range(runs):
        if before is not None:
            before()
        begin = time.perf_counter()
        run()
        result.runs.append((time.perf_counter() - begin) * factor)
    return result


def others() -> float:
    """The share of the processors that is in use while this process waits: what else the machine does. The load average
    would still count what ended a minute ago."""
    before = _ticks()
    time.sleep(LOOK)
    busy, whole = (after - one for after, one in zip(_ticks(), before, strict=True))
    return busy / max(1, whole)


def _ticks() -> tuple[int, int]:
    """Busy and all clock ticks of all processors (proc_stat(5))."""
    fields = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    # idle and waiting for disks
    return sum(fields) - fields[3] - fields[4], sum(fields)


def setting(other: float) -> str:
    """Commit and machine of a section, beside which other work took this share of the processors."""
    text = f"other work took {other:.0%} of the processors before or after"
    if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        text += ", at a lower priority: the measurement ran in a real-time class (`chrt -r 1`)"
    elif other > BUSY:
        text += " - measured beside it, so times are no results and are to be measured again"
    return f"Measured at commit {_commit()} on {_machine()}; {text}."


def write(heading: str, texts: Sequence[str], results: Sequence[Result], order: Sequence[str]) -> None:
    """Renew one section of RESULTS.md: paragraphs and a table; the others are kept, in the given order of headings,
    and those that soaks wrote by hand after them.
    """
    kept = _sections(RESULTS.read_text()) if RESULTS.exists() else {}
    table = ["| work | goal | measured | spread | beside it |", "|---|---|---|---|---|"]
    paragraphs = [part for text in texts if text for part in (text, "")]
    kept[heading] = "\n".join([*paragraphs, *table, *(result.row() for result in results)])
    known = [name for name in order if name in kept] + [name for name in kept if name not in order]
    RESULTS.write_text(_HEAD + "".join(f"\n## {name}\n\n{kept[name].strip()}\n" for name in known))


def _sections(text: str) -> dict[str, str]:
    parts = text.split("\n## ")[1:]
    return {part.split("\n", 1)[0].strip(): part.split("\n", 1)[1] for part in parts}


def _commit() -> str:
    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    changed = [line for line in git("status", "--porcelain", "-uno").splitlines() if RESULTS.name not in line]
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")


def _machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}"
