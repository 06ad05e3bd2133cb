"""Training: from a fault to the next step of all ranks.

Four gloo ranks of a small model (DDP, AdamW, step of 20 ms) under `belay train`; times run from the signal to the
moment at which the last rank has finished the first step after it. torchrun runs the same script in the same
measurement, unprotected. After each job all ranks must have had the same weights after the same step, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from tests.bench import measure
from tests.bench.measure import Result
from tests.training.launched import SCRIPTS, Job, agent_of, descendants

RANKS = 4
STEP = 0.02
KILLS = 40
OTHERS = 10
REST = 1.5
"""Seconds until the spare is back before the next fault."""
MEANWHILE = 0.5
"""Seconds between the death of a helper and the next fault."""
LIMIT = 15.0
"""Seconds that torchrun gets."""


def run() -> list[Result]:
    """A kill, forty times."""
    with scratch() as folder:
        one = Result("SIGKILL of one of 4 → next step of all", "ms", 80, remark=_torchrun(folder / "torchrun"))
        replaced = Result("survivors whose process changed", "", 0)
        job = _job(folder / "faults")
        try:
            for number in range(KILLS):
                before = {rank: job.pid(rank) for rank in range(RANKS)}
                one.runs.append(_once(job, lambda job, n: job.kill(n % RANKS), number))
                changed = [rank for rank, pid in before.items() if job.pid(rank) != pid and rank != number % RANKS]
                replaced.runs.append(len(changed))
            lost = _lost(job)
        finally:
            job.close()
        worst = Result("the same, worst", "ms", 1000, list(one.runs), percentile=100)
        return [one, worst, replaced, lost]


def run_cases() -> list[Result]:
    """Other faults, ten times each."""
    cases: list[tuple[Result, Callable[[Job, int], float]]] = [
        (Result("rank 0", "ms", 300), lambda job, _: job.kill(0)),
        (Result("two of four at once", "ms", 300), lambda job, n: job.kill(n % 4, (n + 1) % 4)),
        (Result("three of four at once", "ms", 300), lambda job, n: job.kill(n % 4, (n + 1) % 4, (n + 2) % 4)),
        (Result("a second death 60 ms after the first (from the second)", "ms", 300), _cascade),
        (Result("SIGSTOP", "ms", 1000), lambda job, n: job.kill(n % 4, number=signal.SIGSTOP)),
    ]
    bare = Result("no spare kept: SIGKILL of one of 4", "ms", 300)
    with scratch() as folder:
        job = _job(folder / "faults")
        try:
            for result, hurt in cases:
                for number in range(OTHERS):
                    result.runs.append(_once(job, hurt, number))
            lost = _lost(job)
        finally:
            job.close()
        job = _job(folder / "bare", "--spares", "0")
        try:
            for number in range(OTHERS):
                bare.runs.append(_once(job, lambda job, n: job.kill(n % RANKS), number))
        finally:
            job.close()
    return [*(result for result, _ in cases), bare, lost]


def run_helpers() -> list[Result]:
    """Processes that only help are killed; then a rank."""
    found = []
    with scratch() as folder:
        job = _job(folder / "helpers")
        try:
            for who, helpers in (
                ("spare", _spare),
                ("warm process and its stand-by", _warm),
                ("node agent, which runs the coordinator", lambda job: [agent_of(job)]),
            ):
                apart = Result(f"{who} killed: longest time between two steps of a rank", "ms")
                then = Result(f"... then one of 4, {MEANWHILE:g} s after it → next step of all", "ms")
                for number in range(measure.RUNS):
                    at = time.monotonic()
                    for pid in helpers(job):
                        os.kill(pid, signal.SIGKILL)
                    time.sleep(MEANWHILE)
                    apart.runs.append(_longest(job, at) * 1000)
                    then.runs.append(_once(job, lambda job, n: job.kill(n % RANKS), number))
                    # helpers are whole again before the next run
                    job.until(lambda: _spare(job) and len(_warm(job)) == 2)
                found += [apart, then]
            return [*found, _lost(job)]
        finally:
            job.close()


def _spare(job: Job) -> list[int]:
    """The processes that wait for a rank: they have a listening thread."""
    return [pid for pid in _held(job) if _threads(pid) > 1]


def _warm(job: Job) -> list[int]:
    """The processes that fork others, which have one thread."""
    return [pid for pid in _held(job) if _threads(pid) == 1]


def _threads(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def _longest(job: Job, at: float) -> float:
    """The longest time between two steps of a rank that ended after ``at``."""
    return max(
        after.at - before.at for rank in range(RANKS) for before, after in pairwise(job.steps(rank)) if after.at > at
    )


def _lost(job: Job) -> Result:
    """Steps that a process did twice. Fails when ranks had other weights after the same step."""
    weights: dict[int, set[str]] = {}
    result = Result("steps that were done again, in all of these", "", 0)
    twice = 0
    for rank in range(RANKS):
        seen: set[tuple[int, int]] = set()
        for one in job.steps(rank):
            weights.setdefault(one.step, set()).add(one.digest)
            twice += (one.pid, one.step) in seen
            seen.add((one.pid, one.step))
    wrong = [step for step, found in weights.items() if len(found) > 1]
    assert not wrong, f"ranks differ after steps {wrong[:20]}"
    result.runs.append(twice)
    result.remark = f"of {len(weights):,} steps; weights equal on all ranks"
    return result


def run_state() -> list[Result]:
    """A large state, and what a job costs while nothing fails."""
    with scratch() as folder:
        return [_large(folder), _spares(folder), *_overhead(), _end(folder)]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for jobs. Raises ``Skipped`` without PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise measure.Skipped("PyTorch is not installed: make venv-training") from None
    with tempfile.TemporaryDirectory(prefix="belay-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _job(folder: Path, *options: str) -> Job:
    job = Job(folder, "ddp.py", 10**6, STEP, 32, options=("--nproc", str(RANKS), *options))
    job.reached(5, RANKS, 120)
    return job


def _once(job: Job, hurt: Callable[[Job, int], float], number: int) -> float:
    """Milliseconds of one recovery; the spare is back before the next one."""
    at = hurt(job, number)
    took = job.next_step_of_all(at, RANKS) * 1000
    time.sleep(REST)
    return took


def _cascade(job: Job, number: int) -> float:
    job.kill(number % RANKS)
    time.sleep(0.06)
    return job.kill((number + 1) % RANKS)


def _torchrun(folder: Path) -> str:
    """How the same script does under torchrun as it is shipped."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--max-restarts", "5"]
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [*command, "--monitor-interval", "0.1", str(SCRIPTS / "ddp.py"), str(folder), "1000000", str(STEP), "32"],
            stdout=errors,
            stderr=errors,
            process_group=0,
        )
        reader = Job.reader(folder)
        try:
            _until(lambda: all(len(reader.steps(rank)) > 5 for rank in range(RANKS)), 120)
            at = time.monotonic()
            os.kill(reader.steps(1)[-1].pid, signal.SIGKILL)
            old = {rank: reader.steps(rank)[-1].pid for rank in range(RANKS)}
            back = _until(lambda: all(reader.steps(rank)[-1].pid != old[rank] for rank in range(RANKS)), LIMIT)
            if not back:
                return f"torchrun --max-restarts 5: no step within {LIMIT:g} s"
            took = max(
                next(one.at for one in reader.steps(rank) if one.at > at and one.pid != old[rank])
                for rank in range(RANKS)
            )
            return f"torchrun --max-restarts 5, from step 0: {took - at:.1f} s"
        finally:
            # its workers have sessions of their own
            for pid in [process.pid, *descendants(process.pid)]:
                os.kill(pid, signal.SIGKILL)
            process.wait()


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _large(folder: Path) -> Result:
    """2 × 2986² + … parameters: 71 MB of weights, 143 MB of AdamW's."""
    result = Result("state of 214 MB, one of 4 killed → next step of all", "ms", 1500)
    job = Job(folder / "large", "ddp.py", 10**6, STEP, 4190, options=("--nproc", str(RANKS)))
    try:
        job.reached(3, RANKS, 180)
        for number in range(measure.RUNS):
            result.runs.append(_once(job, lambda job, n: job.kill(n % RANKS), number))
            job.reached(job.steps(0)[-1].step + 2, RANKS, 120)
        steps = [after.at - before.at for before, after in pairwise(job.steps(0))]
        result.remark = f"a step takes {statistics.median(steps) * 1000:.0f} ms alone"
    finally:
        job.close()
    return result


def _spares(folder: Path) -> Result:
    """Memory of the processes that hold PyTorch for the next fault: their own pages, and their part of shared ones."""
    result = Result("memory of warm processes and spares, for each of 4 ranks", "MiB", 200)
    job = _job(folder / "spares")
    try:
        for _ in range(measure.RUNS):
            time.sleep(REST)
            held = _held(job)
            result.runs.append(sum(map(_memory, held)) / RANKS)
            result.remark = f"{len(held)} processes"
    finally:
        job.close()
    return result


def _held(job: Job) -> list[int]:
    """The warm processes and the spares."""
    ranks = {job.pid(rank) for rank in range(RANKS)}
    return [pid for pid in descendants(job.process.pid) if pid not in ranks and _forks(pid)]


def _forks(pid: int) -> bool:
    """Whether a process is the warm one or was forked from it."""
    with contextlib.suppress(OSError):
        return b"belay.agents.training.train.agent.warm" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _memory(pid: int) -> float:
    """Proportional set size in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _end(folder: Path) -> Result:
    """From the last step of the last rank until the launcher has left."""
    result = Result("end of training → every process has left with 0", "s", 2)
    for number in range(measure.RUNS):
        job = Job(folder / f"end-{number}", "ddp.py", 20, STEP, 32, options=("--nproc", str(RANKS)))
        try:
            job.reached(19, RANKS, 120)
            last = max(job.steps(rank)[-1].at for rank in range(RANKS))
            code = job.end(60)
            assert code == 0, job.errors()
            result.runs.append(time.monotonic() - last)
        finally:
            job.close()
    return result


def _overhead() -> list[Result]:
    """What the contract costs when nothing fails: the same loop with and without it, in one rank each, by turns."""
    result = Result("overhead of the contract in a step of 20 ms", "%", 1)
    script = SCRIPTS / "overhead.py"
    for _ in range(measure.RUNS):
        ended = subprocess.run(
            [sys.executable, "-m", "belay.engine.cli", "train", "--nproc", "1", "--spares", "0", str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        with_it, without = map(float, ended.stdout.split())
        result.runs.append(max(0.0, (with_it - without) / without * 100))
    return [result]
