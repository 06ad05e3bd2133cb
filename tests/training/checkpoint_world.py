"""A writing process of a test's own, and what tests of checkpoints ask of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agents.training.checkpoint import client, settings, wire
from agents.training.checkpoint.errors import CheckpointError


def pid_of(work: Path) -> int | None:
    """The writing process of ``work``."""
    try:
        return int((work / wire.PIDFILE).read_text())
    except (OSError, ValueError):
        return None


def kill(work: Path) -> None:
    """Kill the writing process and wait until it has gone."""
    pid = pid_of(work)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether the process runs."""
    try:
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def until(true: Callable[[], object], wait_s: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + wait_s
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@contextmanager
def writing(work: Path, **chosen: object) -> Iterator[client.WriterClient]:
    """A client whose writing process ends with the test."""
    one = client.WriterClient(work, settings.WriterSettings(**{"capacity_gb": 1, **chosen}))  # type: ignore[arg-type]
    try:
        yield one
    finally:
        with suppress(CheckpointError, OSError):
            one.connect(start=False)
            one.ask({"do": "stop"})
        pid = pid_of(work)
        if pid is not None and alive(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of ``size`` (a tmpfs) mounted at ``place``; needs root."""
    import subprocess

    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
