"""Slow ranks and slow parallel groups in synthetic jobs (tests/training_fleet.py): found, wrongly found, missed.

A trial injects one slowness of 5 % into a job; that rank or group is right, everything else that is found is wrong. The
noise of steps is lognormal with a deviation of 3 %, chips differ by 0.4 %, beside garbage collection, checkpoints of
three steps' length and common slowdowns of up to 35 %.
"""

from __future__ import annotations

import random
import time

from belay.engine.model.step_times import Slowness, SlownessSettings
from belay.engine.slowness.detector import SlownessDetector
from tests.bench.measure import Result
from tests.training_fleet import STEP_US, Injected, Layout, nodes, windows

STEPS, BEGIN = 600, 200
TRIALS = {Layout(8, 1, 8): 25, Layout(8, 2, 8): 20, Layout(4, 4, 16): 10, Layout(8, 4, 32): 3}
KINDS = (Slowness.COMPUTATION, Slowness.DATA_LOADING, Slowness.COMMUNICATION)
SHARE = 0.05
QUIET = Layout(8, 1, 8)
QUIET_STEPS = 100_000


def trial(layout: Layout, kind: Slowness, seed: int, steps: int = STEPS) -> tuple[int, int, int, int]:
    """Right, wrong and missed findings of one job, and the steps from the injection to the finding (0 if missed)."""
    rng = random.Random(seed)
    if kind is Slowness.COMMUNICATION:
        groups = layout.groups()
        stages = {"tp": layout.pp, "dp": layout.pp, "pp": 1}
        # fewer than three groups alike have no peers
        group = rng.choice(sorted(name for name in groups if len(groups[name]) >= 3 * stages[name]))
        index = rng.randrange(len(groups[group]))
        injected = Injected(BEGIN, steps, transfer={(group, index): round(SHARE * STEP_US)})
        wanted = (kind, group, groups[group][index])
    else:
        rank = rng.randrange(layout.ranks)
        work, more = {rank: 1 + SHARE}, {rank: round(SHARE * STEP_US)}
        slow = {"work": work} if kind is Slowness.COMPUTATION else {"data": more}
        injected = Injected(BEGIN, steps, **slow)
        wanted = (kind, "", (rank,))
    detector, where, found = SlownessDetector(), nodes(layout), {}
    for rows in windows(layout, steps, seed, injected):
        detector.add(rows, where, layout.ranks)
        for one in detector.findings:
            found.setdefault((one.kind, one.group, one.ranks), (detector.judged + 1) * 50 - BEGIN)
    right = int(wanted in found)
    return right, len(found) - right, 1 - right, found.get(wanted, 0)


def false_alarms(layout: Layout, steps: int, seed: int) -> int:
    """Findings in a job where nothing is wrong."""
    detector, where, found = SlownessDetector(SlownessSettings()), nodes(layout), set()
    for rows in windows(layout, steps, seed):
        detector.add(rows, where, layout.ranks)
        found |= {one.key for one in detector.findings}
    return len(found)


def run() -> list[Result]:
    """The rows of RESULTS.md."""
    results = []
    for kind in KINDS:
        right = wrong = missed = count = 0
        delays = []
        for layout, trials in TRIALS.items():
            for seed in range(trials):
                hit, bad, lost, delay = trial(layout, kind, 1000 * count + seed)
                right, wrong, missed, count = right + hit, wrong + bad, missed + lost, count + 1
                if hit:
                    delays.append(float(delay))
        remark = f"{count} jobs of {min(one.ranks for one in TRIALS)} to {max(one.ranks for one in TRIALS)} ranks"
        name = f"5 % slower {kind}"
        results += [
            Result(f"{name}: recall", "", 0.98, [right / max(1, right + missed)], remark, at_least=True),
            Result(f"{name}: precision", "", 0.98, [right / max(1, right + wrong)], remark, at_least=True),
            Result(f"{name}: steps until it is found", "steps", 300, delays, "windows of 50 steps, three in a row"),
        ]
    alarms = false_alarms(QUIET, QUIET_STEPS, 7)
    results.append(
        Result(f"False alarms in {QUIET_STEPS:,} steps of noise", "", 0, [float(alarms)], f"{QUIET.ranks} ranks")
    )
    large = Layout(8, 8, 64)
    rows = next(windows(large, 50, 1))
    costs = []
    for _ in range(5):
        begin = time.perf_counter()
        SlownessDetector().add(rows, nodes(large), large.ranks)
        costs.append((time.perf_counter() - begin) * 1000)
    results.append(Result(f"Judging one window of {large.ranks:,} ranks", "ms", 1000, costs))
    return results
