"""Scripts as users write them × points at which ranks die: each run ends bit-equal to an undisturbed one, or is refused
in words.

One job of a script is hurt again and again: its points are drawn over the length of a step, so that they fall into
forward pass, backward pass, update and what lies between.

`python -m tests.training.user_scripts --kills 200 --seed 1 [NAME…]`; `make soak-scripts`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from belay.agents.training.checkpoint import sets
from tests.training.launched import Job, agent_of, history, signalled
from tests.training.script_matrix import CHECKPOINTS, SCRIPTS, UserScript

SPACE, LAST = 4, 20
"""Steps for each fault, and steps at the end, so that none falls after training."""

LONG = 0.05
"""Seconds of a step while a job is hurt: a rank sleeps in shorter ones, so that the witness sees each of them."""

KINDS = ("kill", "kill", "kill", "two", "again", "stop", "agent")
"""What happens at a point. ``two``: two ranks at once; ``again``: a second one while the first is repaired."""

STARTS, STEP = 240.0, 2.0
"""Seconds that a job may take to begin and, on a busy machine, for each step."""

History = dict[tuple[int, int], tuple[str, str]]


def steps_of(kills: int) -> int:
    """Steps of a run with so many faults."""
    return SPACE * kills + (LAST if kills else 8)


def ended(job: Job, steps: int) -> int:
    """The exit code of a job of so many steps. One that does not end fails."""
    seconds = STARTS + STEP * steps
    try:
        return job.end(seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"has not ended within {seconds:g} s\n{job.errors()}") from None


@dataclass(frozen=True)
class Undisturbed:
    """What each rank sees when nothing happens, and how long a step takes then."""

    steps: History
    seconds: float

    @classmethod
    def of(cls, script: UserScript, folder: Path, steps: int) -> Undisturbed:
        """Of a run."""
        job = script.start(folder, steps, 0.0)
        try:
            code = ended(job, steps)
            assert code == 0, f"ended with {code} undisturbed\n{job.errors()}"
            lines = job.steps(0)
            return cls(history(job, script.ranks), (lines[-1].at - lines[0].at) / len(lines))
        finally:
            job.close()


@dataclass
class Outcome:
    """What became of a script."""

    wrong: str = ""
    """Empty when nothing is."""
    repairs: int = 0
    """Generations that went on after a fault."""
    took: list[float] = field(default_factory=list)
    """Seconds from each fault to the next step of all."""

    def line(self) -> str:
        """For people."""
        if not self.took:
            return self.wrong or "right"
        median, worst = statistics.median(self.took), max(self.took)
        figures = f"{len(self.took)} faults, {self.repairs} repairs, median {median:.3f} s, worst {worst:.3f} s"
        return f"{self.wrong or 'right'}, {figures}"


def table(rows: dict[str, list[Outcome]]) -> Iterator[str]:
    """The table of RESULTS.md: what became of the scripts that were hurt, all runs of each together."""
    yield "| script | faults | repairs | wrong | next step of all, median | worst |"
    yield "|---|---|---|---|---|---|"
    for name, runs in rows.items():
        took = sorted(itertools.chain.from_iterable(run.took for run in runs))
        if not took:
            continue
        repairs, wrong = sum(run.repairs for run in runs), sum(bool(run.wrong) for run in runs)
        times = f"{statistics.median(took):.2f} s | {took[-1]:.2f} s"
        yield f"| {name} | {len(took)} | {repairs} | {wrong} | {times} |"


class Harm:
    """Faults of one job, drawn from ``dice``."""

    def __init__(self, script: UserScript, job: Job, dice: random.Random, step: float) -> None:
        """``step``: seconds of a step."""
        self._script, self._job, self._dice, self._step = script, job, dice, step
        self.told: list[str] = []
        """What was done."""

    def next(self) -> float:
        """Do something at a point in one of the next steps; seconds from its end until all ranks have finished another
        step."""
        script, job, dice = self._script, self._job, self._dice
        kind, delay = dice.choice(KINDS), dice.random() * self._step
        ranks, point = self._victims(kind), self.done() + dice.randrange(SPACE - 1)
        job.reached(point - 1, script.ranks, STARTS)
        if script.every:
            # what has no copy is lost before the first one is saved
            job.until(lambda: any(one.complete for one in sets.scan(job.folder / CHECKPOINTS)), STARTS)
        time.sleep(delay)

        self.told.append(f"step {point} + {delay:.3f} s: {kind} {ranks}")
        if kind == "agent":
            signalled(agent_of(job))
            time.sleep(dice.random() * 0.5)
        for rank in ranks:
            time.sleep(dice.random() * 0.3 if kind == "again" and rank != ranks[0] else 0.0)
            signalled(job.pid(rank), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        # from the last of them on: the next fault may hit the only copy of what this one took
        return job.next_step_of_all(time.monotonic(), script.ranks, STARTS)

    def done(self) -> int:
        """Steps that a rank has finished."""
        return max(
            (lines[-1].step for rank in range(self._script.ranks) if (lines := self._job.steps(rank))), default=0
        )

    def _victims(self, kind: str) -> tuple[int, ...]:
        if kind in ("two", "again") and self._script.together:
            pair = self._dice.choice(self._script.together)
            return self._dice.choice([pair, pair[::-1]])
        return (self._dice.choice([rank for rank in range(self._script.ranks) if rank not in self._script.spared]),)


def refusal(script: UserScript, folder: Path) -> str:
    """Run a script that cannot be protected; an empty text when it was refused as it should be."""
    job = script.start(folder, steps_of(1), 0.0)
    try:
        code = ended(job, 0)
        if code != script.code or script.refused not in " ".join(job.everything().split()):
            return f"ended with {code}, not {script.code} and {script.refused!r}\n{job.errors()}"
        return ""
    finally:
        job.close()


def hurt(script: UserScript, folder: Path, dice: random.Random, kills: int, undisturbed: Undisturbed) -> Outcome:
    """Kill ranks at random points; every step must be that of the undisturbed run."""
    steps, outcome = steps_of(kills), Outcome()
    pause = max(0.01, LONG - undisturbed.seconds)
    job = script.start(folder, steps, pause)
    harm = Harm(script, job, dice, undisturbed.seconds + pause)
    try:
        while len(outcome.took) < kills and harm.done() < steps - LAST:
            try:
                outcome.took.append(harm.next())
            except AssertionError:
                # a job that came to its end meanwhile is judged by its steps
                if job.process.poll() != 0:
                    raise
                break
        code = ended(job, steps)
        outcome.wrong = "\n".join(differences(script, job, code, steps, undisturbed.steps))
    except AssertionError as error:
        outcome.wrong = str(error)
    finally:
        outcome.repairs = len(job.recoveries())
        job.close()

    if outcome.wrong:
        outcome.wrong = f"{'; '.join(harm.told[-20:])}\n{outcome.wrong}"
    return outcome


def differences(script: UserScript, job: Job, code: int, steps: int, expected: History) -> Iterator[str]:
    """What a run that has ended did otherwise than an undisturbed one."""
    seen, errors = history(job, script.ranks), job.errors()
    if code:
        yield f"ended with {code}\n{errors}"
        return

    # a rank that ends between its update and its line has done the step: it counts, unseen
    different = sorted(key for key in seen if seen[key] != expected[key])
    different += [(rank, steps - 1) for rank in range(script.ranks) if (rank, steps - 1) not in seen]
    if script.quiet and "generation" in errors:
        yield f"a healthy rank was taken for a hang\n{errors}"
    if different:
        yield f"differs from (rank, step) {different[:4]} on\n{errors}"


def judged(name: str, script: UserScript, seed: int, kills: int, folder: Path) -> Outcome:
    """What becomes of a script."""
    if script.refused:
        return Outcome(refusal(script, folder / "refused"))
    if script.quiet:
        kills = 0
    undisturbed = Undisturbed.of(script, folder / "undisturbed", steps_of(kills))
    return hurt(script, folder / "hurt", random.Random(f"{name} {seed}"), kills, undisturbed)


def main() -> int:
    """Run some or all scripts; 1 when one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--kills", type=int, default=3, help="faults in each run")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each script; 0: without end")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    rows: dict[str, list[Outcome]] = {}
    rounds = range(options.rounds) if options.rounds else itertools.count()
    for turn, name in itertools.product(rounds, options.names or SCRIPTS):
        if missing := SCRIPTS[name].missing():
            sys.stdout.write(f"{name}: not run, {missing} is not installed (make venv-training venv-frameworks)\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            try:
                outcome = judged(name, SCRIPTS[name], options.seed + turn, options.kills, Path(folder))
            except AssertionError as error:
                outcome = Outcome(str(error))
            sys.stdout.write(
                f"{name} seed {options.seed + turn}: {outcome.line()} ({time.monotonic() - began:.0f} s)\n"
            )
            sys.stdout.flush()
            rows.setdefault(name, []).append(outcome)
    wrong = sum(bool(run.wrong) for runs in rows.values() for run in runs)
    sys.stdout.write("\n".join(table(rows)) + f"\n{wrong} wrong\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
