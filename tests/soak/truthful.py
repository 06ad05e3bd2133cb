"""Histories of ``tests/sim/truth.py`` for ``make soak``: every ``True`` that is shown is held against the world."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 10


def chunk(first: int, count: int) -> tuple[int, list[str]]:
    """Run ``count`` histories; returns how many cases they held, and what failed with the command to repeat it."""
    command = [sys.executable, "-m", "tests.sim", str(first), str(count), "--truth"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failures = [
        f"truth seed {row['seed']}: {row['failed'][:300]} (python -m tests.sim {row['seed']} --truth)"
        for row in rows
        if "failed" in row
    ]
    if len(rows) < count:
        failures.append(f"truth seed {first + len(rows)}: {done.stderr.strip()[-500:]}")
    return sum(int(row.get("cases", 0)) for row in rows), failures
