"""``make soak``: many random histories against the invariants.

Eleven kinds: ``simulated`` (controllers, workers and agents down to every call: ``tests/sim``), ``stuck`` (one server,
whatever is lost: never stuck), ``cluster`` (a small cluster with jobs), ``crowd`` (1,000 jobs with 8 clients each
while gRPC servers are killed), ``ways-out`` (a waiting job is placed once its way out is followed), ``edits`` (every
small mistake in every sample: ``tests/edits``), ``truth`` (random faults × random revisions, every ``True`` that a
reader is shown held against the world: ``tests/sim/truth.py``, five cases each), ``forecasts`` (a cluster and a
change: what `belay plan` foretells against what happens, ``tests/forecast_cases.py``), ``migrations`` (faults at
each step of docs/migrating.md, ``tests/migration_world.py``), ``round-trips`` (every edit at every place of the YAML
Test Suite and of files as GitOps repositories hold them: ``tests/round_trips``) and ``verdicts`` (random pods on random
nodes, judged by a real kube-scheduler and by Belay: ``tests/scheduler_verdicts.py``). Reads SEED (first seed of all,
default: where the last run stopped), SIMULATED (how many of the first kind, default 400, some 10,000 steps each),
STUCK (of the second, default 100,000), HISTORIES (of the third, default 10,000), CROWD (of the fourth, default 1),
WAYS_OUT (of the fifth, default 10,000), EDITS (of the sixth, default: each once), TRUTH (histories of five cases,
default 2,000), FORECASTS (default 10,000), MIGRATIONS (default 1,000), ROUND_TRIPS (default: each once), VERDICTS
(worlds of 24 pods, default 420; none without $KUBEBUILDER_ASSETS) and MINUTES (default 55, for all) from the
environment; two processes, or PROCESSES; STEPS ends the simulated histories after so many points at which a process may
die (``make crash-steps``: 1,000,000 and nothing else). Prints progress; a failing seed is printed and runs alone with
SEED and one of the eleven 1, the others 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

from tests import forecast_cases, migration_world, scheduler_verdicts, track_record, waiting_worlds
from tests.round_trips import histories as round_trips
from tests.soak import crowd, edits, histories, simulated, stuck, truthful

STATE = Path(__file__).with_name(".progress.json")
#: kind → one history, how many at a time, the variable that says how many, its default
KINDS: dict[str, tuple[Callable[[int], object] | None, int, str, str]] = {
    "simulated": (None, simulated.CHUNK, "SIMULATED", "400"),
    "stuck": (stuck.history, 250, "STUCK", "100000"),
    "cluster": (histories.history, 25, "HISTORIES", "10000"),
    "crowd": (crowd.history, 1, "CROWD", "1"),
    "ways-out": (waiting_worlds.history, 250, "WAYS_OUT", "10000"),
    "edits": (None, edits.CHUNK, "EDITS", "all"),
    "truth": (None, truthful.CHUNK, "TRUTH", "2000"),
    "forecasts": (forecast_cases.case, 25, "FORECASTS", "10000"),
    "migrations": (migration_world.history, 25, "MIGRATIONS", "1000"),
    "round-trips": (round_trips.case, 50, "ROUND_TRIPS", "all"),
    "verdicts": (None, scheduler_verdicts.CHUNK, "VERDICTS", "420" if "KUBEBUILDER_ASSETS" in os.environ else "0"),
}
#: How many there are of the kinds that are made each once.
EACH_ONCE = {"edits": edits.count, "round-trips": round_trips.count}
COUNTED = {"simulated": "steps", "truth": "cases", "edits": "refused", "verdicts": "cases"}
#: The kinds whose histories run in processes of their own.
APART = {"simulated": simulated, "truth": truthful, "edits": edits, "verdicts": scheduler_verdicts}


def chunk(kind: str, first: int, count: int) -> tuple[int, int, list[str]]:
    """Run ``count`` histories; returns how many steps they had (0: not counted), how many it ran, what failed."""
    if kind in COUNTED:
        steps, failures = APART[kind].chunk(first, count)
        return steps, count, failures
    failures, run = [], KINDS[kind][0]
    assert run is not None
    for seed in range(first, first + count):
        try:
            run(seed)
        except Exception as error:
            failures.append(f"{kind} seed {seed}: {type(error).__name__}: {str(error)[:300]}")
    return 0, count, failures


def main() -> int:
    state, until, failed = _state(), time.monotonic() + 60 * float(os.environ.get("MINUTES", "55")), 0
    for kind, (_, size, variable, default) in KINDS.items():
        first = int(os.environ.get("SEED") or state.get(kind, 0))
        wanted = os.environ.get(variable, default)
        total = EACH_ONCE[kind]() if wanted == "all" else int(wanted)
        if total:
            enough = float(os.environ.get("STEPS", "inf")) if kind == "simulated" else float("inf")
            done, failures, steps = _run(kind, first, total, size, until, enough)
            failed += failures
            STATE.write_text(json.dumps({**_state(), kind: first + done}))  # others may run other kinds meanwhile
            track_record.count(kind, steps if kind == "truth" else done, failures)
            if steps >= enough:
                print(f"{steps:,} steps in {done} histories, {failures} of them failed")
            elif done < total:
                print(f"time is up; the next run resumes the {kind} histories at seed {first + done}")
    return 1 if failed else 0


def _run(kind: str, first: int, total: int, size: int, until: float, enough: float) -> tuple[int, int, int]:
    todo = iter([(at, min(size, first + total - at)) for at in range(first, first + total, size)])
    print(f"{kind} histories {first} to {first + total - 1}", flush=True)
    done, failures, steps, begin, shown = 0, 0, 0, time.monotonic(), 0.0
    workers = int(os.environ.get("PROCESSES") or min(2, os.cpu_count() or 1))
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(chunk, kind, *one) for one in _some(todo, workers * 2)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                passed, count, failed = future.result()
                for line in failed:
                    print(line, flush=True)
                done, failures, steps = done + count, failures + len(failed), steps + passed
            if time.monotonic() < until and steps < enough:
                running |= {pool.submit(chunk, kind, *one) for one in _some(todo, len(finished))}
            if time.monotonic() - shown > 10 or not running:
                shown = time.monotonic()
                said = f", {steps} {COUNTED[kind]}" if steps else ""
                print(f"{done}/{total} {kind} histories{said}, {failures} failed, {shown - begin:.0f} s", flush=True)
    return done, failures, steps


def _some(todo: Iterator[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    return list(islice(todo, count))


def _state() -> dict[str, int]:
    try:
        body = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}
    return {kind: int(body[kind]) for kind in KINDS if isinstance(body, dict) and kind in body}


if __name__ == "__main__":
    sys.exit(main())
