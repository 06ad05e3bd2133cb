"""Training recovered by `belay server`: stop, repair and resume are decided in its conversation.

Four gloo ranks of the Megatron-like model (four copies, step of 20 ms) under torchrun with the patch line, TaskD's
manager and MindIO TFT's functions, all on Belay's engine; `belay server` on the sandbox's API server. Each run kills
one rank (SIGKILL) and ends when all four have finished a step that they began after it. Strategy recover-in-place; the
hook of torchrun starts the new process from its warm one. The time to import PyTorch is measured beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

from tests.bench import measure
from tests.bench.measure import Result
from tests.grpc_world import World, play
from tests.training.taskd_world import ROOT, Job
from tests.training.test_taskd_server import TFT

RANKS = 4
KILLS = 40
LIMIT = 60.0
WARM = 25.0
"""Seconds until the hook has made its warm process."""
REST = 1.5
"""Seconds of training between two kills."""


class Story:
    """What the ranks wrote: last process and steps of each."""

    def __init__(self, file: Path) -> None:
        self._file: TextIO = file.open()
        self._half = ""
        self.steps: dict[int, list[tuple[float, int]]] = {rank: [] for rank in range(RANKS)}
        self.pids: dict[int, int] = {}

    def read(self) -> None:
        """Take in what is new."""
        *lines, self._half = (self._half + self._file.read()).split("\n")
        for line in lines:
            found: dict[str, Any] = json.loads(line)
            if found["what"] == "step":
                self.steps[found["rank"]].append((found["t"], found["step"]))
                self.pids[found["rank"]] = found["pid"]

    def end(self) -> None:
        """End the ranks: those that come from the warm process outlive a launcher that is killed."""
        self.read()
        self._file.close()
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def after(self, at: float) -> float | None:
        """When the last rank had finished its first step beyond those that were done at ``at``; None: not yet."""
        done = max((step for rows in self.steps.values() for t, step in rows if t <= at), default=0)
        firsts = [next((t for t, step in rows if t > at and step > done), None) for rows in self.steps.values()]
        known = [t for t in firsts if t is not None]
        return max(known) if len(known) == len(firsts) else None


def run(kills: int = KILLS) -> list[Result]:
    """All rows."""
    try:
        import torch.distributed as dist
    except ImportError:
        raise measure.Skipped("PyTorch is not installed: make venv-training") from None
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    middle = Result("belay server decides: SIGKILL of one of 4 → next step of all", "ms")
    tail = Result(
        "the same, 99th percentile", "ms", 1000, percentile=99, remark="MindCluster's own waits are 1 to 8 s each"
    )
    with tempfile.TemporaryDirectory(prefix="belay-bench-") as name:
        folder = Path(name)
        events = folder / "events"
        events.touch()
        plan = {
            "world": RANKS, "tp": 1, "pp": 1, "copies": RANKS, "batches": 4, "steps": 10**6, "pause": 0.02, "uce": True,
            "arf": True, "zit": False, "folder": name, "store": store.port, "events": str(events), "acts": [],
        }  # fmt: skip

        told = Story(events)

        async def story(world: World) -> None:
            async with world.server() as server:
                uid = await world.job(pods=1, chips=RANKS, strategy="recover-in-place,recover,dump,exit")
                job = Job(folder, server.port, controller=False, MINDX_TASK_ID=uid, ROOT=str(ROOT))
                job.environ["PLAN"] = json.dumps({**plan, "port": int(job.environ["TTP_PORT"])})
                try:
                    job.manager()
                    job.torchrun(TFT)
                    middle.runs = await _killed(told, job, kills)
                finally:
                    await asyncio.to_thread(job.close)
                    told.end()

        play(folder, story)
    tail.runs = list(middle.runs)
    imports = Result(
        "a fresh process imports PyTorch, for comparison", "ms", runs=[_import() for _ in range(measure.RUNS)]
    )
    return [middle, tail, imports]


def _import() -> float:
    """Milliseconds of a fresh interpreter until PyTorch is there."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=LIMIT)
    return (time.monotonic() - began) * 1000


async def _killed(story: Story, job: Job, kills: int) -> list[float]:
    """Milliseconds of each recovery."""
    runs = []
    await asyncio.sleep(WARM)
    await _until(story, job, lambda: len(story.pids) == RANKS and min(map(len, story.steps.values())) > 5)
    for number in range(kills):
        at = time.monotonic()
        os.kill(story.pids[number % RANKS], signal.SIGKILL)
        await _until(story, job, lambda at=at: story.after(at) is not None)
        moment = story.after(at)
        assert moment is not None
        runs.append((moment - at) * 1000)
        await asyncio.sleep(REST)
        story.read()
    return runs


async def _until(story: Story, job: Job, holds: Any) -> None:
    end = time.monotonic() + LIMIT
    while True:
        story.read()
        if holds():
            return
        if time.monotonic() > end:
            raise AssertionError(f"not within {LIMIT:g} s\n{job.output()}")
        await asyncio.sleep(0.01)
