"""`belay demo`: the main job, step by step, on the embedded default. It ends without input and removes its files."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from belay.engine.errors import BelayError
from belay.engine.sandbox import git_repository
from belay.engine.sandbox.demo_steps import DemoSteps
from belay.engine.sandbox.terminal import StopSignals
from belay.engine.sandbox.up import Sandbox, SandboxOptions, StartInterrupted

TIME_SCALE: Final = 0.05
"""Idle, reset, report and grace times take a twentieth: a reset one second instead of twenty."""
_START_FROM: Final = ("pools", "faults", "budget.yaml", "isolations.yaml")
"""Files of the sample that are in the repository before the first push: the cluster without jobs."""
_WIDTH: Final = 72

Print = Callable[[str], None]


def main(nodes: int = 8) -> int:
    """Run the demo. Exit code 0 if every step succeeded, 1 if one failed, 130 after Ctrl-C."""
    with StopSignals() as ending:
        return play(ending.say, nodes=nodes, stopping=lambda: ending.asked)


def play(
    say: Print,
    *,
    nodes: int = 8,
    stopping: Callable[[], bool] = lambda: False,
    cluster: str | None = None,
    definitions: bool = True,
) -> int:
    """Run the demo and print its steps; ``cluster`` and ``definitions`` as in `SandboxOptions`. Returns the exit code.

    Without definitions the job is a Deployment of two replicas instead of an AscendJob.
    """
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="belay-demo-"))
    # an API server without custom resources has no AscendJob
    training = definitions and importlib.util.find_spec("torch") is not None
    options = SandboxOptions(
        nodes=nodes,
        data=str(folder / "data"),
        state=str(_first_state(folder)),
        time_scale=TIME_SCALE,
        training=training,
        cluster=cluster,
        definitions=definitions,
    )
    say(f"Belay: {nodes} Atlas 800T A2 servers and one with 310P cards, simulated; waiting times at {TIME_SCALE:.0%}")
    sandbox = Sandbox(options, lambda line: say(f"      {line.strip()}"), stopping)
    code = 0
    try:
        steps = DemoSteps(sandbox, folder)
        for number, (title, step) in enumerate(_script(sandbox, steps), start=1):
            _show(say, number, title, step)
    except BelayError as error:
        # Ctrl-C also ends the tools that a step runs; their failure is then not the step's
        code = 130 if isinstance(error, StartInterrupted) or stopping() else 1
        say("ended on request" if code == 130 else f"      did not happen: {error}")
        for child in sandbox.processes.children if code == 1 else ():
            say(f"      {child.name}: {child.log_end(300)}")
    finally:
        sandbox.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if code == 0:
        if not training and definitions:
            say("\nPyTorch is not installed; after make venv-training the demo also trains through faults.")
        say(f"\nEverything happened, in {time.monotonic() - began:.0f} s. Nothing is left behind. Next: make up")
    return code


def _script(sandbox: Sandbox, steps: DemoSteps) -> list[tuple[str, Callable[[], list[str]]]]:
    def come_up() -> list[str]:
        sandbox.start()
        return [*steps.cluster(), f"console: {sandbox.server_url}/console/ (until the demo ends)"]

    script = [
        ("a cluster of simulated nodes comes up", come_up),
        ("a job is pushed with git push, placed, and runs", steps.job),
        ("a fault policy is pushed and takes effect", steps.policy),
        ("a chip of the job breaks: it is isolated, the job moves", steps.fault),
        ("the idle chip is reset and comes back", steps.reset),
        ("a vNPU layout is pushed and the chip is partitioned", steps.layout),
        ("a bad document is refused by line, everything goes on", steps.refusal),
        ("the status is in ConfigMaps that everybody can read", steps.status),
    ]
    if sandbox.options.training:
        script.append(("real training: a rank is killed, a chip breaks, the loss is the same", steps.training))
    return script


def _show(say: Print, number: int, title: str, step: Callable[[], list[str]]) -> None:
    say(f"\n  {number}. {title}")
    started = time.monotonic()
    for line in step():
        say(f"      {line}")
    say(f"  {'─' * (_WIDTH - 12)} {time.monotonic() - started:5.1f} s ✓")


def _first_state(folder: Path) -> Path:
    """The sample cluster without its jobs."""
    state = folder / "first"
    target = state / "desired"
    target.mkdir(parents=True)
    for part in _START_FROM:
        source = git_repository.sample() / part
        if source.is_dir():
            shutil.copytree(source, target / part)
        elif source.is_file():
            shutil.copy(source, target / part)
    return state
