"""Thousands of recoveries of one job: ``python -m tests.training.recoveries [COUNT] [FOLDER MINUTES]``.

Ranks 1 and 2 of three are killed again and again; rank 0, the node agent and the supervisor live through all of it. No
step may be lost, every step must have the weights of an undisturbed run, and none of the three may grow: memory, file
descriptors, threads and shared memory are counted. Exit code 1 otherwise.

Memory counts from the middle of a run on, when allocators have what they need. PyTorch itself keeps a little of each
group that a process has left, so a loop of plain PyTorch groups is measured beside it, and rank 0 may grow by as much.

With a folder a run ends when its minutes are over, and the same command goes on with it, from the job's checkpoint.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.training.launched import SCRIPTS, Job, Step, agent_of, signalled

RANKS, PAUSE, WIDTH, EVERY = 3, 0.002, 16, 100
STEPS = 1_000_000
"""More than any run reaches: the schedule of the script depends on it."""
LIMIT = 5.0
"""Seconds that the worst recovery may take on a quiet machine."""
SETTLED = 300
"""Recoveries after which allocators have what they need; growth is counted from there on."""
FLAT = 0.5
"""KiB that the resident memory of a process may grow with each recovery, in the second half of a run: of 10,000 it
would be 2.5 MiB. Rank 0 may grow by as much more as plain PyTorch does with each group."""
SAMPLES = 40
"""Samples of memory without which nothing is said about its growth."""
LOOK = 50
"""Recoveries from one sample to the next."""
GROUPS = 1000
"""Groups of plain PyTorch."""
DESCRIPTORS, THREADS = 24, 12
"""The same for file descriptors and threads: those of generations that are being retired come and go."""
REST = 30.0
"""Seconds without a fault after which rank 0 has the threads and descriptors again that it had before the first."""
APART = 0.02
"""Seconds within which two ranks are killed one after the other: the second may die in the middle of a recovery."""


@dataclass
class Use:
    """What a process holds. Memory in KiB."""

    memory: int = 0
    descriptors: int = 0
    threads: int = 0

    @classmethod
    def of(cls, pid: int) -> Use:
        """Of a process that runs."""
        status = Path(f"/proc/{pid}/status").read_text()
        found = dict(line.split(":", 1) for line in status.splitlines())
        memory, threads = int(found["VmRSS"].split()[0]), int(found["Threads"])
        return cls(memory, len(os.listdir(f"/proc/{pid}/fd")), threads)


@dataclass
class Account:
    """What a run, or several slices of one, has seen."""

    recoveries: int = 0
    took: list[float] = field(default_factory=list)
    """Seconds of each recovery."""
    plain: float = 0.0
    """KiB that a group leaves behind in a process of plain PyTorch."""
    steps: int = 0
    replaced: int = 0
    """How often rank 0 was ended and replaced."""
    first: dict[str, Use] = field(default_factory=dict)
    last: dict[str, Use] = field(default_factory=dict)
    memory: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Process → recoveries, KiB, since it is watched."""
    wrong: list[str] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """Seconds of the longest recovery."""
        return max(self.took, default=0.0)

    def look(self, held: dict[str, Use]) -> None:
        """Note what processes hold."""
        self.last = held
        for name, use in held.items():
            self.memory.setdefault(name, []).append((self.recoveries, use.memory))

    def grown(self) -> Iterator[str]:
        """What has grown since memory was settled."""
        for name, first in self.first.items():
            last = self.last[name]
            for kind, limit in (("descriptors", DESCRIPTORS), ("threads", THREADS)):
                before, after = getattr(first, kind), getattr(last, kind)
                if after - before > limit:
                    yield f"{name}: {kind} grew from {before} to {after}"
        for name, each in self.growth().items():
            limit = FLAT + (self.plain if name == "rank 0" else 0.0)
            if each > limit:
                yield f"{name}: memory grew by {each:.2f} KiB with each recovery, {limit:.2f} KiB at most were expected"

    def growth(self) -> dict[str, float]:
        """KiB with which each process grew in a recovery of the second half."""
        return {name: grown_by(samples) for name, samples in self.memory.items() if len(samples) >= SAMPLES}

    def line(self) -> str:
        """As JSON."""
        held = {name: asdict(use) for name, use in self.last.items()}
        began = {name: asdict(use) for name, use in self.first.items()}
        return json.dumps(
            {
                "recoveries": self.recoveries,
                "median_ms": round(statistics.median(self.took or [0.0]) * 1000, 1),
                "mean_ms": round(statistics.fmean(self.took or [0.0]) * 1000, 1),
                "worst_s": round(self.worst, 3),
                "kib_a_recovery": {name: round(each, 2) for name, each in self.growth().items()},
                "kib_a_group_of_plain_pytorch": round(self.plain, 2),
                "steps": self.steps,
                "rank_0_replaced": self.replaced,
                "settled": began,
                "last": held,
                "wrong": self.wrong,
            }
        )


def grown_by(samples: Sequence[tuple[int, int]]) -> float:
    """KiB with each recovery of the second half: the middles of its two quarters are compared, so that what one moment
    holds does not count."""
    half = samples[len(samples) // 2 :]
    quarters = half[: len(half) // 2], half[len(half) // 2 :]
    (began, before), (ended, after) = (
        (statistics.fmean(at for at, _ in quarter), statistics.median(memory for _, memory in quarter))
        for quarter in quarters
    )
    return (after - before) / (ended - began)


def plain_growth(folder: Path, groups: int = GROUPS) -> float:
    """KiB that each group leaves behind in a process of plain PyTorch."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / "plain_groups.py"), str(rank), str(groups), str(folder / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    lines = [rank.communicate(timeout=3600)[0].splitlines() for rank in ranks]
    return max(grown_by([tuple(json.loads(line)) for line in of_rank]) for of_rank in lines)


def shared_memory() -> set[str]:
    """The files that torch, gloo or checkpoints leave in shared memory."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch", "gloo", "belay-checkpoint"))}


def start(folder: Path, pause: float = PAUSE) -> Job:
    """The job of a run, or of its next slice."""
    return Job(folder, "ddp.py", STEPS, pause, WIDTH, EVERY, options=("--nproc", str(RANKS), "--spares", "2"))


def hurt(folder: Path, account: Account, count: int, seconds: float, settled: int = SETTLED, look: int = LOOK) -> None:
    """Kill until there were ``count`` recoveries, or for ``seconds``; what is held is read after each ``look`` ones."""
    dice = random.Random(account.recoveries)
    memory = shared_memory()
    job = start(folder)
    try:
        begun = max((step.step for step in job.steps(0)[-1:]), default=-1)
        job.reached(begun + 2, RANKS)
        rank0, turns, end = job.pid(0), 0, time.monotonic() + seconds
        fresh, survivor = Use.of(rank0), rank0
        account.first, account.memory = {}, {}
        while account.recoveries < count and time.monotonic() < end and not account.wrong:
            time.sleep(dice.random() * 0.01)
            victims = dice.choice([(1,), (2,), (1,), (2,), (1, 2)])
            at = time.monotonic()
            apart = dice.choice([0, APART]) * dice.random()
            for rank in victims:
                signalled(job.pid(rank))
                time.sleep(apart)
            took = job.next_step_of_all(at, RANKS, 60)
            account.took.append(took)
            account.recoveries, turns = account.recoveries + 1, turns + 1
            if job.pid(0) != rank0:
                # a busy machine: it was not freed in time, and what is held is counted from here on
                account.wrong += account.grown()
                account.replaced, rank0, turns = account.replaced + 1, job.pid(0), 0
                account.first, account.memory = {}, {}
            if turns and turns % look == 0:
                held = {"rank 0": rank0, "agent": agent_of(job), "supervisor": job.process.pid}
                account.look({name: Use.of(pid) for name, pid in held.items()})
                if turns >= settled and not account.first:
                    account.first = account.last
                sys.stdout.write(account.line() + "\n")
                sys.stdout.flush()
        account.wrong += account.grown()
        if survivor == job.pid(0):
            account.wrong += at_rest(survivor, fresh)
        account.steps = min(job.steps(rank)[-1].step for rank in range(RANKS)) + 1
    except (AssertionError, OSError) as error:
        account.wrong.append(str(error))
    finally:
        job.close()
    account.wrong += [f"shared memory was left: {name}" for name in shared_memory() - memory]


def at_rest(rank0: int, fresh: Use) -> Iterator[str]:
    """What rank 0 still holds of its recoveries when there has been none for some time."""
    end = time.monotonic() + REST
    while True:
        now = Use.of(rank0)
        more = now.threads - fresh.threads, now.descriptors - fresh.descriptors
        if max(more) <= 0:
            return
        if time.monotonic() > end:
            yield f"{REST:g} s after the last recovery rank 0 has {more[0]} threads and {more[1]} descriptors too many"
            return
        time.sleep(0.1)


def different(folder: Path, steps: int, undisturbed: Path) -> list[str]:
    """Steps that a rank has not done, or not as in a run that nothing disturbs."""
    job = start(undisturbed, 0.0)
    try:
        job.reached(steps, RANKS, 120 + steps / 20)
        expected = [_last(job.steps(rank)) for rank in range(RANKS)]
    finally:
        job.close()
    hurt_job = Job.reader(folder)
    found = []
    for rank in range(RANKS):
        seen = _last(hurt_job.steps(rank))
        wrong = [step for step, value in seen.items() if step < steps and value != expected[rank][step]]
        if wrong:
            found.append(f"rank {rank} differs from step {min(wrong)} on ({len(wrong)} steps)")
        # one that is interrupted between its update and its line has done the step, unseen; later weights show it
        if steps - 1 not in seen:
            found.append(f"rank {rank} has not reached step {steps - 1}")
    return found


def _last(steps: list[Step]) -> dict[int, tuple[str, str]]:
    """Step → loss and weights of the last time that it was done."""
    return {one.step: (one.loss, one.digest) for one in steps}


def load(file: Path) -> Account:
    """The account of earlier slices."""
    if not file.exists():
        return Account()
    found = json.loads(file.read_text())
    return Account(found["recoveries"], found["took"], found["plain"], replaced=found["rank_0_replaced"])


def main(arguments: list[str]) -> int:
    """Hurt a job; 1 when something is wrong."""
    count = int(arguments[0]) if arguments else 10_000
    named = Path(arguments[1]) if len(arguments) > 1 else None
    minutes = float(arguments[2]) if len(arguments) > 2 else 1e6
    with tempfile.TemporaryDirectory() as scratch:
        folder = named or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        account = load(folder / "account")
        if count >= SAMPLES * LOOK and not account.plain:
            account.plain = plain_growth(folder / "plain")
        hurt(folder / "hurt", account, count, minutes * 60)
        over = account.recoveries >= count
        if over and not account.wrong:
            account.wrong += different(folder / "hurt", account.steps, folder / "undisturbed")
        kept = {
            "recoveries": account.recoveries,
            "took": account.took,
            "plain": account.plain,
            "rank_0_replaced": account.replaced,
        }
        (folder / "account").write_text(json.dumps(kept))
    if account.worst > LIMIT:
        sys.stdout.write(f"the worst recovery took {account.worst:.1f} s; {LIMIT:g} s are wanted on a quiet machine\n")
    sys.stdout.write(account.line() + ("\n" if over or account.wrong else "\ngo on with the same command\n"))
    return bool(account.wrong)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
