"""Whole simulations (``tests/sim``) for ``make soak``, in processes of their own: there time is virtual from the start.

Every fifth chunk is a sweep: quiet histories in which each process that passes one point dies there, point after point.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 8
SWEEP_EVERY = 5


def chunk(first: int, count: int) -> tuple[int, list[str]]:
    """Run ``count`` histories; returns how many points they passed, and what failed with the command to repeat it."""
    sweep = (first // CHUNK) % SWEEP_EVERY == SWEEP_EVERY - 1
    # odd strides of many sizes: sweep after sweep meets other points, and in the end all of them
    arguments = [str(first), str(count), *(["--sweep", str(997 + 2 * (first % 499))] if sweep else [])]
    command = [sys.executable, "-m", "tests.sim", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    again = f"python -m tests.sim {' '.join(arguments)}"
    failures = [
        f"simulated seed {row['seed']} point {row['point']}: {row['failed'][:300]} ({again})"
        for row in rows
        if "failed" in row
    ]
    if not rows:
        failures.append(f"simulated seed {first}: {done.stderr.strip()[-500:]} ({again})")
    return sum(int(row.get("steps", 0)) for row in rows), failures
