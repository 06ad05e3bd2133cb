"""`make fuzz`: every harness in turn until the time is up; SECONDS= (3600), SEED=, HARNESSES= and FOLDER= are read.

The time is shared evenly. What reaches new lines is kept in FOLDER (``.fuzz``) for the next run; an input that breaks
a rule becomes a seed in ``tests/fuzz/corpus``. Ends with 1 if there was one.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from tests.fuzz import native
from tests.fuzz.harness import CORPUS
from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.supervisor import fuzz

ROUND_SECONDS = 60.0
"""Longest time at one harness before the next has its turn."""


def main() -> int:
    """Fuzz until the time is up and print a table."""
    seconds, seed = float(os.environ.get("SECONDS") or 3600), int(os.environ.get("SEED") or time.time())
    names = (os.environ.get("HARNESSES") or "").split() or [*HARNESSES, *native.TARGETS]
    folder = Path(os.environ.get("FOLDER") or ".fuzz").absolute()
    if unknown := set(names) - {*HARNESSES, *native.TARGETS}:
        print(f"unknown harnesses: {', '.join(sorted(unknown))}; known: {', '.join([*HARNESSES, *native.TARGETS])}")
        return 2
    rounds = max(1, round(seconds / len(names) / ROUND_SECONDS))
    share = seconds / len(names) / rounds
    rows: dict[str, list[float]] = {name: [0, 0, 0, 0] for name in names}
    broken: dict[str, str] = {}
    for number in range(rounds):
        for name in names:
            run = native.fuzz if name in native.TARGETS else fuzz
            done = run(name, folder, seed + number, share)
            row = rows[name]
            row[0] += done.runs
            row[1], row[2] = max(row[1], done.lines), max(row[2], done.longest)
            for where, file in done.findings.items():
                if f"{name}: {where}" not in broken:
                    row[3] += 1
                    broken[f"{name}: {where}"] = keep(name, folder / name / "findings" / file)
                    print(f"{name}: {where}: {broken[f'{name}: {where}']}", flush=True)
    print(f"{'harness':24}{'runs':>12}{'lines':>8}{'longest s':>11}{'findings':>10}")
    for name, (runs, lines, longest, findings) in rows.items():
        print(f"{name:24}{runs:12,.0f}{lines:8.0f}{longest:11.2f}{findings:10.0f}")
    print(f"{sum(row[0] for row in rows.values()):,.0f} runs, {len(broken)} findings, seed {seed}")
    return 1 if broken else 0


def keep(name: str, file: Path) -> str:
    """Copy an input to the seeds; returns its path there."""
    target = CORPUS / name / f"found-{file.stem}"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    return str(target)


if __name__ == "__main__":
    sys.exit(main())
