"""Histories of the simulator in which any process may die at any point where it touches the outside.

Real controllers, workers and agents run on a virtual clock against the sandbox's API server; calls are refused, lost or
late, messages doubled, clocks jump, bindings arrive after their senders have given up. A history fails when a chip has
two owners, a chip in use is reset, an epoch runs twice, a gang is placed in part, or when something is still missing an
hour after the last fault. ``STEPS`` (1,000,000) points at least, from ``SEED`` on; ``make crash-steps`` does the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from tests.bench.measure import ROOT, Result, Skipped

STEPS = "1000000"
_SAID = re.compile(r"([\d,]+) steps in (\d+) histories, (\d+) of them failed")


def run() -> list[Result]:
    """The section's results."""
    others = {"STUCK": "0", "HISTORIES": "0", "CROWD": "0", "EDITS": "0", "SIMULATED": "1000000"}
    environment = {"STEPS": STEPS, "MINUTES": "240", **os.environ, **others}
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.soak"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found = _SAID.search(done.stdout)
    if found is None:
        raise Skipped(f"the run did not end: {done.stdout[-300:]}{done.stderr[-300:]}")
    steps, histories, failed = (int(text.replace(",", "")) for text in found.groups())
    first = re.search(r"simulated histories (\d+) to", done.stdout)
    seeds = f"{histories:,} histories from seed {first.group(1)}" if first else f"{histories:,} histories"
    seconds = time.monotonic() - began
    return [
        Result("points at which a process may have died", "", float(STEPS), [float(steps)], seeds, at_least=True),
        Result("histories that failed", "", 0, [float(failed)], "each with the command that repeats it"),
        Result("the same, time", "s", None, [seconds], f"PROCESSES={environment.get('PROCESSES', '2')}"),
    ]
