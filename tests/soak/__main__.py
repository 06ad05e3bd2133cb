"""``make soak``: many random histories against the invariants.

Reads SEED (first seed, default: where the last run stopped), HISTORIES (default 10,000) and MINUTES (default 55) from
the environment; two processes; prints progress; a failing seed is printed and runs alone with SEED and HISTORIES=1.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

from tests.soak.histories import history

STATE = Path(__file__).with_name(".progress.json")
CHUNK = 25


def chunk(first: int, count: int) -> tuple[int, int, list[str]]:
    """Run ``count`` histories; returns where it began, how many it ran and what failed."""
    failures = []
    for seed in range(first, first + count):
        try:
            history(seed)
        except Exception as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
    return first, count, failures


def main() -> int:
    first = int(os.environ.get("SEED") or _resume())
    total = int(os.environ.get("HISTORIES", "10000"))
    until = time.monotonic() + 60 * float(os.environ.get("MINUTES", "55"))
    todo = iter([(at, min(CHUNK, first + total - at)) for at in range(first, first + total, CHUNK)])
    print(f"histories {first} to {first + total - 1}", flush=True)
    done, failures, begin, shown = 0, 0, time.monotonic(), 0.0
    workers = min(2, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(chunk, *one) for one in _some(todo, workers * 2)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                done, failures = _count(future, done, failures)
            if time.monotonic() < until:
                running |= {pool.submit(chunk, *one) for one in _some(todo, len(finished))}
            if time.monotonic() - shown > 10 or not running:
                shown = time.monotonic()
                print(f"{done}/{total} histories, {failures} failed, {shown - begin:.0f} s", flush=True)
    STATE.write_text(json.dumps({"next": first + done}))
    if done < total:
        print(f"time is up; the next run resumes at seed {first + done}")
    return 1 if failures else 0


def _count(future: Future[tuple[int, int, list[str]]], done: int, failures: int) -> tuple[int, int]:
    _, count, failed = future.result()
    for line in failed:
        print(line, flush=True)
    return done + count, failures + len(failed)


def _some(todo: Iterator[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    return list(islice(todo, count))


def _resume() -> int:
    try:
        return int(json.loads(STATE.read_text())["next"])
    except (OSError, ValueError, KeyError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
