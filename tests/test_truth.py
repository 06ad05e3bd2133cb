"""What is shown is true: random faults × random revisions, each ``True`` held against the world, on virtual time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shown(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.sim", *arguments, "--truth"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.stdout, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("first", [1, 7])
def test_every_true_that_is_shown_holds_in_the_world(first: int) -> None:
    """``make soak`` takes 10,000 cases of these."""
    rows = shown(str(first), "1")
    assert not [row["failed"] for row in rows if "failed" in row]
    assert sum(row["cases"] for row in rows) == 5 and sum(row["checked"] for row in rows) > 20


LYING = """
from tests.sim import clock
clock.install()
import logging, sys
logging.disable(logging.CRITICAL)
from tests.sim.truth import history
{lie}
for seed in range(4, 12):
    try:
        history(seed)
    except AssertionError as error:
        print("found", str(error)[:300])
        break
"""
LIES = {
    "Applied by reading Git alone": (
        "import belay.engine.status.conditions as c\n"
        "c._applied = lambda read, stands: read\n"
        "c._not_ready = lambda applied, plan: None\n"
    ),
    "Ready although no pass comes": (
        "import belay.engine.model.freshness as freshness\n"
        "from belay.engine.controller.pass_monitor import PassMonitor\n"
        "from belay.engine.controller.pass_reporter import PassReporter\n"
        "async def silent(*_): pass\n"
        "freshness.is_missing = lambda last, now: False\n"
        "PassMonitor.look = PassReporter._doubt = silent\n"
    ),
}


@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lie_is_found(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LYING.format(lie=LIES[name])], cwd=ROOT, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert done.stdout.startswith("found belay-sync says") and "=True" in done.stdout, done.stdout + done.stderr[-1500:]
