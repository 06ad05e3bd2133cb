"""Scripts as users write them × points at which ranks die: each run ends bit-equal to an undisturbed one, or is refused
in words.

`python -m tests.training.user_scripts --kills 20 --seed 1 [NAME…]`; `make soak-scripts`.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.training.checkpoint import sets
from tests.training.launched import Job, agent_of, history, signalled

CHECKPOINTS = "checkpoints"
"""A folder below that of the job."""

SPACE = 4
"""Steps for each fault."""


def steps_of(kills: int) -> int:
    """Steps of a run with so many faults: some at the end, so that none falls after training."""
    return SPACE * kills + 8


@dataclass(frozen=True)
class UserScript:
    """A script of ``scripts/users``, or of another ``folder``, and how it is run. ``refused``: what a run says that
    cannot be protected, with exit code ``code``; ``spared``: ranks that are not killed, because their state is
    documented to be theirs alone; ``quiet``: nothing is killed, and no rank may be taken for one that hangs."""

    file: str
    special: str = ""
    ranks: int = 2
    every: int = 0
    refused: str = ""
    code: int = 0
    spared: tuple[int, ...] = ()
    together: int = 1
    quiet: bool = False
    options: tuple[str, ...] = ()
    folder: str = "users"
    needs: str = ""
    """A package that it imports and that not every environment has."""

    def missing(self) -> str:
        """The package that this environment lacks; empty when none is missing."""
        return self.needs if self.needs and importlib.util.find_spec(self.needs) is None else ""

    def start(self, folder: Path, steps: int, pause: float) -> Job:
        """Start it in a folder of its own."""
        options = ["--nproc", str(self.ranks), *self.options]
        if self.every:
            options += ["--checkpoints", str(folder / CHECKPOINTS), "--checkpoint-every", str(self.every)]
        special = (self.special,) if self.special else ()
        return Job(folder, f"{self.folder}/{self.file}", steps, pause, *special, options=tuple(options))


def fsdp(special: str = "-", ranks: int = 4, **more: Any) -> UserScript:
    """A variant of the language model under FSDP2."""
    return UserScript("fsdp_language.py", special, ranks, **more)


def ddp(special: str, **more: Any) -> UserScript:
    """A variant of a small model under DistributedDataParallel."""
    return UserScript("ddp_variants.py", special, **more)


def framework(file: str, package: str, ranks: int = 2) -> UserScript:
    """A sample for a framework that brings its own loop or its own wrappers."""
    return UserScript(file, ranks=ranks, folder="frameworks", needs=package)


def waits(special: str, **more: Any) -> UserScript:
    """A script that waits, or fails; with a short limit. Its wait is the fault: nothing is killed."""
    return UserScript("waits.py", special, options=("--quiet-limit", "1.5"), quiet=True, **more)


SCRIPTS: dict[str, UserScript] = {
    # FSDP2, two copies of two shards
    "fsdp": fsdp(),
    "fsdp-tied": fsdp("tied"),
    "fsdp-mixed": fsdp("mixed"),
    "fsdp-offload": fsdp("offload"),
    "fsdp-activations": fsdp("activations"),
    "fsdp-kept": fsdp("kept"),
    "fsdp-accumulate": fsdp("accumulate"),
    "fsdp-flat": fsdp("flat", 2, every=3),
    # other parts of a state
    "pipeline": UserScript("parallel_parts.py", "pipeline", 4),
    "experts": UserScript("parallel_parts.py", "experts", 4),
    "tensor-parallel": UserScript("parallel_parts.py", "tensor", 4),
    "experts-unnamed": UserScript(
        "parallel_parts.py", "unnamed", 4, refused="name the parts: run.protect(…, part=", code=1
    ),
    "zero": UserScript("zero_schedule.py", every=3),
    # DDP
    "ddp": ddp("-"),
    "ddp-inside": UserScript("ddp_inside.py"),
    "ddp-tied": ddp("tied"),
    "ddp-frozen": ddp("frozen"),
    "ddp-momentum-onecycle": ddp("momentum,onecycle"),
    "ddp-rmsprop-sequence": ddp("rmsprop,sequence"),
    "ddp-nadam-plateau": ddp("nadam,plateau"),
    "ddp-adafactor": ddp("adafactor"),
    "ddp-tensor-rate": ddp("tensor-rate"),
    "ddp-accumulated": ddp("accumulated"),
    "ddp-mixed": ddp("mixed"),
    "ddp-scaled": ddp("scaled"),
    "ddp-augmented": ddp("augmented"),
    "ddp-compiled": ddp("compiled"),
    "ddp-static": ddp("static_graph"),
    "ddp-unused": ddp("find_unused_parameters"),
    "ddp-views": ddp("gradient_as_bucket_view"),
    "micro-steps": UserScript("micro_steps.py"),
    # what a forward pass changes, and data
    "statistics": UserScript("normalized.py", "shared"),
    "batch-norm": UserScript("normalized.py", "batch", spared=(0,)),
    "loader": UserScript("loaders.py", "-"),
    "loader-noise": UserScript("loaders.py", "noise"),
    "loader-helped": UserScript("loaders.py", "helped,shuffle,noise"),
    "loader-saved": UserScript("loaders.py", "shuffle,noise", every=3, together=2),
    "loader-workers": UserScript("loaders.py", "workers,noise"),
    "loader-shuffle": UserScript("loaders.py", "shuffle"),
    "loader-shuffle-workers": UserScript("loaders.py", "shuffle,workers,noise"),
    # waits and errors
    "waits-socket": waits("socket"),
    "waits-sleep": waits("sleep"),
    "waits-idle": waits("idle"),
    "waits-forever": waits("forever", refused="hangs in a row without a finished step", code=1),
    "waits-mismatch": waits("mismatch", refused="are in recv, waits.py:29", code=1),
    "own-error": waits("words", refused="RuntimeError: Interrupted: the gloo and NCCL", code=1),
    # frameworks
    "accelerate": framework("accelerate_loop.py", "accelerate"),
    "lightning": framework("lightning_trainer.py", "pytorch_lightning"),
    "megatron-core": framework("megatron_core.py", "megatron", 4),
    "transformers": framework("transformers_trainer.py", "transformers"),
    # optimizers and states
    "around": UserScript("own_optimizers.py", "around"),
    "lookahead": UserScript("own_optimizers.py", "slow"),
    "closure": UserScript("own_optimizers.py", "closure", every=3),
    "two-optimizers": UserScript("own_optimizers.py", "two"),
    "outside": UserScript(
        "own_optimizers.py", "outside", refused="parameters were changed between two updates", code=1
    ),
    "unknown-state": UserScript("own_optimizers.py", "unknown", refused="holds a builtins.object", code=1),
    "sparse-state": UserScript("own_optimizers.py", "sparse", refused="only plain (strided) tensors", code=1),
}


def undisturbed(script: UserScript, folder: Path, steps: int) -> dict[tuple[int, int], tuple[str, str]]:
    """What each rank sees when nothing happens."""
    job = script.start(folder, steps, 0.0)
    try:
        code = job.end(240)
        assert code == 0, f"ended with {code} undisturbed\n{job.errors()}"
        return history(job, script.ranks)
    finally:
        job.close()


def refusal(script: UserScript, folder: Path) -> str:
    """Run a script that cannot be protected; an empty text when it was refused as it should be."""
    job = script.start(folder, steps_of(1), 0.0)
    try:
        code = job.end(240)
        if code != script.code or script.refused not in " ".join(job.everything().split()):
            return f"ended with {code}, not {script.code} and {script.refused!r}\n{job.errors()}"
        return ""
    finally:
        job.close()


def hurt(
    script: UserScript, folder: Path, dice: random.Random, kills: int, expected: dict[tuple[int, int], tuple[str, str]]
) -> str:
    """Kill ranks at random points; an empty text when every step is that of the undisturbed run."""
    steps = steps_of(kills)
    job = script.start(folder, steps, 0.05)
    points = [1 + SPACE * turn + dice.randrange(SPACE) for turn in range(kills)]
    told: list[str] = []
    try:
        for point in points:
            candidates = [rank for rank in range(script.ranks) if rank not in script.spared]
            ranks = dice.sample(candidates, script.together)
            kind = dice.choice(["kill", "kill", "kill", "stop", "agent"])
            delay = dice.random() * 0.12
            job.reached(point - 1, script.ranks, 240)
            if script.every:
                # what has no copy is lost before the first one is saved
                job.until(lambda: any(one.complete for one in sets.scan(folder / CHECKPOINTS)), 240)
            time.sleep(delay)
            told.append(f"step {point} + {delay:.3f} s: {kind} {ranks}")
            if kind == "agent":
                signalled(agent_of(job))
                time.sleep(dice.random() * 0.5)
            number = signal.SIGSTOP if kind == "stop" else signal.SIGKILL
            at = time.monotonic()
            for rank in ranks:
                signalled(job.pid(rank), number)
            try:
                job.next_step_of_all(at, script.ranks, 240)
            except AssertionError:
                # a job that came to its end meanwhile is judged by its steps
                if job.process.poll() != 0:
                    raise
                break
        code = job.end(240)
        seen, errors = history(job, script.ranks), job.errors()
    except AssertionError as error:
        return f"{'; '.join(told)}\n{error}"
    finally:
        job.close()

    if code:
        return f"{'; '.join(told)}\nended with {code}\n{errors}"
    # a rank that ends between its update and its line has done the step: it counts, unseen
    different = sorted(key for key in seen if seen[key] != expected[key])
    different += [(rank, steps - 1) for rank in range(script.ranks) if (rank, steps - 1) not in seen]
    if script.quiet and "generation" in errors:
        return f"a healthy rank was taken for a hang\n{errors}"
    if different:
        return f"{'; '.join(told)}\ndiffers from (rank, step) {different[:4]} on\n{errors}"
    return ""


def judged(name: str, script: UserScript, seed: int, kills: int, folder: Path) -> str:
    """What is wrong with a script; empty when nothing is."""
    if script.refused:
        return refusal(script, folder / "refused")
    if script.quiet:
        kills = 0
    expected = undisturbed(script, folder / "undisturbed", steps_of(kills))
    return hurt(script, folder / "hurt", random.Random(f"{name} {seed}"), kills, expected)


def main() -> int:
    """Run some or all scripts; 1 when one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--kills", type=int, default=3, help="faults in each run")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each script; 0: without end")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    wrong = 0
    rounds = range(options.rounds) if options.rounds else itertools.count()
    for turn, name in itertools.product(rounds, options.names or SCRIPTS):
        if missing := SCRIPTS[name].missing():
            sys.stdout.write(f"{name}: not run, {missing} is not installed (make venv-training venv-frameworks)\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            try:
                text = judged(name, SCRIPTS[name], options.seed + turn, options.kills, Path(folder))
            except AssertionError as error:
                text = str(error)
            sys.stdout.write(
                f"{name} seed {options.seed + turn}: {text or 'right'} ({time.monotonic() - began:.0f} s)\n"
            )
            sys.stdout.flush()
            wrong += bool(text)
    sys.stdout.write(f"{wrong} wrong\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
