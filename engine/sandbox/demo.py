"""`belay demo`: the main job, step by step, on the embedded default. It ends by itself and leaves nothing behind."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from engine.errors import BelayError
from engine.sandbox import depot
from engine.sandbox.demo_steps import Steps
from engine.sandbox.up import Options, Sandbox, Stopped

TIME_SCALE: Final = 0.05
"""Idle, reset, report and grace times take a twentieth: a reset one second instead of twenty."""
_START_FROM: Final = ("pools", "faults", "budget.yaml", "isolations.yaml")
"""What of the sample is in the repository before the first push: the cluster, and no jobs."""
_WIDTH: Final = 72

Say = Callable[[str], None]


def main(nodes: int = 8) -> int:
    """Run the demo. Exit code 0 when every step happened, 1 when one did not, 130 after Ctrl-C."""
    asked: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return play(lambda line: print(line, flush=True), nodes=nodes, stopping=lambda: bool(asked))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def play(
    say: Say,
    *,
    nodes: int = 8,
    stopping: Callable[[], bool] = lambda: False,
    cluster: str | None = None,
    definitions: bool = True,
) -> int:
    """Run the demo and tell it line by line; ``cluster`` and ``definitions`` as in `Options`. Returns the exit code.

    Without definitions the job is a Deployment of two replicas instead of an AscendJob.
    """
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="belay-demo-"))
    options = Options(
        nodes=nodes,
        data=str(folder / "data"),
        state=str(_first_state(folder)),
        time_scale=TIME_SCALE,
        server=False,
        cluster=cluster,
        definitions=definitions,
    )
    say(f"Belay: {nodes} Atlas 800T A2 servers and one with 310P cards, simulated; waiting times at {TIME_SCALE:.0%}")
    sandbox = Sandbox(options, lambda line: say(f"      {line.strip()}"), stopping)
    code = 0
    try:
        steps = Steps(sandbox, folder)
        for number, (title, step) in enumerate(_script(sandbox, steps), start=1):
            _show(say, number, title, step)
    except BelayError as error:
        # Ctrl-C reaches the tools that a step runs, too: their failure is then no failure of the step
        code = 130 if isinstance(error, Stopped) or stopping() else 1
        say("ended on request" if code == 130 else f"      did not happen: {error}")
        for child in sandbox.crew.children if code == 1 else ():
            say(f"      {child.name}: {child.last_words(300)}")
    finally:
        sandbox.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if code == 0:
        say(f"\nEverything happened, in {time.monotonic() - began:.0f} s. Nothing is left behind. Next: make up")
    return code


def _script(sandbox: Sandbox, steps: Steps) -> list[tuple[str, Callable[[], list[str]]]]:
    def come_up() -> list[str]:
        sandbox.start()
        return steps.cluster()

    return [
        ("a cluster of simulated nodes comes up", come_up),
        ("a job is pushed with git push, placed, and runs", steps.job),
        ("a fault policy is pushed and takes effect", steps.policy),
        ("a chip of the job breaks: it is isolated, the job moves", steps.fault),
        ("the idle chip is reset and comes back", steps.reset),
        ("a vNPU layout is pushed and the chip is partitioned", steps.layout),
        ("a bad document is refused by line, everything goes on", steps.refusal),
        ("the status is in ConfigMaps that everybody can read", steps.status),
    ]


def _show(say: Say, number: int, title: str, step: Callable[[], list[str]]) -> None:
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
        source = depot.sample() / part
        if source.is_dir():
            shutil.copytree(source, target / part)
        elif source.is_file():
            shutil.copy(source, target / part)
    return state
