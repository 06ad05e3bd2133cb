"""Training: what Belay costs a job in which nothing happens, and what is lost with an agent or a whole host.

Overhead: two ranks (DDP, AdamW, 16 ms of computing that nothing shortens, about 20 ms a step) on two cores, without
Belay under torchrun and protected under `belay train`, by turns; each run is the median of 400 steps. Agent: four ranks
with steps of 20 ms; a rank is killed, or its node agent and 0.3 s later the rank, by turns. Host: one of two hosts of
one rank is killed whole under `--nodes 1:2 --shrink-after 1`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.measure import Result
from tests.bench.training_recovery import scratch
from tests.ports import free_port
from tests.training.launched import ROOT, SCRIPTS, Job, agent_of, descendants, signalled

RANKS, STEPS = 4, 400
ALTERNATIONS, KILLS, HOSTS = 6, 10, 5
LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--nproc-per-node", "2", "0"),
    "belay train": ("belay.engine.cli", "train", "--nproc", "2", "1"),
}
"""Module, options, and whether the script is protected."""


def run() -> list[Result]:
    """All three."""
    with scratch() as folder:
        return [*_overhead(), *_agent(folder / "agent"), *_host()]


def _overhead() -> list[Result]:
    """Steps under both launchers, and what one costs more than the other."""
    found = {name: Result(f"a step of two ranks on two cores, {name}", "ms") for name in LAUNCHERS}
    for turn in range(ALTERNATIONS):
        for name in sorted(LAUNCHERS, reverse=bool(turn % 2)):
            found[name].runs.append(_step(name))
    without, with_it = (statistics.median(found[name].runs) for name in LAUNCHERS)
    more = Result("the same, Belay's part", "%", 1, [(with_it - without) / without * 100], "of the medians")
    return [*found.values(), more]


def _step(launcher: str) -> float:
    """Milliseconds, median of a run."""
    module, *options, protected = LAUNCHERS[launcher]
    ended = subprocess.run(
        [sys.executable, "-m", module, *options, str(SCRIPTS / "paced.py"), str(STEPS), protected],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        # of its own: the kernel shares processors among sessions, and this one may run other things
        start_new_session=True,
    )
    line = next(line for line in ended.stdout.splitlines() if "median" in line)
    return float(line.split()[-1]) * 1000


def _agent(folder: Path) -> list[Result]:
    """Both kinds of fault in one job."""
    alone = Result("SIGKILL of one of 4 → next step of all", "ms")
    after = Result("the same 0.3 s after SIGKILL of its node agent", "ms", 300)
    job = Job(folder, "ddp.py", 1_000_000, 0.02, 32, options=("--nproc", str(RANKS)))
    try:
        job.reached(20, RANKS)
        for turn in range(2 * KILLS):
            # agent, spare, warm process and standby are there
            job.until(lambda: len(descendants(job.process.pid)) == RANKS + 4)
            time.sleep(2)
            if turn % 2:
                signalled(agent_of(job))
                time.sleep(0.3)
            took = job.next_step_of_all(job.kill(1 + turn % (RANKS - 1)), RANKS) * 1000
            (after if turn % 2 else alone).runs.append(took)
    finally:
        job.close()
    return [alone, after]


def _host() -> list[Result]:
    """One host of two is lost, again and again."""
    decided = Result("a host is lost → decision to go on without it, after 1 s as asked", "s")
    smaller = Result("that decision → next step of the smaller job", "ms", 1000)
    for _ in range(HOSTS):
        with tempfile.TemporaryDirectory() as folder:
            port = free_port()
            first, second = (_launched(Path(folder), number, port) for number in (0, 1))
            try:
                first.reached(20, 2)
                lost = time.monotonic()
                for pid in [second.process.pid, *descendants(second.process.pid)]:
                    signalled(pid)
                first.until(lambda at=first: "goes on with 1 of 2 nodes" in at.errors())
                at = time.monotonic()
                smaller.runs.append(first.next_step_of_all(at, 2) * 1000)
                decided.runs.append(at - lost)
            finally:
                first.close()
                second.close()
    return [decided, smaller]


def _launched(folder: Path, number: int, port: int) -> Job:
    """One of two hosts."""
    where = ("--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", str(port))
    options = ("--nproc", "1", "--nodes", "1:2", "--shrink-after", "1", *where)
    return Job(folder, "users/shares.py", 1_000_000, 0.02, "ddp", options=options)
