"""Five runs, their median and spread, and the table they end in."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

RUNS = 5
RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass
class Result:
    """One row: what was measured in which unit, the goal, the runs, and a remark (peer or baseline)."""

    work: str
    unit: str
    goal: str
    runs: list[float] = field(default_factory=list)
    remark: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def row(self) -> str:
        spread = f"{min(self.runs):.4g}–{max(self.runs):.4g}"
        return f"| {self.work} | {self.goal} | **{self.median:.4g} {self.unit}** | {spread} | {self.remark} |"


def timed(
    work: str, goal: str, run: Callable[[], object], *, unit: str = "ms", remark: str = "", runs: int = RUNS
) -> Result:
    """Wall time of ``run``, five times, in ms or s."""
    factor = 1000 if unit == "ms" else 1
    result = Result(work, unit, goal, remark=remark)
    for _ in range(runs):
        begin = time.perf_counter()
        run()
        result.runs.append((time.perf_counter() - begin) * factor)
    return result


def write(sections: dict[str, list[Result]]) -> None:
    """RESULTS.md: machine, commit, one table per section; sections not measured this time are kept."""
    kept = _sections(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, results in sections.items():
        kept[name] = "\n".join(
            [
                f"Measured at commit {_commit()} on {_machine()}.",
                "",
                "| work | goal | median | spread | beside it |",
                "|---|---|---|---|---|",
                *(result.row() for result in results),
            ]
        )
    head = "# Benchmarks\n\n`make bench` measures and rewrites this file: five runs each, median and spread.\n"
    RESULTS.write_text(head + "".join(f"\n## {name}\n\n{body.strip()}\n" for name, body in kept.items()))


def _sections(text: str) -> dict[str, str]:
    parts = text.split("\n## ")[1:]
    return {part.split("\n", 1)[0].strip(): part.split("\n", 1)[1] for part in parts}


def _commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


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
