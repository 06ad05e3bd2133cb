"""Slow and lossy parts of the network in synthetic fleets (tests/ping_fleet.py): found, wrongly found, missed.

A trial makes one part of the network 5 % slower, or lets it lose 5 % of its packets: a link, port, chip, node, mesh or
switch, of super pods of A3 and of Ascend950. That part is right, everything else that is found is wrong. Each round of
a path has lognormal noise of 3 %, paths differ by 5 %, beside congestion of single rounds and common slowdowns of up to
30 %; paths that need no packet lose 1 of 100,000.
"""

from __future__ import annotations

import random
import time

from belay.engine.model.pings import WINDOW_ROUNDS, NetworkPart, PathEnd
from belay.engine.slowness.blame import crossed
from belay.engine.slowness.network import NetworkDetector
from tests.bench.measure import Result
from tests.ping_fleet import Injected, a3, rack950, windows

WINDOWS, BEGIN = 46, 30
SHARE = 0.05
TRIALS = 1
SMALL = (a3(6, 8), rack950(4, 4, 8))
QUIET_ROUNDS = 100_000


def trial(paths: list[tuple[PathEnd, PathEnd]], part: NetworkPart, problem: str, seed: int) -> tuple[int, int, int]:
    """Right and wrong findings of one fleet, and the rounds from the injection to the finding (0 if missed)."""
    parts = sorted({one for path in paths for one in crossed(*path) if one.part is part})
    element = random.Random(seed).choice(parts)
    bad = Injected(element, BEGIN, **{problem: SHARE})
    detector, found = NetworkDetector(), {}
    for number, samples in enumerate(windows(paths, WINDOWS, seed, [bad])):
        detector.add("all", number, samples)
        detector.judge(1)
        for one in detector.findings:
            kind = one.key.split(".")[1]
            found.setdefault((kind, one.part, one.name), (number + 1 - BEGIN) * WINDOW_ROUNDS)
    wanted = (problem, element.part, element.name)
    return int(wanted in found), len(found) - int(wanted in found), found.get(wanted, 0)


def false_alarms(paths: list[tuple[PathEnd, PathEnd]], rounds: int, seed: int) -> int:
    """Findings in a fleet where nothing is wrong."""
    detector, found = NetworkDetector(), set()
    for number, samples in enumerate(windows(paths, rounds // WINDOW_ROUNDS, seed)):
        detector.add("all", number, samples)
        detector.judge(1)
        found |= {one.key for one in detector.findings}
    return len(found)


def run() -> list[Result]:
    """The rows of RESULTS.md."""
    results = []
    for problem, name in (("delay", "5 % more delay"), ("loss", "5 % of packets lost")):
        right = wrong = count = 0
        delays = []
        for paths in SMALL:
            present = {one.part for path in paths for one in crossed(*path)}
            # the only switch of the only super pod slows all paths between nodes alike: no finding of delay
            present -= {NetworkPart.SUPER_POD_SWITCH} if paths is SMALL[0] and problem == "delay" else set()
            for part in sorted(present):
                for seed in range(TRIALS):
                    hit, bad, rounds = trial(paths, part, problem, 1000 * count + seed)
                    right, wrong, count = right + hit, wrong + bad, count + 1
                    delays += [float(rounds)] if hit else []
        remark = f"{count} fleets of {' and '.join(f'{len(paths):,}' for paths in SMALL)} paths"
        results += [
            Result(f"{name}: recall", "", 0.98, [right / count], remark, at_least=True),
            Result(f"{name}: precision", "", 0.98, [right / max(1, right + wrong)], remark, at_least=True),
            Result(f"{name}: rounds until it is found", "rounds", 60, delays, "windows of 10 rounds, three judged"),
        ]
    quiet = a3(4, 4)
    alarms = false_alarms(quiet, QUIET_ROUNDS, 7)
    results.append(
        Result(f"False alarms in {QUIET_ROUNDS:,} rounds of noise", "", 0, [float(alarms)], f"{len(quiet)} paths")
    )
    large = a3(48, 16)
    samples = list(windows(large, 6, 1))
    detector, costs = NetworkDetector(), []
    for number, one in enumerate(samples):
        begin = time.perf_counter()
        detector.add("all", number, one)
        detector.judge(1)
        costs.append((time.perf_counter() - begin) * 1000)
    results.append(
        Result(f"Judging one window of {len(large):,} paths", "ms", 3000, costs[1:], "a full super pod of A3")
    )
    return results
