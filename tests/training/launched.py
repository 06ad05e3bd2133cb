"""A job under ``belay train``, for tests and benchmarks: started, hurt, and read by what its ranks wrote."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
RECENT = 2000
"""Steps of each rank in which those before a fault are looked for."""
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Step:
    """A line of a rank: which step, its loss, the digest of its weights after it, when, by which process."""

    step: int
    loss: str
    digest: str
    at: float
    pid: int


class Job:
    """One launched script; its ranks write into ``folder``."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *arguments: object,
        options: tuple[str, ...] = (),
        inside: tuple[str, ...] = (),
    ) -> None:
        """``inside``: the command that runs it elsewhere, such as ``ip netns exec NAME``."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        number = next(_NUMBERS)
        self.timeline = folder / f"timeline-{number}"
        command = [sys.executable, "-m", "belay.engine.cli", "train", "--timeline", str(self.timeline), *options]
        self._read: dict[int, tuple[TextIO, list[Step]]] = {}
        # appended: reading must not move the place at which the job writes
        self._errors = (folder / f"errors-{number}").open("a+")
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        self.process = subprocess.Popen(
            [*inside, *command, str(SCRIPTS / script), str(folder), *map(str, arguments)],
            cwd=ROOT,
            env=env,
            stderr=self._errors,
            stdout=self._errors,
        )

    @classmethod
    def reader(cls, folder: Path) -> Job:
        """Only the reading side, for ranks that something else has launched."""
        job = cls.__new__(cls)
        job.folder, job._read = folder, {}
        return job

    def steps(self, rank: int) -> list[Step]:
        """What a rank wrote so far, in order of writing."""
        file = self.folder / f"rank-{rank}"
        if rank not in self._read and file.exists():
            self._read[rank] = (file.open(), [])
        if rank not in self._read:
            return []
        lines, found = self._read[rank]
        while True:
            at = lines.tell()
            line = lines.readline()
            if not line.endswith("\n"):
                # not written to its end yet
                lines.seek(at)
                return found
            step, loss, digest, moment, pid = line.split()
            found.append(Step(int(step), loss, digest, int(moment) / 1e9, int(pid)))

    def reached(self, step: int, ranks: int, seconds: float = 150) -> None:
        """Wait until every rank has finished a step."""
        self.until(lambda: all(any(one.step >= step for one in self.steps(rank)) for rank in range(ranks)), seconds)

    def until(self, holds: Callable[[], object], seconds: float = 150) -> None:
        """Wait for a condition. Fails with the job's messages."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds:g} s\n{self.errors()}"
            assert self.process.poll() is None, f"ended with {self.process.returncode}\n{self.errors()}"
            time.sleep(0.01)

    def pid(self, rank: int) -> int:
        """The process that last wrote as ``rank``."""
        return self.steps(rank)[-1].pid

    def kill(self, *ranks: int, number: int = signal.SIGKILL) -> float:
        """Signal the processes of ranks at once; when that was, by the monotonic clock."""
        pids = [self.pid(rank) for rank in ranks]
        at = time.monotonic()
        for pid in pids:
            os.kill(pid, number)
        return at

    def next_step_of_all(self, at: float, ranks: int, seconds: float = 150) -> float:
        """Seconds from ``at`` until every rank had finished a step that it began after it."""
        # of thousands of recoveries each looks at the last steps only
        begin = [max(0, len(self.steps(rank)) - RECENT) for rank in range(ranks)]
        recent = [self.steps(rank)[begin[rank] :] for rank in range(ranks)]
        last = max((one.step for steps in recent for one in steps if one.at <= at), default=-1)

        def first(rank: int) -> float | None:
            steps = itertools.islice(self.steps(rank), begin[rank], None)
            return next((one.at for one in steps if one.at > at and one.step > last), None)

        self.until(lambda: all(first(rank) is not None for rank in range(ranks)), seconds)
        return max(moment for rank in range(ranks) if (moment := first(rank)) is not None) - at

    def recoveries(self) -> list[dict[str, object]]:
        """The lines of the timeline."""
        return [json.loads(line) for line in self.timeline.read_text().splitlines()] if self.timeline.exists() else []

    def end(self, seconds: float = 150) -> int:
        """Wait for the end; its exit code."""
        return self.process.wait(seconds)

    def errors(self) -> str:
        """What launcher and ranks printed."""
        self._errors.seek(0)
        return self._errors.read()[-6000:]

    def everything(self) -> str:
        """All that launcher and ranks printed."""
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._errors.close()
        for file, _ in self._read.values():
            file.close()


def history(job: Job, ranks: int) -> dict[tuple[int, int], tuple[str, str]]:
    """(rank, step) → loss and digest of the last time that the step was done."""
    return {(rank, one.step): (one.loss, one.digest) for rank in range(ranks) for one in job.steps(rank)}


def descendants(pid: int) -> list[int]:
    """Processes below ``pid``."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def signalled(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def gone(pids: Iterable[int], seconds: float = 150) -> None:
    """Wait until none of these processes runs."""
    end = time.monotonic() + seconds
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, f"{left} still run after {seconds:g} s"
        time.sleep(0.01)


def agent_of(job: Job, seconds: float = 60) -> int:
    """The node agent: the launcher's child that runs the launcher's module. After its death another one comes up, which
    is waited for."""
    end = time.monotonic() + seconds
    while True:
        for pid in descendants(job.process.pid):
            # a process may end while it is looked at
            with contextlib.suppress(OSError):
                if b"belay.agents.training.train.agent.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        assert time.monotonic() < end, f"no node agent below {job.process.pid}\n{job.errors()}"
        time.sleep(0.01)
