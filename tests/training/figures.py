"""Figures that only a quiet machine gives: ``python -m tests.training.figures overhead|agent|smaller [ROUNDS]``.

``overhead``: a step of 18 ms in two ranks, torchrun without Belay against belay train, by turns. ``agent``: from the
death of a rank, 0.3 s after that of its node agent, to the next step of all; beside it the same without the agent's.
``smaller``: from the loss of a host, and from the decision to go on without it, to the next step.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.ports import free_port
from tests.training.launched import ROOT, SCRIPTS, Job, agent_of, descendants, signalled

RANKS, STEPS = 4, 400


def overhead(rounds: int) -> None:
    """Medians of a step under both launchers."""
    launchers = {
        "torchrun": ("torch.distributed.run", "--nproc-per-node", "2", "0"),
        "belay train": ("engine.cli", "train", "--nproc", "2", "1"),
    }
    found: dict[str, list[float]] = {name: [] for name in launchers}
    for turn in range(rounds):
        for name, (module, *options, protected) in sorted(launchers.items(), reverse=bool(turn % 2)):
            command = [sys.executable, "-m", module, *options, str(SCRIPTS / "paced.py"), str(STEPS), protected]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            # a session of its own: the kernel shares processors among sessions, and this shell may run other things
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
                start_new_session=True,
            )
            line = next(line for line in ended.stdout.splitlines() if "median" in line)
            found[name].append(float(line.split()[-1]) * 1000)
            _say(f"{name}: {found[name][-1]:.3f} ms a step")
    without, with_it = (statistics.median(found[name]) for name in launchers)
    _say(f"torchrun {without:.3f} ms, belay train {with_it:.3f} ms: {(with_it - without) / without * 100:+.2f} %")


def agent(rounds: int) -> None:
    """Both kinds of fault, by turns, in one job."""
    took: dict[str, list[float]] = {"rank killed": [], "rank killed 0.3 s after its agent": []}
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), "ddp.py", 1_000_000, 0.02, 32, options=("--nproc", str(RANKS)))
        try:
            job.reached(20, RANKS)
            for turn in range(2 * rounds):
                # spare, warm process and standby are there
                job.until(lambda: len(descendants(job.process.pid)) == RANKS + 4)
                time.sleep(2)
                kind = list(took)[turn % 2]
                if turn % 2:
                    signalled(agent_of(job))
                    time.sleep(0.3)
                took[kind].append(job.next_step_of_all(job.kill(1 + turn % (RANKS - 1)), RANKS) * 1000)
        finally:
            job.close()
    for kind, values in took.items():
        _say(f"{kind}: median {statistics.median(values):.0f} ms, worst {max(values):.0f} ms of {len(values)}")


def smaller(rounds: int) -> None:
    """One host of two is lost, again and again."""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            jobs = [_host(Path(folder), number, port) for port in [free_port()] for number in (0, 1)]
            first, second = jobs
            try:
                first.reached(20, 2)
                lost = time.monotonic()
                for pid in [second.process.pid, *descendants(second.process.pid)]:
                    signalled(pid)
                first.until(lambda at=first: "goes on with 1 of 2 nodes" in at.errors())
                decided = time.monotonic()
                took = first.next_step_of_all(decided, 2)
                _say(f"decided after {decided - lost:.2f} s (1 s is asked for), next step {took * 1000:.0f} ms later")
            finally:
                for job in jobs:
                    job.close()


def _host(folder: Path, number: int, port: int) -> Job:
    where = ("--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", str(port))
    options = ("--nproc", "1", "--nodes", "1:2", "--shrink-after", "1", *where)
    return Job(folder, "users/shares.py", 1_000_000, 0.02, "ddp", options=options)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


FIGURES: dict[str, Callable[[int], None]] = {"overhead": overhead, "agent": agent, "smaller": smaller}


if __name__ == "__main__":
    FIGURES[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 6)
