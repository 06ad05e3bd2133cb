"""What an agent costs: CPU of it and its driver process over a minute after half a minute of rest, and memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from belay.agents.drivers.standin.state import Standin
from tests.bench.measure import ROOT, Result
from tests.bench.running import cpu_seconds, resident

REST, MEASURED = 30.0, float(os.environ.get("BELAY_BENCH_AGENT_SECONDS", "60"))


@contextlib.contextmanager
def program(arguments: list[str], standin: Standin) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program over the stand-in of the driver; it is asked to end, then killed."""
    running = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stderr=subprocess.DEVNULL,
        env={**os.environ, "BELAY_SIM_DCMI_STATE": str(standin.file)},
    )  # fmt: skip
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(40)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


async def cost(pid: int, part: str) -> list[Result]:
    """CPU and memory of an agent with ``part`` that runs already."""
    cpu = Result(f"agent with {part}, 8 chips, 5 s: CPU with its driver process", "% of a core", 1)
    memory = Result("the same: memory of the agent (RSS)", "MiB", 80)
    await asyncio.sleep(REST)
    family = [pid, *_children(pid)]
    for _ in range(int(MEASURED // 20) or 1):
        before, begin = _seconds(family), time.monotonic()
        await asyncio.sleep(min(20.0, MEASURED))
        cpu.runs.append(100 * (_seconds(family) - before) / (time.monotonic() - begin))
        memory.runs.append(resident(pid))
    memory.remark = f"driver process beside it: {resident(family[1]):.0f} MiB"
    return [cpu, memory]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _seconds(family: list[int]) -> float:
    # the processes that it waited for are part of what it costs
    return sum(cpu_seconds(pid, waited=True) for pid in family)


__all__ = ["cost", "program"]
